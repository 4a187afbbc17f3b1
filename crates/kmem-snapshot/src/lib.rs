//! Reads the books of a kmem process from outside and puts names to them.
//!
//! ```text
//! process    maps, memory, page map, identity of a live process      (the only unsafe code)
//! books      root block -> zones -> census: live bytes per tag; the peak table; the equation
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
//! The process is never stopped and no lock is taken in it. Only `control` writes to it, and only
//! when asked. Nothing read from it is
//! trusted: every address and count is checked against the process's own mappings.

pub mod allocinfo;
pub mod books;
pub mod control;
pub mod error;
pub mod escape;
pub mod filter;
pub mod live;
pub mod process;
pub mod program;
pub mod report;
pub mod sites;
pub mod stacks;
pub mod symbols;

pub use books::Snapshot;
pub use control::Control;
pub use error::ReadError;
pub use process::Process;
