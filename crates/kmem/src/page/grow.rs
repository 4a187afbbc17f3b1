//! Making more of a zone's address space usable.

use core::ptr::NonNull;

use super::{On, WHOLE, Zone};
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::{CHUNK_ORDER, FRAME_ORDER, FRAME_PAGES, PAGE_SIZE, Pfn};

/// Growth is an eighth of what is there, within these bounds, in frames.
const STEP: core::ops::RangeInclusive<u32> = 2..=128;
/// Tables are committed for so many pages at once: 64 MiB.
const SECTION_PAGES: u32 = 1 << 14;
/// Pages described by one word of the sets of slabs.
const SEARCH_PAGES: u32 = 64 << CHUNK_ORDER;

impl<P: Platform> On<'_, P> {
    /// Commits at least `pages` more pages, or somebody else does at this moment. False: the
    /// zone is at its end or the platform has no memory.
    pub(super) fn grow(&self, pages: u64) -> bool {
        let zone = self.zone;
        let old = zone.committed();
        let room = zone.pages - old;
        let Ok(pages) = u32::try_from(pages) else {
            return false;
        };
        let need = pages.next_multiple_of(FRAME_PAGES);
        if need > room {
            return false;
        }
        let step = ((old >> FRAME_ORDER) / 8).clamp(*STEP.start(), *STEP.end()) << FRAME_ORDER;
        let wish = need.max(step).min(room);
        for add in [wish, need] {
            let total = (old + add) as usize * PAGE_SIZE;
            if !self.platform.allows(total) || !self.describe(old + add) {
                continue;
            }
            let Some(at) = NonNull::new(zone.address(Pfn(old)) as *mut u8) else {
                return false;
            };
            // SAFETY: part of the zone's reservation. Two threads may both commit it.
            if unsafe { self.platform.commit(at, add as usize * PAGE_SIZE) } {
                zone.publish(old, add);
                return true;
            }
        }
        false
    }

    /// Commits the tables for the first `pages` pages, and a little more: a search may look at
    /// the word behind the last one it needs. False: no memory.
    pub fn describe(&self, pages: u32) -> bool {
        let zone = self.zone;
        let have = zone.described.load(Ordering::Acquire);
        if have >= pages.saturating_add(SEARCH_PAGES).min(zone.pages) {
            return true;
        }
        let want =
            pages.saturating_add(SEARCH_PAGES).next_multiple_of(SECTION_PAGES).min(zone.pages);
        for table in &zone.tables {
            let bytes = |pages: u32| (pages >> CHUNK_ORDER) as usize * table.bits as usize / 8;
            let from = (table.at + bytes(have)) & !(PAGE_SIZE - 1);
            let to = (table.at + bytes(want)).next_multiple_of(PAGE_SIZE);
            let Some(at) = NonNull::new(from as *mut u8) else { return false };
            // SAFETY: part of the reservation of the metadata, which ends on a page.
            if !unsafe { self.platform.commit(at, to - from) } {
                return false;
            }
        }
        zone.described.fetch_max(want, Ordering::AcqRel);
        true
    }
}

impl Zone {
    /// Puts committed frames up for use; exactly one of those who committed them does so.
    pub(super) fn publish(&self, old: u32, add: u32) {
        // SAFETY: `block` is valid for the zone's life.
        let committed = unsafe { &(*self.block).committed };
        let (from, to) = (u64::from(old), u64::from(old + add));
        if committed.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        for pfn in (old..old + add).step_by(64) {
            self.row(Pfn(pfn)).0.store(u64::MAX, Ordering::Relaxed);
        }
        for frame in old >> FRAME_ORDER..(old + add) >> FRAME_ORDER {
            let _ = self.update_credit(frame, |_| Some(WHOLE));
            self.rehint(frame);
        }
    }
}
