//! Reads the books of a kmem process from outside and puts names to them.
//!
//! ```text
//! process    maps, memory, pages, identity of a live process      (the only unsafe code)
//! core_file  the same of a dead one, from its core file
//! memory     either of them
//! blackbox   the file a process kept while it ran
//! books      root block -> zones -> census: live bytes per tag; the peak table; the equation
//! modules    the modules of a loader in a process, and its statistics
//! control    the few words of a root block that may be written from outside
//! symbols    return address -> function, file and line, or module and offset
//! sites      books + symbols: rows that people can read, merged by place
//! filter     which rows are made at all
//! live       the live rows of a snapshot, filtered
//! stacks     rows as call stacks: a tree, collapsed stacks, speedscope
//! allocinfo  the text format of /proc/allocinfo, written and read
//! program    what kind of file a program is, before it is run
//! report     tables and the accounting line for people
//! ```
//!
//! A live process is never stopped and no lock is taken in it. Only `control` writes to it, and
//! only when asked. Nothing read from a process or from a file is trusted: every address and
//! count is checked against the process's mappings and the file's length.

pub mod allocinfo;
pub mod blackbox;
pub mod books;
pub mod control;
pub mod core_file;
pub mod error;
pub mod escape;
mod extents;
pub mod filter;
pub mod live;
pub mod memory;
pub mod modules;
pub mod process;
pub mod program;
pub mod report;
pub mod sites;
pub mod stacks;
pub mod symbols;

pub use blackbox::BlackBox;
pub use books::Snapshot;
pub use control::Control;
pub use core_file::CoreFile;
pub use error::ReadError;
pub use process::Process;

/// The allocator, whose layouts of the root block and of the black box this crate reads.
pub use kmem;
