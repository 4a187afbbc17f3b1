//! Fit: the longest run that a claim can find in each pageblock. A search goes to the first
//! pageblock that has one long enough, in a time logarithmic in the zone's length.
//!
//! A claim looks for a run inside a row; for more than a row it looks for whole rows, and the head
//! of one more. So two numbers describe a pageblock, and each has a tree of maxima
//! ([`crate::row::maxima`]):
//!
//! | lane    | number                                          | claims that it serves    |
//! |---------|-------------------------------------------------|--------------------------|
//! | `RUN`   | code of the longest such run, exact below 128   | unaligned runs           |
//! | `BLOCK` | 1 + order of the largest naturally aligned block | blocks of an order, slabs |
//!
//! Both are 0 unless the pageblock is partly used. They follow its bits, not its credit. A CPU's
//! reserve is credit without bits, so a search visits such a pageblock and fails: two per CPU.
//!
//! Numbers may be too high. A thread that takes pages leaves them as they are, and a search that
//! finds nothing in a pageblock counts again. So at most one visit fails for each claim of up to
//! 128 pages. Above that, lengths share codes, and visits for the longer one may fail each time.
//! Numbers are never too low at rest: a thread that gives pages raises them after bits and credit.

use super::Zone;
use super::credit::State;
use super::huge::Use;
use crate::row::starts;
use crate::sync::{Ordering, loom_fence};
use crate::units::{PAGEBLOCK_PAGES, PageCount, Pageblock, Pfn};

/// Lanes of the trees.
pub(super) mod lane {
    pub(super) const RUN: u32 = 0;
    pub(super) const BLOCK: u32 = 1;
    pub(in crate::page) const COUNT: u32 = 2;
}

/// Rows of a pageblock.
type Rows = [u64; 8];

/// The numbers of a pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fit {
    run: u8,
    block: u8,
}

/// A search for pageblocks: a lane, and the least number in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Want {
    lane: u32,
    least: u8,
}

impl Want {
    /// Pageblocks that may have a run of `pages`, which is less than a pageblock.
    pub(super) const fn run(pages: PageCount) -> Self {
        Self { lane: lane::RUN, least: code(pages.0) }
    }

    /// Pageblocks that have an aligned block of at least `pages`, which is less than a pageblock.
    pub(super) const fn block(pages: PageCount) -> Self {
        let order = pages.0.next_power_of_two().trailing_zeros();
        Self { lane: lane::BLOCK, least: 1 + order as u8 }
    }

    /// The use of a pageblock that is broken up for it.
    pub(super) const fn use_of(self) -> Use {
        if self.lane == lane::RUN { Use::Run } else { Use::Blocks }
    }
}

/// A number for lengths below 512: exact up to 128 pages, in steps of 2 up to 256 pages, then of 4.
const fn code(pages: u32) -> u8 {
    match pages {
        0..128 => pages as u8,
        128..256 => (64 + pages / 2) as u8,
        256..512 => (128 + pages / 4) as u8,
        _ => u8::MAX,
    }
}

/// Length of the longest run of set bits.
const fn longest(bits: u64) -> u32 {
    if bits == u64::MAX {
        return 64;
    }
    // Bit i of `long[k]`: a run of 2^k bits begins at i.
    let mut long = [bits; 6];
    let mut k = 1;
    while k < 6 && long[k - 1] & long[k - 1] >> (1 << (k - 1)) != 0 {
        long[k] = long[k - 1] & long[k - 1] >> (1 << (k - 1));
        k += 1;
    }
    k -= 1;
    if bits == 0 {
        return 0;
    }
    // Lengthen it by a binary search: bit i of `found` has a run of `len`.
    let (mut found, mut len) = (long[k], 1 << k);
    while k > 0 {
        k -= 1;
        let longer = found & long[k] >> len;
        if longer != 0 {
            found = longer;
            len += 1 << k;
        }
    }
    len
}

/// 1 + the order of the largest aligned block in a row; 0: it has none.
fn largest_block(bits: u64) -> u8 {
    (0..=6).take_while(|&order| starts(bits, 1 << order, 1 << order) != 0).count() as u8
}

impl Fit {
    const NONE: Self = Self { run: 0, block: 0 };

    /// The numbers of a pageblock with these rows.
    fn of(rows: &Rows) -> Self {
        let whole = |i: &usize| rows[*i] == u64::MAX;
        let (mut run, mut block) = (0, 0);
        if (0..8).any(|i| whole(&i)) {
            for first in 0..8 {
                let count = (first..8).take_while(whole).count();
                let head = rows.get(first + count).map_or(0, |row| row.trailing_ones());
                if count > 0 {
                    run = run.max(count as u32 * 64 + head);
                }
            }
            let has = |len: usize| rows.chunks_exact(len).any(|c| c.iter().all(|&r| r == u64::MAX));
            block = 7 + [2, 4, 8].into_iter().take_while(|&len| has(len)).count() as u8;
            return Self { run: code(run), block };
        }
        for &row in rows {
            if starts(row, run + 1, 1) != 0 {
                run = longest(row);
            }
            if starts(row, 1 << block, 1 << block) != 0 {
                block = largest_block(row);
            }
        }
        Self { run: code(run), block }
    }
}

impl Zone {
    /// The numbers of a pageblock as it is now.
    fn fit(&self, pageblock: Pageblock) -> Fit {
        loom_fence();
        // In a forked child, the numbers may be newer than the count of committed pages.
        if pageblock >= self.end() || self.credit(pageblock).state() != State::Partial {
            return Fit::NONE;
        }
        let mut rows = [0; 8];
        for (bits, (_, row)) in rows.iter_mut().zip(self.rows_of(pageblock)) {
            // Sequentially consistent with a give, as `Maxima::lower` requires.
            *bits = row.0.load(Ordering::SeqCst);
        }
        Fit::of(&rows)
    }

    /// The first pageblock from `from` on that has what is wanted, or seems to.
    pub(super) fn next_fit(&self, want: Want, from: Pageblock) -> Option<Pageblock> {
        self.fits.next(want.lane, from.0, want.least).map(Pageblock)
    }

    /// Counts what fits into a pageblock again, and corrects its numbers.
    pub(super) fn refit(&self, pageblock: Pageblock) {
        let fit = self.fit(pageblock);
        self.raise_to(pageblock, fit);
        let run = self.fits.lower(lane::RUN, pageblock.0, fit.run);
        let block = self.fits.lower(lane::BLOCK, pageblock.0, fit.block);
        if run || block {
            self.raise_fit(pageblock);
        }
    }

    /// Counts what fits into a pageblock again, and raises its numbers to that.
    pub(super) fn raise_fit(&self, pageblock: Pageblock) {
        self.raise_to(pageblock, self.fit(pageblock));
    }

    fn raise_to(&self, pageblock: Pageblock, fit: Fit) {
        self.fits.raise(lane::RUN, pageblock.0, fit.run);
        self.fits.raise(lane::BLOCK, pageblock.0, fit.block);
    }

    /// Raises the numbers of a pageblock that got pages of one row back. The row's bits are `bits`
    /// since then. Only if the row is part of a longer run are the others counted, too.
    pub(super) fn raise_fit_by(&self, row: Pfn, bits: u64) {
        let pageblock = row.pageblock();
        loom_fence();
        let below = bits & 1 != 0
            && !row.0.is_multiple_of(PAGEBLOCK_PAGES)
            && self.row(row - PageCount::ROW).0.load(Ordering::SeqCst) == u64::MAX;
        if below || bits == u64::MAX {
            self.raise_fit(pageblock);
            return;
        }
        let run = self.fits.get(lane::RUN, pageblock.0);
        if run < 63 && starts(bits, u32::from(run) + 1, 1) != 0 {
            self.fits.raise(lane::RUN, pageblock.0, code(longest(bits)));
        }
        let block = self.fits.get(lane::BLOCK, pageblock.0);
        if block < 6 && starts(bits, 1 << block, 1 << block) != 0 {
            self.fits.raise(lane::BLOCK, pageblock.0, largest_block(bits));
        }
    }

    /// Returns whether searches find a pageblock for all that fits into it. For a zone at rest.
    pub(super) fn is_found(&self, pageblock: Pageblock) -> bool {
        let Fit { run, block } = self.fit(pageblock);
        [(lane::RUN, run), (lane::BLOCK, block)].into_iter().all(|(lane, number)| {
            self.fits.get(lane, pageblock.0) >= number && self.fits.is_found(lane, pageblock.0)
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn is_free(rows: &Rows, page: u32) -> bool {
        rows[page as usize / 64] >> (page % 64) & 1 != 0
    }

    /// Returns whether a claim could find a run of that length in a pageblock.
    fn has_run(rows: &Rows, pages: u32) -> bool {
        let step = if pages <= 64 { 1 } else { 64 };
        let fits = |start: u32| pages > 64 || start % 64 + pages <= 64;
        let free = |start: u32| (start..start + pages).all(|page| is_free(rows, page));
        (0..=512 - pages).step_by(step).any(|start| fits(start) && free(start))
    }

    fn has_block(rows: &Rows, pages: u32) -> bool {
        let free = |start: u32| (start..start + pages).all(|page| is_free(rows, page));
        (0..512).step_by(pages as usize).any(free)
    }

    /// Rows with a few free runs, some of them long; or a few taken ones.
    fn rows() -> impl Strategy<Value = Rows> {
        let len = prop_oneof![1..65u32, 60..70u32, 1..512u32];
        let runs = prop::collection::vec((0..512u32, len), 0..12);
        (runs, any::<bool>()).prop_map(|(runs, free)| {
            let mut rows = [if free { 0 } else { u64::MAX }; 8];
            for (start, len) in runs {
                for page in start..(start + len).min(512) {
                    let bit = 1 << (page % 64);
                    let row = &mut rows[page as usize / 64];
                    *row = if free { *row | bit } else { *row & !bit };
                }
            }
            rows
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn a_pageblock_fits_what_a_plain_search_finds(rows in rows()) {
            let fit = Fit::of(&rows);
            for pages in 1..512 {
                let Want { least, .. } = Want::run(PageCount(pages));
                let found = has_run(&rows, pages);
                prop_assert!(!found || fit.run >= least, "{pages} pages: {fit:?}, {rows:x?}");
                // Lengths that are their code's shortest are found exactly.
                if code(pages - 1) < code(pages) {
                    prop_assert_eq!(found, fit.run >= least, "{} pages: {:?}", pages, fit);
                }
            }
            for order in 0..9 {
                let Want { least, .. } = Want::block(PageCount(1 << order));
                let found = has_block(&rows, 1 << order);
                prop_assert_eq!(found, fit.block >= least, "order {}: {:?}", order, fit);
            }
        }
    }

    #[test]
    fn lengths_that_cpus_keep_are_found_exactly() {
        for pages in crate::class::RunClass::all().map(|class| class.pages().0) {
            assert!(pages >= 512 || code(pages - 1) < code(pages), "{pages}");
        }
        assert!((1..512).all(|pages| code(pages - 1) <= code(pages) && code(pages) > 0));
    }
}
