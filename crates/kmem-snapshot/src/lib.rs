//! Reads the memory profile of a kmem process from outside: rows of call sites with their live
//! bytes. They come from a running process, a core file or a black box.
//!
//! ```no_run
//! use kmem_snapshot::sites::Order;
//! use kmem_snapshot::{Query, Target, report};
//!
//! let mut reading = Target::Process(1234).read(&Query::default())?;
//! for note in &reading.notes {
//!     eprintln!("{note}");
//! }
//! reading.sites.sort_by(|a, b| Order::Size.compare(a, b));
//! report::write_table(&mut std::io::stdout(), &reading.sites, 10)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A live process is not stopped, and no lock is taken in it. Only [`control`] writes to it, and
//! only on request. The reader trusts nothing that it reads. It checks every address and count
//! against the process's mappings or the file's length.
//!
//! Modules, each of which uses those below it:
//!
//! ```text
//! doors      readers that fuzz targets call alone
//! export     metrics and profiles over HTTP
//! output     rows in the formats that other programs read
//! page       a report as one HTML page
//! reading    the entry: target -> rows, filtered, with notes; several processes as one
//! kernel     the books of the kernel on this machine, and why there may be none
//! listed     rows that a file lists: allocinfo text, JSON, a kernel's log, a recording
//! recording  a file with the rows of many moments, written and read
//! notes      facts that a user must know to read the rows
//! leaks      live objects to which no pointer leads
//! report     tables and the accounting line, for people
//! diff       changes by place, between two readings
//! stacks     rows as call stacks, and these as a tree
//! allocinfo  the text format of /proc/allocinfo, written and read
//! sites      rows for people: books + symbols, merged by place; filters
//! modules    the modules of a loader in a process, and its statistics
//! control    the words of a root block that may be written from outside
//! blackbox   the file that a process kept while it ran
//! bare       a process without kmem, and how it was started
//! books      root block -> zones -> census: live bytes per tag; the peak; the equation
//! symbols    return address -> function, file and line, or module and offset
//! escape     names made safe to print
//! memory     the memory of a process, live or in its core file    (all unsafe code)
//! core_file  a dead process, by its core file
//! program    the kind of a program file, before it is run
//! select     a choice of processes: by pid, by name, by control group
//! listing    the processes under kmem, by pid and by name
//! image      a process to read books from, alive or dead
//! process    a live process, by /proc
//! maps       the mappings of a process
//! clock      the time of day
//! budget     the most memory and work that a reading may take
//! error      why a process or its file cannot be read
//! ```
//!
//! A reader has an error for what it cannot read, and does not panic. Lints keep calls that panic
//! by design out of the crate, and indexes out of the modules that parse files and texts.

#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod allocinfo;
pub mod bare;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod blackbox;
pub mod books;
pub mod budget;
mod clock;
pub mod control;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod core_file;
pub mod diff;
#[doc(hidden)]
pub mod doors;
pub mod error;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod escape;
pub mod export;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
mod extents;
mod image;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
mod kernel;
pub mod leaks;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
mod listed;
pub mod listing;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod maps;
pub mod memory;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod modules;
pub mod notes;
pub mod output;
pub mod page;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod process;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod program;
pub mod reading;
#[cfg_attr(not(test), deny(clippy::indexing_slicing))]
pub mod recording;
pub mod report;
pub mod select;
pub mod sites;
pub mod stacks;
pub mod symbols;

pub use blackbox::BlackBox;
pub use books::Snapshot;
pub use budget::Budget;
pub use control::Control;
pub use core_file::CoreFile;
pub use error::ReadError;
pub use kernel::Summary as KernelMemory;
pub use notes::Note;
pub use process::Process;
pub use reading::{
    By, ProcessTotal, Query, ReadFailure, Reading, Recorder, Symbolized, Target, When,
};
pub use select::Selection;
pub use sites::{Filter, Pattern, Site};
pub use symbols::DebugFiles;
