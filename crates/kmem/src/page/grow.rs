//! Making more of a zone's address space usable.

use core::ptr::NonNull;

use super::{On, WHOLE, Zone};
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::{FRAME_ORDER, FRAME_PAGES, PAGE_SIZE, Pfn};

/// Growth is an eighth of what is there, within these bounds, in frames.
const STEP: core::ops::RangeInclusive<u32> = 2..=128;

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
            let at = zone.address(Pfn(old));
            let Some(at) = NonNull::new(at as *mut u8) else {
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
}

impl Zone {
    /// Puts committed frames up for use; exactly one of those who committed them does so.
    fn publish(&self, old: u32, add: u32) {
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
