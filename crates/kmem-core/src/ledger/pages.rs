//! Blocks and runs of pages in the ledger.

use kmem_layout::length;
use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::{COSTLY, Ledger, Request, Taken};
use crate::class::PageClass;
use crate::heap::{Fit, Looked, RunRequest, ZoneSet};
use crate::memcg::Limits;
use crate::memcg::objcg_bits;
use crate::memcg::stock::Price;
use crate::os::Platform;
use crate::page::{PageWords, Placement, Run};
use crate::request::Caller;
use crate::sync::Ordering;
use crate::units::{Gfp, Item, ObjcgId, PAGE_SIZE, PageCount, Pfn};

/// Pages that a bulk allocation takes at once.
const BULK: usize = 64;
/// Largest request: the most that a signed size can express.
const MAX_BYTES: usize = isize::MAX as usize;

impl<P: Platform> Ledger<P> {
    /// Allocates pages for `bytes` at a multiple of `align` pages; null if there is no memory, or
    /// the group is at its limit. With [`Gfp::ZERO`] they read as zero.
    pub fn alloc_run(
        &'static self,
        bytes: usize,
        align: PageCount,
        fit: Fit,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        self.alloc_run_on(bytes, (align, fit, None), gfp, caller)
    }

    /// [`Self::alloc_run`] of chosen nodes.
    pub fn alloc_run_on(
        &'static self,
        bytes: usize,
        (align, fit, placement): (PageCount, Fit, Option<Placement>),
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let pages = PageCount::for_bytes(bytes.max(1)).filter(|_| bytes <= MAX_BYTES);
        let Some(pages) = pages else {
            self.reporter().out_of_memory(&self.census(), bytes, caller);
            return core::ptr::null_mut();
        };
        // A run that a CPU kept must be zeroed; a run of the zone may read as zero.
        let fit = if gfp.has(Gfp::ZERO) { Fit::Exact } else { fit };
        let run = RunRequest { pages, align, fit, placement };
        let request = Request { price: Price::Pages(run.most()), bytes, endless: COSTLY };
        let taken = self.alloc(request, caller, || {
            let (set, run) = self.heap.take_run(run)?;
            if gfp.has(Gfp::ZERO) {
                // SAFETY: this thread took the run.
                unsafe { set.zone.on(self.platform()).zero(run) };
            }
            Taken::run(set, run)
        });
        taken.map_or(core::ptr::null_mut(), |taken| taken.at as *mut u8)
    }

    /// Allocates a block that CPUs keep; null if there is no memory, or the group is at its limit.
    /// `first` is none, or a block that the caller took off this CPU's array. `looked` says whether
    /// the caller found the array empty.
    pub fn alloc_block(
        &'static self,
        class: PageClass,
        (first, looked): (Item, Looked),
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let (pages, mut first, mut looked) = (class.pages(), first, looked);
        let request =
            Request { price: Price::Item(class.array()), bytes: pages.bytes(), endless: COSTLY };
        let taken = self.alloc(request, caller, || {
            loop {
                let mut item = core::mem::replace(&mut first, Item::NONE);
                if item.is_none() {
                    item =
                        self.heap.take_block(class, core::mem::replace(&mut looked, Looked::Not));
                }
                let set = self.heap.zones.of(item.address())?;
                let run = Run { start: set.zone.pfn(item.address())?, pages };
                // SAFETY: this thread took the block.
                if unsafe { self.heap.prepare_pages(set, run) } {
                    break Taken::run(set, run);
                }
            }
        });
        if taken.is_none() && !first.is_none() {
            // SAFETY: a free block that the caller took off its array.
            unsafe { self.heap.flush_block(class, first) };
        }
        let Some(taken) = taken else { return core::ptr::null_mut() };
        let at = taken.at as *mut u8;
        if gfp.has(Gfp::ZERO) {
            // SAFETY: this call allocated the block.
            unsafe { at.write_bytes(0, pages.bytes()) };
        }
        at
    }

    /// Allocates pages into the null entries of `out`, in order, as one operation. The group is
    /// charged once for up to 64 pages, and the heap gives them together. Stops early if the
    /// group cannot pay for a batch, or there is no memory without further effort. Neither is
    /// reported.
    pub fn alloc_singles(&'static self, out: &mut [*mut u8], gfp: Gfp, caller: Caller) {
        self.look_outside();
        self.books.note_fork(self.platform(), &self.census(), &self.groups);
        let objcg = self.groups.payer(caller.objcg());
        let is_charged = objcg != ObjcgId::ROOT;
        let limits = if caller.is_nofail() { Limits::Exceed } else { Limits::Obey };
        let mut left = out.iter().filter(|place| place.is_null()).count();
        let mut empty = out.iter_mut().filter(|place| place.is_null());
        while left > 0 {
            let mut items = [Item::NONE; BULK];
            let wanted = left.min(BULK);
            let price = Price::Singles(wanted as u32);
            // A group without room for a batch refuses single pages, so that it counts one refusal.
            let has_room = !is_charged
                || self.groups.has_room(objcg, price.bytes())
                    && self.charging().pay(price, objcg, limits).is_ok();
            if !has_room {
                break;
            }
            let got = self.heap.take_blocks(PageClass::SINGLE, &mut items[..wanted]);
            let word = self.word_for(caller) | objcg_bits(objcg);
            let mut used = 0;
            for &item in &items[..got] {
                let Some(taken) = self.prepared_page(item, gfp) else { continue };
                if self.books.watch().checks() {
                    self.check_cleared(&taken);
                }
                taken.book(word);
                if self.books.watch().any() {
                    self.saw_alloc(word, (taken.at, taken.bytes as u64), caller);
                }
                if let Some(place) = empty.next() {
                    *place = taken.at as *mut u8;
                    used += 1;
                }
            }
            if is_charged && used < wanted {
                self.charging().refund(Price::Singles((wanted - used) as u32), objcg);
            }
            left -= used;
            if got < wanted {
                break;
            }
        }
        self.note_peak();
    }

    /// A page that was taken from the heap, after the configured work. `None`: it is bad.
    #[inline]
    fn prepared_page(&'static self, item: Item, gfp: Gfp) -> Option<Taken<'static>> {
        let at = item.address();
        let taken = |ext, len| {
            let pages = Some((len, PageCount::ONE));
            Taken { at, bytes: PAGE_SIZE, ext, pages }
        };
        // Where a table is open, no work is configured.
        let fast = &self.heap.fast;
        let taken = match fast.page(at) {
            Some((words, _)) => taken(Some(words.ext), words.len),
            None => match fast.bare_page(at) {
                Some((len, _)) => taken(None, len),
                None => self.prepared_page_slow(item)?,
            },
        };
        if gfp.has(Gfp::ZERO) {
            // SAFETY: a page that this thread took, and has not handed out.
            unsafe { (at as *mut u8).write_bytes(0, PAGE_SIZE) };
        }
        Some(taken)
    }

    #[cold]
    fn prepared_page_slow(&'static self, item: Item) -> Option<Taken<'static>> {
        let set = self.heap.zones.of(item.address())?;
        let run = Run { start: set.zone.pfn(item.address())?, pages: PageCount::ONE };
        // SAFETY: this thread took the page.
        let good = unsafe { self.heap.prepare_pages(set, run) };
        if good { Taken::run(set, run) } else { None }
    }

    /// Takes a page allocation of the heap out of the books. Returns its pages; `None` if another
    /// thread freed it first.
    ///
    /// # Safety
    /// The caller alone uses the pages.
    pub unsafe fn unbook_run(&'static self, set: &'static ZoneSet, start: Pfn) -> Option<Run> {
        let PageWords { ext, len, .. } = set.zone.words(start)?;
        // In a large heap both words are in no cache. This load fetches the second one while the
        // exchange waits for the first one.
        let word = ext.map_or(EXT_LIVE, |ext| ext.load(Ordering::Relaxed));
        // One of the threads that free the block concurrently sees the length.
        let pages = PageCount(length::pages(len.swap(0, Ordering::AcqRel)));
        if pages == PageCount::ZERO {
            return None;
        }
        // One operation: the word may get another group until it is cleared.
        let word = ext.map_or(word, |ext| ext.fetch_and(TAG_MASK, Ordering::AcqRel));
        self.free(word, Price::Pages(pages), pages.bytes(), set.zone.address(start));
        let run = Run { start, pages };
        // SAFETY: pages that the caller alone uses and frees, by the contract.
        unsafe { self.heap.retire_pages(set, run) };
        Some(run)
    }
}
