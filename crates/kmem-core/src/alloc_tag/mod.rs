//! The books (the kernel's memory allocation profiling): live bytes and allocations by tag, counted
//! on demand; the switch; records of the counts at a moment.
//!
//! | file       | what it does                                                        |
//! |------------|---------------------------------------------------------------------|
//! | `books`    | the switch, call sites, which calls are watched                     |
//! | `census`   | counts everything live                                              |
//! | `tally`    | sums by tag: the peak table, the scratch table                      |
//! | `records`  | writes sums down: at a peak, on request                             |
//! | `blackbox` | the file that survives the process                                  |
//! | `samples`  | samples of allocations for a tracer                                 |
//! | `unending` | references to memory that is never freed                            |
//! | `watch`    | calls that are counted or checked one by one                        |
//!
//! Context: any, signal handlers included. No thread waits: a caller that finds a table in use goes
//! on without it.

#[cfg(not(loom))]
mod blackbox;
#[cfg(not(loom))]
mod books;
#[cfg(not(loom))]
mod census;
#[cfg(not(loom))]
mod records;
#[cfg(not(loom))]
mod samples;
mod tally;
#[cfg(not(loom))]
mod unending;
#[cfg(not(loom))]
mod watch;

use kmem_layout::word::{CHARGED_METADATA, OBJCG_SHIFT, TAG_MASK};

use crate::class::SizeClass;
use crate::units::{ObjcgId, PAGE_SIZE, TagId};

#[cfg(not(loom))]
pub use blackbox::{BlackBox, Change, Place as BoxPlace, Recording};
#[cfg(not(loom))]
pub use books::{Books, Mode, Tables};
#[cfg(not(loom))]
pub use census::Census;
#[cfg(not(loom))]
pub use samples::Samples;
pub use tally::{
    PeakUpdate, Scratch, Tally, begin_peak, is_higher, note_highest, peak_bytes, scratch_bytes,
};
#[cfg(not(loom))]
pub use watch::{LiveTag, Place, Warned, Watch, live_bytes};

/// Kinds of allocations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Objects of slabs.
    Slab,
    /// Pages of the heap.
    Pages,
    /// Areas of vmalloc, and pages for vmap.
    Vmalloc,
    /// Per-CPU objects.
    PerCpu,
}

/// Live allocations of one tag, one group and one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Tag of the holder.
    pub tag: TagId,
    /// The group that pays.
    pub objcg: ObjcgId,
    /// Class of the objects; 0 for page allocations.
    pub class: SizeClass,
    /// Their bytes.
    pub bytes: u64,
    /// Number of allocations.
    pub calls: u64,
}

impl Held {
    /// Allocations that all have the extension word `word`.
    pub fn new(word: u32, class: SizeClass, bytes: u64, calls: u64) -> Self {
        let tag = TagId(word & TAG_MASK);
        Self { tag, objcg: ObjcgId(word >> OBJCG_SHIFT), class, bytes, calls }
    }

    /// Bytes that a group is charged for them. Each object has an extension word; so has each page.
    pub fn charged(&self) -> u64 {
        let words = if self.class.0 == 0 { self.bytes / PAGE_SIZE as u64 } else { self.calls };
        self.bytes + words * CHARGED_METADATA
    }
}
