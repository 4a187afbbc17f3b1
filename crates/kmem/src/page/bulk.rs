//! Many pages at once: what a CPU's arrays are refilled from and emptied into.
//!
//! **Single pages** and small blocks come out of a frame whose whole credit a CPU took for itself, its
//! [`Reserve`]: of 512 pages, eight refills take one word of bits each and nothing else that is
//! shared, and two CPUs do not meet in one frame. **Huge pages** are taken up to four by one
//! compare-and-swap, and hints are changed for 64 frames at once.

use super::{DoubleFree, HUGE, On, WHOLE, Zone, bucket, lane, lane_shift};
use crate::os::Platform;
use crate::row::span;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{
    FRAME_ORDER, FRAME_PAGES, FRAME_SIZE, Frame, Item, Order, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn,
};

/// A word of credit whose frames are all wholly free.
const FOUR_WHOLE: u64 = u64::MAX / 0xFFFF * WHOLE as u64;

/// Credit of one frame, in a CPU's hands: so many pages of it are nobody else's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserve {
    /// The frame.
    pub frame: u32,
    /// Pages; 0: none, of whatever frame.
    pub credit: u16,
}

impl<P: Platform> On<'_, P> {
    /// Takes blocks of an order below that of rows, in ascending order per frame, out of a reserve and then
    /// out of further frames, each of which becomes the reserve. Fills `out` from its end; how many.
    pub fn claim_bulk(&self, order: Order, reserve: &mut Reserve, out: &mut [Item]) -> usize {
        let (zone, pages) = (self.zone, order.pages().0);
        let mut got = zone.take_reserved(order, reserve, out);
        while got < out.len() {
            let room = out.len() - got;
            let mut take = || zone.take_blocks(order, &mut out[..room]);
            // For one block the zone grows, for more it need not.
            let found = if got == 0 { self.until_grown(pages, pages, take) } else { take() };
            let Some((rest, more)) = found else { break };
            got += more;
            // What the old one has left is too small, or for a moment in the hands of who looks for a longer run.
            zone.unreserve(core::mem::replace(reserve, rest));
        }
        if got > 0 {
            zone.count_used(got as i64 * i64::from(pages));
        }
        got
    }

    /// Takes whole frames, into the end of `out`, lowest last; how many. The zone grows for the
    /// first of them only.
    pub fn claim_frames_bulk(&self, out: &mut [Item]) -> usize {
        let zone = self.zone;
        let found = self.until_grown(FRAME_PAGES, 1, || match zone.take_free_frames(out.len()) {
            (_, 0) => None,
            found => Some(found),
        });
        let mut got = 0;
        let mut more = found;
        while let Some((index, mut bits)) = more {
            while bits != 0 {
                let frame = index * 64 + bits.trailing_zeros();
                bits &= bits - 1;
                got += 1;
                let at = out.len() - got;
                out[at] = Item::at(zone.address(Frame(frame).first()));
            }
            more = match zone.take_free_frames(out.len() - got) {
                (_, 0) => None,
                found => Some(found),
            };
        }
        if got > 0 {
            zone.count_used(got as i64 * i64::from(FRAME_PAGES));
        }
        got
    }
}

impl Zone {
    /// Takes blocks out of the frame where they come from next, into the end of `out`; how many, at least
    /// one, and all the credit of that frame that is left over.
    fn take_blocks(&self, order: Order, out: &mut [Item]) -> Option<(Reserve, usize)> {
        let pages = order.pages().0;
        self.search(bucket(pages), |frame| {
            let take = |old| (old != HUGE && u32::from(old) >= pages).then_some(0);
            let credit = self.update_credit(frame, take).ok()?;
            let mut reserve = Reserve { frame, credit };
            let got = self.take_reserved(order, &mut reserve, out);
            if got == 0 {
                // It has no such block, or whoever looks for a longer run has the bits in hand for a moment.
                self.unreserve(reserve);
            }
            // In vain, too: what others took meanwhile the credit given back meets in the state it left.
            self.rehint(frame);
            (got > 0).then_some((reserve, got))
        })
    }

    /// Gives a reserve back to its frame.
    pub fn unreserve(&self, reserve: Reserve) {
        if reserve.credit > 0 {
            self.give_credit(reserve.frame, reserve.credit);
        }
    }

    /// Blocks of a reserve. Fills `out` from its end; how many.
    fn take_reserved(&self, order: Order, reserve: &mut Reserve, out: &mut [Item]) -> usize {
        let pages = order.pages().0;
        let mut room = out.len();
        for i in 0..8 {
            let most = (u32::from(reserve.credit) / pages).min(room as u32);
            if most == 0 {
                break;
            }
            let first = Pfn((reserve.frame << FRAME_ORDER) + i * 64);
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

    /// Takes up to `most` wholly free frames among the first 64 that have some: as bits of the
    /// numbers from 64 times the index on, and how that index is.
    fn take_free_frames(&self, most: usize) -> (u32, u64) {
        if most == 0 {
            return (0, 0);
        }
        let mut from = 0;
        loop {
            let Some(first) = self.frames.next(lane::FREE, from) else { return (0, 0) };
            let index = first / 64;
            let mut hinted = self.frames.word_of(lane::FREE, index);
            let (mut taken, mut left) = (0u64, most as u32);
            while hinted != 0 && left > 0 {
                let four = hinted.trailing_zeros() & !3;
                let lanes = self.take_some_lanes(index * 64 + four, left);
                taken |= u64::from(lanes) << four;
                left -= lanes.count_ones();
                hinted &= !(0xF << four);
            }
            if taken != 0 {
                // They are ours: nobody else changes what their hints should be.
                self.frames.remove_many(lane::FREE, index, taken);
                return (index, taken);
            }
            from = (index + 1) * 64;
        }
    }

    /// Takes up to `most` of the four frames of one word that are wholly free; which, as bits.
    fn take_some_lanes(&self, first: u32, most: u32) -> u32 {
        let word = self.kids(first);
        let mut seen = word.load(Ordering::Relaxed);
        if most >= 4 && seen == FOUR_WHOLE {
            // The common case, with the orders explained below.
            match word.compare_exchange(seen, u64::MAX, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return 0xF,
                Err(now) => seen = now,
            }
        }
        loop {
            let (mut next, mut lanes) = (seen, 0u32);
            for i in 0..4 {
                let free = (seen >> lane_shift(i)) as u16 == WHOLE;
                if free && lanes.count_ones() < most {
                    next |= u64::from(HUGE) << lane_shift(i);
                    lanes |= 1 << i;
                }
            }
            if lanes == 0 {
                return 0;
            }
            // Acquire pairs with the release of the last credit given.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return lanes,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives back blocks of an order that were claimed; neighbours in `blocks` that are neighbours in a
    /// row go together.
    ///
    /// # Errors
    /// The first page that was free already; the others are given back, and the counts stay right.
    pub fn give_bulk(&self, order: Order, blocks: &[Item]) -> Result<(), DoubleFree> {
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
                // A page that is there twice is told when its row gets it for the second time.
                if page / 64 != row || mask & bits != 0 {
                    break;
                }
                mask |= bits;
                count += 1;
            }
            rest = &rest[count..];
            given += count as i64 * i64::from(pages);
            let done = self.give_mask(Pfn(row * 64), mask);
            result = result.and(done);
        }
        self.count_used(-given);
        result
    }

    /// Gives back the pages of a mask of one row.
    fn give_mask(&self, row: Pfn, mask: u64) -> Result<(), DoubleFree> {
        let frame = row.frame().0;
        if self.credit(frame) == HUGE {
            self.trim(frame, FRAME_PAGES);
        }
        self.mark_row_dirty(row, mask);
        let twice = self.row(row).give(mask);
        let given = mask.count_ones() - twice.count_ones();
        if given > 0 {
            self.give_credit(frame, given as u16);
        }
        self.aged(frame);
        if twice == 0 { Ok(()) } else { Err(DoubleFree(row.offset(twice.trailing_zeros()))) }
    }

    /// Gives back whole frames that were claimed, neighbours in `frames` together.
    ///
    /// # Errors
    /// The first page of one that was free already; the others are given back.
    pub fn give_frames_bulk(&self, frames: &[Item]) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        let mut rest = frames;
        let number = |item: &Item| ((item.address() - self.base) / FRAME_SIZE) as u32;
        while let Some(first) = rest.first() {
            let index = number(first) / 64;
            let mut mask = 0u64;
            let mut count = 0;
            for frame in rest.iter().map(number) {
                let bit = 1 << (frame % 64);
                if frame / 64 != index || mask & bit != 0 {
                    break;
                }
                mask |= bit;
                count += 1;
            }
            rest = &rest[count..];
            let mut others = self.release_mask(index, mask);
            self.count_used(-i64::from((mask & !others).count_ones() << FRAME_ORDER));
            // Taken apart meanwhile, or free.
            while others != 0 {
                let frame = Frame(index * 64 + others.trailing_zeros());
                others &= others - 1;
                result = result.and(self.give(frame.first(), PageCount(FRAME_PAGES)));
            }
        }
        result
    }

    /// HUGE -> WHOLE for the frames of a mask; those of them that were not HUGE.
    fn release_mask(&self, index: u32, mask: u64) -> u64 {
        let mut twice = 0u64;
        let mut rest = mask;
        while rest != 0 {
            let four = rest.trailing_zeros() & !3;
            let lanes = (rest >> four & 0xF) as u32;
            rest &= !(0xF << four);
            for i in (0..4).filter(|i| lanes >> i & 1 != 0) {
                let frame = index * 64 + four + i;
                if !self.is_all_dirty(frame) {
                    self.mark_dirty(Frame(frame).first(), FRAME_PAGES);
                }
                self.stamp(frame).store(self.decay.generation(), Ordering::Relaxed);
            }
            twice |= u64::from(self.release_lanes(index * 64 + four, lanes)) << four;
        }
        let given = mask & !twice;
        if given == 0 {
            return twice;
        }
        self.frames.insert_many(lane::FREE, index, given);
        if self.frames.word_of(lane::PURGE, index) & given != given {
            self.frames.insert_many(lane::PURGE, index, given);
        }
        // Whoever took one before its hint was there has left the hint behind.
        let mut rest = given;
        while rest != 0 {
            let frame = index * 64 + rest.trailing_zeros();
            let four = (rest >> (frame % 64)) as u32 & 0xF;
            if four == 0xF && self.kids(frame).load(Ordering::SeqCst) == FOUR_WHOLE {
                rest &= !(0xF << (frame % 64));
                continue;
            }
            rest &= rest - 1;
            if self.credit(frame) != WHOLE {
                self.rehint(frame);
            }
        }
        self.lower_cursors(index * 64 + given.trailing_zeros(), FRAME_PAGES);
        twice
    }

    fn is_all_dirty(&self, frame: u32) -> bool {
        let first = self.dirty(Frame(frame).first()) as *const AtomicU64;
        // SAFETY: a frame has eight words, which lie side by side.
        let words = unsafe { core::slice::from_raw_parts(first, 8) };
        words.iter().fold(u64::MAX, |all, word| all & word.load(Ordering::Relaxed)) == u64::MAX
    }

    /// HUGE -> WHOLE for some of the four frames of a word; those that were not HUGE, as bits.
    fn release_lanes(&self, first: u32, lanes: u32) -> u32 {
        let word = self.kids(first);
        let mut seen = word.load(Ordering::Relaxed);
        if lanes == 0xF && seen == u64::MAX {
            match word.compare_exchange(seen, FOUR_WHOLE, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return 0,
                Err(now) => seen = now,
            }
        }
        loop {
            let (mut next, mut twice) = (seen, 0u32);
            for i in (0..4).filter(|i| lanes >> i & 1 != 0) {
                if (seen >> lane_shift(i)) as u16 == HUGE {
                    next &= !(0xFFFF << lane_shift(i));
                    next |= u64::from(WHOLE) << lane_shift(i);
                } else {
                    twice |= 1 << i;
                }
            }
            // Release: what the owner wrote is visible to the next one.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return twice,
                Err(now) => seen = now,
            }
        }
    }
}
