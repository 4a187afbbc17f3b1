//! Loads relocatable ELF modules into a running process, with the kernel's semantics.
//!
//! ```text
//! loader      finit_module, init_module, delete_module: the states of a module
//! kmod        request_module: by name, alias, dependencies       depmod: which file that is
//! registry    who loads what: duplicates, waiting                module: uses, what it consists of
//! link        a checked file becomes memory
//! symbols, params, tags                                          what a module exports, takes, allocates for
//! relocate    per instruction set, veneers, far addresses        image, layout: text RX, rodata R, data RW
//! probe       the name of a module, through a window             describe: all that it says of itself
//! tryout      all of that but running it
//! elf, modinfo, signature                                        the file, checked
//! source, decompress                                             where its bytes come from
//! stats, board                                                   what readers see, outside the process, too
//! name, alloc, os, completion, error                             memory, waiting
//! ```
//!
//! Modules are written with `include/kmem_module.h`. A file is read in pieces, each once, and only
//! the checked copy is used. A module's name is claimed before it has memory, so a duplicate costs none: see
//! [`registry`]. Everything that can fail goes through [`os::Os`] or [`alloc`], and is undone completely.
//!
//! What a module does when it runs is its own matter: a crash in init is a crash of the process.

pub mod alloc;
pub mod board;
pub mod completion;
pub mod decompress;
pub mod depmod;
pub mod describe;
pub mod elf;
pub mod error;
pub mod image;
mod kmod;
pub mod layout;
pub mod link;
pub mod loader;
pub mod modinfo;
pub mod module;
pub mod name;
pub mod os;
pub mod params;
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
