//! The page interface, in the kernel's words: blocks of `1 << order` pages, which can be split.

use super::account::{objcg_bits, objcg_of};
use super::reclaim::COSTLY;
use super::{Instance, ZoneSet, no_memory};
use crate::class::{PageClass, SizeClass};
use crate::codetag::Caller;
use crate::os::Platform;
use crate::page::{Run, Zone};
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use crate::units::{
    Gfp, Item, MAX_ORDER, ObjcgId, Order, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn, TagId,
};

/// What the fast paths of the page interface read: the tables of the first zone.
pub(super) struct Tables {
    /// Pages of the zone whose words may be read; 0 before start and where every call takes the other
    /// way.
    pages: AtomicUsize,
    base: AtomicUsize,
    ext: AtomicUsize,
    len: AtomicUsize,
}

impl Tables {
    pub(super) const fn new() -> Self {
        Self {
            pages: AtomicUsize::new(0),
            base: AtomicUsize::new(0),
            ext: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
        }
    }

    /// Opens the fast paths for this zone.
    pub(super) fn start(&self, zone: &Zone) {
        self.base.store(zone.base(), Ordering::Relaxed);
        self.ext.store(zone.ext(Pfn(0)).as_ptr() as usize, Ordering::Relaxed);
        self.len.store(zone.len(Pfn(0)).as_ptr() as usize, Ordering::Relaxed);
    }

    /// Notes how far the zone is committed by now.
    pub(super) fn reach(&self, zone: &Zone) {
        let committed = zone.committed() as usize;
        if self.base.load(Ordering::Relaxed) == zone.base()
            && self.pages.load(Ordering::Relaxed) < committed
        {
            self.pages.store(committed, Ordering::Release);
        }
    }

    /// Extension word and length of a page, if it is one whose words may be read; and where the
    /// address lies in the zone.
    #[inline(always)]
    fn page(&self, at: usize) -> Option<(&AtomicU32, &AtomicU32, usize)> {
        let offset = at.wrapping_sub(self.base.load(Ordering::Relaxed));
        let pfn = offset >> PAGE_SHIFT;
        if pfn >= self.pages.load(Ordering::Relaxed) {
            return None;
        }
        let word = |table: &AtomicUsize| {
            // SAFETY: a table that is never freed, committed for that page.
            unsafe { &*(table.load(Ordering::Relaxed) as *const AtomicU32).wrapping_add(pfn) }
        };
        Some((word(&self.ext), word(&self.len), offset))
    }
}

impl<P: Platform> Instance<P> {
    /// Allocates a block of pages at a multiple of its size; null if there is none, or if `order`
    /// is above [`MAX_ORDER`]. With [`Gfp::NOFAIL`] and without [`Gfp::NOWAIT`], orders up to 3 are
    /// waited for without end; only an instance that could not start returns null. Fast path, for
    /// orders that CPUs keep: about 40 instructions, no atomics.
    #[inline(always)]
    pub fn alloc_pages(&'static self, order: Order, gfp: Gfp, caller: Caller) -> *mut u8 {
        let mut item = Item::NONE;
        let array = PageClass::array_of(order.0);
        if gfp == Gfp::KERNEL
            && array.0 != 0
            && let Some(word) = self.word_at_once(caller.key)
        {
            let objcg = caller.objcg();
            item = match objcg {
                ObjcgId::ROOT => self.slots.pop(array),
                _ => self.slots.pop_paid(array, objcg),
            };
            if !item.is_none()
                && let Some((ext, len, _)) = self.pages.page(item.address())
            {
                ext.store(word | objcg_bits(objcg), Ordering::Relaxed);
                // Release: a reader that sees the length sees the tag.
                len.store(1 << (order.0 & 31), Ordering::Release);
                return item.address() as *mut u8;
            }
        }
        self.alloc_pages_slow(order, gfp, caller, item)
    }

    /// The extension word for a caller, if nothing has to be looked up for it.
    #[inline(always)]
    fn word_at_once(&self, key: usize) -> Option<u32> {
        match self.sites.cached(key) {
            None if self.mode() == super::mode::NEVER => Some(EXT_LIVE),
            word => word,
        }
    }

    /// `alloc_pages` when the fast path cannot serve it; `item` is a block that it took, and paid for.
    #[cold]
    #[inline(never)]
    fn alloc_pages_slow(
        &'static self,
        order: Order,
        gfp: Gfp,
        caller: Caller,
        item: Item,
    ) -> *mut u8 {
        if u32::from(order.0) > MAX_ORDER {
            return no_memory();
        }
        let pages = order.pages();
        // Long zeroed blocks are made of fresh pages.
        match PageClass::of(order.0) {
            Some(class) if !class.is_huge() || !gfp.has(Gfp::ZERO) => {
                self.alloc_kept(class, gfp, caller.with(gfp), item)
            }
            _ => self.pages(pages, pages, gfp, caller),
        }
    }

    fn alloc_kept(
        &'static self,
        class: PageClass,
        gfp: Gfp,
        caller: Caller,
        mut item: Item,
    ) -> *mut u8 {
        if !self.ready() {
            return no_memory();
        }
        let paid = !item.is_none();
        let objcg = if paid { caller.objcg() } else { self.group_of(caller) };
        if !paid {
            item = self.slots.pop(class.array());
        }
        let (pages, bytes) = (PageCount(class.pages()), PageCount(class.pages()).bytes());
        if objcg != ObjcgId::ROOT && !paid && !self.pay_object(class.array(), objcg, caller) {
            if !item.is_none() {
                self.flush_pages(class, item);
            }
            return no_memory();
        }
        let (set, pfn) = loop {
            if item.is_none() {
                let found = self.with_effort(bytes, COSTLY, caller, || {
                    let item = self.refill_pages(class);
                    (!item.is_none()).then_some(item)
                });
                item = found.unwrap_or(Item::NONE);
            }
            let Some((set, start)) = self.block(item.address() as *mut u8) else {
                if objcg != ObjcgId::ROOT {
                    self.refund_object(class.array(), objcg);
                }
                self.out_of_memory(bytes, caller);
                return no_memory();
            };
            if self.prepare_pages(set, Run { start, pages }) {
                break (set, start);
            }
            item = self.slots.pop(class.array());
        };
        if gfp.has(Gfp::ZERO) {
            // SAFETY: a free block in our hands.
            unsafe { (item.address() as *mut u8).write_bytes(0, bytes) };
        }
        let word = if self.books() { self.word_for(caller) } else { EXT_LIVE };
        let word = word | objcg_bits(objcg);
        set.zone.ext(pfn).store(word, Ordering::Relaxed);
        set.zone.len(pfn).store(class.pages(), Ordering::Release);
        if self.watch().any() {
            self.saw_alloc(word, bytes as u64, caller);
        }
        item.address() as *mut u8
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
    #[inline(always)]
    pub unsafe fn free_pages(&'static self, at: *mut u8, order: Order) {
        let array = PageClass::array_of(order.0);
        if let Some((ext, len, offset)) = self.pages.page(at as usize) {
            let pages = 1u32 << (order.0 & 31);
            let word = ext.load(Ordering::Relaxed);
            let live = len.load(Ordering::Relaxed) == pages && word & EXT_LIVE != 0;
            // An order without an array has none here.
            let begins = offset & (PageCount(pages).bytes() - 1) == 0;
            if live && begins && array.0 != 0 {
                ext.store(word & TAG_MASK, Ordering::Relaxed);
                len.store(0, Ordering::Release);
                if objcg_of(word) != ObjcgId::ROOT {
                    return self.free_charged(at, array, word);
                }
                // SAFETY: a live block until now, given up by the caller.
                if !unsafe { self.slots.push(array, Item::at(at as usize)) } {
                    self.flush_block(array, at);
                }
                return;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.free_pages_slow(at, order) }
    }

    /// # Safety
    /// As for [`Self::free_pages`].
    #[cold]
    #[inline(never)]
    unsafe fn free_pages_slow(&'static self, at: *mut u8, order: Order) {
        // The CPU keeps whole blocks, not the pieces of one that was split.
        if let Some(class) = PageClass::of(order.0)
            && let Some((set, pfn)) = self.block(at)
            && set.is_heap()
            && pfn.0 < set.zone.committed()
            && set.zone.len(pfn).load(Ordering::Acquire) == class.pages()
            && (at as usize).is_multiple_of(PageCount(class.pages()).bytes())
            && self.unbook_run(set, pfn).is_some()
        {
            let block = Item::at(at as usize);
            return if self.is_near(set) {
                self.flush_pages(class, block)
            } else {
                self.give_blocks(class, &[block])
            };
        }
        if u32::from(order.0) <= MAX_ORDER {
            // SAFETY: the caller's promise.
            unsafe { self.free_page_range(at, order.pages()) }
        }
    }

    #[cold]
    #[inline(never)]
    fn flush_block(&'static self, array: SizeClass, at: *mut u8) {
        if let Some(class) = PageClass::of_array(array) {
            self.flush_pages(class, Item::at(at as usize));
        }
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

    /// Extension word and length of the page allocation that begins, or could begin, at an address:
    /// for tests and tools that look at the books, or spoil them.
    pub fn page_words(
        &'static self,
        at: *mut u8,
    ) -> Option<(&'static AtomicU32, &'static AtomicU32)> {
        let (set, pfn) = self.block(at)?;
        (pfn.0 < set.zone.committed()).then(|| (set.zone.ext(pfn), set.zone.len(pfn)))
    }

    fn block(&'static self, at: *mut u8) -> Option<(&'static ZoneSet, Pfn)> {
        let set = self.zone_of(at as usize)?;
        Some((set, set.zone.pfn(at as usize)?))
    }
}
