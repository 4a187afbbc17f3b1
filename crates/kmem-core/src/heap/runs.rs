//! Runs of pages: large and strongly aligned allocations.
//!
//! A run of more than a pageblock owns whole pageblocks. So it can be lengthened in place while the
//! next ones are free, and leaves whole ones when it is freed. CPUs keep shorter runs by length
//! class, because a claim costs 200 ns. Their length is rounded up by at most 12.5 %, in address
//! space that is not touched.
//!
//! ```text
//! take_run --> array of the CPU, by length
//!   a run:     the newest one
//!   a block:   the newest one, if it lies at a multiple of its length
//!               | none
//!               v
//!              zone: one run, or a few blocks in random order
//! ```
//!
//! A block of order 4 to 8 is such a run, at a multiple of its length. So runs and blocks share the
//! arrays, and no CPU keeps more for them. A run that lies elsewhere stays there for requests of
//! runs.

use core::ptr::NonNull;

use super::array::{Backing, Looked};
use super::{Heap, ZoneSet};
use crate::class::{PageClass, RunClass};
use crate::os::Platform;
use crate::page::{Placement, Run, Way};
use crate::slab::slabs::Refused;
use crate::sync::Ordering;
use crate::units::{CpuId, Item, PAGE_SIZE, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE, PageCount, Pfn};

/// CPUs keep runs of at most this part of a limit of memory.
const KEPT_PART: u32 = 2048;

/// Most calls of [`Heap::move_contents`] that remap. Each may add two mappings, of the 65,530 that
/// Linux allows a process by default.
const MOST_REMAPPED: u32 = 1 << 13;

/// Length of a run relative to its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// The length of the request.
    Exact,
    /// The length of the request or a little more: CPUs keep runs of certain lengths.
    Loose,
    /// The length of the request, a power of two, which is also its alignment. CPUs keep blocks.
    Block,
}

/// A request for a run.
#[derive(Clone, Copy, Debug)]
pub struct RunRequest {
    /// Its length.
    pub pages: PageCount,
    /// A power of two: the address is a multiple of that many pages.
    pub align: PageCount,
    /// Its length relative to `pages`.
    pub fit: Fit,
    /// The nodes that it may be of. `None`: any, those near to the CPU first.
    pub placement: Option<Placement>,
}

impl RunRequest {
    /// Class of runs that CPUs keep for such a request.
    fn class(self) -> Option<RunClass> {
        let kept = match self.fit {
            Fit::Exact => false,
            Fit::Loose => self.align == PageCount::ONE,
            Fit::Block => self.align == self.pages,
        };
        // A run that a CPU keeps may be of any node.
        if kept && self.placement.is_none() { RunClass::of(self.pages) } else { None }
    }

    /// Most pages that a run for it may have.
    pub fn most(self) -> PageCount {
        self.class().map_or(self.pages, RunClass::pages)
    }
}

/// Free blocks of one length that a zone has. An array gets as many of them at once as it holds, in
/// random order.
struct RandomBlocks<P: 'static> {
    heap: &'static Heap<P>,
    class: RunClass,
}

impl<P: Platform> Backing for RandomBlocks<P> {
    fn keeps(&self) -> bool {
        self.heap.most_runs(self.class) > 0
    }

    fn batch(&self, _: CpuId, _: Way) -> usize {
        self.class.cap().into()
    }

    fn supply(
        &self,
        _: Option<CpuId>,
        most: usize,
        take: impl FnOnce(&[Item]) -> Item,
    ) -> Option<Item> {
        let (heap, pages) = (self.heap, self.class.pages());
        let (set, first) = heap.claim_pages(pages, pages, None)?;
        let mut buffer = [Item::NONE; RunClass::MOST];
        let out = &mut buffer[..most.min(RunClass::MOST)];
        let on = set.zone.on(&heap.platform);
        let runs = core::iter::once(first).chain(core::iter::from_fn(|| on.claim(pages, pages)));
        let mut got = 0;
        for (place, run) in out.iter_mut().zip(runs) {
            *place = Item::at(set.zone.address(run.start));
            got += 1;
        }
        heap.shuffle(&mut out[..got]);
        Some(take(&out[..got]))
    }

    fn absorb(&self, most: usize, fill: impl FnOnce(&mut [Item]) -> usize) {
        let mut buffer = [Item::NONE; RunClass::MOST];
        let len = fill(&mut buffer[..most.min(RunClass::MOST)]);
        self.give(&buffer[..len]);
    }

    fn give(&self, items: &[Item]) {
        for item in items {
            self.heap.give_drained(self.class.array(), &mut [*item]);
        }
    }
}

impl<P: Platform> Heap<P> {
    /// Takes a run, of at most [`RunRequest::most`] pages. `None`: there is no memory.
    pub fn take_run(&'static self, request: RunRequest) -> Option<(&'static ZoneSet, Run)> {
        let class = if self.zones.is_sparing() { None } else { request.class() };
        loop {
            let kept = class.and_then(|class| self.take_kept(class, request.align));
            let (set, run) = match kept {
                Some(found) => found,
                None => self.claim_run(request, class)?,
            };
            // SAFETY: this thread took the run.
            if unsafe { self.prepare_pages(set, run) } {
                return Some((set, run));
            }
        }
    }

    /// Does the configured work on a run that is about to be handed out. False: it is bad, and must
    /// not be used.
    ///
    /// # Safety
    /// The caller took the run, and alone uses its pages.
    #[inline]
    pub unsafe fn prepare_pages(&'static self, set: &ZoneSet, run: Run) -> bool {
        // SAFETY: the same contract.
        let prepared = unsafe { set.zone.on(&self.platform).prepare(self.zones.checks(), run) };
        prepared.map_err(|bad| self.take_out_of_use(set, bad)).is_ok()
    }

    /// Claims a run of the length that CPUs keep, or else of the length of the request.
    #[cold]
    fn claim_run(
        &'static self,
        RunRequest { pages, align, placement, fit }: RunRequest,
        class: Option<RunClass>,
    ) -> Option<(&'static ZoneSet, Run)> {
        if pages >= PageCount::PAGEBLOCK {
            self.make_room(pages);
        }
        let found = match class {
            Some(class) if fit == Fit::Block && self.zones.checks().shuffles() => {
                return self.claim_random(class);
            }
            Some(class) => self.claim_pages(class.pages(), align, placement),
            None => self.claim_whole(pages, align, placement),
        };
        found.or_else(|| self.claim_pages(pages, align, placement))
    }

    /// Claims blocks in random order for this CPU, and takes one of them. Not inlined: the stack of
    /// other claims has no room for the list of blocks.
    #[inline(never)]
    fn claim_random(&'static self, class: RunClass) -> Option<(&'static ZoneSet, Run)> {
        let blocks = RandomBlocks { heap: self, class };
        let item = self.arrays().refill(class.array(), Looked::Empty, &blocks);
        self.run_at(item.address(), class)
    }

    /// Takes a run of pages out of the first zone that has one, or out of a new zone.
    fn claim_pages(
        &'static self,
        pages: PageCount,
        align: PageCount,
        placement: Option<Placement>,
    ) -> Option<(&'static ZoneSet, Run)> {
        self.retrying(|| {
            let here = placement.unwrap_or_else(|| self.zones.here(&self.platform));
            self.zones.claim(&self.platform, here, pages, align).ok_or(Refused::NoMemory)
        })
    }

    /// Claims a run that owns whole pageblocks if it is longer than one. Its part beyond `pages` is
    /// address space without memory.
    fn claim_whole(
        &'static self,
        pages: PageCount,
        align: PageCount,
        placement: Option<Placement>,
    ) -> Option<(&'static ZoneSet, Run)> {
        // A run that stays as long as it is needs no more; and its checks are those of its pages.
        if pages < PageCount::PAGEBLOCK || !self.resizes_in_place() || self.zones.is_sparing() {
            return self.claim_pages(pages, align, placement);
        }
        let whole = PageCount(pages.0.checked_next_multiple_of(PAGEBLOCK_PAGES)?);
        let (set, all) = self.claim_pages(whole, align, placement)?;
        let run = Run { start: all.start, pages };
        let rest = Run { start: run.end(), pages: whole - pages };
        if !set.zone.reads_zero(rest) {
            // SAFETY: this thread claimed the pages, and the run's user does not get them.
            unsafe { self.give_up(set, rest) };
        }
        Some((set, run))
    }

    /// Takes a run that this CPU kept. Inlined, so the result stays in registers. A pair that is
    /// written by halves and read as a whole waits for the stores to reach the cache.
    #[inline(always)]
    fn take_kept(
        &'static self,
        class: RunClass,
        align: PageCount,
    ) -> Option<(&'static ZoneSet, Run)> {
        let item = self.arrays().pop(class.array());
        if item.address() & (align.bytes() - 1) != 0 {
            // It serves no block. The next request of a run finds it.
            // SAFETY: this thread took the run off that array.
            if !unsafe { self.push_run(class, item) } {
                self.give_drained(class.array(), &mut [item]);
            }
            return None;
        }
        self.run_at(item.address(), class)
    }

    /// The run of a class at an address; `None` if no zone has the address.
    #[inline(always)]
    fn run_at(&'static self, at: usize, class: RunClass) -> Option<(&'static ZoneSet, Run)> {
        let set = self.zones.of(at)?;
        Some((set, Run { start: set.zone.pfn(at)?, pages: class.pages() }))
    }

    /// Most runs of a class that a CPU keeps. It keeps none where free memory is not kept, and none
    /// that is a large part of a limit of memory.
    pub(super) fn most_runs(&self, class: RunClass) -> u16 {
        let most = self.limit.load(Ordering::Relaxed) / KEPT_PART;
        if self.keeps_pages() && class.pages().0 <= most { class.cap() } else { 0 }
    }

    /// Takes a free run back, and keeps it on this CPU for the next request of that length.
    ///
    /// # Safety
    /// `run` is a run of the heap in `set`, which the caller alone uses.
    pub unsafe fn give_run(&'static self, set: &'static ZoneSet, run: Run) {
        // A run that owns more than its length must go to its zone, which detects that. An array
        // has addresses only.
        let keeps = set.is_heap() && set.zone.whole_end(run.end()) == run.end();
        // SAFETY: a run of the heap, by the contract.
        if !keeps || !unsafe { self.keep(set, run) } {
            self.give_whole(set, run);
        }
    }

    /// Keeps a free run on this CPU. False: it must go to its zone.
    ///
    /// # Safety
    /// See [`Self::give_run`].
    unsafe fn keep(&'static self, set: &ZoneSet, run: Run) -> bool {
        let item = Item::at(set.zone.address(run.start));
        if run.pages == PageCount::ONE {
            // SAFETY: a free page, by the contract.
            unsafe { self.flush_block(PageClass::SINGLE, item) };
            return true;
        }
        match RunClass::of(run.pages) {
            Some(class) if class.pages() == run.pages && self.most_runs(class) > 0 => {
                // SAFETY: a free run of that class, by the contract.
                unsafe { self.push_run(class, item) }
            }
            _ => false,
        }
    }

    /// Puts a free run on this CPU's array; false if it is full.
    ///
    /// # Safety
    /// `item` is a run of this class, which the caller alone uses.
    unsafe fn push_run(&'static self, class: RunClass, item: Item) -> bool {
        // SAFETY: a free run of the class, by the contract.
        unsafe {
            self.slots.uses_rseq() && self.slots.push(class.array(), item)
                || self.push_run_slow(class, item)
        }
    }

    /// [`Self::push_run`] without critical sections, and on a CPU that had no arrays yet. False:
    /// the array is full, or the CPU gets none.
    ///
    /// # Safety
    /// See [`Self::push_run`].
    #[cold]
    unsafe fn push_run_slow(&'static self, class: RunClass, item: Item) -> bool {
        let hint = self.slots.hint(&self.platform);
        let Some(cpu) = self.slots.current(hint) else { return false };
        if self.slots.uses_rseq() && self.slots.has_area(cpu) {
            return false;
        }
        self.slots.ensure(&self.platform, cpu, |array| self.cap(array));
        // SAFETY: a free run of the class, by the contract.
        unsafe { self.slots.push_many(class.array(), hint, &[item]) == 1 }
    }

    /// Gives a free run back to its zone, with all pages that it owns.
    pub fn give_whole(&'static self, set: &'static ZoneSet, run: Run) {
        let end = set.zone.whole_end(run.end());
        self.give_pages(set, Run { start: run.start, pages: end - run.start });
    }

    /// Gives free pages back to their zone.
    pub fn give_pages(&'static self, set: &'static ZoneSet, run: Run) {
        if let Err(twice) = set.zone.give(run) {
            self.end_for_page(set.zone.address(twice.0));
        }
        self.came_back(set, run.pages);
    }

    /// Does the configured work on a run that comes back from its user.
    ///
    /// # Safety
    /// The caller alone uses the pages, and their contents are not needed.
    pub unsafe fn retire_pages(&self, set: &ZoneSet, run: Run) {
        // SAFETY: the same contract.
        let retired = unsafe { set.zone.on(&self.platform).retire(self.zones.checks(), run) };
        if let Err(twice) = retired {
            self.end_for_page(set.zone.address(twice.0));
        }
    }

    /// Returns whether runs may change their length in place. Checked pages come and go with whole
    /// runs.
    pub fn resizes_in_place(&self) -> bool {
        !self.zones.checks().is_slow()
    }

    /// Moves the contents of a run's first `bytes` to another run by remapping whole pageblocks.
    /// Pages that were never touched take no memory then. False: the caller must copy, because that
    /// is faster, or the platform refused.
    ///
    /// A remapped range is a mapping of its own for ever, and their number is limited.
    ///
    /// # Safety
    /// `from` and `to` are distinct runs of the heap of at least that length, which the caller
    /// alone uses. The contents of `from` are not needed afterwards.
    pub unsafe fn move_contents(&self, from: *mut u8, to: *mut u8, bytes: usize) -> bool {
        let pages = bytes.next_multiple_of(PAGE_SIZE);
        let aligned = (from as usize | to as usize).is_multiple_of(PAGEBLOCK_SIZE);
        let (Some(from), Some(to)) = (NonNull::new(from), NonNull::new(to)) else { return false };
        if pages < PAGEBLOCK_SIZE || !aligned || !self.resizes_in_place() {
            return false;
        }
        if self.remapped.fetch_add(1, Ordering::Relaxed) >= MOST_REMAPPED {
            self.remapped.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        // SAFETY: committed pages of two runs, which the caller alone uses, by the contract.
        unsafe { self.platform.remap(from, to, pages) }
    }

    /// Takes back the pages of a run behind its first `new` ones.
    ///
    /// # Safety
    /// `run` is a run of the heap in `set`, longer than `new`. Its user gave up its other pages.
    pub unsafe fn shorten_run(&'static self, set: &'static ZoneSet, run: Run, new: PageCount) {
        let (end, new_end) = (run.end(), run.start + new);
        // The run keeps a pageblock that it owns as a whole.
        let kept = set.zone.whole_end(new_end);
        if kept < end {
            self.give_whole(set, Run { start: kept, pages: end - kept });
        }
        if kept != new_end {
            let rest = Run { start: new_end, pages: end.min(kept) - new_end };
            // SAFETY: pages of the run that its user gave up, by the contract.
            unsafe { self.give_up(set, rest) };
        }
    }

    /// Lengthens a run to `new` pages in place. False: the pages behind it are not free.
    pub fn lengthen_run(&'static self, set: &'static ZoneSet, run: Run, new: PageCount) -> bool {
        let fits = u64::from(run.start.0) + u64::from(new.0) <= u64::from(set.zone.pages().0);
        fits && self.lengthen(set, run.end(), run.start + new)
    }

    /// Lengthens a run that ends at `end`, so that it ends at `to`. False: pages are not free.
    fn lengthen(&self, set: &ZoneSet, end: Pfn, to: Pfn) -> bool {
        let mine = set.zone.whole_end(end);
        if to <= mine {
            return true;
        }
        let missing = to - mine;
        // A run of whole pageblocks is lengthened by whole pageblocks.
        let whole = mine.0.is_multiple_of(PAGEBLOCK_PAGES)
            && mine > Pfn::ZERO
            && set.zone.is_whole((mine - PageCount::ONE).pageblock());
        let count = missing.0.div_ceil(PAGEBLOCK_PAGES);
        let on = set.zone.on(&self.platform);
        whole && on.claim_pageblocks_at(mine.pageblock(), count) || set.zone.claim_at(mine, missing)
    }

    /// Gives the memory of pages that a run owns, but its user does not use, back to the platform.
    /// If the platform refuses, they stay resident.
    ///
    /// # Safety
    /// `rest` are pages of a run that the caller alone uses, behind those that the run's user has.
    unsafe fn give_up(&self, set: &ZoneSet, rest: Run) {
        // SAFETY: pages that no user has, by the contract.
        unsafe { set.zone.on(&self.platform).drop_pages(rest) };
    }
}
