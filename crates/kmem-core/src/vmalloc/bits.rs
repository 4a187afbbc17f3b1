//! Words beside the pages of a zone, and a bit per page.

use crate::page::Run;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{PageCount, Pfn};

/// Words beside a zone: one for each 64 pages.
///
/// # Invariants
/// `at` leads to `len` words, in memory that is never freed.
#[derive(Clone, Copy)]
pub(super) struct Words {
    at: *const AtomicU64,
    len: usize,
}

impl Words {
    /// Views zeroed memory as words.
    ///
    /// # Safety
    /// `at` are [`Self::bytes`] of zeroed memory, for these words alone and never freed.
    pub(super) const unsafe fn new(at: *const AtomicU64, pages: PageCount) -> Self {
        // INVARIANT: that many words, never freed, by the contract.
        Self { at, len: Self::bytes(pages) / 8 }
    }

    /// Bytes of the words of a zone of `pages`.
    pub(super) const fn bytes(pages: PageCount) -> usize {
        (pages.0 as usize).div_ceil(64) * 8
    }

    /// Their number.
    pub(super) const fn len(self) -> usize {
        self.len
    }

    /// The word of a number; `None` beyond the last.
    pub(super) fn get<'a>(self, number: usize) -> Option<&'a AtomicU64> {
        // SAFETY: a word below their number, by the type's invariant.
        (number < self.len).then(|| unsafe { &*self.at.add(number) })
    }
}

/// A bit for each page of a zone.
#[derive(Clone, Copy)]
pub(super) struct Bits(pub(super) Words);

impl Bits {
    /// The word of a page; `None` beyond the zone.
    fn word(&self, page: Pfn) -> Option<&AtomicU64> {
        self.0.get(page.0 as usize / 64)
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
