//! The page interface, with the kernel's names: blocks of `1 << order` pages, which can be split.

use core::ptr::null_mut;

use kmem_layout::length;
use kmem_layout::word::{EXT_LIVE, TAG_MASK, TAG_UNTAGGED};

use super::Instance;
use crate::alloc_tag::Mode;
use crate::class::{ArrayId, PageClass, RunClass};
use crate::heap::{BookedWords, Fit, Live, Looked, ZoneSet};
use crate::memcg::stock::Price;
use crate::memcg::{objcg_bits, objcg_of};
use crate::os::Platform;
use crate::page::{PageWords, Run};
use crate::report::Fault;
use crate::request::Caller;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Gfp, Item, MAX_ORDER, ObjcgId, Order, PAGE_SHIFT, PageCount, Pfn, TagId};

impl<P: Platform> Instance<P> {
    /// Allocates a block of `1 << order` pages at a multiple of its size. Null: there is no memory,
    /// the group is at its limit, or `order` is above [`MAX_ORDER`]. With [`Gfp::NOFAIL`] and
    /// without [`Gfp::NOWAIT`], this waits without end for orders up to 3; then only an instance
    /// that could not start returns null. Fast path, for orders 0 to 3 and 9: about 40
    /// instructions, no atomics. CPUs keep orders 4 to 8, too, for the slow path.
    ///
    /// # Examples
    /// ```
    /// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
    /// use kmem_core::units::{Gfp, Order};
    /// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
    /// let block = KMEM.alloc_pages(Order(2), Gfp::KERNEL, caller);
    /// assert!(!block.is_null() && block as usize % (4 * 4096) == 0);
    /// // SAFETY: a block of that order, which is used no longer.
    /// unsafe { KMEM.free_pages(block, Order(2)) };
    /// ```
    #[inline(always)]
    pub fn alloc_pages(&'static self, order: Order, gfp: Gfp, caller: Caller) -> *mut u8 {
        let (mut item, heap) = (Item::NONE, self.heap());
        let array = PageClass::array_of(order);
        if gfp == Gfp::KERNEL
            && array.0 != 0
            && let Some(word) = self.word_at_once(caller.key())
        {
            let objcg = caller.objcg();
            // SAFETY: a word is known, so the instance has started its slots. The order has an
            // array.
            item = unsafe {
                match objcg {
                    ObjcgId::ROOT => heap.slots.pop(array),
                    _ => heap.slots.pop_paid(array, objcg),
                }
            };
            if !item.is_none()
                && let Some((words, _)) = heap.fast.page(item.address())
            {
                words.ext.store(word | objcg_bits(objcg), Ordering::Relaxed);
                // Release: a reader that sees the length sees the tag.
                words.len.store(1 << (order.0 & 31), Ordering::Release);
                return item.address() as *mut u8;
            }
            if let Some((len, _)) = heap.fast.bare_page(item.address()) {
                len.store(1 << (order.0 & 31), Ordering::Release);
                return item.address() as *mut u8;
            }
        }
        self.alloc_pages_slow(order, gfp, caller, item)
    }

    /// Extension word for a caller, from the cache of call sites. `None`: take the slow path.
    #[inline(always)]
    fn word_at_once(&self, key: usize) -> Option<u32> {
        match self.ledger.books.sites.cached(key) {
            None if self.ledger.books.mode() == Mode::NEVER => Some(EXT_LIVE | TAG_UNTAGGED),
            word => word,
        }
    }

    /// Allocates a block that the fast path cannot serve. `first` is none, or a block that the fast
    /// path took off the array and paid for.
    #[cold]
    #[inline(never)]
    fn alloc_pages_slow(
        &'static self,
        order: Order,
        gfp: Gfp,
        caller: Caller,
        first: Item,
    ) -> *mut u8 {
        if u32::from(order.0) > MAX_ORDER || !self.ready() {
            return null_mut();
        }
        if gfp.has(Gfp::THISNODE) {
            return self.alloc_pages_node(None, order, gfp, caller);
        }
        let pages = order.pages();
        // Huge zeroed blocks are taken from the zone, which may have pages that read as zero.
        let Some(class) =
            PageClass::of(order).filter(|class| !class.is_huge() || !gfp.has(Gfp::ZERO))
        else {
            return self.ledger.alloc_run(pages.bytes(), pages, Fit::Block, gfp, caller.with(gfp));
        };
        if !first.is_none() && caller.objcg() != ObjcgId::ROOT {
            // The ledger charges for the block again.
            self.ledger.charging().refund(Price::Item(class.array()), caller.objcg());
        }
        self.ledger.alloc_block(class, (first, Looked::Not), gfp, caller.with(gfp))
    }

    /// Allocates exactly the pages that `bytes` take. Null: `bytes` is 0, there is no memory, or
    /// the group is at its limit.
    pub fn alloc_pages_exact(&'static self, bytes: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        if bytes == 0 || !self.ready() {
            return null_mut();
        }
        self.ledger.alloc_run(bytes, PageCount::ONE, Fit::Exact, gfp, caller.with(gfp))
    }

    /// Splits a block into single pages, each an allocation with the block's tag and group.
    ///
    /// # Safety
    /// `at` is a block of `order` from [`Self::alloc_pages`], which the caller alone uses.
    pub unsafe fn split_page(&'static self, at: *mut u8, order: Order) {
        if let Some((set, start)) = self.page_at(at) {
            self.ledger.split(set, Run { start, pages: order.pages() });
        }
    }

    /// Frees a block: one allocation, or all its pieces if it was split. Smaller orders free a part
    /// of the pieces. A piece that is not live, and a block of another order, are reported, and end
    /// the program before any page is freed.
    ///
    /// # Safety
    /// `at` is a block of `order` from [`Self::alloc_pages`], whole or split. No thread uses it
    /// from here on.
    #[inline(always)]
    pub unsafe fn free_pages(&'static self, at: *mut u8, order: Order) {
        let array = PageClass::array_of(order);
        if let Some((words, offset)) = self.heap().fast.page(at as usize) {
            let BookedWords { ext, len } = words;
            let pages = 1u32 << (order.0 & 31);
            let word = ext.load(Ordering::Relaxed);
            let live = len.load(Ordering::Relaxed) == pages && word & EXT_LIVE != 0;
            let begins = offset & (PageCount(pages).bytes() - 1) == 0;
            if live && begins && array.0 != 0 {
                let item = Item::at(at as usize);
                if objcg_of(word) != ObjcgId::ROOT {
                    // Without a length, the block is no longer one that is found or counted.
                    len.store(0, Ordering::Release);
                    // SAFETY: a live block, which the caller gave up.
                    return unsafe { self.free_charged(item, array, (&raw const *ext, 0), word) };
                }
                ext.store(word & TAG_MASK, Ordering::Relaxed);
                len.store(0, Ordering::Release);
                // SAFETY: the block was live until now, and the caller gave it up.
                unsafe {
                    if !self.heap().slots.push(array, item)
                        && let Some(class) = PageClass::of(order)
                    {
                        self.flush_block(class, item);
                    }
                }
                return;
            }
        }
        // SAFETY: the same contract.
        unsafe {
            match self.unbook_bare(at, order) {
                Some(array) => self.push_uncharged(Item::at(at as usize), array),
                None => self.free_pages_slow(at, order),
            }
        }
    }

    /// Clears the length of a block without extension word, which is free from then on. Returns its
    /// array. `None`: no such block begins there.
    #[inline(always)]
    fn unbook_bare(&'static self, at: *mut u8, order: Order) -> Option<ArrayId> {
        let (len, offset) = self.heap().fast.bare_page(at as usize)?;
        let (array, pages) = (PageClass::array_of(order), 1u32 << (order.0 & 31));
        let begins = offset & (PageCount(pages).bytes() - 1) == 0;
        if len.load(Ordering::Relaxed) != pages || !begins || array.0 == 0 {
            return None;
        }
        len.store(0, Ordering::Release);
        Some(array)
    }

    /// # Safety
    /// See [`Self::free_pages`].
    #[cold]
    #[inline(never)]
    unsafe fn free_pages_slow(&'static self, at: *mut u8, order: Order) {
        // SAFETY: the same contract.
        unsafe {
            if !self.free_whole_block(at, order) {
                let shift = u32::from(order.0).min(length::MAX_ORDER);
                self.free_page_range("free_pages", at, PageCount(1 << shift));
            }
        }
    }

    /// Frees a block of an order up to 9 that was not split, which CPUs keep. False: it is none.
    ///
    /// # Safety
    /// See [`Self::free_pages`].
    unsafe fn free_whole_block(&'static self, at: *mut u8, order: Order) -> bool {
        let Some((set, start)) = self.page_at(at).filter(|(set, _)| set.is_heap()) else {
            return false;
        };
        let class = PageClass::of(order);
        let is_kept = class.is_some() || RunClass::of_order(order).is_some();
        let Some(words) = set.zone.words(start).filter(|_| is_kept) else { return false };
        let pages = order.pages();
        let whole = words.length() == pages && (at as usize).is_multiple_of(pages.bytes());
        if !whole {
            return false;
        }
        // SAFETY: a live block, which the caller gives up, by the contract.
        unsafe {
            let Some(run) = self.ledger.unbook_run(set, start) else { return false };
            match class {
                Some(class) => self.heap().flush_block(class, Item::at(at as usize)),
                None => self.heap().give_run(set, run),
            }
        }
        true
    }

    /// Frees pages from [`Self::alloc_pages_exact`] of `bytes`. Pages that are not live, and an
    /// allocation of another length, are reported, and end the program before any page is freed.
    ///
    /// # Safety
    /// No thread uses the pages from here on.
    pub unsafe fn free_pages_exact(&'static self, at: *mut u8, bytes: usize) {
        if let Some(pages) = PageCount::for_bytes(bytes) {
            // SAFETY: the same contract.
            unsafe { self.free_page_range("free_pages_exact", at, pages) }
        }
    }

    /// Frees an allocation of that many pages, or as many pieces of a block that was split.
    ///
    /// # Safety
    /// See [`Self::free_pages`].
    unsafe fn free_page_range(&'static self, call: &str, at: *mut u8, pages: PageCount) {
        if at.is_null() || !self.ready() {
            return;
        }
        let step = match self.step_of(at as usize, pages) {
            Ok(step) => step,
            Err((place, fault)) if fault.is_double() => self.fault("free", place, fault),
            Err((place, fault)) => self.fault(call, place, fault),
        };
        for piece in (0..pages.0).step_by(step.0 as usize) {
            // SAFETY: the caller gives the piece up, by the contract.
            unsafe { self.free(at.wrapping_add(PageCount(piece).bytes())) };
        }
    }

    /// Length of the allocations that a range of pages consists of. It is the range's own, or one
    /// page if all its pages are pieces of one block.
    ///
    /// # Errors
    /// The first address that is wrong, and the reason.
    fn step_of(&'static self, at: usize, pages: PageCount) -> Result<PageCount, (usize, Fault)> {
        let live = |place| match self.heap().find(place) {
            Ok(Live::Pages { set, run, words }) => Ok((set, run, words)),
            Ok(Live::Object { class, .. }) => Err((place, Fault::Object { size: class.size() })),
            Err(fault) => Err((place, fault)),
        };
        let (set, run, words) = live(at)?;
        if run.pages == pages {
            return Ok(pages);
        }
        let first = words.len.load(Ordering::Relaxed);
        let order = length::order_of_block(first);
        let block = PageCount(1 << order);
        let last = TagId(words.word() & TAG_MASK);
        let other = Fault::OtherLength { pages: run.pages.0, freed: pages.0, last };
        // Alignment is of addresses. A small zone may begin in the middle of such a block.
        let room = block.0 - (set.zone.address(run.start) >> PAGE_SHIFT) as u32 % block.0;
        if order == 0 || pages.0 > room {
            return Err((at, other));
        }
        for page in 1..pages.0 {
            let (_, _, words) = live(set.zone.address(run.start + PageCount(page)))?;
            if words.len.load(Ordering::Relaxed) != first {
                return Err((at, other));
            }
        }
        Ok(PageCount::ONE)
    }

    /// Fills the null entries of `out` with single pages, up to the first failure. Returns the
    /// number of leading entries that have a page. This is one operation: the group is charged,
    /// and the zones are asked, for many pages at once. Pages that are then missing are allocated
    /// one by one, with the effort of [`Self::alloc_pages`].
    pub fn alloc_pages_bulk(&'static self, gfp: Gfp, out: &mut [*mut u8], caller: Caller) -> usize {
        self.alloc_pages_bulk_node(None, gfp, out, caller)
    }

    /// Extension word and length in pages of the allocation that begins at a page, or could begin
    /// there. For tests and tools that read the books, or damage them. `None`: the page is not
    /// committed memory of this instance, or has no extension word.
    pub fn page_words(
        &'static self,
        at: *mut u8,
    ) -> Option<(&'static AtomicU32, &'static AtomicU32)> {
        let (set, start) = self.page_at(at)?;
        set.zone.words(start).and_then(|PageWords { ext, len, .. }| Some((ext?, len)))
    }

    /// Node of the memory at an address. `None`: it is not an address of this instance.
    pub fn page_to_nid(&'static self, at: *mut u8) -> Option<u32> {
        self.page_at(at).map(|(set, _)| set.node)
    }

    /// Zone and page of an address. `None`: it is not an address of this instance.
    fn page_at(&'static self, at: *mut u8) -> Option<(&'static ZoneSet, Pfn)> {
        let set = self.heap().zones.of(at as usize)?;
        Some((set, set.zone.pfn(at as usize)?))
    }
}
