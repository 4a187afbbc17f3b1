//! Per-CPU objects. The handle space is a zone with slabs of its own, whose free objects CPUs keep
//! on arrays of their own.

use core::ptr::NonNull;

use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::operations::Slow;
use super::units::Units;
use super::word::Word;
use crate::class::{ArrayId, Contents, MAX_OBJECT, SizeClass};
use crate::cpu::{Kind, MAX_CPUS, Slots};
use crate::heap::{Arrays, Backing, LazyZone, Live, Looked, ZoneSet};
use crate::ledger::{Ledger, Over};
use crate::memcg::stock::Price;
use crate::memcg::{objcg_bits, objcg_of};
use crate::os::Platform;
use crate::page::{Purpose, Run, Way};
use crate::report::{self, Fault};
use crate::request::Caller;
use crate::slab::sheaf::SHEAF_OBJECTS;
use crate::slab::{Contents as SlabContents, Kind as SlabKind, Retired, zero_object};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{CpuId, Item, ObjcgId, PAGE_SIZE, PAGEBLOCK_SIZE, TagId};

/// Largest handle space, in bytes.
const MAX_SPACE: usize = 256 << 20;

/// Per-CPU memory of an instance. Zeroed memory is a valid, unused value.
///
/// # Invariants
/// `units` were started with `zone`, if there is one.
pub struct PerCpu {
    pub(super) slots: Slots,
    pub(super) units: Units,
    /// The zone of the handle space.
    zone: LazyZone,
    /// Number of CPUs that there can be; 0 until the platform was asked.
    possible: AtomicU32,
}

/// Per-CPU memory over the ledger of its instance.
pub type On<P> = Over<PerCpu, P>;

impl PerCpu {
    /// No per-CPU memory.
    pub const fn new() -> Self {
        Self {
            slots: Slots::new(),
            units: Units::new(),
            zone: LazyZone::new(),
            possible: AtomicU32::new(0),
        }
    }

    /// Per-CPU memory over a ledger.
    #[inline(always)]
    pub fn on<P>(&'static self, ledger: &'static Ledger<P>) -> On<P> {
        Over { part: self, ledger }
    }

    /// Closes the critical sections; see [`Slots::pause`]. The caller fences the CPUs.
    pub fn pause(&self) {
        self.units.pause();
        self.slots.pause(|| true);
    }

    /// Ends a [`Self::pause`].
    pub fn resume(&self) {
        self.slots.resume();
        self.units.resume();
    }

    /// In a forked child: empties the arrays. The extension words make their objects free.
    ///
    /// # Safety
    /// No other thread exists.
    pub unsafe fn restart_in_child(&self) {
        // SAFETY: no other thread exists that could use any of this.
        unsafe {
            self.slots.restart_empty();
            self.zone.restart_in_child();
        }
    }
}

impl Default for PerCpu {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> On<P> {
    /// Class for objects of `size` bytes at a multiple of `align`. `None`: there is none.
    pub fn class(size: usize, align: usize) -> Option<SizeClass> {
        if size > MAX_OBJECT || align > PAGE_SIZE {
            return None;
        }
        if align <= 16 {
            return Some(SizeClass::of(size.max(1)));
        }
        if align.is_power_of_two() { SizeClass::aligned(size, align) } else { None }
    }

    /// Allocates an object if this CPU has one, and a stock of the group on this CPU pays for it;
    /// else returns none.
    #[inline]
    pub fn alloc_fast(self, class: SizeClass, caller: Caller) -> Item {
        // If the site is known, the instance has started, and sections may run.
        let word = self.ledger.books.sites.cached(caller.key());
        let Some(word) = word else { return Item::NONE };
        let (array, objcg) = (class.array(), caller.objcg());
        let charging = self.ledger.charging();
        if objcg != ObjcgId::ROOT && !charging.pay_from_stock(array, objcg) {
            return Item::NONE;
        }
        // SAFETY: the site is known, so the instance has started its slots. Each class has an
        // array.
        let item = unsafe { self.part.slots.pop(array) };
        if !item.is_none() {
            // SAFETY: an object of that class, in an instance with books: the site is known.
            let ext = unsafe { self.ledger.object_word(item.address(), class) };
            ext.store(word | objcg_bits(objcg), Ordering::Relaxed);
            self.zero_copies(item, class);
        } else if objcg != ObjcgId::ROOT {
            charging.refund(Price::Item(array), objcg);
        }
        item
    }

    /// Allocates an object. None: there is no memory, or the group is at its limit. The instance
    /// has started.
    #[cold]
    #[inline(never)]
    pub fn alloc(self, class: SizeClass, caller: Caller) -> Item {
        let item = self.ledger.alloc_from(class, caller, || {
            let Some(set) = self.space() else { return Item::NONE };
            self.arrays().refill(class.array(), Looked::Not, &Handles { on: self, set, class })
        });
        if !item.is_none() {
            self.zero_copies(item, class);
        }
        item
    }

    /// Writes zeroes to all copies of an object that no user has.
    #[inline(always)]
    fn zero_copies(self, item: Item, class: SizeClass) {
        for copy in self.part.units.copies(item.address()) {
            // SAFETY: a copy of an object of that class, which no thread uses.
            unsafe { zero_object(copy, class) };
        }
    }

    /// Frees a per-CPU object. An address that is not a live handle is reported, and ends the
    /// program.
    ///
    /// # Safety
    /// No thread uses any of its copies from here on.
    pub unsafe fn free(self, handle: usize) {
        let found = match self.zone().filter(|set| set.zone.pfn(handle).is_some()) {
            Some(set) => self.ledger.heap.find_in(set, handle).map(|live| (set, live)),
            None => Err(Fault::Foreign),
        };
        let (set, class, ext) = match found {
            Ok((set, Live::Object { class, ext })) => (set, class, ext),
            Ok(_) => return,
            Err(fault) => self.ledger.fault("free_percpu", handle, fault),
        };
        if let Some(ext) = ext {
            self.unbook(handle, class, ext);
        }
        let item = Item::at(handle);
        if self.ledger.heap.zones.checks().zeroes_on_free() {
            self.zero_copies(item, class);
        }
        // SAFETY: this object of the class was live until now, and the caller gave it up.
        unsafe {
            if !self.part.slots.push(class.array(), item) {
                self.arrays().flush(class.array(), item, &Handles { on: self, set, class });
            }
        }
    }

    /// Takes a live object out of the books. If two threads do so concurrently, one succeeds, and
    /// the other is reported.
    fn unbook(self, handle: usize, class: SizeClass, ext: &AtomicU32) {
        let (ledger, array) = (self.ledger, class.array());
        let word = ext.load(Ordering::Relaxed);
        let is_charged = objcg_of(word) != ObjcgId::ROOT;
        let was_live = if is_charged && !ledger.books.watch().any() {
            ledger.charging().free_item(array, (ext, word))
        } else {
            // One operation: the word may get another group until it is cleared.
            let word = ext.fetch_and(TAG_MASK, Ordering::AcqRel);
            if word & EXT_LIVE != 0 {
                ledger.free(word, Price::Item(array), class.size() as usize, handle);
            }
            word & EXT_LIVE != 0
        };
        // Without books, the word of an object that no group pays for says nothing.
        if !was_live && ledger.books.are_kept() {
            let last = TagId(ext.load(Ordering::Relaxed) & TAG_MASK);
            ledger.fault("free_percpu", handle, Fault::FreeObject { size: class.size(), last });
        }
    }

    /// Copy of an object on a CPU; null if there is no memory for the CPU's unit, or no such CPU.
    pub fn copy_of(self, handle: *mut u8, cpu: CpuId) -> *mut u8 {
        let units = &self.part.units;
        let known = units.copy(handle as usize, cpu).or_else(|| {
            let there = cpu.0 < self.possible_cpus() && units.ensure(self.ledger.platform(), cpu);
            if there { units.copy(handle as usize, cpu) } else { None }
        });
        known.map_or(core::ptr::null_mut(), NonNull::as_ptr)
    }

    /// Copies of an object: first the shared one, which is the handle itself, then those of CPUs
    /// that have a unit.
    pub fn copies(self, handle: *mut u8) -> impl Iterator<Item = *mut u8> {
        self.part.units.copies(handle as usize)
    }

    /// Highest number of a CPU that there can be on this platform, plus one; see
    /// [`crate::os::Cpus::possible_cpus`].
    pub fn possible_cpus(self) -> u32 {
        let known = self.part.possible.load(Ordering::Relaxed);
        if known != 0 {
            return known;
        }
        let possible = self.ledger.platform().possible_cpus().clamp(1, MAX_CPUS as u32);
        self.part.possible.store(possible, Ordering::Relaxed);
        possible
    }

    /// Adds to a word of this CPU's copy of an object.
    ///
    /// # Safety
    /// `word` is an aligned word in a live per-CPU object, by its handle.
    #[inline(always)]
    pub unsafe fn add<W: Word>(self, word: *mut W, by: W) {
        // SAFETY: the same contract.
        unsafe { self.part.units.add(word, by, self) }
    }

    /// Adds to a word of this CPU's copy. Returns the new value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn add_return<W: Word>(self, word: *mut W, by: W) -> W {
        // SAFETY: the same contract.
        unsafe { self.part.units.add_return(word, by, self) }
    }

    /// Reads a word of this CPU's copy.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn read<W: Word>(self, word: *mut W) -> W {
        // SAFETY: the same contract.
        unsafe { self.part.units.read(word, self) }
    }

    /// Writes a word of this CPU's copy. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn swap<W: Word>(self, word: *mut W, new: W) -> W {
        // SAFETY: the same contract.
        unsafe { self.part.units.swap(word, new, self) }
    }

    /// Writes `new` to a word of this CPU's copy if its value is `old`. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub unsafe fn replace<W: Word>(self, word: *mut W, old: W, new: W) -> W {
        // SAFETY: the same contract.
        unsafe { self.part.units.replace(word, old, new, self) }
    }

    /// Sum of a word over all copies. It is exact while no thread writes to them.
    ///
    /// # Safety
    /// See [`Self::add`].
    pub unsafe fn sum<W: Word>(self, word: *mut W) -> W {
        self.copies(word.cast()).fold(W::from_bits(0), |sum, copy| {
            // SAFETY: an aligned word in a copy of a live object, by the contract.
            sum.plus(unsafe { W::load(copy.cast()) })
        })
    }

    /// Empties the arrays of all CPUs into the slabs.
    pub fn drain(self) {
        let Some(set) = self.zone() else { return };
        let arrays = |_| SizeClass::all().map(SizeClass::array);
        self.arrays().drain(arrays, |array, items| {
            if let Contents::Objects(class) = array.contents() {
                Handles { on: self, set, class }.give(items);
            }
        });
    }

    /// Arrays of free handles.
    fn arrays(&self) -> Arrays<'_, P, impl Fn(ArrayId) -> u16> {
        let slots = &self.part.slots;
        Arrays { slots, platform: self.ledger.platform(), cap: |array| self.cap(array) }
    }

    /// Most objects of an array that a CPU keeps.
    fn cap(&self, array: ArrayId) -> u16 {
        match array.contents() {
            Contents::Objects(class) => self.ledger.heap.classes.geometry(class).cap,
            _ => 0,
        }
    }

    /// Zone of the handle space; `None` before it is made.
    pub(super) fn zone(self) -> Option<&'static ZoneSet> {
        self.part.zone.get()
    }

    /// Zone of the handle space, which the first call makes. `None`: there is no address space for
    /// it.
    fn space(self) -> Option<&'static ZoneSet> {
        self.part.zone.get_or_make(|| self.make_space())
    }

    /// Makes the handle space: a 64th of the memory, or less if that is not available.
    fn make_space(self) -> Option<&'static ZoneSet> {
        let (heap, platform) = (&self.ledger.heap, self.ledger.platform());
        let wish = platform.budget().memory / 64;
        let mut bytes = wish.clamp(PAGEBLOCK_SIZE, MAX_SPACE).next_power_of_two();
        let set = loop {
            if let Some(set) = heap.zones.add_for(platform, (Purpose::PerCpu, false), bytes) {
                break set;
            }
            bytes /= 2;
            if bytes < PAGEBLOCK_SIZE {
                return None;
            }
        };
        let kind = heap.slots.kind(platform);
        self.part.units.start(set.zone.base(), bytes, matches!(kind, Kind::Rseq(_)));
        self.part.slots.start(platform, kind);
        // INVARIANT: the units were started with this zone.
        Some(set)
    }
}

impl<P: Platform> On<P> {
    /// Gives the pages of a retired slab of handles back, and the memory of its copies.
    pub fn give_slab(self, set: &'static ZoneSet, run: Run) {
        let heap = &self.ledger.heap;
        let (from, to) = (run.start.index().bytes(), run.end().index().bytes());
        // SAFETY: pages of a slab that has no live object.
        unsafe { self.part.units.discard(&heap.platform, from, to) };
        heap.give_pages(set, run);
    }
}

/// The handles of one class, behind the CPU arrays.
struct Handles<P: 'static> {
    on: On<P>,
    set: &'static ZoneSet,
    class: SizeClass,
}

impl<P: Platform> Handles<P> {
    fn kind(&self) -> SlabKind<'static> {
        self.on.ledger.heap.kind_in(self.set, self.class)
    }

    /// Takes free handles into the last part of `out`, lowest last. Returns the count.
    fn claim(&self, out: &mut [Item]) -> usize {
        // SAFETY: the kind of all slabs of the class in the handle space.
        match unsafe { self.set.slabs.claim(self.kind(), None, out) } {
            0 => self.make_slab(out),
            got => got,
        }
    }

    /// Makes a slab, with memory for it in all units. Takes its first handles into the last part of
    /// `out`. Returns the count.
    fn make_slab(&self, out: &mut [Item]) -> usize {
        let (heap, kind) = (&self.on.ledger.heap, self.kind());
        let pages = kind.pages();
        let on = self.set.zone.on(&heap.platform);
        let Some(run) = on.claim(pages, pages) else { return 0 };
        let (from, to) = (run.start.index().bytes(), run.end().index().bytes());
        // SAFETY: whole pages of the handle space.
        if !unsafe { self.on.part.units.populate(&heap.platform, from, to) } {
            self.on.give_slab(self.set, run);
            return 0;
        }
        let zero = !kind.format.has_words() || self.set.zone.reads_zero(run);
        let contents = if zero { SlabContents::Zero } else { SlabContents::Old };
        // SAFETY: this thread just claimed the run, which has the length and alignment of a slab.
        unsafe { self.set.slabs.create(kind, run.start, contents, out) }
    }
}

impl<P: Platform> Backing for Handles<P> {
    fn batch(&self, cpu: CpuId, _: Way) -> usize {
        self.on.part.units.ensure(self.on.ledger.platform(), cpu);
        self.kind().geometry.batch.into()
    }

    fn supply(
        &self,
        _: Option<CpuId>,
        most: usize,
        take: impl FnOnce(&[Item]) -> Item,
    ) -> Option<Item> {
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        let out = &mut buffer[..most];
        let mut got = self.claim(out);
        if got == 0 {
            // Other CPUs may keep all free handles on their arrays.
            self.on.drain();
            got = self.claim(out);
        }
        (got > 0).then(|| take(&out[most - got..]))
    }

    fn absorb(&self, most: usize, fill: impl FnOnce(&mut [Item]) -> usize) {
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        let len = fill(&mut buffer[..most]);
        self.give(&buffer[..len]);
    }

    fn give(&self, items: &[Item]) {
        let retired = |slab: Retired| self.on.give_slab(self.set, slab.run);
        // SAFETY: free objects of this class and zone, which only this thread has.
        let given = unsafe { self.set.slabs.give(self.kind(), items, retired) };
        if let Err(twice) = given {
            report::print_freed_twice(self.on.ledger.platform(), twice.0, self.class);
            self.on.ledger.end_for_double_free(twice.0);
        }
    }
}

impl<P: Platform> Slow for On<P> {
    #[cold]
    #[inline(never)]
    fn retry(&self) -> bool {
        let (slots, units) = (&self.part.slots, &self.part.units);
        let ensure = |cpu| units.ensure(self.ledger.platform(), cpu);
        units.has_sections() && slots.current(0).is_some_and(ensure)
    }

    #[cold]
    #[inline(never)]
    fn copy(&self, handle: *mut u8) -> *mut u8 {
        if self.part.units.has_sections() {
            return handle;
        }
        let copy = self.copy_of(handle, CpuId(self.ledger.platform().slot_hint()));
        if copy.is_null() { handle } else { copy }
    }
}
