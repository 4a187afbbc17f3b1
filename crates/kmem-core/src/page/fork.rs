//! Repair of a zone in a forked child.
//!
//! A child's memory is not one moment of its parent's: other threads went on while the kernel
//! copied it page by page. Two words of a run say that it is live, and they lie on different pages.
//! If only one of them says so, another thread was allocating or freeing the run, and no thread of
//! the child has it. In a zone without extension words only the length says so. Then such a run may
//! stay in use in the child. Pages of slabs are those of chunks with a class. All other tables are
//! computed from these words.

use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::credit::{Credit, State};
use super::{PageWords, Run, Zone, lane};
use crate::row::span;
use crate::sync::Ordering;
use crate::units::{CHUNK_ORDER, PageCount, Pageblock, Pfn};

/// Pageblocks behind a zone's end whose numbers a fork may have copied: the parent was growing it.
const GROWN: u32 = 1024;

/// Meaning of the extension words of pages at which no live run begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FreeWords {
    /// The tag of the last owner.
    Owners,
    /// A number that the zone's user put there.
    Numbers,
}

impl FreeWords {
    /// Clears the words of a page at which no live run begins. Writes only what changes: the kernel
    /// copies a written page.
    fn clear(self, words: PageWords<'_>) {
        if words.len.load(Ordering::Relaxed) != 0 {
            words.len.store(0, Ordering::Relaxed);
        }
        let word = words.word();
        if self == Self::Owners && word & EXT_LIVE != 0 {
            words.set_word(word & TAG_MASK);
        }
    }
}

impl Zone {
    /// Rebuilds rows, credit and hints, and clears what is left of runs that are not live.
    /// `other_use` returns, for the first page of each chunk, the number of pages from there on
    /// that slabs use.
    ///
    /// # Safety
    /// No other thread uses the zone.
    pub unsafe fn rebuild(&self, free: FreeWords, other_use: impl Fn(Pfn) -> PageCount) {
        // SAFETY: no other thread uses the sets, by the contract.
        unsafe { self.pageblocks.clear(self.pages.pageblocks()) };
        self.space.forget();
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
            let begins_chunk = at.0.is_multiple_of(1 << CHUNK_ORDER);
            let slab = if begins_chunk { other_use(at) } else { PageCount::ZERO };
            for page in 0..slab.0 {
                self.words(at + PageCount(page)).into_iter().for_each(|words| free.clear(words));
            }
            let run = live_length(words);
            if run == PageCount::ZERO {
                free.clear(words);
            }
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
        // The parent may have grown the zone at the fork, and set numbers behind this end.
        self.fits.mend(end.0.saturating_add(GROWN));
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

/// Length of the live run that begins at a page with these words; 0 if none does.
fn live_length(words: PageWords<'_>) -> PageCount {
    let is_marked = words.ext.is_none() || words.word() & EXT_LIVE != 0;
    if is_marked { words.length() } else { PageCount::ZERO }
}
