//! What free pages must be like, and whether they are.

use super::{HUGE, Zone, rows_of};
use crate::root::EXT_LIVE;
use crate::sync::Ordering;
use crate::units::{FRAME_PAGES, Item, PAGE_SHIFT, PAGE_SIZE, Pfn};

/// What is wrong with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It is free, but its words say that it is allocated.
    Allocated,
    /// It is free in its zone, but somebody has it.
    Free,
    /// It was written to while it was free: at this offset.
    Written(usize),
}

/// What free pages are filled with.
const POISON: u8 = 0xAA;

impl Zone {
    /// Whether a block that was claimed, and not yet handed out, is as it should be: its words say
    /// that nobody has it. Of a frame that is taken as a whole the rows are looked at, too, which
    /// are one cache line: all its pages are free in them.
    pub fn check_claimed(&self, start: Pfn, pages: u32) -> Result<(), (Pfn, Bad)> {
        let live = self.ext(start).load(Ordering::Relaxed) & EXT_LIVE;
        if live | self.len(start).load(Ordering::Relaxed) != 0 {
            return Err((start, Bad::Allocated));
        }
        if pages < FRAME_PAGES || self.credit(start.frame().0) != HUGE {
            return Ok(());
        }
        let taken = |i: u32| !self.row(start.offset(i * 64)).load();
        match (0..FRAME_PAGES / 64).find(|&i| taken(i) != 0) {
            Some(i) => Err((start.offset(i * 64 + taken(i).trailing_zeros()), Bad::Allocated)),
            None => Ok(()),
        }
    }

    /// Whether all these blocks of `pages`, just claimed, are as [`Self::check_claimed`] wants them. (False also
    /// for a huge page that is not taken as a whole: it is to be looked at by itself.)
    ///
    /// Without a branch for each, for there are many and nearly never is one bad: so the processor waits
    /// for the cache lines of all at once.
    pub fn are_claimed(&self, blocks: &[Item], pages: u32) -> bool {
        let (mut wrong, mut free) = (0, u64::MAX);
        for block in blocks {
            let page = Pfn(((block.address() - self.base) >> PAGE_SHIFT) as u32);
            wrong |= self.ext(page).load(Ordering::Relaxed) & EXT_LIVE;
            wrong |= self.len(page).load(Ordering::Relaxed);
            if pages == FRAME_PAGES {
                wrong |= u32::from(self.credit(page.frame().0) != HUGE);
                let rows = (0..FRAME_PAGES / 64).map(|i| self.row(page.offset(i * 64)).load());
                free &= rows.fold(u64::MAX, |all, row| all & row);
            }
        }
        wrong == 0 && free == u64::MAX
    }

    /// Whether no page of a run in somebody's hands is free in the zone.
    pub fn check_taken(&self, start: Pfn, pages: u32) -> Result<(), (Pfn, Bad)> {
        for (row, mask) in rows_of(start, pages) {
            let free = self.row(row).load() & mask;
            if free != 0 && self.credit(row.frame().0) != HUGE {
                return Err((row.offset(free.trailing_zeros()), Bad::Free));
            }
        }
        Ok(())
    }

    /// Fills a run in our hands with the pattern of free pages.
    pub fn poison(&self, start: Pfn, pages: u32) {
        // SAFETY: pages in our hands.
        unsafe {
            (self.address(start) as *mut u8).write_bytes(POISON, pages as usize * PAGE_SIZE);
        }
    }

    /// Whether the pattern is still there, in those pages of a run in our hands that have contents.
    pub fn check_poison(&self, start: Pfn, pages: u32) -> Result<(), (Pfn, Bad)> {
        for (row, mask) in self.dirty_spans(start, pages) {
            for (first, len) in crate::row::runs(mask) {
                let at = row.offset(first);
                // SAFETY: as above.
                let bytes = unsafe {
                    core::slice::from_raw_parts(
                        self.address(at) as *const u8,
                        len as usize * PAGE_SIZE,
                    )
                };
                // By the line first: that is a few wide instructions.
                let spoilt =
                    |line: &[u8]| line.iter().fold(0, |all, &byte| all | byte ^ POISON) != 0;
                if !bytes.chunks(64).any(spoilt) {
                    continue;
                }
                if let Some(offset) = bytes.iter().position(|&byte| byte != POISON) {
                    let page = at.offset((offset / PAGE_SIZE) as u32);
                    return Err((page, Bad::Written(offset % PAGE_SIZE)));
                }
            }
        }
        Ok(())
    }
}
