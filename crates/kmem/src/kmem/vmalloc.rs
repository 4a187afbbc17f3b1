//! vmalloc over an instance: see [`crate::vmalloc`].
//!
//! All areas come from [`Instance::area`] and go back by [`Instance::give_area`].

use core::ptr::NonNull;

use super::{Fault, Instance, Purpose, ZoneSet, no_memory};
use crate::class::SizeClass;
use crate::codetag::Caller;
use crate::cpu::Slots;
use crate::os::Platform;
use crate::page::Run;
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{FRAME_PAGES, FRAME_SIZE, Gfp, Item, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn};
use crate::vmalloc::{Area, BATCH_ALIGN, Bits, Kind, MAX_KEPT, batch, caps, kept};

/// From this length on, an area that grows is moved by its page tables rather than copied.
const REMAP_PAGES: u32 = 64;
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
        let Some((run, fresh)) = self.take_area(set, pages, align) else {
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
        let word = if self.books() { self.word_for(caller) } else { EXT_LIVE };
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
        let class = if align.0 == 1 { kept(pages.0) } else { None };
        let Some(class) = class else {
            return self.make_areas(set, pages, align, 1).map(fresh);
        };
        let slots = &self.vmalloc.slots;
        let hint = self.slot_hint();
        let mut one = [Item::NONE];
        if slots.pop_many(class, hint, &mut one) == 1 {
            return Some((Run { start: set.zone.pfn(one[0].address())?, pages }, false));
        }
        let mut areas = 1;
        if let Some(cpu) = slots.current(hint) {
            const CAPS: [crate::class::ClassGeometry; crate::class::CLASS_COUNT] = caps();
            self.ensure_area_of(slots, cpu, &CAPS);
            areas = if slots.area(cpu).is_some() { batch(pages.0) } else { 1 };
        }
        self.make_areas(set, pages, PageCount(BATCH_ALIGN), areas)
            .or_else(|| self.make_areas(set, pages, align, 1))
            .map(fresh)
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

    /// Makes a page inaccessible, if there may be more of that kind.
    fn guard(&self, set: &ZoneSet, page: Pfn) {
        let vmalloc = &self.vmalloc;
        let allowed =
            vmalloc.guards.load(Ordering::Relaxed) < vmalloc.most_guards.load(Ordering::Relaxed);
        // The bit comes first: a child forked in between gives no page away that faults.
        self.guard_bits(set).set(page);
        let done = allowed
            && NonNull::new(set.zone.address(page) as *mut u8)
                // SAFETY: a page in our hands.
                .is_some_and(|at| unsafe { self.platform.protect(at, PAGE_SIZE) });
        if done {
            vmalloc.guards.fetch_add(1, Ordering::Relaxed);
        } else {
            self.guard_bits(set).clear(page);
            vmalloc.unguarded.fetch_add(1, Ordering::Relaxed);
        }
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
        let Some(class) = kept(pages) else {
            return self.unmap(set, &mut [item], pages);
        };
        let slots = &self.vmalloc.slots;
        let hint = self.slot_hint();
        // SAFETY: an area in our hands.
        if unsafe { slots.push_many(class, hint, &[item]) } == 1 {
            return;
        }
        let mut batch = [Item::NONE; UNMAP];
        let half = usize::from(caps_of(pages)).div_ceil(2).min(UNMAP - 1);
        let got = slots.pop_many(class, hint, &mut batch[..half]);
        batch[got] = item;
        self.unmap(set, &mut batch[..got + 1], pages);
    }

    /// Gives areas of one length back to the zone, neighbours together.
    pub(super) fn unmap(&'static self, set: &'static ZoneSet, areas: &mut [Item], pages: u32) {
        areas.sort_unstable_by_key(|item| item.0);
        let each = PageCount(pages + 1);
        let mut rest = &*areas;
        while let Some(first) = rest.first() {
            let next = |i: usize| first.address() + i * each.bytes();
            let count =
                (1..rest.len()).find(|&i| rest[i].address() != next(i)).unwrap_or(rest.len());
            let start = Pfn(((first.address() - set.zone.base()) >> PAGE_SHIFT) as u32);
            self.unmap_span(set, start, pages, count as u32);
            rest = &rest[count..];
        }
    }

    /// The same for areas that lie side by side.
    fn unmap_span(&'static self, set: &'static ZoneSet, start: Pfn, pages: u32, count: u32) {
        let span = PageCount((pages + 1) * count);
        let bits = self.guard_bits(set);
        let guard = |i: u32| start.offset(i * (pages + 1) + pages);
        let guards = (0..count).filter(|&i| bits.has(guard(i))).count();
        // From the first guard to the last, in one call; else one by one.
        let (from, to) = (guard(0), guard(count - 1).offset(1));
        if guards > 0 && !self.make_accessible(set, from, to.0 - from.0) {
            for i in 0..count {
                let free = self.remove_guard(set, guard(i));
                self.give_pages(set, guard(i).back(pages), PageCount(pages + u32::from(free)));
            }
            return;
        }
        for i in 0..count {
            self.forget_guard(set, guard(i));
        }
        self.give_pages(set, start, span);
    }

    fn make_accessible(&self, set: &ZoneSet, from: Pfn, pages: u32) -> bool {
        NonNull::new(set.zone.address(from) as *mut u8)
            // SAFETY: pages in our hands.
            .is_some_and(|at| unsafe { self.platform.commit(at, PageCount(pages).bytes()) })
    }

    /// Makes a page accessible again if it is a guard. False: it stays one, for good.
    fn remove_guard(&self, set: &ZoneSet, page: Pfn) -> bool {
        if self.guard_bits(set).has(page) && !self.make_accessible(set, page, 1) {
            self.vmalloc.stuck.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.forget_guard(set, page);
        true
    }

    fn forget_guard(&self, set: &ZoneSet, page: Pfn) {
        if self.guard_bits(set).clear(page) {
            self.vmalloc.guards.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes an area longer or shorter, in place if it can be, else by moving its pages. Null, and the area as it was,
    /// if there is no memory. Null in is [`Self::vmalloc`].
    ///
    /// # Safety
    /// Null or a live area that nobody else uses; if it moves, the old address is free.
    pub unsafe fn vrealloc(
        &'static self,
        at: *mut u8,
        size: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        if at.is_null() {
            return self.vmalloc(size, gfp, caller);
        }
        self.ready();
        let caller = caller.with(gfp);
        let Some(set) = self.vmalloc_zone().filter(|set| set.zone.pfn(at as usize).is_some())
        else {
            // SAFETY: the caller's promise.
            return unsafe { self.realloc(at, size, caller) };
        };
        let Some(Area { start, pages: old, kind: Kind::Vmalloc, .. }) = self.find_area(at as usize)
        else {
            self.fault("vrealloc", at as usize, Fault::NeverAllocated);
        };
        if start != at as usize {
            let (block, offset) = (start, at as usize - start);
            self.fault("vrealloc", at as usize, Fault::InsidePages { block, offset, pages: old });
        }
        let fits =
            PageCount::for_bytes(size).filter(|new| new.0 > 0 && size <= isize::MAX as usize);
        let Some(PageCount(new)) = fits else { return no_memory() };
        let pfn = Pfn(((start - set.zone.base()) >> PAGE_SHIFT) as u32);
        let lengths = (PageCount(old).bytes(), PageCount(new).bytes());
        let in_place = match new.cmp(&old) {
            core::cmp::Ordering::Equal => true,
            core::cmp::Ordering::Less => self.shorten_area(set, pfn, old, new),
            core::cmp::Ordering::Greater => self.lengthen_area(set, pfn, old, new),
        };
        let to = if in_place {
            if self.books() {
                self.rebook(set.zone.ext(pfn), caller, (lengths.0 as u64, lengths.1 as u64));
            }
            at
        } else {
            let to = self.vmalloc(size, Gfp(gfp.0 & !Gfp::ZERO.0), caller);
            if to.is_null() {
                return to;
            }
            // SAFETY: both are areas of at least the shorter length, ours alone.
            unsafe {
                self.move_pages(at, to, old.min(new));
                self.vfree(at);
            }
            to
        };
        if gfp.has(Gfp::ZERO) && new > old {
            // SAFETY: pages of ours.
            unsafe { to.add(lengths.0).write_bytes(0, lengths.1 - lengths.0) };
        }
        to
    }

    /// # Safety
    /// Two areas of at least so many pages, in nobody else's use.
    unsafe fn move_pages(&self, from: *mut u8, to: *mut u8, pages: u32) {
        let bytes = PageCount(pages).bytes();
        let (Some(at), Some(new)) = (NonNull::new(from), NonNull::new(to)) else { return };
        // SAFETY: the caller's promise; so below.
        if pages >= REMAP_PAGES && unsafe { self.platform.remap(at, new, bytes) } {
            return;
        }
        // SAFETY: as above.
        unsafe { to.copy_from_nonoverlapping(from, bytes) };
    }

    /// Gives the last pages of an area back.
    fn shorten_area(&'static self, set: &'static ZoneSet, pfn: Pfn, old: u32, new: u32) -> bool {
        set.zone.len(pfn).store(new, Ordering::Release);
        let (guard, old_guard) = (pfn.offset(new), pfn.offset(old));
        self.guard(set, guard);
        let rest = old - new - u32::from(!self.remove_guard(set, old_guard));
        if rest > 0 {
            self.give_pages(set, guard.offset(1), PageCount(rest));
        }
        true
    }

    /// Takes the pages behind an area, if they are free.
    fn lengthen_area(&'static self, set: &'static ZoneSet, pfn: Pfn, old: u32, new: u32) -> bool {
        let (guard, more) = (pfn.offset(old), PageCount(new - old));
        if u64::from(guard.0) + u64::from(more.0) >= u64::from(set.zone.committed())
            || !set.zone.claim_at(guard.offset(1), more)
        {
            return false;
        }
        if self.guard_bits(set).has(guard) {
            if !self.make_accessible(set, guard, 1) {
                self.give_pages(set, guard.offset(1), more);
                return false;
            }
            self.forget_guard(set, guard);
        }
        self.guard(set, pfn.offset(new));
        for page in old..new + 1 {
            set.zone.ext(pfn.offset(page)).store(page, Ordering::Relaxed);
        }
        set.zone.len(pfn).store(new, Ordering::Release);
        true
    }

    /// The area that an address lies in, its guard included; in constant time.
    pub fn find_area(&'static self, at: usize) -> Option<Area> {
        let set = self.vmalloc_zone()?;
        let page = set.zone.pfn(at)?;
        if page.0 >= set.zone.committed() {
            return None;
        }
        let back = set.zone.ext(page).load(Ordering::Relaxed);
        // The page may be a first one, whose word says something else.
        [0, back].into_iter().filter(|&back| back <= page.0).find_map(|back| {
            let first = page.back(back);
            let area = self.area_at(set, first)?;
            (area.pages >= back).then_some(area)
        })
    }

    fn area_at(&'static self, set: &'static ZoneSet, first: Pfn) -> Option<Area> {
        let len = set.zone.len(first).load(Ordering::Acquire);
        let start = set.zone.address(first);
        let guarded = |pages: u32| self.guard_bits(set).has(first.offset(pages));
        if len != 0 {
            return Some(Area { start, pages: len, kind: Kind::Vmalloc, guarded: guarded(len) });
        }
        if self.map_bits(set).has(first) {
            let pages = set.zone.ext(first).load(Ordering::Relaxed);
            return Some(Area { start, pages, kind: Kind::Vmap, guarded: guarded(pages) });
        }
        None
    }

    /// Calls `each` with every area, lowest first, free ones that CPUs keep included (if they have a guard).
    pub fn each_area(&'static self, mut each: impl FnMut(Area)) {
        let Some(set) = self.vmalloc_zone() else { return };
        let mut page = 0;
        while page < set.zone.committed() {
            if let Some(area) = self.area_at(set, Pfn(page)) {
                each(area);
                page += area.pages + 1;
                continue;
            }
            if self.guard_bits(set).has(Pfn(page)) {
                let pages = set.zone.ext(Pfn(page)).load(Ordering::Relaxed).min(page);
                let start = set.zone.address(Pfn(page - pages));
                each(Area { start, pages, kind: Kind::Unpurged, guarded: true });
            }
            page += 1;
        }
    }

    /// Writes the lines of `/proc/vmallocinfo`, as the kernel lays them out, to `write`. Where the kernel names a function,
    /// this names `function@file:line`, or the address that the call returns to.
    pub fn vmallocinfo(&'static self, mut write: impl FnMut(&[u8])) {
        self.each_area(|area| {
            let mut line = super::fault::Line::new();
            line.address(area.start);
            line.bytes(b"-");
            let bytes = PageCount(area.pages + 1).bytes();
            line.address(area.start + bytes);
            line.bytes(b" ");
            line.padded(bytes as u64, 7);
            match area.kind {
                Kind::Unpurged => line.bytes(b" unpurged vm_area"),
                Kind::Vmap => {
                    line.bytes(b" vmap");
                }
                Kind::Vmalloc => {
                    if let Some(set) = self.vmalloc_zone()
                        && let Some(pfn) = set.zone.pfn(area.start)
                    {
                        line.bytes(b" ");
                        let word = set.zone.ext(pfn).load(Ordering::Relaxed);
                        self.name_caller(&mut line, crate::units::TagId(word & TAG_MASK));
                    }
                    line.bytes(b" pages=");
                    line.decimal(area.pages as usize);
                    line.bytes(b" vmalloc N0=");
                    line.decimal(area.pages as usize);
                }
            }
            line.bytes(b"\n");
            write(line.text());
        });
    }

    fn name_caller(&self, line: &mut super::fault::Line, tag: crate::units::TagId) {
        let Some(names) = self.sites.names(tag) else {
            return line.hex(self.sites.address(tag));
        };
        line.word(names.function);
        line.bytes(b"@");
        line.word(names.file);
        line.bytes(b":");
        line.decimal(names.line as usize);
    }

    /// Counts of vmalloc.
    pub fn vmalloc_stats(&self) -> VmallocStats {
        VmallocStats {
            guards: self.vmalloc.guards.load(Ordering::Relaxed),
            unguarded: self.vmalloc.unguarded.load(Ordering::Relaxed),
            stuck: self.vmalloc.stuck.load(Ordering::Relaxed),
        }
    }

    pub(super) fn vmalloc_zone(&self) -> Option<&'static ZoneSet> {
        let zone = self.vmalloc.zone.load(Ordering::Acquire) as *const ZoneSet;
        // SAFETY: null or a set that is never freed.
        unsafe { zone.as_ref() }
    }

    fn guard_bits(&self, _set: &ZoneSet) -> Bits {
        let words = self.vmalloc.bits.load(Ordering::Relaxed) as *const AtomicU64;
        // SAFETY: committed for the zone before it was shown.
        unsafe { Bits::new(words) }
    }

    pub(super) fn map_bits(&self, set: &ZoneSet) -> Bits {
        let words = self.vmalloc.bits.load(Ordering::Relaxed) + Bits::bytes(set.zone.pages().0);
        // SAFETY: as above, behind those of the guards.
        unsafe { Bits::new(words as *const AtomicU64) }
    }

    /// The zone of areas, made when it is first needed. `None`: there is no address space for it, or nothing that
    /// could protect it.
    pub(super) fn vmalloc_space(&'static self) -> Option<&'static ZoneSet> {
        if let Some(set) = self.vmalloc_zone() {
            return Some(set);
        }
        if !self.platform.can_protect() {
            return None;
        }
        let starting = &self.vmalloc.starting;
        while starting.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if let Some(set) = self.vmalloc_zone() {
                return Some(set);
            }
            crate::sync::spin();
        }
        let made = self.vmalloc_zone().or_else(|| self.make_vmalloc_space());
        starting.store(0, Ordering::Release);
        made
    }

    fn make_vmalloc_space(&'static self) -> Option<&'static ZoneSet> {
        let mut bytes = self.platform.budget().first_zone & !(FRAME_SIZE - 1);
        let set = loop {
            if bytes < 2 * FRAME_SIZE {
                return None;
            }
            // The bits first: without them the zone could not be used.
            let words = (2 * Bits::bytes((bytes / PAGE_SIZE) as u32)).next_multiple_of(PAGE_SIZE);
            if let Some(at) = self.platform.reserve(words, PAGE_SIZE) {
                // SAFETY: our own fresh reservation.
                if unsafe { self.platform.commit(at, words) } {
                    self.vmalloc.bits.store(at.as_ptr() as usize, Ordering::Relaxed);
                    if let Some(set) = self.add_zone_for(Purpose::Vmalloc, bytes) {
                        break set;
                    }
                }
                // SAFETY: as above, unused.
                unsafe { self.platform.release(at, words) };
            }
            bytes = (bytes / 2) & !(FRAME_SIZE - 1);
        };
        // A guard makes two mappings of one; half of them is the program's.
        self.vmalloc.most_guards.store(self.platform.max_mappings() / 4, Ordering::Relaxed);
        let (wiped, length) = self.vmalloc.slots.wiped_part();
        if let Some(wiped) = NonNull::new(wiped) {
            // SAFETY: page aligned, part of this instance; see `build`.
            unsafe { self.platform.wipe_on_fork(wiped, length) };
        }
        self.vmalloc.slots.start(self.slot_kind());
        self.vmalloc.zone.store(&raw const *set as usize, Ordering::Release);
        Some(set)
    }

    /// Unmaps the free areas that CPUs keep.
    pub(super) fn drain_vmalloc(&'static self) {
        if let Some(set) = self.vmalloc_zone() {
            let classes = || (1..MAX_KEPT as u8 + 1).map(SizeClass);
            self.drain_slots(&self.vmalloc.slots, &classes, |class, areas| {
                self.unmap(set, areas, class.0.into());
            });
        }
    }

    /// In a forked child, whose zone was rebuilt from the lengths of areas: guards and mapped areas are in use as well,
    /// but for guards of areas that are free.
    ///
    /// # Safety
    /// No other thread uses the zone.
    pub(super) unsafe fn mend_areas(&'static self) {
        let Some(set) = self.vmalloc_zone() else { return };
        let end = set.zone.committed();
        for first in self.map_bits(set).all(end) {
            let pages = set.zone.ext(first).load(Ordering::Relaxed);
            set.zone.claim_at(first, PageCount(pages));
        }
        for guard in self.guard_bits(set).all(end) {
            set.zone.loosen(guard, PageCount(1));
            set.zone.claim_at(guard, PageCount(1));
            let pages = set.zone.ext(guard).load(Ordering::Relaxed);
            let live = pages <= guard.0
                && self.area_at(set, guard.back(pages)).is_some_and(|area| area.pages == pages);
            if !live && self.make_accessible(set, guard, 1) {
                self.forget_guard(set, guard);
                self.give_pages(set, guard, PageCount(1));
            }
        }
    }
}

/// Areas of a length that a CPU keeps.
const fn caps_of(pages: u32) -> u16 {
    const CAPS: [crate::class::ClassGeometry; crate::class::CLASS_COUNT] = caps();
    CAPS[pages as usize].cap
}

const _: () = assert!(FRAME_PAGES as usize * PAGE_SIZE == FRAME_SIZE);
