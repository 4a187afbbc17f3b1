//! Giving runs of pages back to a zone.

use super::{DoubleFree, FrameState, HUGE, WHOLE, Zone, lane, rows_of};
use crate::sync::Ordering;
use crate::units::{FRAME_ORDER, FRAME_PAGES, PageCount, Pfn};

impl Zone {
    /// Gives back a run that was claimed, or any part of one. Frames inside it that were taken
    /// as a whole are released as a whole.
    ///
    /// # Errors
    /// The first page that was free already; the rest of the run is given back all the same,
    /// and the counts stay right.
    pub fn give(&self, start: Pfn, pages: PageCount) -> Result<(), DoubleFree> {
        self.count_used(-i64::from(pages.0));
        let mut result = Ok(());
        let (mut at, end) = (start.0, start.0 + pages.0);
        while at < end {
            let frame = at >> FRAME_ORDER;
            let stop = ((frame + 1) << FRAME_ORDER).min(end);
            let here = stop - at;
            let given = if self.credit(frame) == HUGE {
                self.give_huge(Pfn(at), here)
            } else {
                self.give_spans(Pfn(at), here)
            };
            if result.is_ok() {
                result = given;
            }
            self.aged(frame);
            at = stop;
        }
        result
    }

    /// All or part of a frame that is taken as a whole.
    fn give_huge(&self, at: Pfn, pages: u32) -> Result<(), DoubleFree> {
        let frame = at.frame().0;
        self.mark_dirty(at, pages);
        if pages == FRAME_PAGES {
            return if self.release_frame(frame) {
                self.lower_cursors(frame, FRAME_PAGES);
                Ok(())
            } else {
                Err(DoubleFree(at))
            };
        }
        // Break it: all of it used, page by page, then the part goes back.
        self.trim(frame, FRAME_PAGES);
        self.give_spans(at, pages)
    }

    /// Makes the pages of a run ones that can be given back one by one: frames that are taken as a
    /// whole become frames whose pages are all in use.
    pub fn loosen(&self, start: Pfn, pages: PageCount) {
        for frame in start.frame().0..Pfn(start.0 + pages.0 - 1).frame().0 + 1 {
            if self.credit(frame) == HUGE {
                self.trim(frame, FRAME_PAGES);
            }
        }
    }

    /// Pages of one or more frames that are taken one by one.
    pub(super) fn give_spans(&self, start: Pfn, pages: u32) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        for (row, mask) in rows_of(start, pages) {
            self.mark_row_dirty(row, mask);
            let twice = self.row(row).give(mask);
            if twice != 0 && result.is_ok() {
                result = Err(DoubleFree(row.offset(twice.trailing_zeros())));
            }
            let given = mask.count_ones() - twice.count_ones();
            if given > 0 {
                self.give_credit(row.frame().0, given as u16);
            }
        }
        result
    }

    /// Adds to a frame's credit what was added to its bits.
    pub(super) fn give_credit(&self, frame: u32, pages: u16) {
        let old = self.update_credit(frame, |old| {
            // A frame cannot hold more; if it does, a bug elsewhere must not make it HUGE.
            (old != HUGE).then(|| (old + pages).min(WHOLE))
        });
        if let Ok(old) = old {
            if FrameState::of(old) != FrameState::of((old + pages).min(WHOLE)) {
                self.rehint(frame);
            }
            self.lower_cursors(frame, u32::from(old + pages));
        }
    }

    /// Notes that pages may hold contents from now on; before they can be claimed again.
    pub fn mark_dirty(&self, start: Pfn, pages: u32) {
        for (row, mask) in rows_of(start, pages) {
            self.mark_row_dirty(row, mask);
        }
    }

    /// The same for pages of one row.
    pub(super) fn mark_row_dirty(&self, row: Pfn, mask: u64) {
        let word = self.dirty(row);
        if word.load(Ordering::Relaxed) & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Starts a frame's decay anew.
    pub(super) fn aged(&self, frame: u32) {
        self.stamp(frame).store(self.decay.generation(), Ordering::Relaxed);
        if !self.frames.contains(lane::PURGE, frame) {
            self.frames.insert(lane::PURGE, frame);
        }
    }
}
