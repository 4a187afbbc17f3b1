//! Per-CPU objects: the handle space is a zone with slabs of its own, whose free objects CPUs keep on arrays of their
//! own.
//!
//! All memory of handles comes from [`Instance::alloc_percpu`] and goes back by [`Instance::free_percpu`].

use core::ptr::NonNull;

use super::account::objcg_of;
use super::fault::Line;
use super::{Fault, Instance, Purpose, ZoneSet, no_memory};
use crate::class::{MAX_OBJECT, SIZES, SizeClass};
use crate::codetag::Caller;
use crate::cpu::{Area, MAX_CPUS, Slots};
use crate::os::Platform;
use crate::page::Run;
use crate::percpu::{Slow, Units, Word};
use crate::root::TAG_MASK;
use crate::slab::sheaf::SHEAF_OBJECTS;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};
use crate::units::{CHUNK_ORDER, CpuId, FRAME_SIZE, Gfp, Item, ObjcgId, PAGE_SIZE, PageCount};

/// Largest handle space.
const MAX_SPACE: usize = 256 << 20;

/// What an instance has for per-CPU memory. Zeroed memory is a valid, unused value.
pub(super) struct PerCpu {
    pub(super) slots: Slots,
    pub(super) units: Units,
    /// Address of the [`ZoneSet`] of the handle space; 0 until it is first needed.
    zone: AtomicUsize,
    /// 1 while a thread makes the handle space.
    starting: AtomicU32,
    /// CPUs that there can be; 0 until asked for.
    possible: AtomicU32,
}

impl PerCpu {
    pub(super) const fn new() -> Self {
        Self {
            slots: Slots::new(),
            units: Units::new(),
            zone: AtomicUsize::new(0),
            starting: AtomicU32::new(0),
            possible: AtomicU32::new(0),
        }
    }
}

/// Counts of an instance's per-CPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerCpuStats {
    /// CPUs that have a unit.
    pub units: u32,
    /// Live objects.
    pub objects: u64,
    /// Their bytes, one copy of each.
    pub bytes: u64,
    /// Bytes of the handle space in slabs.
    pub used: u64,
    /// Bytes of the handle space, and of each unit.
    pub space: u64,
}

impl<P: Platform> Instance<P> {
    /// Allocates an object of `size` bytes (up to 32 KiB) at a multiple of `align`, of which every CPU has a copy of
    /// zeroes; its handle, null if there is no memory, or no such alignment. The books count one copy, and a group
    /// pays for one.
    pub fn alloc_percpu(
        &'static self,
        size: usize,
        align: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        let class = if align <= 16 && size <= MAX_OBJECT {
            SizeClass::of(size)
        } else {
            let fits = align.is_power_of_two() && align <= PAGE_SIZE && size <= MAX_OBJECT;
            match SizeClass::aligned(size, align).filter(|_| fits) {
                Some(class) => class,
                None => return no_memory(),
            }
        };
        // A site that is known shows that the instance has started, so that sections may run.
        let word = self.sites.cached(caller.key).filter(|_| caller.objcg() == ObjcgId::ROOT);
        let Some(word) = word else {
            return self.alloc_percpu_slow(class, caller.with(gfp));
        };
        let item = self.percpu.slots.pop(class);
        if item.is_none() {
            return self.alloc_percpu_slow(class, caller.with(gfp));
        }
        self.book(item, class, word);
        self.zero_copies(item, class);
        item.address() as *mut u8
    }

    #[cold]
    #[inline(never)]
    fn alloc_percpu_slow(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        let item = self.obtain(class, caller, || self.refill_percpu(class));
        if item.is_none() {
            return no_memory();
        }
        self.zero_copies(item, class);
        item.address() as *mut u8
    }

    #[inline(always)]
    fn zero_copies(&self, item: Item, class: SizeClass) {
        let size = SIZES[class.0 as usize] as usize;
        for copy in self.percpu.units.copies(item.address()) {
            // SAFETY: a copy of an object of that size, a multiple of 16, which nobody uses yet.
            unsafe {
                if size <= 64 {
                    for i in 0..size / 16 {
                        copy.cast::<u128>().add(i).write(0);
                    }
                } else {
                    copy.write_bytes(0, size);
                }
            }
        }
    }

    /// Frees a per-CPU object; null is nothing.
    ///
    /// # Safety
    /// Nobody uses any of its copies any more. (What is not a live handle is found out and reported.)
    pub unsafe fn free_percpu(&'static self, handle: *mut u8) {
        if handle.is_null() || !self.ready() {
            return;
        }
        let at = handle as usize;
        let found = match self.percpu_zone().filter(|set| set.zone.pfn(at).is_some()) {
            Some(set) => self.find_in(set, at),
            None => Err(Fault::Foreign),
        };
        let (class, ext) = match found {
            Ok(super::realloc::Live::Object { class, ext }) => (class, ext),
            Ok(_) => return,
            Err(fault) => self.fault("free_percpu", at, fault),
        };
        if let Some(ext) = ext {
            let word = ext.load(Ordering::Relaxed);
            ext.store(word & TAG_MASK, Ordering::Relaxed);
            if self.watch().any() {
                self.saw_free(word, self.geometry(class).size.into(), at);
            }
            if objcg_of(word) != ObjcgId::ROOT {
                self.refund_object(class, objcg_of(word));
            }
        }
        let item = Item::at(at);
        // SAFETY: a live object until now, given up by the caller.
        if !unsafe { self.percpu.slots.push(class, item) } {
            self.flush_percpu(class, item);
        }
    }

    /// The copy of a CPU; null if there is no memory for its unit, or no such CPU.
    pub fn per_cpu_ptr(&'static self, handle: *mut u8, cpu: CpuId) -> *mut u8 {
        let known = self.percpu.units.copy(handle as usize, cpu);
        known
            .or_else(|| {
                let there =
                    cpu.0 < self.possible_cpus() && self.percpu.units.ensure(&self.platform, cpu);
                if there { self.percpu.units.copy(handle as usize, cpu) } else { None }
            })
            .map_or(no_memory(), NonNull::as_ptr)
    }

    /// The copies of an object that there are: the shared one first, which is the handle itself, then those of CPUs
    /// that were met so far.
    pub fn per_cpu_copies(&'static self, handle: *mut u8) -> impl Iterator<Item = *mut u8> {
        self.percpu.units.copies(handle as usize)
    }

    /// CPUs that there can be on this platform: the number of the last one, plus one.
    pub fn possible_cpus(&self) -> u32 {
        let known = self.percpu.possible.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let possible = self.platform.possible_cpus().clamp(1, MAX_CPUS as u32);
        self.percpu.possible.store(possible, Ordering::Relaxed);
        possible
    }

    /// Adds to a word of the CPU's copy of a per-CPU object. Fast path: ten instructions, no atomics.
    ///
    /// # Safety
    /// `word` is an aligned word in a live per-CPU object (by its handle); so for all operations here.
    #[inline(always)]
    pub unsafe fn this_cpu_add<W: Word>(&'static self, word: *mut W, by: W) {
        // SAFETY: the caller's promise; so below.
        unsafe { self.percpu.units.add(word, by, OnCpu(self)) }
    }

    /// Adds; the value after.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_add_return<W: Word>(&'static self, word: *mut W, by: W) -> W {
        // SAFETY: as above.
        unsafe { self.percpu.units.add_return(word, by, OnCpu(self)) }
    }

    /// The value of the CPU's copy.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_read<W: Word>(&'static self, word: *mut W) -> W {
        // SAFETY: as above.
        unsafe { self.percpu.units.read(word, OnCpu(self)) }
    }

    /// Writes the CPU's copy; the value before.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_xchg<W: Word>(&'static self, word: *mut W, new: W) -> W {
        // SAFETY: as above.
        unsafe { self.percpu.units.swap(word, new, OnCpu(self)) }
    }

    /// Writes `new` to the CPU's copy if it is `old`; the value before.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    #[inline(always)]
    pub unsafe fn this_cpu_cmpxchg<W: Word>(&'static self, word: *mut W, old: W, new: W) -> W {
        // SAFETY: as above.
        unsafe { self.percpu.units.replace(word, old, new, OnCpu(self)) }
    }

    /// The sum over all copies; exact once nobody adds.
    ///
    /// # Safety
    /// See [`Self::this_cpu_add`].
    pub unsafe fn percpu_sum<W: Word>(&'static self, word: *mut W) -> W {
        self.per_cpu_copies(word.cast()).fold(W::from_bits(0), |sum, copy| {
            // SAFETY: as above.
            sum.plus(unsafe { W::load(copy.cast()) })
        })
    }

    /// Counts of per-CPU memory; takes time with the number of objects.
    pub fn percpu_stats(&'static self) -> PerCpuStats {
        let Some(set) = self.percpu_zone() else { return PerCpuStats::default() };
        let units = &self.percpu.units;
        let there = |cpu: &u32| units.copy(set.zone.base(), CpuId(*cpu)).is_some();
        let mut stats = PerCpuStats {
            units: (0..units.count()).filter(there).count() as u32,
            space: set.zone.pages().bytes() as u64,
            used: PageCount(set.zone.committed()).bytes() as u64
                - set.zone.free_pages() * PAGE_SIZE as u64,
            ..PerCpuStats::default()
        };
        crate::alloc_tag::census(&set.zone, &set.slabs, self.geometries(), self.books(), |held| {
            stats.bytes += held.bytes;
            stats.objects += held.calls;
        });
        stats
    }

    /// Writes the counts in the layout of the kernel's `percpu_stats`, line by line. `populated_size`
    /// are bytes of each unit that lie in slabs, `cur_alloc_size` those of live objects, one copy of each.
    pub fn percpu_info(&'static self, mut write: impl FnMut(&[u8])) {
        let PerCpuStats { units, objects, bytes, used, space } = self.percpu_stats();
        const RULE: &[u8] = b"----------------------------------------\n";
        let mut section = |head: &[u8], rows: &[(&str, u64)]| {
            write(head);
            write(RULE);
            for &(name, value) in rows {
                let mut line = Line::new();
                line.bytes(b"  ");
                line.bytes(name.as_bytes());
                (name.len()..20).for_each(|_| line.bytes(b" "));
                line.bytes(b": ");
                line.padded(value, 12);
                line.bytes(b"\n");
                write(line.text());
            }
        };
        let layout = [("unit_size", space), ("nr_units", units.into()), ("populated_size", used)];
        section(b"Percpu Memory Statistics\nAllocation Info:\n", &layout);
        section(b"Global Stats:\n", &[("nr_cur_alloc", objects), ("cur_alloc_size", bytes)]);
    }

    fn percpu_zone(&self) -> Option<&'static ZoneSet> {
        let zone = self.percpu.zone.load(Ordering::Acquire) as *const ZoneSet;
        // SAFETY: null or a set that is never freed.
        unsafe { zone.as_ref() }
    }

    /// The handle space, made when it is first needed. `None`: there is no address space for it, or another thread is
    /// at it.
    fn percpu_space(&'static self) -> Option<&'static ZoneSet> {
        if !self.ready() {
            return None;
        }
        if let Some(set) = self.percpu_zone() {
            return Some(set);
        }
        let starting = &self.percpu.starting;
        while starting.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if let Some(set) = self.percpu_zone() {
                return Some(set);
            }
            crate::sync::spin();
        }
        let made = self.percpu_zone().or_else(|| self.make_percpu_space());
        starting.store(0, Ordering::Release);
        made
    }

    fn make_percpu_space(&'static self) -> Option<&'static ZoneSet> {
        let wish = self.platform.budget().memory / 64;
        let mut bytes = wish.clamp(FRAME_SIZE, MAX_SPACE).next_power_of_two();
        let set = loop {
            if let Some(set) = self.add_zone_for(Purpose::PerCpu, bytes) {
                break set;
            }
            bytes /= 2;
            if bytes < FRAME_SIZE {
                return None;
            }
        };
        self.percpu.units.start(set.zone.base(), bytes, self.slots.uses_rseq());
        let (wiped, length) = self.percpu.slots.wiped_part();
        if let Some(wiped) = NonNull::new(wiped) {
            // SAFETY: page aligned, part of this instance; see `build`.
            unsafe { self.platform.wipe_on_fork(wiped, length) };
        }
        self.percpu.slots.start(self.slot_kind());
        self.percpu.zone.store(&raw const *set as usize, Ordering::Release);
        Some(set)
    }

    /// One object, and more for the CPU's array if it can take them.
    fn refill_percpu(&'static self, class: SizeClass) -> Item {
        let Some(set) = self.percpu_space() else { return Item::NONE };
        self.look_outside();
        let slots = &self.percpu.slots;
        let hint = self.slot_hint();
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        if slots.pop_many(class, hint, &mut buffer[..1]) == 1 {
            return buffer[0];
        }
        if let Some(cpu) = slots.current(hint) {
            self.ensure_area_of(slots, cpu, self.geometries());
            self.percpu.units.ensure(&self.platform, cpu);
        }
        let geometry = self.geometry(class);
        let batch = geometry.batch as usize;
        let buffer = &mut buffer[..batch];
        let mut got = set.slabs.claim(class, geometry, self.books(), None, buffer);
        if got == 0 {
            got = self.make_percpu_slab(set, class, buffer);
        }
        if got == 0 {
            // What CPUs keep may be what is missing.
            self.drain_percpu();
            got = set.slabs.claim(class, geometry, self.books(), None, buffer);
            if got == 0 {
                got = self.make_percpu_slab(set, class, buffer);
            }
        }
        let Some((&one, rest)) = buffer[batch - got..].split_last() else {
            return Item::NONE;
        };
        // SAFETY: objects just claimed.
        let kept = unsafe { slots.push_many(class, hint, rest) };
        if kept < rest.len() {
            self.give_to_slabs(class, &rest[kept..]);
        }
        one
    }

    fn make_percpu_slab(
        &'static self,
        set: &'static ZoneSet,
        class: SizeClass,
        out: &mut [Item],
    ) -> usize {
        let geometry = self.geometry(class);
        let pages = PageCount(geometry.chunks() << CHUNK_ORDER);
        let Some(run) = set.zone.on(&self.platform).claim(pages, pages) else { return 0 };
        let from = PageCount(run.start.0).bytes();
        if !self.percpu.units.populate(&self.platform, from, from + pages.bytes()) {
            self.give_pages(set, run.start, run.pages);
            return 0;
        }
        self.note_peak();
        // SAFETY: pages just claimed, aligned to their length.
        unsafe {
            let zero = !self.books() || set.zone.reads_zero(Run { start: run.start, pages });
            set.slabs.create(class, geometry, run.start, zero, self.books(), out)
        }
    }

    /// Makes room in a full array, then puts a freed object there.
    #[cold]
    #[inline(never)]
    fn flush_percpu(&'static self, class: SizeClass, item: Item) {
        let slots = &self.percpu.slots;
        let hint = self.slot_hint();
        if let Some(cpu) = slots.current(hint) {
            self.ensure_area_of(slots, cpu, self.geometries());
            for _ in 0..2 {
                // SAFETY: a freed object in our hands.
                if unsafe { slots.push_many(class, hint, &[item]) } == 1 {
                    return;
                }
                let mut buffer = [Item::NONE; SHEAF_OBJECTS];
                let batch = self.geometry(class).batch as usize;
                let len = slots.pop_many(class, hint, &mut buffer[..batch]);
                self.give_to_slabs(class, &buffer[..len]);
            }
        }
        self.give_to_slabs(class, &[item]);
    }

    /// Empties the arrays of all CPUs of per-CPU objects into their slabs.
    pub(super) fn drain_percpu(&'static self) {
        if self.percpu_zone().is_some() {
            let sink = |class, items: &mut [Item]| self.give_to_slabs(class, items);
            self.drain_slots(&self.percpu.slots, &|_| SizeClass::all(), sink);
        }
    }

    /// Gives the copies of pages of the handle space back to the platform.
    pub(super) fn discard_copies(&self, run: Run) {
        let from = PageCount(run.start.0).bytes();
        // SAFETY: pages without an object.
        unsafe { self.percpu.units.discard(&self.platform, from, from + run.pages.bytes()) };
    }
}

/// How operations go on for an instance where a section cannot do it.
struct OnCpu<P: 'static>(&'static Instance<P>);

impl<P: Platform> Slow for OnCpu<P> {
    #[cold]
    #[inline(never)]
    fn retry(&self) -> bool {
        let percpu = &self.0.percpu;
        percpu.units.has_sections()
            && percpu.slots.current(0).is_some_and(|cpu| percpu.units.ensure(&self.0.platform, cpu))
    }

    #[cold]
    #[inline(never)]
    fn copy(&self, handle: *mut u8) -> *mut u8 {
        if self.0.percpu.units.has_sections() {
            return handle;
        }
        let copy = self.0.per_cpu_ptr(handle, CpuId(self.0.platform.slot_hint()));
        if copy.is_null() { handle } else { copy }
    }
}

const _: () = assert!(size_of::<Area>().is_multiple_of(PAGE_SIZE));
