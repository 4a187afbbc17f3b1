//! Huge pages: which pageblocks the platform may back with one.
//!
//! A huge page saves 511 page faults and most misses of the TLB. Its memory is there as a whole, so
//! a pageblock that stays sparse costs more with one than without.
//!
//! | event                                          | advice for the pageblock             |
//! |------------------------------------------------|--------------------------------------|
//! | it is broken up for runs shorter than itself   | for one, if those below are full, or |
//! |                                                | were when the zone was last so large |
//! | the same, but for a longer run                 | for one, if also half of those below |
//! |                                                | have one: users leave holes in runs  |
//! | it is taken as a whole, one of many            | for one: the caller asked for one    |
//! | it is taken as part of a longer run            | against: users leave holes in those  |
//! | a purge finds more than [`SPARE`] pages free   | against                              |
//!
//! A heap shows that it fills its memory before it gets huge pages. Small programs get none. (The
//! idea is that of Hunter et al.: Beyond malloc efficiency to fleet efficiency, OSDI 2021.)
//!
//! Context: any; calls the platform.

use core::ptr::NonNull;

use super::credit::Credit;
use super::{On, Run, Zone, lane};
#[cfg(not(loom))]
use crate::conf::Thp;
use crate::os::{HugePages, Platform};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{PAGEBLOCK_PAGES, PageCount, Pageblock, Pfn};

/// Least number of committed pages before any pageblock gets a huge page: 16 MiB.
const LEAST: PageCount = PageCount::of_pageblocks(8);
/// Pageblocks that are looked at to find out how densely memory is used.
const SAMPLE: u32 = 64;
/// Least number of them that are broken up.
const LEAST_SAMPLE: u32 = 4;
/// Of the pages of the sample, at most one in this many may be free.
const DENSE: u32 = 8;
/// Most free pages of a pageblock that keeps its huge page in a purge.
pub(super) const SPARE: PageCount = PageCount(32);
/// Most borders between pageblocks with and without advice. Each is a border of mappings, too,
/// whose number is limited.
const MOST_BORDERS: u32 = 4096;

/// The first use of a pageblock that is broken up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Use {
    /// Small blocks, or a slab. Their users write to them.
    Blocks,
    /// A longer run, in which its user may leave holes.
    Run,
}

/// The state of a zone's huge pages.
pub(super) struct Backing {
    /// 1: pageblocks get advice.
    auto: AtomicU32,
    /// The platform's [`HugePages`]; 0 while they are not known.
    platform: AtomicU32,
    /// Borders between pageblocks with and without advice.
    borders: AtomicU32,
    /// Pageblocks below this one were full when the zone was last used that far. A program that
    /// frees all and begins again gets huge pages at once.
    filled: AtomicU32,
}

impl Backing {
    pub(super) fn new() -> Self {
        Self {
            auto: AtomicU32::new(0),
            platform: AtomicU32::new(0),
            borders: AtomicU32::new(0),
            filled: AtomicU32::new(0),
        }
    }

    /// The huge pages of the platform, if a thread asked.
    fn known(&self) -> Option<HugePages> {
        HugePages::numbered(self.platform.load(Ordering::Relaxed))
    }
}

impl<P: Platform> On<'_, P> {
    /// Begins to follow a policy. Called before any of the zone is committed.
    #[cfg(not(loom))]
    pub fn follow(&self, policy: Thp) {
        let zone = self.zone;
        zone.backing.auto.store(u32::from(policy == Thp::Auto), Ordering::Relaxed);
        if policy == Thp::Auto {
            return;
        }
        let all = Run { start: Pfn::ZERO, pages: zone.pages };
        self.give_advice(all, policy == Thp::Always);
    }

    /// Returns whether pageblocks may get huge pages: once the zone is large, if the platform has
    /// them.
    fn may_back(&self) -> bool {
        let (zone, backing) = (self.zone, &self.zone.backing);
        if backing.auto.load(Ordering::Relaxed) == 0 || zone.committed() < LEAST {
            return false;
        }
        backing.known().unwrap_or_else(|| self.ask()) != HugePages::Never
    }

    /// Asks the platform for its huge pages. From then on, the whole zone has advice for or against
    /// them, so that each border of advice is a border of bits.
    #[cold]
    fn ask(&self) -> HugePages {
        let (zone, now) = (self.zone, self.platform.huge_pages());
        let all = Run { start: Pfn::ZERO, pages: zone.pages };
        match now {
            HugePages::Never => {}
            HugePages::OnAdvice => self.give_advice(all, false),
            HugePages::Always => {
                self.give_advice(all, true);
                Pageblock(0).up_to(zone.end()).for_each(|pageblock| {
                    zone.set_backed(pageblock, true);
                });
            }
        }
        zone.backing.platform.store(now as u32, Ordering::Relaxed);
        now
    }

    /// Decides about a pageblock that was wholly free until this thread took pages of it.
    #[cold]
    pub(super) fn break_up(&self, pageblock: Pageblock, first_use: Use) {
        let filled = &self.zone.backing.filled;
        let huge = self.may_back()
            && (pageblock.0 < filled.load(Ordering::Relaxed)
                || self.zone.is_dense_below(pageblock, first_use));
        if huge {
            filled.fetch_max(pageblock.0 + 1, Ordering::Relaxed);
        }
        self.advise(pageblock, huge);
    }

    /// Takes the advice for pageblocks back that this thread took as a whole.
    pub(super) fn take_whole(&self, first: Pageblock, count: u32) {
        let zone = self.zone;
        // A platform that backs all memory is left to do so.
        if zone.backing.known() != Some(HugePages::OnAdvice) || zone.has_many_borders() {
            return;
        }
        let (mut at, end) = (first, first.after(count));
        while at < end {
            let backed = |pageblock: &Pageblock| zone.set_backed(*pageblock, false);
            let stretch = at.up_to(end).take_while(backed).count() as u32;
            if stretch > 0 {
                let pages = PageCount::of_pageblocks(stretch);
                self.give_advice(Run { start: at.first(), pages }, false);
            }
            at = at.after(stretch + 1);
        }
    }

    /// Lets the platform back a pageblock that was allocated as a huge page.
    pub(super) fn back_huge(&self, pageblock: Pageblock) {
        if self.may_back() {
            self.advise(pageblock, true);
        }
    }

    /// Prepares a purge of `free` pages of a pageblock, page by page. False: it has a huge page,
    /// and at most `spare` are free, so it keeps all.
    pub fn may_break_up(&self, pageblock: Pageblock, free: PageCount, spare: PageCount) -> bool {
        let zone = self.zone;
        if !zone.is_backed(pageblock) {
            return true;
        }
        if free <= spare || zone.has_many_borders() {
            return false;
        }
        zone.backing.filled.fetch_min(pageblock.0, Ordering::Relaxed);
        self.advise(pageblock, false);
        // The huge page is also there for pages that were never used.
        zone.mark_dirty(Run { start: pageblock.first(), pages: PageCount::PAGEBLOCK });
        zone.pageblocks.insert(lane::PURGE, pageblock.0);
        true
    }

    /// Advises the platform about a pageblock, unless it knows.
    fn advise(&self, pageblock: Pageblock, huge: bool) {
        let zone = self.zone;
        if huge && zone.has_many_borders() || !zone.set_backed(pageblock, huge) {
            return;
        }
        // Another thread may change its mind at the same time. The last advice is that of the bit.
        loop {
            let huge = zone.is_backed(pageblock);
            self.give_advice(Run { start: pageblock.first(), pages: PageCount::PAGEBLOCK }, huge);
            if zone.is_backed(pageblock) == huge {
                return;
            }
        }
    }

    fn give_advice(&self, run: Run, huge: bool) {
        if let Some(at) = NonNull::new(self.zone.address(run.start) as *mut u8) {
            // SAFETY: pages of the zone, which is part of one reservation.
            unsafe { self.platform.advise_huge(at, run.pages.bytes(), huge) };
        }
    }
}

impl Zone {
    /// The word with the bit of a pageblock, and the bit.
    fn backed(&self, pageblock: Pageblock) -> (&AtomicU64, u64) {
        debug_assert!(pageblock.0 < self.pages.pageblocks());
        // SAFETY: `huge` has a bit for each pageblock of the zone, by its invariant.
        (unsafe { &*self.huge.add(pageblock.0 as usize / 64) }, 1 << (pageblock.0 % 64))
    }

    /// Returns whether the platform may back a pageblock with a huge page, on kmem's advice.
    pub fn is_backed(&self, pageblock: Pageblock) -> bool {
        let (word, bit) = self.backed(pageblock);
        word.load(Ordering::Relaxed) & bit != 0
    }

    fn has_many_borders(&self) -> bool {
        self.backing.borders.load(Ordering::Relaxed) >= MOST_BORDERS
    }

    /// Notes the advice for a pageblock, and counts the borders that come or go with it. False: it
    /// was noted before.
    fn set_backed(&self, pageblock: Pageblock, huge: bool) -> bool {
        let (word, bit) = self.backed(pageblock);
        let old = if huge {
            word.fetch_or(bit, Ordering::Relaxed)
        } else {
            word.fetch_and(!bit, Ordering::Relaxed)
        };
        if (old & bit != 0) == huge {
            return false;
        }
        let below = pageblock.0 > 0 && self.is_backed(Pageblock(pageblock.0 - 1));
        let above = pageblock.after(1);
        let above = above.0 < self.pages.pageblocks() && self.is_backed(above);
        let borders = &self.backing.borders;
        match (below == huge, above == huge) {
            // Neighbours that change at the same time may make the count wrong by a few.
            (true, true) => {
                let less = |count: u32| Some(count.saturating_sub(2));
                let _ = borders.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
            (false, false) => {
                borders.fetch_add(2, Ordering::Relaxed);
            }
            _ => {}
        }
        true
    }

    /// Notes that a pageblock was committed.
    pub(super) fn begin_backing(&self, pageblock: Pageblock) {
        if self.backing.known() == Some(HugePages::Always) {
            self.set_backed(pageblock, true);
        }
    }

    /// Returns whether the pageblocks below one that are broken up are nearly full. If its first
    /// use is a run, half of them must have huge pages, too: then most of the heap is small blocks.
    fn is_dense_below(&self, pageblock: Pageblock, first_use: Use) -> bool {
        let (mut seen, mut free, mut backed) = (0, 0, 0);
        let first = pageblock.0.saturating_sub(SAMPLE);
        for below in Pageblock(first).up_to(pageblock) {
            if !matches!(self.credit(below), Credit::HUGE | Credit::WHOLE) {
                seen += 1;
                free += self.free_bits(below);
                backed += u32::from(self.is_backed(below));
            }
        }
        let is_filled = first_use == Use::Blocks || backed >= seen / 2;
        seen >= LEAST_SAMPLE && free <= seen * PAGEBLOCK_PAGES / DENSE && is_filled
    }
}
