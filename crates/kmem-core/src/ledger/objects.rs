//! Objects of slabs in the ledger.

use kmem_layout::word::{EXT_LIVE, TAG_MASK};

use super::{COSTLY, Ledger, Request, Taken};
use crate::class::{Location, SizeClass};
use crate::heap::Looked;
use crate::memcg::stock::Price;
use crate::os::Platform;
use crate::page::Placement;
use crate::report::Fault;
use crate::request::Caller;
use crate::slab::bytes;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Item, TagId};

impl<P: Platform> Ledger<P> {
    /// Allocates an object of a class. None: there is no memory, or the group is at its limit.
    pub fn alloc_object(&'static self, class: SizeClass, looked: Looked, caller: Caller) -> Item {
        let mut looked = looked;
        let item = self.alloc_from(class, caller, || {
            self.heap.take_object(class, core::mem::replace(&mut looked, Looked::Not))
        });
        self.zeroed_if_wanted(item, class)
    }

    /// Zeroes a new object of a class, or none, if that is configured. Returns it.
    #[inline]
    fn zeroed_if_wanted(&self, item: Item, class: SizeClass) -> Item {
        if !item.is_none() && self.heap.zones.checks().zeroes_on_alloc() {
            // SAFETY: an object of the class, which the caller of this function just allocated.
            unsafe { self.zero_user_part(item.address(), class) };
        }
        item
    }

    /// Zeroes and guards an object for `len` bytes, as configured, before it is handed out.
    ///
    /// # Safety
    /// See [`Self::guard_object`].
    #[inline]
    pub unsafe fn prepare_object(&self, at: usize, class: SizeClass, len: usize) {
        // SAFETY: the same contract.
        unsafe {
            if self.heap.zones.checks().zeroes_on_alloc() {
                // The red zone behind these bytes is filled below.
                let red_zone = self.has_red_zones(class);
                let len = if red_zone { len } else { class.room() };
                bytes::fill(at as *mut u8, len, 0);
            }
            self.guard_object(at, class, len);
        }
    }

    /// Zeroes an object but for the guard at its end, which never changes.
    ///
    /// # Safety
    /// `at` is an object of that class, which the caller alone uses, and whose contents are not
    /// needed.
    pub(super) unsafe fn zero_user_part(&self, at: usize, class: SizeClass) {
        let len = class.room().saturating_sub(self.guards.checks().red_zone());
        // SAFETY: bytes of the object, by the contract.
        unsafe { bytes::fill(at as *mut u8, len, 0) };
    }

    /// Allocates an object of a class from slabs of chosen nodes.
    pub fn alloc_object_on(
        &'static self,
        class: SizeClass,
        placement: Placement,
        caller: Caller,
    ) -> Item {
        let item = self.alloc_from(class, caller, || self.heap.take_object_on(class, placement));
        self.zeroed_if_wanted(item, class)
    }

    /// Allocates an object of a class that `take` returns. None: `take` returned none, or the group
    /// is at its limit.
    pub fn alloc_from(
        &'static self,
        class: SizeClass,
        caller: Caller,
        mut take: impl FnMut() -> Item,
    ) -> Item {
        let (price, bytes) = (Price::Item(class.array()), class.size() as usize);
        let request = Request { price, bytes, endless: COSTLY };
        let taken = self.alloc(request, caller, || {
            let item = take();
            (!item.is_none()).then(|| self.taken_object(item, class))
        });
        taken.map_or(Item::NONE, |taken| Item::at(taken.at))
    }

    fn taken_object(&self, item: Item, class: SizeClass) -> Taken<'_> {
        let at = item.address();
        // SAFETY: an object of that class, whose slab has words by its format.
        let ext = self.heap.format().has_words().then(|| unsafe { self.object_word(at, class) });
        Taken { at, bytes: class.size() as usize, ext, pages: None }
    }

    /// Extension word of an object.
    ///
    /// # Safety
    /// An object of that class begins at `at`, and its slab has extension words.
    #[inline(always)]
    pub unsafe fn object_word(&self, at: usize, class: SizeClass) -> &AtomicU32 {
        let offset = at & (self.heap.slab_bytes(class) - 1);
        // SAFETY: an object of that class, by the contract. Slabs are naturally aligned, so its
        // slab begins at `at - offset`.
        unsafe { self.heap.classes.extension(Location { class, slab: at - offset, offset }) }
    }

    /// Frees a live object of the heap that [`crate::heap::Heap::find`] found. If two threads free
    /// it concurrently, one free succeeds, and the other is reported.
    ///
    /// # Safety
    /// The caller alone uses the object.
    #[inline]
    pub unsafe fn free_object(&'static self, at: usize, class: SizeClass, ext: Option<&AtomicU32>) {
        if !self.guards.checks().any() {
            // While its word says that it is live: a child that is forked now must not hand out
            // what is not zeroed yet. Where objects are guarded, [`Self::give_object`] zeroes.
            // SAFETY: an object of the class that the caller gives up, by the contract.
            unsafe { self.zero_freed(at, class) };
        }
        // SAFETY: an object of the class, which the caller gives up, by the contract.
        unsafe {
            self.unbook_object(at, class, ext);
            if !self.hold_back(at, class) {
                self.give_object(class, Item::at(at));
            }
        }
    }

    /// Takes a live object out of the books. If two threads do so concurrently, one succeeds, and
    /// the other is reported.
    ///
    /// # Safety
    /// See [`Self::free_object`].
    #[inline]
    pub unsafe fn unbook_object(
        &'static self,
        at: usize,
        class: SizeClass,
        ext: Option<&AtomicU32>,
    ) {
        if let Some(ext) = ext {
            // One of the threads that free the object concurrently sees the live bit.
            let word = ext.fetch_and(TAG_MASK, Ordering::AcqRel);
            if word & EXT_LIVE == 0 && !self.books.are_kept() {
                // No group paid for it, and nothing else is known about it.
                return;
            }
            if word & EXT_LIVE == 0 {
                let fault = Fault::FreeObject { size: class.size(), last: TagId(word & TAG_MASK) };
                self.fault("free", at, fault);
            }
            // SAFETY: an object of the class, which the caller alone uses, by the contract.
            unsafe { self.check_red_zones(at, class, word) };
            self.free(word, Price::Item(class.array()), class.size() as usize, at);
        }
    }

    /// Gives a free object with old contents to the heap.
    ///
    /// # Safety
    /// See [`Self::give_object`].
    pub unsafe fn discard_object(&'static self, class: SizeClass, item: Item) {
        // SAFETY: the same contract.
        unsafe {
            self.zero_freed(item.address(), class);
            self.give_object(class, item);
        }
    }

    /// Zeroes an object that its user gave up, if that is configured.
    ///
    /// # Safety
    /// See [`Self::zero_user_part`].
    #[inline]
    unsafe fn zero_freed(&self, at: usize, class: SizeClass) {
        if self.heap.zones.checks().zeroes_on_free() {
            // SAFETY: the same contract.
            unsafe { self.zero_user_part(at, class) };
        }
    }

    /// Gives a free object to this CPU's array, or to its slab.
    ///
    /// # Safety
    /// `item` is an object of this class of the heap, which the caller alone uses.
    #[inline]
    pub unsafe fn give_object(&'static self, class: SizeClass, item: Item) {
        // SAFETY: a free object of the class, by the contract.
        unsafe {
            if self.guards.checks().any() {
                self.zero_freed(item.address(), class);
            }
            if !self.heap.slots.push(class.array(), item) {
                self.heap.flush_object(class, item);
            }
        }
    }
}
