//! The page interface, in the kernel's words: blocks of `1 << order` pages, which can be split.

use super::{Instance, ZoneSet, no_memory};
use crate::codetag::Caller;
use crate::os::Platform;
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::sync::Ordering;
use crate::units::{Gfp, MAX_ORDER, Order, PAGE_SIZE, PageCount, Pfn, TagId};

impl<P: Platform> Instance<P> {
    /// Allocates a block of pages at a multiple of its size; null if there is none, or if `order`
    /// is above [`MAX_ORDER`].
    pub fn alloc_pages(&'static self, order: Order, gfp: Gfp, caller: Caller) -> *mut u8 {
        if u32::from(order.0) > MAX_ORDER {
            return no_memory();
        }
        let pages = order.pages();
        self.pages(pages, pages, gfp, caller)
    }

    /// Allocates just as many pages as `bytes` take.
    pub fn alloc_pages_exact(&'static self, bytes: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        match PageCount::for_bytes(bytes) {
            Some(pages) if pages.0 > 0 => self.pages(pages, PageCount(1), gfp, caller),
            _ => no_memory(),
        }
    }

    fn pages(
        &'static self,
        pages: PageCount,
        align: PageCount,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let caller = caller.with(gfp);
        self.alloc_run(pages.bytes(), align.0 as usize, caller, gfp.has(Gfp::ZERO), true)
    }

    /// Makes a block into single pages, each an allocation of the same tag.
    ///
    /// # Safety
    /// A block of `order` from [`Self::alloc_pages`], in nobody else's use.
    pub unsafe fn split_page(&'static self, at: *mut u8, order: Order) {
        let Some((set, pfn)) = self.block(at) else { return };
        let pages = order.pages().0;
        if set.zone.len(pfn).load(Ordering::Acquire) != pages {
            return;
        }
        // A block of an order has whole frames or none, so nothing of them is left over.
        set.zone.loosen(pfn, PageCount(pages));
        let word = set.zone.ext(pfn).load(Ordering::Relaxed);
        // From behind: a census that walks by meanwhile sees the block whole until the end.
        for page in (1..pages).rev().map(|n| pfn.offset(n)) {
            set.zone.ext(page).store(word, Ordering::Relaxed);
            set.zone.len(page).store(1, Ordering::Release);
        }
        set.zone.len(pfn).store(1, Ordering::Release);
        if self.watch().any() {
            let page = PAGE_SIZE as u64;
            self.saw_free(word, page * u64::from(pages), at as usize);
            for _ in 0..pages {
                let tag = TagId(word & TAG_MASK);
                self.saw_alloc(tag.0 | EXT_LIVE, page, Caller::NOBODY);
            }
        }
    }

    /// Frees a block: one allocation, or all its pieces if it was split.
    ///
    /// # Safety
    /// A block of `order` from [`Self::alloc_pages`], whole or split, that nobody uses any more.
    /// (What is not live is found out and reported.)
    pub unsafe fn free_pages(&'static self, at: *mut u8, order: Order) {
        // SAFETY: the caller's promise.
        unsafe { self.free_page_range(at, order.pages()) }
    }

    /// The same for `bytes` from [`Self::alloc_pages_exact`].
    ///
    /// # Safety
    /// As for [`Self::free_pages`].
    pub unsafe fn free_pages_exact(&'static self, at: *mut u8, bytes: usize) {
        if let Some(pages) = PageCount::for_bytes(bytes) {
            // SAFETY: the caller's promise.
            unsafe { self.free_page_range(at, pages) }
        }
    }

    /// # Safety
    /// As for [`Self::free_pages`].
    unsafe fn free_page_range(&'static self, at: *mut u8, pages: PageCount) {
        if at.is_null() {
            return;
        }
        let mut done = 0;
        while done < pages.0 {
            let piece = at.wrapping_add(PageCount(done).bytes());
            let len = match self.block(piece) {
                Some((set, pfn)) => set.zone.len(pfn).load(Ordering::Acquire),
                None => 0,
            };
            // SAFETY: the caller's promise. What does not begin here is reported by `free`.
            unsafe { self.free(piece) };
            done += len.max(1);
        }
    }

    /// Fills the null entries of `out` with single pages; how many entries have one.
    pub fn alloc_pages_bulk(&'static self, gfp: Gfp, out: &mut [*mut u8], caller: Caller) -> usize {
        let mut filled = 0;
        for slot in out {
            if slot.is_null() {
                *slot = self.alloc_pages(Order(0), gfp, caller);
            }
            if slot.is_null() {
                break;
            }
            filled += 1;
        }
        filled
    }

    fn block(&'static self, at: *mut u8) -> Option<(&'static ZoneSet, Pfn)> {
        let set = self.zone_of(at as usize)?;
        Some((set, set.zone.pfn(at as usize)?))
    }
}
