//! Allocation and freeing of areas.

use core::ptr::null_mut;

use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::{BATCH_ALIGN, LONG, MAX_KEPT, array, batch, cap, kept, length};
use crate::class::ArrayId;
use crate::cpu::Slots;
use crate::heap::{Arrays, Backing, Fit, LazyZone, Looked, ZoneSet};
use crate::ledger::{Ledger, Over, Request, Taken};
use crate::memcg::stock::Price;
use crate::os::Platform;
use crate::page::{PageChecks, PageWords, Run, Way};
use crate::request::Caller;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::units::{CpuId, Gfp, Item, ObjcgId, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn};

/// Most kept areas that are searched for one that fits.
const LOOK_AT: usize = 8;
/// Most areas that are moved at once.
const MOST: usize = 32;

/// vmalloc of an instance. Zeroed memory is a valid, unused value.
pub struct Vmalloc {
    pub(super) slots: Slots,
    /// The zone of areas.
    pub(super) zone: LazyZone,
    /// Address of the words beside the zone.
    pub(super) words: AtomicUsize,
    /// Number of guards.
    pub(super) guards: AtomicUsize,
    /// Most inaccessible ranges that may have a mapping of their own.
    pub(super) most_splits: AtomicUsize,
    /// Number of these.
    pub(super) splits: AtomicUsize,
    /// Number of areas that were made without a guard.
    pub(super) unguarded: AtomicU64,
    /// Number of guards that could not be made accessible again.
    pub(super) stuck: AtomicU64,
    /// Number of areas that were held so far.
    pub(super) held: AtomicU64,
    /// The zone of pages for vmap.
    pub(super) shared: LazyZone,
}

/// vmalloc over the ledger of its instance.
pub type On<P> = Over<Vmalloc, P>;

impl Vmalloc {
    /// No areas.
    pub const fn new() -> Self {
        Self {
            slots: Slots::new(),
            zone: LazyZone::new(),
            words: AtomicUsize::new(0),
            guards: AtomicUsize::new(0),
            most_splits: AtomicUsize::new(0),
            splits: AtomicUsize::new(0),
            unguarded: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            held: AtomicU64::new(0),
            shared: LazyZone::new(),
        }
    }

    /// vmalloc over a ledger.
    #[inline(always)]
    pub fn on<P>(&'static self, ledger: &'static Ledger<P>) -> On<P> {
        Over { part: self, ledger }
    }

    /// Closes the critical sections; see [`Slots::pause`]. The caller fences the CPUs.
    pub fn pause(&self) {
        self.slots.pause(|| true);
    }

    /// Ends a [`Self::pause`].
    pub fn resume(&self) {
        self.slots.resume();
    }
}

impl Default for Vmalloc {
    fn default() -> Self {
        Self::new()
    }
}

/// A request for an area.
#[derive(Clone, Copy, Debug)]
pub struct AreaRequest {
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes: a power of two, at least a page.
    pub align: usize,
    /// True if to advise the platform to use huge pages.
    pub huge: bool,
    /// Alignment in bytes of a block that ends in front of the guard, at least 16. `None`: it
    /// begins at the start of its pages.
    pub fence: Option<usize>,
}

/// Outcome of a free.
pub enum Freed {
    /// The area is kept, or given back.
    Done,
    /// It is out of the books, but the CPU's array is full. The caller calls [`On::keep`], unless
    /// this is a forked child: its repair finds the area free by its length.
    Full(Run),
    /// No live area begins there.
    NotFound,
}

impl<P: Platform> On<P> {
    /// Allocates an area, if this CPU keeps one of that length and no group pays. About 60
    /// instructions, no atomics.
    ///
    /// # Errors
    /// The state of the CPU's array, which the caller passes to [`Self::alloc`].
    #[inline(always)]
    pub fn alloc_fast(
        self,
        request: AreaRequest,
        gfp: Gfp,
        caller: Caller,
    ) -> Result<*mut u8, Looked> {
        // If the site is known, the instance has started, and sections may run.
        if request.align != PAGE_SIZE
            || request.size.wrapping_sub(1) >= MAX_KEPT.bytes()
            || caller.objcg() != ObjcgId::ROOT
        {
            return Err(Looked::Not);
        }
        let Some(word) = self.ledger.books.sites.cached(caller.key()) else {
            return Err(Looked::Not);
        };
        let Some(set) = self.zone() else { return Err(Looked::Not) };
        let pages = PageCount(request.size.div_ceil(PAGE_SIZE) as u32);
        // SAFETY: the site is known, so the instance has started its slots. Each length up to
        // `MAX_KEPT` has an array.
        let item = unsafe { self.part.slots.pop(ArrayId(pages.0 as u8)) };
        if item.is_none() {
            return Err(Looked::after_miss(&self.part.slots));
        }
        let pfn = Pfn(((item.address() - set.zone.base()) >> PAGE_SHIFT) as u32);
        // SAFETY: areas lie in the committed part of their zone.
        let words = unsafe { set.zone.words_of(pfn) };
        words.set_word(word);
        // Release: a reader that sees the length sees the tag.
        words.len.store(pages.0, Ordering::Release);
        let at = item.address() as *mut u8;
        if gfp.has(Gfp::ZERO) {
            // SAFETY: this call allocated the area.
            unsafe { at.write_bytes(0, pages.bytes()) };
        }
        Ok(at)
    }

    /// Allocates an area; null if there is no memory, or the group is at its limit. The instance
    /// has started.
    #[cold]
    #[inline(never)]
    pub fn alloc(self, request: AreaRequest, looked: Looked, gfp: Gfp, caller: Caller) -> *mut u8 {
        let mut looked = looked;
        let AreaRequest { size, align, huge, fence } = request;
        let pages = PageCount::for_bytes(size)
            .filter(|&pages| pages > PageCount::ZERO && size <= isize::MAX as usize);
        let (Some(pages), Some(align)) = (pages, PageCount::for_bytes(align)) else {
            return null_mut();
        };
        let Some(set) = self.space() else {
            // Without memory protection there are no guards: an area is a run of the heap.
            return self.ledger.alloc_run(size, align, Fit::Exact, gfp, caller);
        };
        // A wait for more than half of the zone might never end, whatever is freed.
        let endless = PageCount(set.zone.pages().0 / 2);
        let request = Request { price: Price::Pages(pages), bytes: size, endless };
        let taken = self.ledger.alloc(request, caller, || {
            let looked = core::mem::replace(&mut looked, Looked::Not);
            let (run, source) = self.take(set, pages, align, looked)?;
            let on = set.zone.on(self.ledger.platform());
            if huge
                && let Some(at) = core::ptr::NonNull::new(set.zone.address(run.start) as *mut u8)
            {
                // SAFETY: committed pages of an area that this thread took.
                unsafe { on.platform.advise_huge(at, run.pages.bytes(), true) };
            }
            if gfp.has(Gfp::ZERO) || self.checks().zeroes_on_alloc() {
                // The zone has no dirty bits for a kept area.
                if source == Source::Kept {
                    set.zone.mark_dirty(run);
                }
                // SAFETY: this thread took the area.
                unsafe { on.zero(run) };
            }
            let taken = Taken::run(set, run)?;
            let front = self.enclose(set, run, fence.map(|align| (size, align)));
            Some(Taken { at: taken.at + front, ..taken })
        });
        taken.map_or(null_mut(), |taken| taken.at as *mut u8)
    }

    /// Takes a free area. Returns it and its origin.
    fn take(
        self,
        set: &'static ZoneSet,
        pages: PageCount,
        align: PageCount,
        looked: Looked,
    ) -> Option<(Run, Source)> {
        if looked == Looked::Not
            && let Some(run) = self.take_kept(set, pages, align)
        {
            return Some((run, Source::Kept));
        }
        let run = match kept(pages) {
            Some(array) if align == PageCount::ONE => {
                let item =
                    self.arrays().refill(array, Looked::Empty, &Kept { on: self, set, pages });
                let start = set.zone.pfn(item.address()).filter(|_| !item.is_none())?;
                Run { start, pages }
            }
            _ => self.make(set, pages, align, 1)?,
        };
        Some((run, Source::Zone))
    }

    /// Takes an area that the CPU keeps, if one of those freed last has that length and alignment.
    fn take_kept(self, set: &'static ZoneSet, pages: PageCount, align: PageCount) -> Option<Run> {
        let array = array(pages)?;
        let slots = &self.part.slots;
        let hint = slots.hint(self.ledger.platform());
        let mut last = [Item::NONE; LOOK_AT];
        let most = if array == LONG || align > PageCount::ONE { LOOK_AT } else { 1 };
        let got = slots.pop_many(array, hint, &mut last[..most]);
        let mut taken = None;
        for item in &last[..got] {
            let Some(start) = set.zone.pfn(item.address()) else { continue };
            let length = if array == LONG { self.length_of_kept(set, start) } else { pages };
            let run = Run { start, pages: length };
            if taken.is_none() && length == pages && item.address().is_multiple_of(align.bytes()) {
                taken = Some(run);
            } else {
                self.keep_accessible(set, run);
            }
        }
        taken
    }

    /// Length of a free area that has a guard.
    pub(super) fn length_of_kept(self, set: &ZoneSet, start: Pfn) -> PageCount {
        let guards = self.guard_bits(set);
        let is_guard = |&pages: &u32| guards.has(start + PageCount(pages));
        PageCount((1..=super::MAX_LONG.0).find(is_guard).unwrap_or(0))
    }

    /// Makes adjacent areas out of pages of the zone. Returns the first.
    pub(super) fn make(
        self,
        set: &'static ZoneSet,
        pages: PageCount,
        align: PageCount,
        areas: u32,
    ) -> Option<Run> {
        let each = PageCount(pages.0.checked_add(1)?);
        let all = PageCount(each.0.checked_mul(areas)?);
        if all > set.zone.pages() {
            return None;
        }
        let on = set.zone.on(self.ledger.platform());
        let run = on.claim(all, align).or_else(|| {
            self.drain_arrays();
            on.claim(all, align).or_else(|| {
                self.drain();
                on.claim(all, align)
            })
        })?;
        // Areas in whole pageblocks must be free to go back one by one.
        set.zone.loosen(run);
        for area in (0..areas).rev() {
            let start = run.start + PageCount(area * each.0);
            self.guard(set, start + pages);
            self.number_pages(set, start, PageCount::ONE, each);
        }
        Some(Run { start: run.start, pages })
    }

    /// Writes their distance from `start` into the extension words of the pages `from..to` behind
    /// it.
    pub(super) fn number_pages(self, set: &ZoneSet, start: Pfn, from: PageCount, to: PageCount) {
        for page in from.0..to.0 {
            if let Some(words) = set.zone.words(start + PageCount(page)) {
                words.set_word(page);
            }
        }
    }

    /// Takes the area that begins at a page out of the books, and puts it on this CPU's array.
    ///
    /// # Safety
    /// No thread uses the area from here on.
    #[inline(always)]
    pub unsafe fn free(self, set: &'static ZoneSet, start: Pfn) -> Freed {
        let Some(words) = set.zone.words(start) else { return Freed::NotFound };
        let PageWords { ext: Some(ext), len, .. } = words else { return Freed::NotFound };
        let pages = PageCount(len.load(Ordering::Relaxed));
        if pages == PageCount::ZERO {
            return Freed::NotFound;
        }
        let word = ext.load(Ordering::Relaxed);
        // A free that is neither watched nor charged, of pages that need no zeroes, needs no work.
        let plain = word & !TAG_MASK == EXT_LIVE && self.ledger.books.watch().is_none();
        let holds = !plain && self.ledger.guards.checks().has_fences();
        if holds {
            self.check_fence(set, start, &words);
            self.note_free(set, start + pages);
        }
        if !plain && self.checks().zeroes_on_free() {
            // While its words say that it is live: a child that is forked now must not hand out
            // what is not zeroed yet.
            // SAFETY: an area that its user gave up, by the contract.
            unsafe { self.clear(set, Run { start, pages }) };
        }
        // The word of a group may get another one until it is cleared.
        let word = if plain {
            ext.store(word & TAG_MASK, Ordering::Relaxed);
            word
        } else {
            ext.fetch_and(TAG_MASK, Ordering::AcqRel)
        };
        if word & EXT_LIVE == 0 {
            // Another thread freed it concurrently.
            return Freed::NotFound;
        }
        len.store(0, Ordering::Release);
        if !plain {
            let at = set.zone.address(start) + usize::from(words.bounds().front);
            self.ledger.free(word, Price::Pages(pages), pages.bytes(), at);
        }
        let item = Item::at(set.zone.address(start));
        if !holds
            && let Some(array) = kept(pages)
            // SAFETY: a free area of that length.
            && unsafe { self.part.slots.push(array, item) }
        {
            return Freed::Done;
        }
        Freed::Full(Run { start, pages })
    }

    /// Configured work on pages.
    pub(super) fn checks(self) -> PageChecks {
        self.ledger.heap.zones.checks()
    }

    /// Makes pages read as zero. Gives their memory back where the platform can.
    ///
    /// # Safety
    /// Pages of the zone, which the caller alone uses, and whose contents are not needed.
    pub(super) unsafe fn clear(self, set: &ZoneSet, run: Run) {
        let on = set.zone.on(self.ledger.platform());
        // SAFETY: the same contract.
        unsafe {
            if run.pages == PageCount::ONE || !on.drop_pages(run) {
                (set.zone.address(run.start) as *mut u8).write_bytes(0, run.pages.bytes());
            }
        }
    }

    /// Keeps a free area for the next request of its length, or with fences holds it first. If
    /// that is not possible, unmaps it, together with others that the CPU kept.
    #[cold]
    #[inline(never)]
    pub fn keep(self, run: Run) {
        let Some(set) = self.zone() else { return };
        if self.ledger.guards.checks().has_fences() {
            self.hold(set, run);
        } else {
            self.keep_accessible(set, run);
        }
    }

    /// [`Self::keep`] of an area that is accessible.
    pub(super) fn keep_accessible(self, set: &'static ZoneSet, run: Run) {
        // Only its guard says how long a long area is.
        let known = run.pages <= MAX_KEPT || self.guard_bits(set).has(run.end());
        let item = Item::at(set.zone.address(run.start));
        match array(run.pages).filter(|_| known) {
            Some(LONG) => {
                let hint = self.part.slots.hint(self.ledger.platform());
                // SAFETY: a free area, which nothing else refers to.
                if unsafe { self.part.slots.push_many(LONG, hint, &[item]) } == 0 {
                    self.unmap(set, &mut [item], run.pages);
                }
            }
            Some(array) => {
                let backing = Kept { on: self, set, pages: run.pages };
                // SAFETY: a free area of that length, which nothing else refers to.
                unsafe { self.arrays().flush(array, item, &backing) };
            }
            None => self.unmap(set, &mut [item], run.pages),
        }
    }

    /// Unmaps the free areas that CPUs keep, and those that are held.
    pub fn drain(self) {
        let Some(set) = self.zone() else { return };
        self.release_all(set);
        self.drain_arrays();
    }

    /// Unmaps the free areas that CPUs keep.
    pub fn drain_arrays(self) {
        let Some(set) = self.zone() else { return };
        let arrays = |_| (1..=LONG.0).map(ArrayId);
        self.arrays().drain(arrays, |array, areas| {
            if array != LONG {
                return self.unmap(set, areas, length(array));
            }
            for start in areas.iter().filter_map(|area| set.zone.pfn(area.address())) {
                self.unmap_span(set, start, self.length_of_kept(set, start), 1);
            }
        });
    }

    fn arrays(self) -> Arrays<'static, P, impl Fn(ArrayId) -> u16> {
        Arrays { slots: &self.part.slots, platform: self.ledger.platform(), cap }
    }
}

/// The origin of an area that was taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// A CPU kept it: all its pages may have old contents.
    Kept,
    /// The zone, which has the dirty bits of its pages.
    Zone,
}

/// The areas of one length, behind the CPU arrays.
struct Kept<P: 'static> {
    on: On<P>,
    set: &'static ZoneSet,
    pages: PageCount,
}

impl<P: Platform> Backing for Kept<P> {
    fn batch(&self, _: CpuId, way: Way) -> usize {
        match (way, kept(self.pages)) {
            (Way::Refill, _) => batch(self.pages) as usize,
            (Way::Flush, Some(array)) => usize::from(cap(array)).div_ceil(2).min(MOST),
            (Way::Flush, None) => 1,
        }
    }

    fn supply(
        &self,
        _: Option<CpuId>,
        most: usize,
        take: impl FnOnce(&[Item]) -> Item,
    ) -> Option<Item> {
        let make = |align, count| {
            let first = self.on.make(self.set, self.pages, align, count as u32)?;
            Some((first, count))
        };
        let (first, count) = make(BATCH_ALIGN, most).or_else(|| make(PageCount::ONE, 1))?;
        let each = (self.pages + PageCount::ONE).bytes();
        let mut areas = [Item::NONE; MOST];
        for (i, area) in areas[..count].iter_mut().rev().enumerate() {
            *area = Item::at(self.set.zone.address(first.start) + i * each);
        }
        Some(take(&areas[..count]))
    }

    fn absorb(&self, most: usize, fill: impl FnOnce(&mut [Item]) -> usize) {
        let mut areas = [Item::NONE; MOST];
        let len = fill(&mut areas[..most]);
        self.on.unmap(self.set, &mut areas[..len], self.pages);
    }

    fn give(&self, items: &[Item]) {
        let mut areas = [Item::NONE; MOST];
        for part in items.chunks(MOST) {
            areas[..part.len()].copy_from_slice(part);
            self.on.unmap(self.set, &mut areas[..part.len()], self.pages);
        }
    }
}
