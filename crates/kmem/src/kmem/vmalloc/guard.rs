//! Guards: made, removed with the areas they stand behind, and found again in a forked child.

use core::ptr::NonNull;

use super::super::{Instance, ZoneSet};
use crate::os::Platform;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Item, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn};
use crate::vmalloc::Bits;

impl<P: Platform> Instance<P> {
    /// Makes a page inaccessible, if there may be more of that kind.
    pub(in crate::kmem) fn guard(&self, set: &ZoneSet, page: Pfn) {
        let vmalloc = &self.vmalloc;
        let allowed =
            vmalloc.guards.load(Ordering::Relaxed) < vmalloc.most_guards.load(Ordering::Relaxed);
        // The bit comes first: a child forked in between gives no page away that faults.
        self.guard_bits(set).set(page);
        let done = allowed
            && NonNull::new(set.zone.address(page) as *mut u8)
                // SAFETY: a page in our hands.
                .is_some_and(|at| unsafe { self.platform.protect(at, PAGE_SIZE, false) });
        if done {
            vmalloc.guards.fetch_add(1, Ordering::Relaxed);
        } else {
            self.guard_bits(set).clear(page);
            vmalloc.unguarded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Gives areas of one length back to the zone, neighbours together.
    pub(in crate::kmem) fn unmap(
        &'static self,
        set: &'static ZoneSet,
        areas: &mut [Item],
        pages: u32,
    ) {
        areas.sort_unstable_by_key(|item| item.0);
        let each = PageCount(pages + 1);
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

    /// The same for areas that lie side by side.
    pub(in crate::kmem) fn unmap_span(
        &'static self,
        set: &'static ZoneSet,
        start: Pfn,
        pages: u32,
        count: u32,
    ) {
        let span = PageCount((pages + 1) * count);
        let bits = self.guard_bits(set);
        let guard = |i: u32| start.offset(i * (pages + 1) + pages);
        let guards = (0..count).filter(|&i| bits.has(guard(i))).count();
        // From the first guard to the last, in one call; else one by one.
        let (from, to) = (guard(0), guard(count - 1).offset(1));
        if guards > 0 && !self.make_accessible(set, from, to.0 - from.0) {
            for i in 0..count {
                let free = self.remove_guard(set, guard(i));
                self.give_pages(set, guard(i).back(pages), PageCount(pages + u32::from(free)));
            }
            return;
        }
        for i in 0..count {
            self.forget_guard(set, guard(i));
        }
        self.give_pages(set, start, span);
    }

    pub(in crate::kmem) fn make_accessible(&self, set: &ZoneSet, from: Pfn, pages: u32) -> bool {
        NonNull::new(set.zone.address(from) as *mut u8)
            // SAFETY: pages in our hands.
            .is_some_and(|at| unsafe { self.platform.commit(at, PageCount(pages).bytes()) })
    }

    /// Makes a page accessible again if it is a guard. False: it stays one, for good.
    pub(in crate::kmem) fn remove_guard(&self, set: &ZoneSet, page: Pfn) -> bool {
        if self.guard_bits(set).has(page) && !self.make_accessible(set, page, 1) {
            self.vmalloc.stuck.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.forget_guard(set, page);
        true
    }

    pub(in crate::kmem) fn forget_guard(&self, set: &ZoneSet, page: Pfn) {
        if self.guard_bits(set).clear(page) {
            self.vmalloc.guards.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(in crate::kmem) fn guard_bits(&self, _set: &ZoneSet) -> Bits {
        let words = self.vmalloc.bits.load(Ordering::Relaxed) as *const AtomicU64;
        // SAFETY: committed for the zone before it was shown.
        unsafe { Bits::new(words) }
    }

    pub(in crate::kmem) fn map_bits(&self, set: &ZoneSet) -> Bits {
        let words = self.vmalloc.bits.load(Ordering::Relaxed) + Bits::bytes(set.zone.pages().0);
        // SAFETY: as above, behind those of the guards.
        unsafe { Bits::new(words as *const AtomicU64) }
    }

    /// In a forked child, whose zone was rebuilt from the lengths of areas: guards and mapped areas are in use as well,
    /// but for guards of areas that are free.
    ///
    /// # Safety
    /// No other thread uses the zone.
    pub(in crate::kmem) unsafe fn mend_areas(&'static self) {
        let Some(set) = self.vmalloc_zone() else { return };
        let end = set.zone.committed();
        for first in self.map_bits(set).all(end) {
            let pages = set.zone.ext(first).load(Ordering::Relaxed);
            set.zone.claim_at(first, PageCount(pages));
        }
        for guard in self.guard_bits(set).all(end) {
            set.zone.loosen(guard, PageCount(1));
            set.zone.claim_at(guard, PageCount(1));
            let pages = set.zone.ext(guard).load(Ordering::Relaxed);
            let live = pages <= guard.0
                && self.area_at(set, guard.back(pages)).is_some_and(|area| area.pages == pages);
            if !live && self.make_accessible(set, guard, 1) {
                self.forget_guard(set, guard);
                self.give_pages(set, guard, PageCount(1));
            }
        }
    }
}
