//! A bit per page of a zone.

use crate::page::Run;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{PageCount, Pfn};

/// Bits of the pages of a zone.
///
/// # Invariants
/// `words` leads to a word for each 64 of the `pages`, in memory that is never freed.
#[derive(Clone, Copy)]
pub(super) struct Bits {
    words: *const AtomicU64,
    pages: PageCount,
}

impl Bits {
    /// Views zeroed memory as bits.
    ///
    /// # Safety
    /// `words` are [`Self::bytes`] of zeroed memory, for these bits alone and never freed.
    pub(super) const unsafe fn new(words: *const AtomicU64, pages: PageCount) -> Self {
        // INVARIANT: a word for each 64 pages, never freed, by the contract.
        Self { words, pages }
    }

    /// Bytes of the bits of a zone of `pages`.
    pub(super) const fn bytes(pages: PageCount) -> usize {
        (pages.0 as usize).div_ceil(64) * 8
    }

    /// The word of a page; `None` beyond the zone.
    fn word(&self, page: Pfn) -> Option<&AtomicU64> {
        // SAFETY: a page of the zone has a word, by the type's invariant.
        (page.index() < self.pages).then(|| unsafe { &*self.words.add(page.0 as usize / 64) })
    }

    /// Sets a page's bit.
    pub(super) fn set(&self, page: Pfn) {
        if let Some(word) = self.word(page) {
            word.fetch_or(1 << (page.0 % 64), Ordering::Release);
        }
    }

    /// Clears a page's bit. Returns whether it was set.
    pub(super) fn clear(&self, page: Pfn) -> bool {
        let bit = 1 << (page.0 % 64);
        self.word(page).is_some_and(|word| word.fetch_and(!bit, Ordering::AcqRel) & bit != 0)
    }

    /// Returns whether a page's bit is set.
    pub(super) fn has(&self, page: Pfn) -> bool {
        let word = self.word(page).map_or(0, |word| word.load(Ordering::Acquire));
        word >> (page.0 % 64) & 1 != 0
    }

    /// The pages below `end` whose bits are set.
    pub(super) fn all(self, end: PageCount) -> impl Iterator<Item = Pfn> {
        self.within(Run { start: Pfn::ZERO, pages: end })
    }

    /// The pages of a run whose bits are set.
    pub(super) fn within(self, run: Run) -> impl Iterator<Item = Pfn> {
        let (from, end) = (run.start.0, run.end().0);
        (from / 64..end.div_ceil(64)).flat_map(move |word| {
            let mut rest = self.word(Pfn(word * 64)).map_or(0, |word| word.load(Ordering::Acquire));
            if word == from / 64 {
                rest &= u64::MAX << (from % 64);
            }
            core::iter::from_fn(move || {
                let page = word * 64 + rest.trailing_zeros();
                let found = (rest != 0 && page < end).then_some(Pfn(page));
                rest &= rest.wrapping_sub(1);
                found
            })
        })
    }
}
