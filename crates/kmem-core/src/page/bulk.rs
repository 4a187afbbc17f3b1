//! Many blocks at once: CPUs' arrays are refilled from here and emptied into it.
//!
//! **Single pages** and small blocks come from a pageblock whose whole credit a CPU holds, its
//! [`Reserve`]. Eight refills take its 512 pages, one word of bits each, and touch nothing else
//! that is shared. Two CPUs do not use one pageblock. **Huge pages** are taken up to four by one
//! compare-and-swap, and hints are changed for 64 pageblocks at once.

use super::credit::Credit;
use super::fit::Want;
use super::{DoubleFree, On, Run, Zone, lane};
use crate::os::Platform;
use crate::row::span;
use crate::units::{Item, Order, PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_SIZE, PageCount, Pageblock, Pfn};

/// Credit of one pageblock that a CPU holds: pages that no other CPU can claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// The pageblock.
    pub pageblock: Pageblock,
    /// Number of pages; 0: no reserve, and `pageblock` has no meaning.
    pub credit: u16,
}

impl Reserve {
    /// No reserve.
    pub const NONE: Self = Self { pageblock: Pageblock(0), credit: 0 };
}

impl<P: Platform> On<'_, P> {
    /// Takes blocks of an order below that of rows, in ascending order per pageblock. Takes them
    /// from `reserve`, then from other pageblocks, each of which becomes the reserve. Fills `out`
    /// from its end. Returns the count.
    pub fn claim_bulk(&self, order: Order, reserve: &mut Reserve, out: &mut [Item]) -> usize {
        let (zone, pages) = (self.zone, order.pages());
        let mut got = zone.take_reserved(order, reserve, out);
        while got < out.len() {
            let room = out.len() - got;
            let mut take = || self.take_blocks(order, &mut out[..room]);
            // The zone grows for the first block only.
            let found = if got == 0 { self.until_grown(pages, pages, take) } else { take() };
            let Some((rest, more)) = found else { break };
            got += more;
            // The old reserve has no block left, or a thread that searches for a longer run holds
            // its bits for a moment.
            zone.unreserve(core::mem::replace(reserve, rest));
        }
        if got > 0 {
            zone.count_taken(PageCount(got as u32 * pages.0));
        }
        got
    }

    /// Takes whole pageblocks into the end of `out`, lowest last. Returns the count. The zone grows
    /// for the first of them only.
    pub fn claim_pageblocks_bulk(&self, out: &mut [Item]) -> usize {
        let zone = self.zone;
        let one = (PageCount::PAGEBLOCK, PageCount::ONE);
        let mut more = self.until_grown(one.0, one.1, || zone.take_free_pageblocks(out.len()));
        let mut got = 0;
        while let Some((index, mut bits)) = more {
            while bits != 0 {
                let pageblock = Pageblock(index * 64 + bits.trailing_zeros());
                bits &= bits - 1;
                self.back_huge(pageblock);
                got += 1;
                let at = out.len() - got;
                out[at] = Item::at(zone.address(pageblock.first()));
            }
            more = zone.take_free_pageblocks(out.len() - got);
        }
        if got > 0 {
            zone.count_taken(PageCount::of_pageblocks(got as u32));
        }
        got
    }

    /// Takes blocks from the next pageblock that has some, into the end of `out`. Returns all the
    /// credit of that pageblock that is left over, and the count of blocks, at least 1.
    fn take_blocks(&self, order: Order, out: &mut [Item]) -> Option<(Reserve, usize)> {
        let (zone, pages) = (self.zone, order.pages());
        self.search(Want::block(pages), |pageblock| {
            let take = |old: Credit| (old.pages() >= pages).then_some(Credit::NONE);
            let credit = zone.update_credit(pageblock, take).ok()?;
            let mut reserve = Reserve { pageblock, credit: credit.0 };
            let got = zone.take_reserved(order, &mut reserve, out);
            if got == 0 {
                // It has no such block, or a thread that searches for a longer run holds the bits.
                zone.unreserve(reserve);
            }
            // On failure, too: other threads may have taken pages while this credit was withheld.
            zone.rehint(pageblock);
            (got > 0).then_some((reserve, got))
        })
    }
}

impl Zone {
    /// Gives a reserve back to its pageblock.
    pub fn unreserve(&self, reserve: Reserve) {
        if reserve.credit > 0 {
            self.give_credit(reserve.pageblock, Credit(reserve.credit));
        }
    }

    /// Takes blocks from a reserve. Fills `out` from its end. Returns the count.
    fn take_reserved(&self, order: Order, reserve: &mut Reserve, out: &mut [Item]) -> usize {
        let pages = order.pages().0;
        let mut room = out.len();
        for i in 0..8 {
            let most = (u32::from(reserve.credit) / pages).min(room as u32);
            if most == 0 {
                break;
            }
            let first = reserve.pageblock.first() + PageCount::of_rows(i);
            let row = self.row(first);
            let mut starts = if pages == 1 { row.take(most) } else { row.take_blocks(pages, most) };
            let count = starts.count_ones();
            reserve.credit -= (count * pages) as u16;
            let base = self.address(first);
            let into = &mut out[room - count as usize..room];
            room -= count as usize;
            if starts == u64::MAX {
                let last = base + 63 * PAGE_SIZE;
                for (n, page) in into.iter_mut().enumerate() {
                    *page = Item::at(last - n * PAGE_SIZE);
                }
                continue;
            }
            for block in into.iter_mut().rev() {
                *block = Item::at(base + starts.trailing_zeros() as usize * PAGE_SIZE);
                starts &= starts - 1;
            }
        }
        out.len() - room
    }

    /// Takes up to `most` wholly free pageblocks of the first group of 64 that has some. Returns
    /// the group's index, and the pageblocks taken as bits.
    fn take_free_pageblocks(&self, most: usize) -> Option<(u32, u64)> {
        if most == 0 {
            return None;
        }
        let mut from = 0;
        loop {
            let index = self.pageblocks.next(lane::FREE, from)? / 64;
            let mut hinted = self.pageblocks.word_of(lane::FREE, index);
            let (mut taken, mut left) = (0u64, most as u32);
            while hinted != 0 && left > 0 {
                let four = hinted.trailing_zeros() & !3;
                let lanes = self.take_some_lanes(Pageblock(index * 64 + four), left);
                taken |= u64::from(lanes) << four;
                left -= lanes.count_ones();
                hinted &= !(0xF << four);
            }
            if taken != 0 {
                // This thread holds the pageblocks, so no other thread changes their state.
                self.pageblocks.remove_many(lane::FREE, index, taken);
                return Some((index, taken));
            }
            from = (index + 1) * 64;
        }
    }

    /// Gives back blocks of an order that were claimed. Blocks that follow each other in `blocks`
    /// and lie in one row are given together.
    ///
    /// # Errors
    /// The first page that was free already. The others are given back, and the counts stay right.
    ///
    /// # Safety
    /// All of `blocks` are addresses in the committed part of this zone.
    pub unsafe fn give_bulk(&self, order: Order, blocks: &[Item]) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        let mut rest = blocks;
        let (mut given, pages) = (0, order.pages().0);
        let number = |item: &Item| ((item.address() - self.base) >> PAGE_SHIFT) as u32;
        while let Some(first) = rest.first() {
            let row = number(first) / 64;
            let mut mask = 0u64;
            let mut count = 0;
            for page in rest.iter().map(number) {
                let bits = span(page % 64, pages);
                // A block that is in `blocks` twice goes to its row twice, which detects it.
                if page / 64 != row || mask & bits != 0 {
                    break;
                }
                mask |= bits;
                count += 1;
            }
            rest = &rest[count..];
            given += count as u32 * pages;
            let done = self.give_mask(Pfn(row * 64), mask);
            result = result.and(done);
        }
        self.count_given(PageCount(given));
        result
    }

    /// Gives back the pages of a mask of one row.
    fn give_mask(&self, row: Pfn, mask: u64) -> Result<(), DoubleFree> {
        let pageblock = row.pageblock();
        if self.is_whole(pageblock) {
            self.trim(pageblock, PageCount::PAGEBLOCK);
        }
        let result = self.give_mask_of(row, mask);
        self.aged(pageblock);
        result
    }

    /// Gives back whole pageblocks that were claimed. Those that follow each other in `pageblocks`
    /// and lie in one group of 64 are given together.
    ///
    /// # Errors
    /// The first page of one that was free already. The others are given back.
    ///
    /// # Safety
    /// All of `pageblocks` are addresses in the committed part of this zone.
    pub unsafe fn give_pageblocks_bulk(&self, pageblocks: &[Item]) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        let mut rest = pageblocks;
        let number = |item: &Item| ((item.address() - self.base) / PAGEBLOCK_SIZE) as u32;
        while let Some(first) = rest.first() {
            let index = number(first) / 64;
            let mut mask = 0u64;
            let mut count = 0;
            for pageblock in rest.iter().map(number) {
                let bit = 1 << (pageblock % 64);
                if pageblock / 64 != index || mask & bit != 0 {
                    break;
                }
                mask |= bit;
                count += 1;
            }
            rest = &rest[count..];
            let mut others = self.release_mask(index, mask);
            self.count_given(PageCount::of_pageblocks((mask & !others).count_ones()));
            // These were broken up since, or are free.
            while others != 0 {
                let pageblock = Pageblock(index * 64 + others.trailing_zeros());
                others &= others - 1;
                let run = Run { start: pageblock.first(), pages: PageCount::PAGEBLOCK };
                result = result.and(self.give(run));
            }
        }
        result
    }

    /// Makes those pageblocks of a mask wholly free that were taken as a whole. Returns the others.
    fn release_mask(&self, index: u32, mask: u64) -> u64 {
        let of = |bit: u32| Pageblock(index * 64 + bit);
        let mut twice = 0u64;
        let mut rest = mask;
        while rest != 0 {
            let four = rest.trailing_zeros() & !3;
            let lanes = (rest >> four & 0xF) as u32;
            rest &= !(0xF << four);
            for i in (0..4).filter(|i| lanes >> i & 1 != 0) {
                let pageblock = of(four + i);
                if !self.is_all_dirty(pageblock) {
                    let all = Run { start: pageblock.first(), pages: PageCount::PAGEBLOCK };
                    self.mark_dirty(all);
                }
                self.stamp(pageblock);
            }
            twice |= u64::from(self.release_lanes(of(four), lanes)) << four;
        }
        let given = mask & !twice;
        if given == 0 {
            return twice;
        }
        self.pageblocks.insert_many(lane::FREE, index, given);
        if self.pageblocks.word_of(lane::PURGE, index) & given != given {
            self.pageblocks.insert_many(lane::PURGE, index, given);
        }
        // A thread that took a pageblock before its hint was inserted left the hint behind.
        let mut rest = given;
        while rest != 0 {
            let bit = rest.trailing_zeros();
            let four = (rest >> bit) as u32 & 0xF;
            if four == 0xF && self.are_four_whole(of(bit)) {
                rest &= !(0xF << bit);
                continue;
            }
            rest &= rest - 1;
            if self.credit(of(bit)) != Credit::WHOLE {
                self.rehint(of(bit));
            }
        }
        twice
    }
}
