//! Guards: making them, removing them with their areas, and finding them in a forked child.

use core::ptr::NonNull;

use super::area::On;
use crate::heap::ZoneSet;
use crate::os::{Access, Platform};
use crate::page::Run;
use crate::sync::Ordering;
use crate::units::{Item, PAGE_SHIFT, PageCount, Pfn};

impl<P: Platform> On<P> {
    /// Makes a page of an area that this thread took inaccessible, unless guards are too many.
    pub(super) fn guard(self, set: &ZoneSet, page: Pfn) {
        let areas = self.part;
        // The bit comes first: a child forked in between hands out no page that faults.
        self.guard_bits(set).set(page);
        let run = Run { start: page, pages: PageCount::ONE };
        if self.make_inaccessible(set, run) {
            areas.guards.fetch_add(1, Ordering::Relaxed);
        } else {
            self.guard_bits(set).clear(page);
            areas.unguarded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Makes pages of areas that this thread took inaccessible. Where the platform has no marks,
    /// they become a mapping of their own, if there may be one more. False: nothing changed.
    pub(super) fn make_inaccessible(self, set: &ZoneSet, run: Run) -> bool {
        if self.protect(set, run, Access::Marked) {
            return true;
        }
        let (splits, most) = (&self.part.splits, self.part.most_splits.load(Ordering::Relaxed));
        if splits.fetch_add(1, Ordering::Relaxed) < most {
            self.split_bits(set).set(run.start);
            if self.protect(set, run, Access::None) {
                return true;
            }
            self.split_bits(set).clear(run.start);
        }
        splits.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// Gives free areas of one length back to the zone, adjacent ones together.
    pub(super) fn unmap(self, set: &'static ZoneSet, areas: &mut [Item], pages: PageCount) {
        areas.sort_unstable_by_key(|item| item.0);
        let each = pages + PageCount::ONE;
        let mut rest = &*areas;
        while let Some(first) = rest.first() {
            let next = |i: usize| first.address() + i * each.bytes();
            let count =
                (1..rest.len()).find(|&i| rest[i].address() != next(i)).unwrap_or(rest.len());
            let start = Pfn(((first.address() - set.zone.base()) >> PAGE_SHIFT) as u32);
            self.unmap_span(set, start, pages, count as u32);
            rest = &rest[count..];
        }
    }

    /// Gives adjacent free areas back to the zone.
    pub(super) fn unmap_span(
        self,
        set: &'static ZoneSet,
        start: Pfn,
        pages: PageCount,
        count: u32,
    ) {
        let heap = &self.ledger.heap;
        let each = pages + PageCount::ONE;
        let bits = self.guard_bits(set);
        let guard = |i: u32| start + PageCount(i * each.0) + pages;
        let guards = (0..count).filter(|&i| bits.has(guard(i))).count();
        // Make all pages from the first guard to the last accessible in one call. If the platform
        // refuses, go on guard by guard.
        let (from, to) = (guard(0), guard(count - 1) + PageCount::ONE);
        if guards > 0 && !self.make_accessible(set, Run { start: from, pages: to - from }) {
            for i in 0..count {
                let free = PageCount(u32::from(self.remove_guard(set, guard(i))));
                heap.give_pages(set, Run { start: guard(i) - pages, pages: pages + free });
            }
            return;
        }
        for i in 0..count {
            self.forget_guard(set, guard(i));
        }
        heap.give_pages(set, Run { start, pages: PageCount(each.0 * count) });
    }

    /// Makes pages of areas that this thread took accessible. False: the platform refused.
    pub(super) fn make_accessible(self, set: &ZoneSet, run: Run) -> bool {
        let (splits, held) = (self.split_bits(set), self.held_bits(set));
        // In a sandbox, marks stay; mappings can still be merged.
        let inaccessible = self.guard_bits(set).within(run).chain(held.within(run));
        let is_marked = inaccessible.into_iter().any(|page| !splits.has(page));
        if is_marked && !self.protect(set, run, Access::Unmarked) {
            return false;
        }
        if splits.within(run).next().is_none() {
            return true;
        }
        let done = self.protect(set, run, Access::All);
        if done {
            let merged = splits.within(run).filter(|&page| splits.clear(page)).count();
            self.part.splits.fetch_sub(merged, Ordering::Relaxed);
        }
        done
    }

    /// Changes the access to pages of areas that this thread took. Those that get inaccessible lose
    /// their contents. False: the platform refused.
    fn protect(self, set: &ZoneSet, run: Run, access: Access) -> bool {
        let (platform, bytes) = (self.ledger.platform(), run.pages.bytes());
        let Some(at) = NonNull::new(set.zone.address(run.start) as *mut u8) else { return false };
        // SAFETY: committed pages of the zone, which no user has.
        unsafe {
            if access == Access::None && !platform.decommit(at, bytes) {
                at.write_bytes(0, bytes);
            }
            platform.protect(at, bytes, access)
        }
    }

    /// Makes a page accessible again if it is a guard. False: it stays a guard, and is never used.
    pub(super) fn remove_guard(self, set: &ZoneSet, page: Pfn) -> bool {
        let run = Run { start: page, pages: PageCount::ONE };
        if self.guard_bits(set).has(page) && !self.make_accessible(set, run) {
            self.part.stuck.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.forget_guard(set, page);
        true
    }

    /// Notes that a page is a guard no longer.
    pub(super) fn forget_guard(self, set: &ZoneSet, page: Pfn) {
        if self.guard_bits(set).clear(page) {
            self.part.guards.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// In a forked child: empties the arrays, and completes the zone, which was rebuilt from the
    /// lengths of areas. Areas of vmap and guards of live areas are in use as well. Pages that can
    /// be mapped a second time belong to the parent alone.
    ///
    /// # Safety
    /// No other thread exists.
    pub unsafe fn mend(self) {
        // SAFETY: no other thread exists that could use any of this.
        unsafe {
            self.part.slots.restart_empty();
            self.part.zone.restart_in_child();
            self.part.shared.forget();
        }
        let Some(set) = self.zone() else { return };
        let end = set.zone.committed();
        for first in self.map_bits(set).all(end) {
            let pages = set.zone.words(first).map_or(0, |words| words.word());
            set.zone.claim_at(first, PageCount(pages));
        }
        self.release_in_child(set);
        if self.part.unguarded.load(Ordering::Relaxed) > 0 {
            // They have the page behind them, too.
            self.each_area(|area| {
                let end = area.start + area.pages.bytes();
                if let Some(behind) = set.zone.pfn(end).filter(|_| !area.guarded) {
                    set.zone.claim_at(behind, PageCount::ONE);
                }
            });
        }
        for guard in self.guard_bits(set).all(end) {
            let run = Run { start: guard, pages: PageCount::ONE };
            set.zone.loosen(run);
            set.zone.claim_at(guard, PageCount::ONE);
            let back = set.zone.words(guard).map_or(0, |words| words.word());
            let pages = PageCount(back);
            let live = pages <= guard.index()
                && self.area_at(set, guard - pages).is_some_and(|area| area.pages == pages);
            if !live && self.make_accessible(set, run) {
                self.forget_guard(set, guard);
                self.ledger.heap.give_pages(set, run);
            }
        }
    }
}
