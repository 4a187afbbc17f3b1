//! The books: live bytes and objects by tag, counted on demand.
//!
//! Nothing is counted when memory is allocated or freed; one word per object says who holds
//! it. The census walks these words: four bytes per object.

#[cfg(not(loom))]
mod blackbox;
mod tally;
#[cfg(not(loom))]
mod watch;

use crate::class::ClassGeometry;
use crate::root::{EXT_LIVE, TAG_MASK, TAG_UNTAGGED};
use crate::slab::SlabZone;
use crate::sync::Ordering;
use crate::units::{PageCount, Pfn, TagId};

use crate::page::Zone;

#[cfg(not(loom))]
pub use blackbox::BlackBox;
pub use tally::{PeakUpdate, Scratch, Tally, begin_peak, is_higher, peak_bytes, scratch_bytes};
#[cfg(not(loom))]
pub(crate) use watch::count_live;
#[cfg(not(loom))]
pub use watch::{Warned, Watch, live_bytes};

/// Calls `each` with tag, bytes and objects of everything live in a zone, in no order and in
/// any number of parts.
pub fn census(
    zone: &Zone,
    slabs: &SlabZone,
    classes: &[ClassGeometry],
    books: bool,
    mut each: impl FnMut(TagId, u64, u64),
) {
    let committed = PageCount(zone.committed());
    if books {
        slabs.each_slab(committed, classes, |slab, class| {
            let geometry = &classes[class.0 as usize];
            let size = u64::from(geometry.size);
            // Neighbours mostly share a tag: report runs, not objects.
            let (mut tag, mut count) = (0, 0);
            for word in slabs.extension(slab, geometry) {
                let word = word.load(Ordering::Relaxed);
                if word & EXT_LIVE == 0 {
                    continue;
                }
                if word & TAG_MASK != tag {
                    if count > 0 {
                        each(TagId(tag), count * size, count);
                    }
                    (tag, count) = (word & TAG_MASK, 0);
                }
                count += 1;
            }
            if count > 0 {
                each(TagId(tag), count * size, count);
            }
        });
    }
    let mut pfn = 0;
    while pfn < committed.0 {
        let len = zone.len(Pfn(pfn)).load(Ordering::Acquire);
        if len != 0 {
            let word = zone.ext(Pfn(pfn)).load(Ordering::Relaxed);
            let tag = if books { word & TAG_MASK } else { TAG_UNTAGGED };
            each(TagId(tag), PageCount(len).bytes() as u64, 1);
        }
        pfn += len.max(1);
    }
}
