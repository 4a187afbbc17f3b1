//! Giving runs of pages back to a zone.

use super::credit::Credit;
use super::{DoubleFree, Run, Zone, lane};
use crate::units::{PageCount, Pageblock, Pfn};

impl Zone {
    /// Gives back a run that was claimed, or any part of one. Pageblocks inside it that were taken
    /// as a whole are released as a whole.
    ///
    /// # Errors
    /// The first page that was free already, or is not of this zone. The rest of the run is given
    /// back, and the counts stay right.
    pub fn give(&self, run: Run) -> Result<(), DoubleFree> {
        if !self.holds(run.start, run.pages) {
            return Err(DoubleFree(run.start));
        }
        self.count_given(run.pages);
        let mut result = Ok(());
        let (mut at, end) = (run.start, run.end());
        while at < end {
            let pageblock = at.pageblock();
            let stop = pageblock.end().min(end);
            let here = Run { start: at, pages: stop - at };
            let given =
                if self.is_whole(pageblock) { self.give_huge(here) } else { self.give_spans(here) };
            result = result.and(given);
            self.aged(pageblock);
            at = stop;
        }
        result
    }

    /// Gives back all or part of a pageblock that is taken as a whole.
    fn give_huge(&self, run: Run) -> Result<(), DoubleFree> {
        let pageblock = run.start.pageblock();
        self.mark_dirty(run);
        if run.pages == PageCount::PAGEBLOCK {
            let released = self.release_pageblock(pageblock);
            return if released { Ok(()) } else { Err(DoubleFree(run.start)) };
        }
        // Break it up: make all its pages used one by one, then give a part of them back.
        self.trim(pageblock, PageCount::PAGEBLOCK);
        self.give_spans(run)
    }

    /// Makes the pages of a run pages that can be given back one by one. Pageblocks that are taken
    /// as a whole become pageblocks whose pages are all in use.
    pub fn loosen(&self, run: Run) {
        if run.pages == PageCount::ZERO || !self.holds(run.start, run.pages) {
            return;
        }
        let last = (run.end() - PageCount::ONE).pageblock();
        for pageblock in run.start.pageblock().up_to(last.after(1)) {
            if self.is_whole(pageblock) {
                self.trim(pageblock, PageCount::PAGEBLOCK);
            }
        }
    }

    /// Gives back pages of pageblocks that are taken page by page.
    pub(super) fn give_spans(&self, run: Run) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        for (row, mask) in run.rows() {
            result = result.and(self.give_mask_of(row, mask));
        }
        result
    }

    /// Gives back the pages of a mask of one row, in a pageblock that is not taken as a whole.
    pub(super) fn give_mask_of(&self, row: Pfn, mask: u64) -> Result<(), DoubleFree> {
        self.mark_row_dirty(row, mask);
        let before = self.row(row).put(mask);
        let twice = before & mask;
        let given = PageCount(mask.count_ones() - twice.count_ones());
        if given > PageCount::ZERO && !self.add_credit(row.pageblock(), Credit::of(given)) {
            self.raise_fit_by(row, before | mask);
        }
        if twice == 0 { Ok(()) } else { Err(DoubleFree(row + PageCount(twice.trailing_zeros()))) }
    }

    /// Restarts a pageblock's decay.
    pub(super) fn aged(&self, pageblock: Pageblock) {
        self.stamp(pageblock);
        if !self.pageblocks.contains(lane::PURGE, pageblock.0) {
            self.pageblocks.insert(lane::PURGE, pageblock.0);
        }
    }
}
