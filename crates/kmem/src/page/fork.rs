//! Repair of a zone in a forked child.
//!
//! A child's memory is not one moment of its parent's: other threads went on while the kernel
//! copied it page by page. What a run of pages *is* stands in one word each (`len`, or the
//! chunk's class), so everything else is computed from that.

use super::{FrameState, HUGE, WHOLE, Zone};
use crate::row::span;
use crate::sync::Ordering;
use crate::units::{FRAME_ORDER, FRAME_PAGES, PageCount, Pfn};

impl Zone {
    /// Rebuilds rows, credit and hints. `other_use` tells, for the first page of each chunk,
    /// how many pages from there on are in use other than by a page allocation (slabs).
    ///
    /// # Safety
    /// No other thread uses the zone.
    pub unsafe fn rebuild(&self, other_use: impl Fn(Pfn) -> PageCount) {
        // SAFETY: the caller's promise.
        unsafe { self.frames.clear(self.pages >> FRAME_ORDER) };
        let committed = self.committed();
        for pfn in (0..committed).step_by(64) {
            self.row(Pfn(pfn)).0.store(u64::MAX, Ordering::Relaxed);
            // A page's contents may be younger than the word that says it has some.
            self.dirty(Pfn(pfn)).store(u64::MAX, Ordering::Relaxed);
        }
        for frame in 0..committed >> FRAME_ORDER {
            let _ = self.update_credit(frame, |_| Some(WHOLE));
        }
        let mut used = 0i64;
        let mut pfn = 0;
        while pfn < committed {
            let slab = if pfn % 16 == 0 { other_use(Pfn(pfn)).0 } else { 0 };
            let run = self.len(Pfn(pfn)).load(Ordering::Relaxed).min(committed - pfn);
            let taken = slab.max(run).min(committed - pfn);
            if taken == 0 {
                pfn += 1;
                continue;
            }
            self.retake(pfn, taken);
            used += i64::from(taken);
            pfn += taken;
        }
        for frame in 0..committed >> FRAME_ORDER {
            if self.credit(frame) != HUGE {
                let bits: u32 = (0..8)
                    .map(|i| self.row(Pfn((frame << FRAME_ORDER) + i * 64)).load().count_ones())
                    .sum();
                let _ = self.update_credit(frame, |_| Some(bits as u16));
            }
            if FrameState::of(self.credit(frame)) != FrameState::Taken {
                self.frames.insert(super::lane::PURGE, frame);
            }
            self.rehint(frame);
        }
        for cursor in &self.cursor {
            cursor.store(0, Ordering::Relaxed);
        }
        self.count_used(used);
    }

    /// Marks a run as taken again, whole frames as a whole.
    fn retake(&self, start: u32, pages: u32) {
        let (mut at, end) = (start, start + pages);
        while at < end {
            if at.is_multiple_of(FRAME_PAGES) && end - at >= FRAME_PAGES {
                let _ = self.update_credit(at >> FRAME_ORDER, |_| Some(HUGE));
                at += FRAME_PAGES;
                continue;
            }
            let len = (64 - at % 64).min(end - at);
            self.row(Pfn(at)).0.fetch_and(!span(at % 64, len), Ordering::Relaxed);
            at += len;
        }
    }
}
