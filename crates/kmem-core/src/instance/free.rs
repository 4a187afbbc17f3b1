//! Freeing: the fast path, and the paths for addresses that it cannot free; facts about an
//! allocation by its address.

use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::Instance;
use crate::class::{ArrayId, Contents, PageClass, SizeClass};
use crate::cpu::Cleared;
use crate::heap::{Fast, Live, ZoneSet};
use crate::ledger::Interface;
use crate::memcg::objcg_of;
use crate::memcg::stock::stock_bound;
use crate::os::Platform;
use crate::page::Purpose;
use crate::report::Fault;
use crate::slab::zero_object;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Item, ObjcgId, Pfn, TagId};

/// Expected reuse of pages that are freed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reuse {
    /// The CPU may keep them for the next request of that length.
    Likely,
    /// They go to their zone.
    Unlikely,
}

impl<P: Platform> Instance<P> {
    /// Frees an allocation of this instance; null does nothing. Fast path: about 40 instructions,
    /// no atomics. An address that is not that of a live allocation is reported, and ends the
    /// program.
    ///
    /// # Safety
    /// No thread uses the memory from here on.
    #[inline(always)]
    pub unsafe fn free(&'static self, at: *mut u8) {
        // SAFETY: the same contract.
        unsafe {
            if !self.free_fast(at) {
                self.free_slow(at, None);
            }
        }
    }

    /// [`Self::free`] by a function of an interface. With `check_interfaces` an object of another
    /// interface is reported, and ends the program. Calls `foreign`, if that is given, for an
    /// address that is not this instance's.
    ///
    /// # Safety
    /// See [`Self::free`], if the address is this instance's. Otherwise see `foreign`.
    #[inline(always)]
    pub unsafe fn free_or(
        &'static self,
        at: *mut u8,
        interface: Interface,
        foreign: Option<unsafe fn(*mut u8)>,
    ) {
        // SAFETY: the same contract.
        unsafe {
            if !self.free_fast(at) {
                match foreign {
                    Some(foreign) => self.free_slow_or(at, interface, foreign),
                    None => self.free_slow(at, Some(interface)),
                }
            }
        }
    }

    /// [`Self::free_or`] for an address that [`Self::free_fast`] cannot free.
    ///
    /// # Safety
    /// See [`Self::free_or`].
    #[cold]
    #[inline(never)]
    unsafe fn free_slow_or(
        &'static self,
        at: *mut u8,
        interface: Interface,
        foreign: unsafe fn(*mut u8),
    ) {
        let interface = Some(interface);
        // SAFETY: the same contract.
        unsafe {
            if self.free_aside(at, interface) {
                return;
            }
            if at.is_null() || self.owns(at) { self.free_slow(at, interface) } else { foreign(at) }
        }
    }

    /// Frees an object of the first zone whose word says that it is live. False: call
    /// [`Self::free_slow`].
    ///
    /// # Safety
    /// See [`Self::free`].
    #[inline(always)]
    pub(super) unsafe fn free_fast(&'static self, at: *mut u8) -> bool {
        // SAFETY: the same contract.
        unsafe { self.free_by::<false>(&self.heap().fast, at, |_| true) }
    }

    /// [`Self::free_fast`] by the tables of `fast`, for objects of a class that `fits`. With
    /// `ZERO`, the object is zeroed.
    ///
    /// # Safety
    /// See [`Self::free`].
    #[inline(always)]
    pub(super) unsafe fn free_by<const ZERO: bool>(
        &'static self,
        fast: &Fast,
        at: *mut u8,
        fits: impl Fn(SizeClass) -> bool,
    ) -> bool {
        let heap = self.heap();
        let class = match fast.class(at as usize) {
            Ok(class) => class,
            // SAFETY: the same contract.
            Err(chunk) => return unsafe { self.free_bare::<ZERO, false>(fast, at, chunk, fits) },
        };
        if !fits(class) {
            return false;
        }
        let Some(location) = heap.classes.object_at(at as usize, class) else { return false };
        // SAFETY: a slab of that class, in a zone whose slabs have extension words.
        let ext = unsafe { heap.classes.extension(location) };
        let (word, item) = (ext.load(Ordering::Relaxed), Item::at(at as usize));
        let tag = word.wrapping_sub(EXT_LIVE);
        if ZERO && word & EXT_LIVE != 0 {
            // While its word says that it is live: a child that is forked now must not hand out
            // what is not zeroed yet.
            // SAFETY: a live object of the class, which the caller gave up, by the contract.
            unsafe { zero_object(at, class) };
        }
        // One test: the object is live, and no group pays for it. Then the rest is its tag.
        if tag > TAG_MASK {
            if word & EXT_LIVE == 0 {
                return false;
            }
            // Not the word's address: computing it would cost a free that is not charged an
            // instruction.
            let place = heap.classes.extension_place(location);
            // SAFETY: a live object of the class, which the caller gave up, and its word.
            unsafe { self.free_charged(item, class.array(), place, word) };
            return true;
        }
        ext.store(tag, Ordering::Relaxed);
        // SAFETY: the object was live until now, and the caller gave it up.
        unsafe {
            if !heap.slots.push(class.array(), item) {
                self.flush_object(class, item);
            }
        }
        true
    }

    /// [`Self::free_fast`] for an instance without books: with groups for `CHARGES`, else without.
    /// False: no object of the first zone begins there.
    ///
    /// # Safety
    /// See [`Self::free`].
    #[inline(always)]
    unsafe fn free_bare<const ZERO: bool, const CHARGES: bool>(
        &'static self,
        fast: &Fast,
        at: *mut u8,
        chunk: usize,
        fits: impl Fn(SizeClass) -> bool,
    ) -> bool {
        let heap = self.heap();
        let class = fast.bare_class::<CHARGES>(chunk);
        let Some(class) = class.filter(|&class| fits(class)) else { return false };
        let Some(location) = heap.classes.object_at(at as usize, class) else { return false };
        if location.offset >= heap.classes.geometry(class).limit as usize {
            return false;
        }
        let item = Item::at(at as usize);
        if ZERO {
            // SAFETY: an object of the class begins there, which the caller gave up.
            unsafe { zero_object(at, class) };
        }
        // Without books a double free cannot be detected.
        // SAFETY: an object begins there, which the caller gave up, by the contract. With `CHARGES`
        // its slab has words.
        unsafe {
            if CHARGES {
                let ext = heap.classes.extension(location);
                let word = ext.load(Ordering::Relaxed);
                if word & EXT_LIVE != 0 && objcg_of(word) != ObjcgId::ROOT {
                    let place = heap.classes.extension_place(location);
                    self.free_charged(item, class.array(), place, word);
                    return true;
                }
                if word & EXT_LIVE != 0 {
                    ext.store(0, Ordering::Relaxed);
                }
            }
            if !heap.slots.push(class.array(), item) {
                self.flush_object(class, item);
            }
        }
        true
    }

    /// Gives a free object to the heap because its CPU's array is full.
    ///
    /// # Safety
    /// `item` is an object of this class, which the caller alone uses.
    #[cold]
    #[inline(never)]
    unsafe fn flush_object(&'static self, class: SizeClass, item: Item) {
        if self.may_flush() {
            // SAFETY: the same contract.
            unsafe { self.heap().flush_object(class, item) };
        }
    }

    /// Gives a free block to the heap because its CPU's array is full.
    ///
    /// # Safety
    /// `item` is a block of this class, which the caller alone uses.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn flush_block(&'static self, class: PageClass, item: Item) {
        if self.may_flush() {
            // SAFETY: the same contract.
            unsafe { self.heap().flush_block(class, item) };
        }
    }

    /// Returns whether an item that a fast path freed may go to the heap. Not in a forked child:
    /// its repair finds the item free by its word.
    pub(super) fn may_flush(&'static self) -> bool {
        let alive = self.heap().slots.alive();
        self.ready() && alive
    }

    /// Refunds and frees a live item of an array. Its extension word is the one with that index in
    /// `words`; `word` is its value as the caller read it. It names a group.
    ///
    /// The word may get another group until it is cleared: that of a deleted group is changed to
    /// its parent, see `memcg::merge`.
    ///
    /// # Safety
    /// `item` is a live item of that array, which the caller gives up, and its word is there.
    #[inline(never)]
    pub(super) unsafe fn free_charged(
        &'static self,
        item: Item,
        array: ArrayId,
        (words, index): (*const AtomicU32, usize),
        word: u32,
    ) {
        let slots = &self.heap().slots;
        // SAFETY: an item of the array that the caller gives up, and its word, by the contract.
        unsafe {
            let ext = &*words.wrapping_add(index);
            match slots.push_freed(array, item, (ext, word), stock_bound(array)) {
                Cleared::Paid => {}
                Cleared::Unpaid => self.free_unpaid(item, array, objcg_of(word)),
                Cleared::Not => self.free_charged_elsewhere(item, array, (ext, word)),
            }
        }
    }

    /// [`Self::free_charged`] for an array that is full, or whose stock is full or of another
    /// group.
    ///
    /// # Safety
    /// See [`Self::free_charged`].
    #[inline(never)]
    unsafe fn free_charged_elsewhere(
        &'static self,
        item: Item,
        array: ArrayId,
        (ext, word): (&AtomicU32, u32),
    ) {
        // SAFETY: an item of the array that the caller gives up, by the contract. Once its word is
        // cleared, it is free.
        unsafe {
            if self.ledger.charging().free_item_elsewhere(array, (ext, word)) {
                self.push_uncharged(item, array);
            } else {
                // Another thread freed the item concurrently: this reports it.
                self.free_slow(item.address() as *mut u8, None);
            }
        }
    }

    /// Refunds and frees an item of an array whose word is cleared. `objcg` is the group in it.
    ///
    /// # Safety
    /// `item` is an item of that array, which the caller alone uses.
    #[inline(never)]
    unsafe fn free_unpaid(&'static self, item: Item, array: ArrayId, objcg: ObjcgId) {
        self.ledger.charging().refund_elsewhere(array, objcg);
        // SAFETY: the same contract.
        unsafe { self.push_uncharged(item, array) };
    }

    /// Puts a free item on this CPU's array, or gives it to the heap.
    ///
    /// # Safety
    /// `item` is an item of that array, which the caller alone uses.
    #[inline]
    pub(super) unsafe fn push_uncharged(&'static self, item: Item, array: ArrayId) {
        // SAFETY: a free item of the array, by the contract.
        unsafe {
            if self.heap().slots.push(array, item) {
                return;
            }
            match array.contents() {
                Contents::Objects(class) => self.flush_object(class, item),
                Contents::Blocks(class) => self.flush_block(class, item),
                // No fast path frees runs.
                Contents::Runs(_) => {}
            }
        }
    }

    /// Frees an address that [`Self::free_fast`] cannot free, by a function of `interface` if that
    /// is known.
    ///
    /// # Safety
    /// See [`Self::free`].
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn free_slow(&'static self, at: *mut u8, interface: Option<Interface>) {
        // SAFETY: the same contract.
        if at.is_null() || unsafe { self.free_aside(at, interface) } {
            return;
        }
        if !self.ready() {
            return;
        }
        let address = at as usize;
        match self.heap().find(address) {
            // SAFETY: a live object, which the caller gives up, by the contract.
            Ok(live @ Live::Object { class, ext }) => unsafe {
                self.check_owner(address, &live, interface);
                self.ledger.free_object(address, class, ext);
            },
            Ok(live @ Live::Pages { set, run, words }) => {
                self.check_owner(address, &live, interface);
                // SAFETY: a live page allocation, which the caller gives up, by the contract.
                if !unsafe { self.free_run(set, run.start, Reuse::Likely) } {
                    let last = TagId(words.word() & TAG_MASK);
                    self.fault("free", address, Fault::FreePages { last });
                }
            }
            Err(fault) => self.fault("free", address, fault),
        }
    }

    /// Frees a live object of the first zone where each freed object is zeroed or checked, or may
    /// be a sample. Frees any object of it where groups pay without books. False elsewhere, for
    /// that has closed tables; or there is no such object.
    ///
    /// # Safety
    /// See [`Self::free`].
    #[inline(always)]
    unsafe fn free_aside(&'static self, at: *mut u8, interface: Option<Interface>) -> bool {
        // SAFETY: the same contract.
        unsafe {
            let heap = self.heap();
            if self.ledger.guards.checks().any() {
                return self.free_guarded(at, interface);
            }
            if self.ledger.books.watch().samples() {
                // Before the memory can be a sample of another thread.
                self.ledger.sample_free(at as usize);
                if !heap.zones.checks().zeroes_on_free() {
                    return self.free_by::<false>(&heap.fast_aside, at, |_| true);
                }
            }
            if !heap.format().charges {
                return self.free_by::<true>(&heap.fast_aside, at, |_| true);
            }
            let zeroes = heap.zones.checks().zeroes_on_free();
            let fast = if zeroes { &heap.fast_aside } else { &heap.fast };
            match fast.class(at as usize) {
                Err(chunk) if zeroes => self.free_bare::<true, true>(fast, at, chunk, |_| true),
                Err(chunk) => self.free_bare::<false, true>(fast, at, chunk, |_| true),
                Ok(_) => false,
            }
        }
    }

    /// [`Self::free_aside`] where objects are checked.
    ///
    /// # Safety
    /// See [`Self::free`].
    #[inline(never)]
    unsafe fn free_guarded(&'static self, at: *mut u8, interface: Option<Interface>) -> bool {
        let (heap, address) = (self.heap(), at as usize);
        let Ok(class) = heap.fast_aside.class(address) else { return false };
        let Some(location) = heap.classes.object_at(address, class) else { return false };
        // SAFETY: a slab of that class, in a zone whose slabs have extension words.
        let ext = unsafe { heap.classes.extension(location) };
        if ext.load(Ordering::Relaxed) & EXT_LIVE == 0 || !self.is_ready() {
            return false;
        }
        self.check_owner(address, &Live::Object { class, ext: Some(ext) }, interface);
        // SAFETY: a live object of the class, which the caller gave up, by the contract.
        unsafe { self.ledger.free_object(address, class, Some(ext)) };
        true
    }

    /// Ends the program if what was found is of another interface than that which frees it.
    #[inline]
    fn check_owner(&'static self, at: usize, live: &Live<'_>, interface: Option<Interface>) {
        if let Some(interface) = interface {
            self.ledger.check_interface(interface.frees(), at, live, interface);
        }
    }

    /// Records the interface of an object that it just allocated, with `check_interfaces`. Returns
    /// the object.
    #[inline]
    pub fn of_interface(&'static self, at: *mut u8, interface: Interface) -> *mut u8 {
        self.ledger.note_interface(at as usize, interface);
        at
    }

    /// Ends the program if an object is of another interface than `call`, with `check_interfaces`.
    /// Where no object begins, the call finds that.
    #[inline]
    pub fn check_interface(&'static self, call: &str, at: *mut u8, interface: Interface) {
        if self.ledger.guards.checks().checks_interfaces()
            && let Ok(live) = self.heap().find(at as usize)
        {
            self.ledger.check_interface(call, at as usize, &live, interface);
        }
    }

    /// Frees the page allocation that begins at a page. False: none begins there.
    ///
    /// # Safety
    /// No thread uses the pages from here on.
    pub(super) unsafe fn free_run(
        &'static self,
        set: &'static ZoneSet,
        start: Pfn,
        reuse: Reuse,
    ) -> bool {
        if set.purpose == Purpose::Vmalloc {
            // SAFETY: the same contract.
            return unsafe { self.free_area(set, start) };
        }
        // SAFETY: the caller gives the pages up, by the contract.
        let Some(run) = (unsafe { self.ledger.unbook_run(set, start) }) else { return false };
        match reuse {
            // SAFETY: this call took the run out of the books, so it alone uses it.
            Reuse::Likely => unsafe { self.heap().give_run(set, run) },
            Reuse::Unlikely => self.heap().give_whole(set, run),
        }
        true
    }

    /// Number of bytes that may be used at an address; 0 for null. An address that is not that of a
    /// live allocation is reported, and ends the program.
    ///
    /// # Safety
    /// No other thread frees the memory concurrently.
    #[inline]
    pub unsafe fn usable_size(&'static self, at: *mut u8) -> usize {
        match self.object_size(at as usize) {
            // SAFETY: the same contract.
            0 => unsafe { self.usable_size_slow(at as usize) },
            size => size,
        }
    }

    /// [`Self::usable_size`] of what [`Self::object_size`] does not find.
    ///
    /// # Safety
    /// See [`Self::usable_size`].
    #[cold]
    #[inline(never)]
    unsafe fn usable_size_slow(&'static self, at: usize) -> usize {
        if at == 0 {
            return 0;
        }
        self.ready();
        match self.heap().find(at) {
            // SAFETY: a live object of that class, which stays live, by the contract.
            Ok(Live::Object { class, .. }) => unsafe { self.ledger.object_len(at, class) },
            Ok(Live::Pages { run, words, .. }) => words.bounds().room(run.pages),
            Err(fault) => self.fault("malloc_usable_size", at, fault),
        }
    }

    /// Bytes of the live object that begins at an address, as [`Self::free_fast`] finds it. 0: it
    /// does not.
    #[inline(always)]
    fn object_size(&'static self, at: usize) -> usize {
        let heap = self.heap();
        let Ok(class) = heap.fast.class(at) else { return 0 };
        let Some(location) = heap.classes.object_at(at, class) else { return 0 };
        // SAFETY: a slab of that class, in a zone whose slabs have extension words.
        let ext = unsafe { heap.classes.extension(location) };
        if ext.load(Ordering::Relaxed) & EXT_LIVE == 0 {
            return 0;
        }
        class.room()
    }

    /// Group in the word of a live allocation.
    pub(super) fn payer(&'static self, at: *mut u8) -> ObjcgId {
        self.ready();
        match self.heap().find(at as usize) {
            Ok(live) => objcg_of(live.word()),
            Err(fault) => self.fault("group_of_allocation", at as usize, fault),
        }
    }

    /// Returns whether an address lies in this instance's memory.
    pub fn owns(&'static self, at: *mut u8) -> bool {
        self.heap().zones.of(at as usize).is_some()
    }

    /// Reports a misuse of `call` and ends the program.
    #[cold]
    pub(super) fn fault(&'static self, call: &str, at: usize, fault: Fault) -> ! {
        // A freed block with a fence is known better.
        let block = if fault.is_double() { self.areas().block_beside(at) } else { None };
        self.ledger.fault(call, at, block.unwrap_or(fault))
    }
}
