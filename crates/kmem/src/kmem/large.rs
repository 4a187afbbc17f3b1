//! Allocations of whole pages: large and strongly aligned blocks; and the other kinds of
//! allocation that do not deserve a fast path.

use super::account::{objcg_bits, objcg_of, pages_cost};
use super::reclaim::COSTLY;
use super::{Instance, Purpose, ZoneSet, no_memory};
use crate::class::{MAX_OBJECT, PageClass, RunClass, SizeClass};
use crate::codetag::Caller;
use crate::os::Platform;
use crate::page::Run;
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::sync::Ordering;
use crate::units::{FRAME_PAGES, Item, ObjcgId, PAGE_SIZE, PageCount, Pfn};

/// Largest request: what a signed size can express.
const MAX_BYTES: usize = isize::MAX as usize;
/// From this length on, zeroed memory is made of fresh pages.
const FRESH_PAGES: u32 = 256;

impl<P: Platform> Instance<P> {
    /// `alloc` for more than a slab can serve; and for everything where objects are guarded, and before the
    /// start.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_large(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if size <= MAX_OBJECT {
            return self.alloc_guarded(size, caller);
        }
        self.alloc_run(size, 1, caller, false, false)
    }

    /// Allocates zeroed memory, for `calloc` and its like.
    pub fn alloc_zeroed(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if size > MAX_OBJECT {
            return self.alloc_run(size, 1, caller, true, false);
        }
        let object = self.alloc(size, caller);
        if !object.is_null() {
            // SAFETY: an object of at least `size` bytes, ours alone.
            unsafe { object.write_bytes(0, size) };
        }
        object
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two.
    pub fn alloc_aligned(&'static self, size: usize, align: usize, caller: Caller) -> *mut u8 {
        if align <= 16 {
            return self.alloc(size, caller);
        }
        match SizeClass::aligned(size, align) {
            Some(class) => {
                let object = self.alloc_class(class, self.geometry(class).slab_bytes(), caller.key);
                if object.is_null() {
                    return self.alloc_aligned_slow(class, (size, align), caller);
                }
                object
            }
            None => self.alloc_run(size, align.div_ceil(PAGE_SIZE), caller, false, false),
        }
    }

    /// Allocates pages for `size` bytes at a multiple of `align` pages; no more than these if
    /// `exact`, else perhaps a few, as CPUs keep runs of certain lengths.
    pub(super) fn alloc_run(
        &'static self,
        size: usize,
        align: usize,
        caller: Caller,
        zero: bool,
        exact: bool,
    ) -> *mut u8 {
        if size > MAX_BYTES || !self.ready() {
            return no_memory();
        }
        let (Some(pages), Ok(align)) = (PageCount::for_bytes(size.max(1)), u32::try_from(align))
        else {
            return no_memory();
        };
        let kept = if align == 1 && !zero && !exact { RunClass::of(pages.0) } else { None };
        let len = kept.map_or(pages, |class| PageCount(RunClass::pages(class)));
        let objcg = self.group_of(caller);
        let paid = pages_cost(len);
        if objcg != ObjcgId::ROOT && !self.pay_bytes(objcg, paid, caller) {
            return no_memory();
        }
        let (set, run) = loop {
            let found = match kept.and_then(|class| self.take_kept(class)) {
                Some(found) => Some(found),
                None => self.claim_run(pages, PageCount(align), kept, caller),
            };
            let Some((set, run)) = found else {
                if objcg != ObjcgId::ROOT {
                    self.refund_bytes(objcg, paid);
                }
                self.out_of_memory(size, caller);
                return no_memory();
            };
            if self.prepare_pages(set, run) {
                break (set, run);
            }
        };
        // No more than what is kept for runs of that length, perhaps less.
        if objcg != ObjcgId::ROOT && run.pages != len {
            self.refund_bytes(objcg, paid - pages_cost(run.pages));
        }
        if zero {
            self.zero_run(set, run);
        }
        let word = if self.books() { self.word_for(caller) } else { EXT_LIVE };
        let word = word | objcg_bits(objcg);
        set.zone.ext(run.start).store(word, Ordering::Relaxed);
        // Release: a reader that sees the length sees the tag.
        set.zone.len(run.start).store(run.pages.0, Ordering::Release);
        if self.watch().any() {
            self.saw_alloc(word, run.pages.bytes() as u64, caller);
        }
        self.note_peak();
        set.zone.address(run.start) as *mut u8
    }

    /// A run out of a zone: as long as those that are `kept`, else of `pages` exactly.
    #[cold]
    fn claim_run(
        &'static self,
        pages: PageCount,
        align: PageCount,
        kept: Option<SizeClass>,
        caller: Caller,
    ) -> Option<(&'static ZoneSet, Run)> {
        self.with_effort(pages.bytes(), COSTLY, caller, || {
            let found = match kept {
                Some(class) => self.claim_pages(PageCount(RunClass::pages(class)), PageCount(1)),
                None => self.claim_whole(pages, align),
            };
            found.or_else(|| self.claim_pages(pages, align))
        })
    }

    /// A run of pages; of whole frames if it is longer than one, so that nobody settles behind it:
    /// it can be lengthened in place, and leaves whole frames when it is freed. What it has more
    /// than `pages` is address space only.
    fn claim_whole(
        &'static self,
        pages: PageCount,
        align: PageCount,
    ) -> Option<(&'static ZoneSet, Run)> {
        if pages.0 < FRAME_PAGES {
            return self.claim_pages(pages, align);
        }
        let whole = PageCount(pages.0.checked_next_multiple_of(FRAME_PAGES)?);
        let (set, run) = self.claim_pages(whole, align)?;
        let end = run.start.offset(pages.0);
        let rest = run.pages.0 - pages.0;
        if set.zone.dirty_spans(end, rest).next().is_some() {
            self.give_up(set, end, rest);
        }
        Some((set, Run { start: run.start, pages }))
    }

    /// A run that this CPU kept. (Inlined, so that what is found stays in registers: a pair that is written by halves
    /// and read as a whole costs a store's way to the cache.)
    #[inline(always)]
    fn take_kept(&'static self, class: SizeClass) -> Option<(&'static ZoneSet, Run)> {
        let at = if self.slots.uses_rseq() {
            self.slots.pop(class)
        } else {
            let mut one = [Item::NONE];
            self.slots.pop_many(class, self.slot_hint(), &mut one);
            one[0]
        }
        .address();
        let set = self.zone_of(at)?;
        let pages = PageCount(RunClass::pages(class));
        Some((set, Run { start: set.zone.pfn(at)?, pages }))
    }

    /// Keeps a free run for the next request of that length. False: it must go to its zone.
    fn keep(&'static self, at: usize, pages: u32) -> bool {
        if pages == 1 {
            let single = PageClass::of(0).expect("single pages have an array");
            self.flush_pages(single, Item::at(at));
            return true;
        }
        let Some(class) = RunClass::of(pages) else {
            return false;
        };
        if RunClass::pages(class) != pages || self.decay_ms.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.push_run(class, at) || self.push_first_run(class, at)
    }

    /// Puts a free run on this CPU's array.
    fn push_run(&'static self, class: SizeClass, at: usize) -> bool {
        if self.slots.uses_rseq() {
            // SAFETY: a free run of ours.
            return unsafe { self.slots.push(class, Item::at(at)) };
        }
        // SAFETY: as above.
        unsafe { self.slots.push_many(class, self.slot_hint(), &[Item::at(at)]) == 1 }
    }

    /// The same on a CPU that had no arrays, because no object was taken or freed there yet.
    #[cold]
    fn push_first_run(&'static self, class: SizeClass, at: usize) -> bool {
        let Some(cpu) = self.slots.current(self.slot_hint()) else { return false };
        if self.slots.has_area(cpu) {
            return false;
        }
        self.ensure_area(cpu);
        self.push_run(class, at)
    }

    /// Makes a claimed run read as zero.
    pub(super) fn zero_run(&self, set: &ZoneSet, run: Run) {
        if set.zone.reads_zero(run) {
            return;
        }
        let at = set.zone.address(run.start) as *mut u8;
        // Long runs are mostly not written as a whole: fresh pages cost less memory than zeroes.
        if run.pages.0 >= FRESH_PAGES
            && let Some(at) = core::ptr::NonNull::new(at)
            // SAFETY: claimed pages of ours.
            && unsafe { self.platform.decommit(at, run.pages.bytes()) }
        {
            return;
        }
        for (row, mask) in set.zone.dirty_spans(run.start, run.pages.0) {
            self.zero_pages(set, row, mask);
        }
    }

    /// Zeroes the pages of `mask` in a row that is ours.
    fn zero_pages(&self, set: &ZoneSet, row: Pfn, mask: u64) {
        for (start, len) in crate::row::runs(mask) {
            let at = set.zone.address(row.offset(start)) as *mut u8;
            // SAFETY: claimed pages of ours.
            unsafe { at.write_bytes(0, PageCount(len).bytes()) };
        }
    }

    /// Takes a run out of the first zone that has one, or out of a new zone.
    pub(super) fn claim_pages(
        &'static self,
        pages: PageCount,
        align: PageCount,
    ) -> Option<(&'static ZoneSet, Run)> {
        for round in 0..2 {
            for set in self.near_sets() {
                if pages.0 <= set.zone.pages().0
                    && let Some(run) = set.zone.on(&self.platform).claim(pages, align)
                {
                    return Some((set, run));
                }
            }
            let span = pages.0.checked_add(align.0 - 1)?;
            if let Some(set) = self.add_zone(PageCount(span))
                && let Some(run) = set.zone.on(&self.platform).claim(pages, align)
            {
                return Some((set, run));
            }
            if round == 0 {
                // What CPUs and the barn keep may be what is missing.
                self.drain();
            }
        }
        None
    }

    /// Gives the pages of a run from `start` up to `end` back, and what the run has behind them.
    fn give_run(&'static self, set: &ZoneSet, start: Pfn, end: Pfn) {
        let end = set.zone.whole_end(end);
        self.give_pages(set, start, PageCount(end.0 - start.0));
    }

    /// Gives pages back to their zone.
    pub(super) fn give_pages(&'static self, set: &ZoneSet, start: Pfn, pages: PageCount) {
        if set.purpose == Purpose::PerCpu {
            self.discard_copies(Run { start, pages });
        }
        if let Err(twice) = set.zone.give(start, pages) {
            self.page_freed_twice(set.zone.address(twice.0));
        }
        self.decay(set);
    }

    /// Frees a page allocation that starts at `pfn`; `keep` says whether the CPU may keep it for
    /// the next request of that length. False: none does.
    pub(super) fn free_large(&'static self, set: &ZoneSet, pfn: Pfn, keep: bool) -> bool {
        if set.purpose == Purpose::Vmalloc {
            return self.give_area_of(set, pfn);
        }
        let Some(PageCount(pages)) = self.unbook_run(set, pfn) else {
            return false;
        };
        let end = pfn.offset(pages);
        // A run that has more than its length would hide that from everybody, and arrays do not know
        // what pages are for.
        let keep = keep && set.is_heap() && self.is_near(set) && set.zone.whole_end(end) == end;
        if !keep || !self.keep(set.zone.address(pfn), pages) {
            self.give_run(set, pfn, end);
        }
        true
    }

    /// Takes a page allocation out of the books; its length, if there is one.
    pub(super) fn unbook_run(&'static self, set: &ZoneSet, pfn: Pfn) -> Option<PageCount> {
        // One winner among threads that free the same block.
        let pages = set.zone.len(pfn).swap(0, Ordering::AcqRel);
        if pages == 0 {
            return None;
        }
        let ext = set.zone.ext(pfn);
        let word = ext.load(Ordering::Relaxed);
        ext.store(word & TAG_MASK, Ordering::Relaxed);
        if self.watch().any() {
            self.saw_free(word, PageCount(pages).bytes() as u64, set.zone.address(pfn));
        }
        if objcg_of(word) != ObjcgId::ROOT {
            self.refund_bytes(objcg_of(word), pages_cost(PageCount(pages)));
        }
        self.retire_pages(set, pfn, pages);
        Some(PageCount(pages))
    }

    /// Changes the length of a page allocation in place, if that is possible, and charges or credits the
    /// difference to who pays for it. `None`: who pays is at its limit.
    pub(super) fn resize_charged(
        &'static self,
        set: &ZoneSet,
        pfn: Pfn,
        old: PageCount,
        size: usize,
        caller: Caller,
    ) -> Option<bool> {
        let objcg = objcg_of(set.zone.ext(pfn).load(Ordering::Relaxed));
        let Some(new) = PageCount::for_bytes(size) else { return Some(false) };
        let (was, is) = (pages_cost(old), pages_cost(new));
        let charged = objcg != ObjcgId::ROOT;
        if charged && is > was && !self.pay_bytes(objcg, is - was, caller) {
            return None;
        }
        let done = self.resize_large(set, pfn, old.0, size);
        let back = if done { was.saturating_sub(is) } else { is.saturating_sub(was) };
        if charged && back > 0 {
            self.refund_bytes(objcg, back);
        }
        Some(done)
    }

    /// Changes the length of a page allocation in place, if that is possible.
    fn resize_large(&'static self, set: &ZoneSet, pfn: Pfn, old: u32, size: usize) -> bool {
        let Some(PageCount(new)) = PageCount::for_bytes(size) else {
            return false;
        };
        let (end, new_end) = (pfn.offset(old), pfn.offset(new));
        // Where pages are looked at they come and go as a whole.
        if new != old && self.page_debug().is_slow() {
            return false;
        }
        if new < old {
            set.zone.len(pfn).store(new, Ordering::Release);
            // A frame that is the run's as a whole stays so.
            let kept = set.zone.whole_end(new_end);
            if kept.0 < end.0 {
                self.give_run(set, kept, end);
            }
            if kept != new_end {
                self.give_up(set, new_end, end.0.min(kept.0) - new_end.0);
            }
        } else if new > old {
            let fits = u64::from(pfn.0) + u64::from(new) <= u64::from(set.zone.pages().0);
            if !fits || !self.lengthen(set, end, new_end) {
                return false;
            }
            set.zone.len(pfn).store(new, Ordering::Release);
            self.note_peak();
        }
        true
    }

    /// Takes what is missing of a run that ends at `end` to end at `to`.
    fn lengthen(&self, set: &ZoneSet, end: Pfn, to: Pfn) -> bool {
        let mine = set.zone.whole_end(end);
        if to.0 <= mine.0 {
            return true;
        }
        // A run of whole frames goes on in whole frames.
        let whole = mine.0.is_multiple_of(FRAME_PAGES)
            && mine.0 > 0
            && set.zone.is_whole(Pfn(mine.0 - 1).frame());
        let frames = (to.0 - mine.0).div_ceil(FRAME_PAGES);
        if whole && set.zone.on(&self.platform).claim_frames_at(mine.frame(), frames) {
            return true;
        }
        set.zone.claim_at(mine, PageCount(to.0 - mine.0))
    }

    /// Gives the memory of pages that a run keeps without using them back to the platform.
    fn give_up(&self, set: &ZoneSet, start: Pfn, pages: u32) {
        if let Some(at) = core::ptr::NonNull::new(set.zone.address(start) as *mut u8) {
            // SAFETY: pages of a run in our hands, behind what its owner uses. If it is refused,
            // they stay resident.
            unsafe { self.platform.decommit(at, PageCount(pages).bytes()) };
        }
    }
}
