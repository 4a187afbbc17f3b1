//! The books: live bytes and objects by tag, counted on demand.
//!
//! Nothing is counted when memory is allocated or freed; one word per object says who holds
//! it. The census walks these words: four bytes per object.

use crate::class::ClassGeometry;
use crate::root::{EXT_LIVE, PeakEntry, PeakTable, RootBlock, TAG_MASK, TAG_UNTAGGED};
use crate::slab::SlabZone;
use crate::sync::Ordering;
use crate::units::{PageCount, Pfn, TagId};

use crate::page::Zone;

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

/// Bytes of a peak table.
pub const fn peak_bytes() -> usize {
    size_of::<PeakTable>() + crate::codetag::MAX_SITES as usize * size_of::<PeakEntry>()
}

/// Starts a new peak table when use is 5 % above the last one, unless somebody else is at it.
/// The caller fills it and finishes it.
pub fn begin_peak<'a>(root: &RootBlock, peak: &'a PeakTable) -> Option<PeakUpdate<'a>> {
    let used = u64::from(root.used_pages.load(Ordering::Relaxed));
    let before = peak.used_pages.load(Ordering::Relaxed);
    if used < before + (before / 20).max(64) {
        return None;
    }
    let seq = peak.seq.load(Ordering::Acquire);
    if seq % 2 == 1 {
        return None;
    }
    peak.seq.compare_exchange(seq, seq + 1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    let entries = (&raw const *peak).wrapping_add(1).cast::<PeakEntry>();
    let len = root.site_count.load(Ordering::Acquire).min(crate::codetag::MAX_SITES);
    let update = PeakUpdate { peak, entries, len: len as usize, seq, used };
    for i in 0..update.len {
        update.entry(i).bytes.store(0, Ordering::Relaxed);
        update.entry(i).calls.store(0, Ordering::Relaxed);
    }
    Some(update)
}

/// A peak table being filled.
pub struct PeakUpdate<'a> {
    peak: &'a PeakTable,
    entries: *const PeakEntry,
    len: usize,
    seq: u64,
    used: u64,
}

impl PeakUpdate<'_> {
    fn entry(&self, i: usize) -> &PeakEntry {
        // SAFETY: `i` is below `len`, which is at most MAX_SITES; the table has that many.
        unsafe { &*self.entries.add(i) }
    }

    /// Adds to a tag's row.
    pub fn add(&mut self, tag: TagId, bytes: u64, calls: u64) {
        let i = tag.0 as usize;
        if i < self.len {
            let entry = self.entry(i);
            entry.bytes.store(entry.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
            entry.calls.store(entry.calls.load(Ordering::Relaxed) + calls, Ordering::Relaxed);
        }
    }

    /// Makes the table whole again.
    pub fn finish(self) {
        self.peak.used_pages.store(self.used, Ordering::Relaxed);
        self.peak.len.store(self.len as u64, Ordering::Relaxed);
        self.peak.seq.store(self.seq + 2, Ordering::Release);
    }
}
