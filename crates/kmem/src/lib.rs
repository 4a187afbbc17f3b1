//! kmem: the memory-allocation stack of an operating-system kernel as a library.
//!
//! One [`Kmem`] value wires an instance. Layers, each of which may use only those below it
//! (ARCHITECTURE.md says why; a test checks it):
//!
//! ```text
//! kmem       facade: the malloc family, the global allocator
//! alloc_tag  the books: profiling switch, census, peak
//! codetag    what a tag stands for
//! slab       slabs, sheaves, barn
//! page       zone, rows, credit, purge
//! row        the 64-bit claim primitive, summaries
//! cpu        per-CPU slots: rseq or try-lock
//! class      size classes and the layout of their slabs
//! os         the only door to the platform
//! conf, blackbox, root, units, sync
//! ```
#![cfg_attr(not(test), no_std)]

pub mod alloc_tag;
pub mod blackbox;
pub mod class;
pub mod codetag;
pub mod conf;
pub mod cpu;
mod kmem;
pub mod os;
pub mod page;
pub mod root;
pub mod row;
pub mod slab;
pub mod sync;
pub mod units;

#[cfg(kmem_linux)]
pub use kmem::Kmem;
pub use kmem::{Fault, Instance, Stats};
