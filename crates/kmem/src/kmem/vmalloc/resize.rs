//! Areas that become longer or shorter.

use core::ptr::NonNull;

use super::super::account::{objcg_of, pages_cost};
use super::super::{Fault, Instance, ZoneSet, no_memory};
use super::REMAP_PAGES;
use crate::codetag::Caller;
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::{Gfp, ObjcgId, PAGE_SHIFT, PageCount, Pfn};
use crate::vmalloc::{Area, Kind};

impl<P: Platform> Instance<P> {
    /// Makes an area longer or shorter, in place if it can be, else by moving its pages. Null, and the area as it was,
    /// if there is no memory. Null in is [`Self::vmalloc`].
    ///
    /// # Safety
    /// Null or a live area that nobody else uses; if it moves, the old address is free.
    pub unsafe fn vrealloc(
        &'static self,
        at: *mut u8,
        size: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        if at.is_null() {
            return self.vmalloc(size, gfp, caller);
        }
        self.ready();
        let caller = caller.with(gfp);
        let Some(set) = self.vmalloc_zone().filter(|set| set.zone.pfn(at as usize).is_some())
        else {
            // SAFETY: the caller's promise.
            return unsafe { self.realloc(at, size, caller) };
        };
        let Some(Area { start, pages: old, kind: Kind::Vmalloc, .. }) = self.find_area(at as usize)
        else {
            self.fault("vrealloc", at as usize, Fault::NeverAllocated);
        };
        if start != at as usize {
            let (block, offset) = (start, at as usize - start);
            self.fault("vrealloc", at as usize, Fault::InsidePages { block, offset, pages: old });
        }
        let fits =
            PageCount::for_bytes(size).filter(|new| new.0 > 0 && size <= isize::MAX as usize);
        let Some(PageCount(new)) = fits else { return no_memory() };
        let pfn = Pfn(((start - set.zone.base()) >> PAGE_SHIFT) as u32);
        let lengths = (PageCount(old).bytes(), PageCount(new).bytes());
        // Who paid goes on to pay: for what is more before, for what is less after.
        let objcg = objcg_of(set.zone.ext(pfn).load(Ordering::Relaxed));
        let paid = |pages| pages_cost(PageCount(pages));
        let charged = objcg != ObjcgId::ROOT;
        if charged && new > old && !self.pay_bytes(objcg, paid(new) - paid(old), caller) {
            return no_memory();
        }
        let in_place = match new.cmp(&old) {
            core::cmp::Ordering::Equal => true,
            core::cmp::Ordering::Less => self.shorten_area(set, pfn, old, new),
            core::cmp::Ordering::Greater => self.lengthen_area(set, pfn, old, new),
        };
        if charged && in_place && new < old {
            self.refund_bytes(objcg, paid(old) - paid(new));
        }
        if charged && !in_place && new > old {
            self.refund_bytes(objcg, paid(new) - paid(old));
        }
        let caller = caller.charged_to(self.groups.living(objcg));
        let to = if in_place {
            if self.books() {
                self.rebook(set.zone.ext(pfn), caller, (lengths.0 as u64, lengths.1 as u64));
            }
            at
        } else {
            let to = self.vmalloc(size, gfp.without(Gfp::ZERO), caller);
            if to.is_null() {
                return to;
            }
            // SAFETY: both are areas of at least the shorter length, ours alone.
            unsafe {
                self.move_pages(at, to, old.min(new));
                self.vfree(at);
            }
            to
        };
        if gfp.has(Gfp::ZERO) && new > old {
            // SAFETY: pages of ours.
            unsafe { to.add(lengths.0).write_bytes(0, lengths.1 - lengths.0) };
        }
        to
    }

    /// # Safety
    /// Two areas of at least so many pages, in nobody else's use.
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, pages: u32) {
        let bytes = PageCount(pages).bytes();
        let (Some(at), Some(new)) = (NonNull::new(from), NonNull::new(to)) else { return };
        // SAFETY: the caller's promise; so below.
        if pages >= REMAP_PAGES && unsafe { self.platform.remap(at, new, bytes) } {
            return;
        }
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }

    /// Gives the last pages of an area back.
    pub(in crate::kmem) fn shorten_area(
        &'static self,
        set: &'static ZoneSet,
        pfn: Pfn,
        old: u32,
        new: u32,
    ) -> bool {
        set.zone.len(pfn).store(new, Ordering::Release);
        let (guard, old_guard) = (pfn.offset(new), pfn.offset(old));
        self.guard(set, guard);
        let rest = old - new - u32::from(!self.remove_guard(set, old_guard));
        if rest > 0 {
            self.give_pages(set, guard.offset(1), PageCount(rest));
        }
        true
    }

    /// Takes the pages behind an area, if they are free.
    pub(in crate::kmem) fn lengthen_area(
        &'static self,
        set: &'static ZoneSet,
        pfn: Pfn,
        old: u32,
        new: u32,
    ) -> bool {
        let (guard, more) = (pfn.offset(old), PageCount(new - old));
        if u64::from(guard.0) + u64::from(more.0) >= u64::from(set.zone.committed())
            || !set.zone.claim_at(guard.offset(1), more)
        {
            return false;
        }
        if self.guard_bits(set).has(guard) {
            if !self.make_accessible(set, guard, 1) {
                self.give_pages(set, guard.offset(1), more);
                return false;
            }
            self.forget_guard(set, guard);
        }
        self.guard(set, pfn.offset(new));
        for page in old..new + 1 {
            set.zone.ext(pfn.offset(page)).store(page, Ordering::Relaxed);
        }
        set.zone.len(pfn).store(new, Ordering::Release);
        true
    }
}
