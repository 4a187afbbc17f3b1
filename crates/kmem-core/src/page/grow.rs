//! Making more of a zone's address space usable.

use core::ptr::NonNull;

use super::credit::Credit;
use super::space::Turn;
use super::{On, Zone};
use crate::os::{Access, Platform};
use crate::sync::Ordering;
use crate::units::{CHUNK_ORDER, PAGE_SIZE, PAGEBLOCK_PAGES, PageCount, Pageblock, Pfn};

/// Bounds of one step of growth, in pageblocks. A step is an eighth of the committed pages. Systems
/// with strict overcommit count all that is committed, so a small program begins with one.
const STEP: core::ops::RangeInclusive<u32> = 1..=128;
/// Pages for which tables are committed at a time: 64 MiB.
const SECTION_PAGES: u32 = 1 << 14;
/// Pages described by one word of the sets of slabs.
const SEARCH_PAGES: u32 = 64 << CHUNK_ORDER;

impl<P: Platform> On<'_, P> {
    /// Commits at least `pages` more pages, or waits for another thread that commits some. False:
    /// the zone is at its end, or the platform has no memory.
    pub(super) fn grow(&self, pages: PageCount) -> bool {
        let (space, thread) = (&self.zone.space, self.platform.thread());
        let mut turn = space.take_turn(thread);
        if let Turn::Others(owner) = turn {
            turn = space.wait_for(owner, self.platform);
        }
        if matches!(turn, Turn::Others(_)) {
            return true;
        }
        let end = space.enter();
        let done = self.grow_up_to(end, pages);
        space.leave();
        if turn == Turn::Taken {
            space.end_turn(thread, self.platform);
        }
        done
    }

    /// Commits at least `pages` more pages below `end`, see [`Self::grow`].
    fn grow_up_to(&self, end: PageCount, pages: PageCount) -> bool {
        let zone = self.zone;
        let old = zone.committed();
        let room = end.saturating_sub(old);
        let Some(need) = pages.0.checked_next_multiple_of(PAGEBLOCK_PAGES).map(PageCount) else {
            return false;
        };
        if need > room {
            return false;
        }
        let step = (old.pageblocks() / 8).clamp(*STEP.start(), *STEP.end());
        let wish = need.max(PageCount::of_pageblocks(step)).min(room);
        for add in [wish, need] {
            let total = (old + add).bytes();
            if !self.platform.allows(total) || !self.describe(old + add) {
                continue;
            }
            let Some(at) = NonNull::new(zone.address(Pfn::ZERO + old) as *mut u8) else {
                return false;
            };
            // A signal handler that interrupted this thread may have committed pages, too.
            if zone.committed() != old {
                return true;
            }
            // SAFETY: part of the zone's reservation, page aligned.
            if unsafe { self.platform.commit(at, add.bytes()) } {
                zone.publish(old, add, || self.hide(at, add));
                return true;
            }
        }
        false
    }

    /// Makes pages inaccessible that no thread can claim yet, if the zone hides them. If the
    /// platform refuses, they stay accessible.
    fn hide(&self, at: NonNull<u8>, pages: PageCount) {
        if self.zone.hides.load(Ordering::Relaxed) != 0 {
            // SAFETY: committed pages, which are made accessible when they are handed out.
            unsafe { self.platform.protect(at, pages.bytes(), Access::None) };
        }
    }

    /// Commits the tables for the first `pages` pages, and a little more: a search may read the
    /// word behind the last one that it needs. False: the platform has no memory.
    pub fn describe(&self, pages: PageCount) -> bool {
        let zone = self.zone;
        let have = zone.described.load(Ordering::Acquire);
        if have >= Zone::to_search(pages).min(zone.pages.0) {
            return true;
        }
        let want = Zone::to_describe(pages).min(zone.pages.0);
        for table in &zone.tables {
            let bytes = |pages: u32| (pages >> CHUNK_ORDER) as usize * table.bits as usize / 8;
            let have = have.max(table.start);
            // The first page may be that of another table too, which is committed then.
            let from = match have {
                0 => table.at & !(PAGE_SIZE - 1),
                _ => (table.at + bytes(have)).next_multiple_of(PAGE_SIZE),
            };
            let to = (table.at + bytes(want)).next_multiple_of(PAGE_SIZE);
            if from >= to {
                continue;
            }
            let Some(at) = NonNull::new(from as *mut u8) else { return false };
            // SAFETY: whole pages of the reservation, which ends on a page.
            if !unsafe { self.platform.commit(at, to - from) } {
                return false;
            }
        }
        zone.described.fetch_max(want, Ordering::AcqRel);
        true
    }
}

impl Zone {
    /// Pages whose tables are committed from the beginning, in a zone of `pages`.
    pub const fn start_pages(pages: u32) -> u32 {
        let start = Self::to_describe(PageCount::ZERO);
        if start < pages { start } else { pages }
    }

    /// Pages that a search in `pages` may read about.
    const fn to_search(pages: PageCount) -> u32 {
        pages.0.saturating_add(SEARCH_PAGES)
    }

    /// Pages for which tables are committed where `pages` are.
    pub(super) const fn to_describe(pages: PageCount) -> u32 {
        match Self::to_search(pages).checked_next_multiple_of(SECTION_PAGES) {
            Some(pages) => pages,
            None => u32::MAX,
        }
    }

    /// Makes pages inaccessible until they are handed out for the first time. From then on, that is
    /// up to their frees. Called before any page is committed.
    #[cfg(not(loom))]
    pub(super) fn hide_unused(&self) {
        self.hides.store(1, Ordering::Relaxed);
    }

    /// Lets threads claim pageblocks that were committed, after a call of `first`. If several
    /// threads committed them, one thread does this.
    pub(super) fn publish(&self, old: PageCount, add: PageCount, first: impl FnOnce()) {
        // SAFETY: `block` is valid for the zone's life.
        let committed = unsafe { &(*self.block).committed };
        let (from, to) = (u64::from(old.0), u64::from((old + add).0));
        if committed.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            return;
        }
        first();
        for pageblock in Pageblock(old.pageblocks()).up_to(Pageblock((old + add).pageblocks())) {
            for (_, row) in self.rows_of(pageblock) {
                row.0.store(u64::MAX, Ordering::Relaxed);
            }
            self.begin_backing(pageblock);
            self.set_credit(pageblock, Credit::WHOLE);
            self.rehint(pageblock);
        }
    }
}
