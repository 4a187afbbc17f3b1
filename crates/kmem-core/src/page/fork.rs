//! Repair of a zone in a forked child.
//!
//! A child's memory is not one moment of its parent's: other threads went on while the kernel
//! copied it page by page. One word says how a run of pages is used: `len`, or the chunk's class.
//! So all other tables are computed from these words.

use super::credit::{Credit, State};
use super::{Run, Zone, lane};
use crate::row::span;
use crate::sync::Ordering;
use crate::units::{CHUNK_ORDER, PageCount, Pageblock, Pfn};

impl Zone {
    /// Rebuilds rows, credit and hints. `other_use` returns, for the first page of each chunk, the
    /// number of pages from there on that slabs use.
    ///
    /// # Safety
    /// No other thread uses the zone.
    pub unsafe fn rebuild(&self, other_use: impl Fn(Pfn) -> PageCount) {
        // SAFETY: no other thread uses the sets, by the contract.
        unsafe { self.pageblocks.clear(self.pages.pageblocks()) };
        let (committed, end) = (self.committed(), self.end());
        for pageblock in Pageblock(0).up_to(end) {
            for (first, row) in self.rows_of(pageblock) {
                row.0.store(u64::MAX, Ordering::Relaxed);
                // The kernel may have copied a page's contents later than its dirty bit.
                self.dirty(first).store(u64::MAX, Ordering::Relaxed);
            }
            self.set_credit(pageblock, Credit::WHOLE);
        }
        let mut at = Pfn::ZERO;
        while let Some(words) = self.words(at) {
            let slab =
                if at.0.is_multiple_of(1 << CHUNK_ORDER) { other_use(at) } else { PageCount::ZERO };
            let run = PageCount(words.len.load(Ordering::Relaxed));
            let taken = slab.max(run).min(committed - at.index());
            if taken > PageCount::ZERO {
                self.retake(Run { start: at, pages: taken });
                self.count_taken(taken);
            }
            at += taken.max(PageCount::ONE);
        }
        for pageblock in Pageblock(0).up_to(end) {
            if !self.is_whole(pageblock) {
                let free = PageCount(self.free_bits(pageblock));
                self.set_credit(pageblock, Credit::of(free));
            }
            if self.credit(pageblock).state() != State::Taken {
                self.pageblocks.insert(lane::PURGE, pageblock.0);
            }
            self.rehint(pageblock);
        }
        for cursor in &self.cursor {
            cursor.store(0, Ordering::Relaxed);
        }
    }

    /// Marks a run as taken again, whole pageblocks as a whole.
    fn retake(&self, run: Run) {
        let (mut at, end) = (run.start, run.end());
        while at < end {
            let whole = PageCount::PAGEBLOCK;
            if at.0.is_multiple_of(whole.0) && end - at >= whole {
                self.set_credit(at.pageblock(), Credit::HUGE);
                at += whole;
                continue;
            }
            let len = PageCount(64 - at.0 % 64).min(end - at);
            self.row(at).0.fetch_and(!span(at.0 % 64, len.0), Ordering::Relaxed);
            at += len;
        }
    }
}
