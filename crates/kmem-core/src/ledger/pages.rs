//! Blocks and runs of pages in the ledger.

use kmem_layout::word::TAG_MASK;

use super::{COSTLY, Ledger, Request, Taken};
use crate::class::PageClass;
use crate::heap::{Fit, Looked, RunRequest, ZoneSet};
use crate::memcg::stock::Price;
use crate::os::Platform;
use crate::page::{PageWords, Placement, Run};
use crate::request::Caller;
use crate::sync::Ordering;
use crate::units::{Gfp, Item, PageCount, Pfn};

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
        let Some(pages) = pages else { return core::ptr::null_mut() };
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

    /// Takes a page allocation of the heap out of the books. Returns its pages; `None` if another
    /// thread freed it first.
    ///
    /// # Safety
    /// The caller alone uses the pages.
    pub unsafe fn unbook_run(&'static self, set: &'static ZoneSet, start: Pfn) -> Option<Run> {
        let PageWords { ext, len } = set.zone.words(start)?;
        // One of the threads that free the block concurrently sees the length.
        let pages = PageCount(len.swap(0, Ordering::AcqRel));
        if pages == PageCount::ZERO {
            return None;
        }
        let word = ext.load(Ordering::Relaxed);
        ext.store(word & TAG_MASK, Ordering::Relaxed);
        self.free(word, Price::Pages(pages), pages.bytes(), set.zone.address(start));
        let run = Run { start, pages };
        // SAFETY: pages that the caller alone uses and frees, by the contract.
        unsafe { self.heap.retire_pages(set, run) };
        Some(run)
    }
}
