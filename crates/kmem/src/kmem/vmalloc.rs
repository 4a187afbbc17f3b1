//! vmalloc over an instance: see [`crate::vmalloc`].
//!
//! All areas come from [`Instance::area`] and go back by [`Instance::give_area`].

use core::ptr::NonNull;

mod guard;
mod info;
mod resize;
mod space;

use super::account::{objcg_bits, objcg_of, pages_cost};
use super::{Fault, Instance, ZoneSet, no_memory};
use crate::class::SizeClass;
use crate::codetag::Caller;
use crate::cpu::Slots;
use crate::os::Platform;
use crate::page::Run;
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{
    FRAME_PAGES, FRAME_SIZE, Gfp, Item, ObjcgId, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn,
};
use crate::vmalloc::{Area, BATCH_ALIGN, Kind, LONG, MAX_KEPT, array, batch, caps, kept};

/// From this length on, an area that grows is moved by its page tables rather than copied.
const REMAP_PAGES: u32 = 64;
/// Kept areas that are looked at for one that fits.
const LOOK_AT: usize = 8;
/// Areas that are unmapped at once.
const UNMAP: usize = 32;

/// What an instance has for vmalloc. Zeroed memory is a valid, unused value.
pub(super) struct Vmalloc {
    pub(super) slots: Slots,
    /// Address of the [`ZoneSet`]; 0 until it is first needed.
    zone: AtomicUsize,
    /// 1 while a thread makes the zone.
    starting: AtomicU32,
    /// The words of both kinds of bits.
    bits: AtomicUsize,
    /// Guards there may be, and are.
    most_guards: AtomicUsize,
    guards: AtomicUsize,
    /// Areas that were made without a guard, and guards that could not be made accessible again.
    unguarded: AtomicU64,
    stuck: AtomicU64,
    /// Address of the zone of pages that can be mapped again; see `vmap`.
    pub(super) shared: AtomicUsize,
}

impl Vmalloc {
    pub(super) const fn new() -> Self {
        Self {
            slots: Slots::new(),
            zone: AtomicUsize::new(0),
            starting: AtomicU32::new(0),
            bits: AtomicUsize::new(0),
            most_guards: AtomicUsize::new(0),
            guards: AtomicUsize::new(0),
            unguarded: AtomicU64::new(0),
            stuck: AtomicU64::new(0),
            shared: AtomicUsize::new(0),
        }
    }
}

/// Counts of an instance's vmalloc areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VmallocStats {
    /// Pages that fault.
    pub guards: usize,
    /// Areas made without such a page so far: the system allows no more mappings.
    pub unguarded: u64,
    /// Pages that fault for good: the system did not take it back.
    pub stuck: u64,
}

/// What is asked of an area beside its length.
#[derive(Clone, Copy, Debug)]
struct AreaLayout {
    /// Bytes.
    size: usize,
    /// A power of two, at least a page.
    align: usize,
    /// Whether huge pages are to be used where there can be some.
    huge: bool,
}

impl<P: Platform> Instance<P> {
    /// Allocates pages for `size` bytes, followed by a page that faults; null if there is no memory. Fast path for
    /// lengths that CPUs keep: about 60 instructions, no atomics.
    pub fn vmalloc(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        self.area(AreaLayout { size, align: PAGE_SIZE, huge: false }, gfp, caller)
    }

    /// The same of huge pages as far as the system has them: at a multiple of 2 MiB if it is as long as that.
    pub fn vmalloc_huge(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        let huge = size >= FRAME_SIZE;
        let align = if huge { FRAME_SIZE } else { PAGE_SIZE };
        self.area(AreaLayout { size, align, huge }, gfp, caller)
    }

    /// The same at a multiple of `align`, a power of two; null for any other.
    pub fn vmalloc_aligned(
        &'static self,
        size: usize,
        align: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        if !align.is_power_of_two() {
            return no_memory();
        }
        self.area(AreaLayout { size, align: align.max(PAGE_SIZE), huge: false }, gfp, caller)
    }

    /// Takes an area and books it.
    #[inline(always)]
    fn area(&'static self, layout: AreaLayout, gfp: Gfp, caller: Caller) -> *mut u8 {
        // A site that is known shows that the instance has started, so that sections may run.
        if layout.align == PAGE_SIZE
            && layout.size.wrapping_sub(1) < (MAX_KEPT as usize) << PAGE_SHIFT
            && caller.objcg() == ObjcgId::ROOT
            && let Some(word) = self.sites.cached(caller.key)
            && let Some(set) = self.vmalloc_zone()
        {
            let pages = layout.size.div_ceil(PAGE_SIZE) as u32;
            let item = self.vmalloc.slots.pop(SizeClass(pages as u8));
            if !item.is_none() {
                let pfn = Pfn(((item.address() - set.zone.base()) >> PAGE_SHIFT) as u32);
                self.book_area(set, pfn, pages, word);
                if gfp.has(Gfp::ZERO) {
                    // SAFETY: pages of ours.
                    unsafe { (item.address() as *mut u8).write_bytes(0, PageCount(pages).bytes()) };
                }
                return item.address() as *mut u8;
            }
        }
        self.area_slow(layout, gfp, caller.with(gfp))
    }

    #[inline(always)]
    fn book_area(&self, set: &ZoneSet, pfn: Pfn, pages: u32, word: u32) {
        set.zone.ext(pfn).store(word, Ordering::Relaxed);
        // Release: a reader that sees the length sees the tag.
        set.zone.len(pfn).store(pages, Ordering::Release);
    }

    #[cold]
    #[inline(never)]
    fn area_slow(&'static self, layout: AreaLayout, gfp: Gfp, caller: Caller) -> *mut u8 {
        let AreaLayout { size, align, huge } = layout;
        let pages =
            PageCount::for_bytes(size).filter(|pages| pages.0 > 0 && size <= isize::MAX as usize);
        let (Some(pages), Some(align)) = (pages, PageCount::for_bytes(align)) else {
            return no_memory();
        };
        if !self.ready() {
            return no_memory();
        }
        let Some(set) = self.vmalloc_space() else {
            // Without memory protection, an area is no more than its pages.
            return self.alloc_run(size, align.0 as usize, caller, gfp.has(Gfp::ZERO), true);
        };
        self.look_outside();
        let objcg = self.group_of(caller);
        if objcg != ObjcgId::ROOT && !self.pay_bytes(objcg, pages_cost(pages), caller) {
            return no_memory();
        }
        // More than half of the zone may never be had, whoever frees what.
        let most = PageCount(set.zone.pages().0 / 2);
        let take = || self.take_area(set, pages, align);
        let Some((run, fresh)) = self.with_effort(size, most, caller, take) else {
            if objcg != ObjcgId::ROOT {
                self.refund_bytes(objcg, pages_cost(pages));
            }
            self.out_of_memory(size, caller);
            return no_memory();
        };
        if huge && let Some(at) = NonNull::new(set.zone.address(run.start) as *mut u8) {
            // SAFETY: pages of ours; advice.
            unsafe { self.platform.advise_huge(at, pages.bytes()) };
        }
        if gfp.has(Gfp::ZERO) {
            if fresh {
                self.zero_run(set, run);
            } else {
                // SAFETY: pages of ours, of which the zone does not know what they hold.
                unsafe { (set.zone.address(run.start) as *mut u8).write_bytes(0, pages.bytes()) };
            }
        }
        let word = if self.books() { self.word_for(caller) } else { EXT_LIVE } | objcg_bits(objcg);
        self.book_area(set, run.start, pages.0, word);
        if self.watch().any() {
            self.saw_alloc(word, pages.bytes() as u64, caller);
        }
        self.note_peak();
        set.zone.address(run.start) as *mut u8
    }

    /// An area that nobody has booked, out of the CPU's array or the zone; and whether it comes from there.
    fn take_area(
        &'static self,
        set: &'static ZoneSet,
        pages: PageCount,
        align: PageCount,
    ) -> Option<(Run, bool)> {
        let fresh = |run| (run, true);
        if let Some(run) = self.take_kept_area(set, pages, align) {
            return Some((run, false));
        }
        let slots = &self.vmalloc.slots;
        if let Some(cpu) = slots.current(self.slot_hint()) {
            const CAPS: [crate::class::ClassGeometry; crate::class::CLASS_COUNT] = caps();
            self.ensure_area_of(slots, cpu, &CAPS);
            if align.0 == 1 && kept(pages.0).is_some() && slots.area(cpu).is_some() {
                let several = self.make_areas(set, pages, PageCount(BATCH_ALIGN), batch(pages.0));
                if several.is_some() {
                    return several.map(fresh);
                }
            }
        }
        self.make_areas(set, pages, align, 1).map(fresh)
    }

    /// An area that the CPU keeps, if one of those that were freed last has that length and alignment.
    fn take_kept_area(
        &'static self,
        set: &'static ZoneSet,
        pages: PageCount,
        align: PageCount,
    ) -> Option<Run> {
        let class = array(pages.0)?;
        let (slots, hint) = (&self.vmalloc.slots, self.slot_hint());
        let mut last = [Item::NONE; LOOK_AT];
        let most = if class == LONG || align.0 > 1 { LOOK_AT } else { 1 };
        let got = slots.pop_many(class, hint, &mut last[..most]);
        let mut taken = None;
        for item in &last[..got] {
            let start = set.zone.pfn(item.address())?;
            let length = if class == LONG { self.length_of_kept(set, start) } else { pages.0 };
            if taken.is_none() && length == pages.0 && item.address().is_multiple_of(align.bytes())
            {
                taken = Some(Run { start, pages });
            } else {
                self.keep_area(set, start, length);
            }
        }
        taken
    }

    /// Pages of a free area that has a guard.
    pub(super) fn length_of_kept(&self, set: &ZoneSet, start: Pfn) -> u32 {
        let guards = self.guard_bits(set);
        (1..).find(|&pages| guards.has(start.offset(pages))).unwrap_or(0)
    }

    /// Makes areas out of pages of the zone; one is returned, the CPU keeps the others.
    pub(super) fn make_areas(
        &'static self,
        set: &'static ZoneSet,
        pages: PageCount,
        align: PageCount,
        areas: u32,
    ) -> Option<Run> {
        let each = pages.0.checked_add(1)?;
        let all = PageCount(each.checked_mul(areas)?);
        if all.0 > set.zone.pages().0 {
            return None;
        }
        let run = set.zone.on(&self.platform).claim(all, align).or_else(|| {
            self.drain_vmalloc();
            set.zone.on(&self.platform).claim(all, align)
        })?;
        // Whole frames become single pages, which can be given back one by one.
        set.zone.loosen(run.start, all);
        for area in (0..areas).rev() {
            let start = run.start.offset(area * each);
            self.guard(set, start.offset(pages.0));
            for page in 1..each {
                set.zone.ext(start.offset(page)).store(page, Ordering::Relaxed);
            }
            if area > 0 {
                self.keep_area(set, start, pages.0);
            }
        }
        Some(Run { start: run.start, pages })
    }

    /// Frees an area from [`Self::vmalloc`] and its like; null is nothing.
    ///
    /// # Safety
    /// Nobody uses it any more. (What is not a live area is found out and reported.)
    pub unsafe fn vfree(&'static self, at: *mut u8) {
        if at.is_null() {
            return;
        }
        let Some(set) = self.vmalloc_zone().filter(|set| set.zone.pfn(at as usize).is_some())
        else {
            // SAFETY: the caller's promise: an area of a platform without memory protection.
            return unsafe { self.free(at) };
        };
        let pfn = Pfn(((at as usize - set.zone.base()) >> PAGE_SHIFT) as u32);
        if !(at as usize).is_multiple_of(PAGE_SIZE) || !self.give_area(set, pfn) {
            let fault = match self.find_area(at as usize) {
                Some(Area { start, pages, kind: Kind::Vmalloc, .. }) => {
                    Fault::InsidePages { block: start, offset: at as usize - start, pages }
                }
                Some(Area { kind: Kind::Unpurged, .. }) => {
                    let word = set.zone.ext(pfn).load(Ordering::Relaxed) & TAG_MASK;
                    Fault::FreePages { last: self.sites.address(crate::units::TagId(word)) }
                }
                _ => Fault::NeverAllocated,
            };
            self.fault("vfree", at as usize, fault);
        }
    }

    /// Takes an area out of the books and keeps it or gives it back. False: none begins there.
    #[inline(always)]
    pub(super) fn give_area(&'static self, set: &'static ZoneSet, pfn: Pfn) -> bool {
        let len = set.zone.len(pfn);
        let pages = len.load(Ordering::Relaxed);
        if pages == 0 {
            return false;
        }
        let ext = set.zone.ext(pfn);
        let word = ext.load(Ordering::Relaxed);
        ext.store(word & TAG_MASK, Ordering::Relaxed);
        len.store(0, Ordering::Release);
        if self.watch().any() {
            self.saw_free(word, PageCount(pages).bytes() as u64, set.zone.address(pfn));
        }
        if objcg_of(word) != ObjcgId::ROOT {
            self.refund_bytes(objcg_of(word), pages_cost(PageCount(pages)));
        }
        let item = Item::at(set.zone.address(pfn));
        if let Some(class) = kept(pages)
            // SAFETY: an area in our hands.
            && unsafe { self.vmalloc.slots.push(class, item) }
        {
            return true;
        }
        self.keep_area(set, pfn, pages);
        true
    }

    /// [`Self::give_area`], by the address of an area that is known to be one.
    pub(super) fn give_area_of(&'static self, set: &ZoneSet, pfn: Pfn) -> bool {
        match self.vmalloc_zone() {
            Some(own) if core::ptr::eq(own, set) => self.give_area(own, pfn),
            _ => false,
        }
    }

    /// Keeps an area for the next request of its length; else it is unmapped, with others that the CPU kept.
    #[cold]
    #[inline(never)]
    fn keep_area(&'static self, set: &'static ZoneSet, start: Pfn, pages: u32) {
        // A child that repairs itself finds the area free by its length.
        let found = !self.slots.alive();
        if !self.ready() || found {
            return;
        }
        let item = Item::at(set.zone.address(start));
        // The length of a long one is known by its guard alone.
        let known = pages <= MAX_KEPT || self.guard_bits(set).has(start.offset(pages));
        let Some(class) = array(pages).filter(|_| known) else {
            return self.unmap(set, &mut [item], pages);
        };
        let slots = &self.vmalloc.slots;
        let hint = self.slot_hint();
        // SAFETY: an area in our hands.
        if unsafe { slots.push_many(class, hint, &[item]) } == 1 {
            return;
        }
        if class == LONG {
            return self.unmap(set, &mut [item], pages);
        }
        let mut batch = [Item::NONE; UNMAP];
        let half = usize::from(caps_of(pages)).div_ceil(2).min(UNMAP - 1);
        let got = slots.pop_many(class, hint, &mut batch[..half]);
        batch[got] = item;
        self.unmap(set, &mut batch[..got + 1], pages);
    }
}

/// Areas of a length that a CPU keeps.
const fn caps_of(pages: u32) -> u16 {
    const CAPS: [crate::class::ClassGeometry; crate::class::CLASS_COUNT] = caps();
    CAPS[pages as usize].cap
}

const _: () = assert!(FRAME_PAGES as usize * PAGE_SIZE == FRAME_SIZE);
