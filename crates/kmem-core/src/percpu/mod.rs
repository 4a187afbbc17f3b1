//! Per-CPU memory: objects of which every CPU has a copy (the kernel's `alloc_percpu`).
//!
//! ```text
//! handle space   | slab: objects, rows, extension words | slab | ..    a zone of its own
//!                    ^ handle
//! unit of CPU 0      | copy |          .. at the handle + table[0]
//! unit of CPU 1      | copy |          .. at the handle + table[1]
//! ```
//!
//! A handle is the address of an object in the handle space, which is cut into slabs like the heap.
//! So the books, the repair after a fork, and readers outside the process treat per-CPU objects
//! like all others. The memory at the handle is the **shared copy**, for threads without a CPU
//! number. The copy of a CPU lies at the same offset in the CPU's unit, which is address space of
//! the same length. A unit is reserved when an operation first runs on its CPU. Only pages that are
//! written to have memory.
//!
//! Slabs of the handle space are committed in all units before an object of them is handed out. A
//! new unit is committed up to the last slab (`end`) before it is ready. A thread that makes a slab
//! moves `end` before it looks for units. A thread that makes a unit publishes it before it reads
//! `end`. So one of the two commits.
//!
//! | word of a unit  | meaning                                          |
//! |-----------------|--------------------------------------------------|
//! | 0               | no unit                                          |
//! | distance        | reserved; not yet committed up to `end`          |
//! | distance, READY | in use                                           |
//!
//! An operation (`this_cpu_add` and the like) finds its CPU and does its work in one critical
//! section, see [`crate::cpu`]. So a migration, a preemption or a signal cannot tear it. On targets
//! without sections, all threads use atomics, on the copy of a slot that spreads them. A thread
//! that is not registered for sections, or whose CPU gets no unit, uses atomics on the shared copy,
//! which no section writes to.
//!
//! | file         | what it does                                              |
//! |--------------|-----------------------------------------------------------|
//! | `objects`    | allocates and frees handles                               |
//! | `units`      | the address space of each CPU                             |
//! | `operations` | adds, reads, exchanges on the copy of this CPU            |
//! | `stats`      | counts, and their text as the kernel writes it            |
//! | `validate`   | recounts at rest                                          |
//!
//! Context: any, signal handlers included. No operation waits.

mod objects;
mod operations;
mod stats;
mod units;
mod validate;
mod word;

#[cfg(not(all(kmem_rseq, not(miri))))]
mod no_rseq;
#[cfg(all(kmem_rseq, not(miri)))]
mod rseq;

#[cfg(not(all(kmem_rseq, not(miri))))]
use no_rseq as rseq;

pub use objects::{On, PerCpu};
pub use stats::PerCpuStats;
pub use units::Units;
pub use word::Word;
