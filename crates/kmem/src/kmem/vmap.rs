//! vmap: pages that exist already, side by side at another address.
//!
//! What a user process can map twice is shared memory only. So pages that are to be mapped come from a zone of their
//! own, whose memory is a file without a name ([`Instance::alloc_vmap_page`]); other pages are refused. A forked child
//! does not have these pages, nor what maps them: they would be its parent's.

use core::ptr::NonNull;

use super::account::{objcg_bits, pages_cost};
use super::{Fault, Instance, Purpose, ZoneSet, no_memory};
use crate::codetag::Caller;
use crate::os::Platform;
use crate::root::EXT_LIVE;
use crate::sync::Ordering;
use crate::units::{FRAME_SIZE, Gfp, Item, ObjcgId, PAGE_SIZE, PageCount, Pfn};
use crate::vmalloc::{Area, Kind};

/// Largest zone of pages that can be mapped again.
const MAX_SPACE: usize = 1 << 30;

impl<P: Platform> Instance<P> {
    /// Allocates a page that [`Self::vmap`] can map; freed like any page. Null: there is no memory, or the platform has none of that kind.
    pub fn alloc_vmap_page(&'static self, gfp: Gfp, caller: Caller) -> *mut u8 {
        let caller = caller.with(gfp);
        if !self.ready() {
            return no_memory();
        }
        let one = PageCount(1);
        let objcg = self.group_of(caller);
        if objcg != ObjcgId::ROOT && !self.pay_bytes(objcg, pages_cost(one), caller) {
            return no_memory();
        }
        let found = self.with_effort(PAGE_SIZE, one, caller, || {
            let set = self.shared_space()?;
            Some((set, set.zone.on(&self.platform).claim(one, one)?))
        });
        let Some((set, run)) = found else {
            if objcg != ObjcgId::ROOT {
                self.refund_bytes(objcg, pages_cost(one));
            }
            self.out_of_memory(PAGE_SIZE, caller);
            return no_memory();
        };
        if gfp.has(Gfp::ZERO) {
            self.zero_run(set, run);
        }
        let word = if self.books() { self.word_for(caller) } else { EXT_LIVE } | objcg_bits(objcg);
        set.zone.ext(run.start).store(word, Ordering::Relaxed);
        // Release: a reader that sees the length sees the tag.
        set.zone.len(run.start).store(1, Ordering::Release);
        if self.watch().any() {
            self.saw_alloc(word, PAGE_SIZE as u64, caller);
        }
        self.note_peak();
        set.zone.address(run.start) as *mut u8
    }

    fn shared_space(&'static self) -> Option<&'static ZoneSet> {
        let shared = &self.vmalloc.shared;
        let known = shared.load(Ordering::Acquire) as *const ZoneSet;
        // SAFETY: null or a set that is never freed.
        if let Some(set) = unsafe { known.as_ref() } {
            return Some(set);
        }
        let mut bytes = (self.platform.budget().memory / 4).clamp(2 * FRAME_SIZE, MAX_SPACE)
            & !(FRAME_SIZE - 1);
        while bytes >= FRAME_SIZE {
            if let Some(set) = self.add_zone_for(Purpose::Shared, bytes) {
                // Two threads may each make one; both are good, one is used from now on.
                shared.store(&raw const *set as usize, Ordering::Release);
                return Some(set);
            }
            bytes = (bytes / 2) & !(FRAME_SIZE - 1);
        }
        None
    }

    /// Maps pages from [`Self::alloc_vmap_page`] side by side, followed by a page that faults. Null: there is no memory for the
    /// mapping, or one of them is no such page.
    ///
    /// # Safety
    /// Live pages, that are not freed before the mapping is taken back.
    pub unsafe fn vmap(&'static self, pages: &[*mut u8]) -> *mut u8 {
        let mappable = |at: &*mut u8| {
            let set = self.zone_of(*at as usize);
            (*at as usize).is_multiple_of(PAGE_SIZE)
                && set.is_some_and(|set| set.purpose == Purpose::Shared)
        };
        let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        if count == 0 || count == u32::MAX || !self.ready() || !pages.iter().all(mappable) {
            return no_memory();
        }
        let Some(set) = self.vmalloc_space() else { return no_memory() };
        let Some(run) = self.make_areas(set, PageCount(count), PageCount(1), 1) else {
            return no_memory();
        };
        let start = set.zone.address(run.start);
        // What follows its predecessor goes with it, in one call.
        let mut done = 0;
        while done < pages.len() {
            let next = |i: usize| pages[done].wrapping_add((i - done) * PAGE_SIZE);
            let end = (done + 1..pages.len()).find(|&i| pages[i] != next(i)).unwrap_or(pages.len());
            let to = NonNull::new((start + done * PAGE_SIZE) as *mut u8);
            let bytes = (end - done) * PAGE_SIZE;
            let mapped = NonNull::new(pages[done]).zip(to).is_some_and(|(from, to)| {
                // SAFETY: shared pages, by the caller's promise live; an area in our hands.
                unsafe { self.platform.alias(from, to, bytes) }
            });
            if !mapped {
                self.take_back(set, run.start, count, done);
                return no_memory();
            }
            done = end;
        }
        set.zone.ext(run.start).store(count, Ordering::Relaxed);
        self.map_bits(set).set(run.start);
        start as *mut u8
    }

    /// Takes a mapping back; null is nothing.
    ///
    /// # Safety
    /// Nobody uses it any more. (What is no mapping is found out and reported.)
    pub unsafe fn vunmap(&'static self, at: *mut u8) {
        if at.is_null() || !self.ready() {
            return;
        }
        let found = self.vmalloc_zone().zip(self.find_area(at as usize));
        if let Some((set, Area { start, pages, kind: Kind::Vmap, .. })) = found
            && start == at as usize
            && let Some(pfn) = set.zone.pfn(start)
            && self.map_bits(set).clear(pfn)
        {
            return self.take_back(set, pfn, pages, pages as usize);
        }
        self.fault("vunmap", at as usize, Fault::NeverAllocated);
    }

    /// Gives an area back of which the first pages are mapped to others. Where the system does not undo that, it is not used again.
    fn take_back(&'static self, set: &'static ZoneSet, start: Pfn, pages: u32, mapped: usize) {
        let at = set.zone.address(start);
        let undone = mapped == 0
            || NonNull::new(at as *mut u8)
                // SAFETY: pages of an area in our hands.
                .is_some_and(|at| unsafe { self.platform.unalias(at, mapped * PAGE_SIZE) });
        if undone {
            self.unmap(set, &mut [Item::at(at)], pages);
        }
    }
}
