//! The books: live bytes and objects by tag, counted on demand.
//!
//! Nothing is counted when memory is allocated or freed; one word per object says who holds
//! it. The census walks these words: four bytes per object.

#[cfg(not(loom))]
mod blackbox;
mod tally;
#[cfg(not(loom))]
mod watch;

use crate::class::{ClassGeometry, SizeClass};
use crate::root::{CHARGED_METADATA, EXT_LIVE, OBJCG_SHIFT, TAG_MASK, TAG_UNTAGGED};
use crate::slab::SlabZone;
use crate::sync::Ordering;
use crate::units::{ObjcgId, PAGE_SIZE, PageCount, Pfn, TagId};

use crate::page::Zone;

#[cfg(not(loom))]
pub use blackbox::{BlackBox, Recording};
pub use tally::{PeakUpdate, Scratch, Tally, begin_peak, is_higher, peak_bytes, scratch_bytes};
#[cfg(not(loom))]
pub(crate) use watch::count_live;
#[cfg(not(loom))]
pub use watch::{LiveTag, Warned, Watch, live_bytes};

/// What allocations are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Objects of slabs.
    Slab,
    /// Pages of the heap.
    Pages,
    /// Virtually contiguous areas, and pages to be mapped again.
    Vmalloc,
    /// Per-CPU objects.
    PerCpu,
}

/// Live allocations of one tag, one group and one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Who holds them.
    pub tag: TagId,
    /// Who pays for them.
    pub objcg: ObjcgId,
    /// Class of the objects; 0 for page allocations.
    pub class: SizeClass,
    /// Bytes.
    pub bytes: u64,
    /// Allocations.
    pub calls: u64,
}

impl Held {
    fn new(word: u32, class: SizeClass, bytes: u64, calls: u64) -> Self {
        let tag = TagId(word & TAG_MASK);
        Self { tag, objcg: ObjcgId(word >> OBJCG_SHIFT), class, bytes, calls }
    }

    /// What a group is charged for them: an extension word each, of pages one per page.
    pub fn charged(&self) -> u64 {
        let words = if self.class.0 == 0 { self.bytes / PAGE_SIZE as u64 } else { self.calls };
        self.bytes + words * CHARGED_METADATA
    }
}

/// Calls `each` for everything live in a zone, in no order and in any number of parts.
pub fn census(
    zone: &Zone,
    slabs: &SlabZone,
    classes: &[ClassGeometry],
    books: bool,
    mut each: impl FnMut(Held),
) {
    let committed = PageCount(zone.committed());
    if books {
        slabs.each_slab(committed, classes, |slab, class| {
            let geometry = &classes[class.0 as usize];
            let size = u64::from(geometry.size);
            let held = |word, count| Held::new(word, class, count * size, count);
            // Neighbours mostly share a word: report runs, not objects.
            let (mut run, mut count) = (0, 0);
            for word in slabs.extension(slab, geometry) {
                let word = word.load(Ordering::Relaxed);
                if word & EXT_LIVE == 0 {
                    continue;
                }
                if word != run {
                    if count > 0 {
                        each(held(run, count));
                    }
                    (run, count) = (word, 0);
                }
                count += 1;
            }
            if count > 0 {
                each(held(run, count));
            }
        });
    }
    let mut pfn = 0;
    while pfn < committed.0 {
        let len = zone.len(Pfn(pfn)).load(Ordering::Acquire);
        if len != 0 {
            let word = zone.ext(Pfn(pfn)).load(Ordering::Relaxed);
            let word = if books { word } else { TAG_UNTAGGED };
            each(Held::new(word, SizeClass(0), PageCount(len).bytes() as u64, 1));
        }
        pfn += len.max(1);
    }
}
