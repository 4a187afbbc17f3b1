//! Which pages may hold old contents, and zeroing those that do.

use core::ptr::NonNull;

use super::{On, Run, Zone};
use crate::os::Platform;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{PageCount, Pageblock, Pfn};

/// Runs of this length and longer are zeroed by dropping their contents. Their users mostly do not
/// write to all pages, and dropped pages take no memory.
const FRESH: PageCount = PageCount(256);

impl Zone {
    /// Dirty bits of a row.
    pub(super) fn dirty(&self, pfn: Pfn) -> &AtomicU64 {
        debug_assert!(pfn.index() < self.pages);
        // SAFETY: `dirty` has a word for each 64 pages of the zone, by its invariant.
        unsafe { &*self.dirty.add(pfn.0 as usize / 64) }
    }

    /// Returns whether no page of a run can hold old contents.
    pub fn reads_zero(&self, run: Run) -> bool {
        self.dirty_spans(run).next().is_none()
    }

    /// The parts of a run that may hold old contents: a row's first page, and a mask of the row.
    pub(super) fn dirty_spans(&self, run: Run) -> impl Iterator<Item = (Pfn, u64)> {
        run.rows().filter_map(|(row, mask)| {
            let mask = self.dirty(row).load(Ordering::Relaxed) & mask;
            (mask != 0).then_some((row, mask))
        })
    }

    /// Notes that the pages of a run may have contents. Called before other threads can claim them.
    pub fn mark_dirty(&self, run: Run) {
        for (row, mask) in run.rows() {
            self.mark_row_dirty(row, mask);
        }
    }

    /// Notes that pages of one row may have contents.
    pub(super) fn mark_row_dirty(&self, row: Pfn, mask: u64) {
        let word = self.dirty(row);
        if word.load(Ordering::Relaxed) & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Returns whether all pages of a pageblock may hold old contents.
    pub(super) fn is_all_dirty(&self, pageblock: Pageblock) -> bool {
        let rows = (0..8).map(|i| pageblock.first() + PageCount::of_rows(i));
        let words = rows.map(|row| self.dirty(row).load(Ordering::Relaxed));
        words.fold(u64::MAX, |all, word| all & word) == u64::MAX
    }
}

impl<P: Platform> On<'_, P> {
    /// Makes a run read as zero.
    ///
    /// # Safety
    /// The caller claimed the run, and alone uses its pages.
    pub unsafe fn zero(&self, run: Run) {
        if self.zone.reads_zero(run) {
            return;
        }
        // SAFETY: the caller alone uses the pages, and zeroes may take the place of their contents.
        if run.pages >= FRESH && unsafe { self.drop_pages(run) } {
            return;
        }
        for (row, mask) in self.zone.dirty_spans(run) {
            for (first, len) in crate::row::runs(mask) {
                let at = self.zone.address(row + PageCount(first)) as *mut u8;
                // SAFETY: pages of the run, which are committed and which the caller alone uses.
                unsafe { at.write_bytes(0, PageCount(len).bytes()) };
            }
        }
    }

    /// Gives the memory of a run to the platform. The pages stay claimed and read as zero. False:
    /// the platform refused, and the contents are unchanged.
    ///
    /// # Safety
    /// The caller alone uses the pages, and their contents are not needed.
    pub unsafe fn drop_pages(&self, run: Run) -> bool {
        NonNull::new(self.zone.address(run.start) as *mut u8)
            // SAFETY: committed pages of a zone, whose contents are not needed, by the contract.
            .is_some_and(|at| unsafe { self.platform.decommit(at, run.pages.bytes()) })
    }
}
