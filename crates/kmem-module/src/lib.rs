//! Loads relocatable ELF modules into a running process, with the kernel's semantics.
//!
//! ```text
//! loader                   finit_module, init_module, delete_module; states of a module
//! kmod, depmod             request_module by name or alias; files of names, dependencies
//! registry, module         loads under way, duplicates, waiting; a module and its users
//! link                     turns a checked file into memory
//! symbols, params          exports and parameters of a module
//! kallsyms                 symbols of a live module, for readers
//! jit, perf_map            and for debuggers and perf
//! tags, libkmem, percpu    call sites of a module, and its memory in the allocator's books
//! relocate                 relocations of each instruction set, veneers, far addresses
//! image, layout            memory of a module: text RX, rodata R, data RW
//! probe, describe          the name of a module through a window; all its information
//! tryout                   loads a module without running it
//! elf, modinfo, signature  parts of the file, checked
//! keyring                  verifies signatures with trusted certificates (a feature)
//! source, decompress       bytes of the file
//! stats, board             statistics and modules for readers outside the process
//! name, alloc, os          names, small allocations, the platform
//! completion, error        waiting; error numbers with text
//! ```
//!
//! Modules are written with `include/kmem_module.h`. The loader reads each piece of a file once,
//! and uses only the copy that it checked. It claims a module's name before it allocates memory for
//! it, so a duplicate needs no memory: see [`registry`]. All operations that can fail go through
//! [`os::Os`] or [`alloc`]; a failure undoes the whole request.
//!
//! A module's code runs unprotected: a crash in init is a crash of the process.

pub mod alloc;
pub mod board;
pub mod completion;
pub mod decompress;
pub mod depmod;
pub mod describe;
pub mod elf;
pub mod error;
pub mod image;
#[cfg(feature = "jit")]
pub mod jit;
mod kallsyms;
#[cfg(feature = "keyring")]
pub mod keyring;
mod kmod;
pub mod layout;
pub mod libkmem;
pub mod link;
pub mod loader;
pub mod modinfo;
pub mod module;
pub mod name;
pub mod os;
pub mod params;
mod percpu;
mod perf_map;
pub mod probe;
pub mod registry;
pub mod relocate;
pub mod signature;
pub mod source;
pub mod stats;
pub mod symbols;
pub mod tags;
pub mod tryout;

pub use error::{Errno, Error, Result};
pub use loader::{Config, Loader};
