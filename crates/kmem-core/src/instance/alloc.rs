//! Allocation: the fast path, and the paths for requests that it cannot serve.

use core::ptr::null_mut;

use kmem_layout::word::{EXT_LIVE, TAG_UNTAGGED};

use super::Instance;
use crate::alloc_tag::Mode;
use crate::class::{FINE, Location, MAX_OBJECT, SMALL_SLAB, SizeClass};
use crate::heap::{Fit, Looked};
use crate::memcg::objcg_bits;
use crate::memcg::stock::Price;
use crate::os::Platform;
use crate::request::Caller;
use crate::slab::zero_object;
use crate::sync::Ordering;
use crate::task;
use crate::units::{Gfp, Item, ObjcgId, PAGE_SIZE, PageCount};
use crate::vmalloc::AreaRequest;

impl<P: Platform> Instance<P> {
    /// Allocates `size` bytes for a caller, aligned to 16 bytes; null if there is no memory, or the
    /// group is at its limit.
    #[inline(always)]
    pub fn alloc(&'static self, size: usize, caller: Caller) -> *mut u8 {
        // SAFETY: the key of a caller.
        let at = unsafe { self.alloc_fast(size, caller.key()) };
        if at.is_null() { self.alloc_any(size, caller) } else { at }
    }

    /// Serves a small request if the CPU has an object for it: about 40 instructions, no atomics.
    /// Null: call [`Self::alloc_any`].
    ///
    /// # Safety
    /// See [`Caller::of_key`].
    #[inline(always)]
    pub unsafe fn alloc_fast(&'static self, size: usize, key: usize) -> *mut u8 {
        match SizeClass::of_small(size) {
            // SAFETY: a key, by the contract.
            Some(class) => unsafe { self.take(class, SMALL_SLAB, key) },
            None => null_mut(),
        }
    }

    /// [`Self::alloc_fast`] for a key that is known to name no group; it saves a test.
    ///
    /// # Safety
    /// See [`Caller::of_key`].
    #[inline(always)]
    pub unsafe fn alloc_fast_root(&'static self, size: usize, key: usize) -> *mut u8 {
        match SizeClass::of_small(size) {
            // SAFETY: a key, by the contract.
            Some(class) => unsafe { self.take_unpaid(class, SMALL_SLAB, key) },
            None => null_mut(),
        }
    }

    /// Allocates `size` bytes as the kernel's `kmalloc` does; null on failure.
    #[inline(always)]
    pub fn kmalloc(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        if gfp == Gfp::KERNEL {
            // SAFETY: the key of a caller.
            let at = unsafe { self.alloc_fast(size, caller.key()) };
            if !at.is_null() {
                return at;
            }
        }
        self.kmalloc_any(size, gfp, caller)
    }

    /// [`Self::kmalloc`] for a caller without a group. The thread's group pays.
    #[inline(always)]
    pub fn kmalloc_here(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        if gfp == Gfp::UNACCOUNTED || (gfp == Gfp::KERNEL && !task::is_in_any()) {
            // SAFETY: the key of a caller.
            let at = unsafe { self.alloc_fast_root(size, caller.key()) };
            if !at.is_null() {
                return at;
            }
        }
        self.kmalloc_scoped(size, gfp, caller)
    }

    #[inline(never)]
    fn kmalloc_scoped(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        self.kmalloc(size, gfp, caller.here())
    }

    #[inline(never)]
    fn kmalloc_any(&'static self, size: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        if gfp == Gfp::KERNEL {
            return self.alloc_any(size, caller);
        }
        if gfp.has(Gfp::THISNODE) {
            return self.kmalloc_node(size, gfp, None, caller);
        }
        let caller = caller.with(gfp);
        if gfp.has(Gfp::ZERO) { self.alloc_zeroed(size, caller) } else { self.alloc(size, caller) }
    }

    /// Takes an object off the CPU's array and writes its extension word. Null: there is no object,
    /// no stock of the group, or the key is not in the cache of call sites. `slab` is the size of
    /// the class's slabs, in bytes.
    ///
    /// That cache is empty while calls are watched, and without books.
    ///
    /// # Safety
    /// See [`Caller::of_key`].
    #[inline(always)]
    pub(super) unsafe fn take(&'static self, class: SizeClass, slab: usize, key: usize) -> *mut u8 {
        let objcg = crate::task::group_in(key);
        if objcg == ObjcgId::ROOT {
            // SAFETY: the same contract.
            return unsafe { self.take_unpaid(class, slab, key) };
        }
        let Some(word) = self.ledger.books.sites.cached(key) else { return null_mut() };
        // SAFETY: the cache knows a key, so the instance has started its slots. Each class has an
        // array.
        let item = unsafe { self.heap().slots.pop_paid(class.array(), objcg) };
        if item.is_none() {
            return null_mut();
        }
        self.book(item, class, slab, word | objcg_bits(objcg))
    }

    /// [`Self::take`] for no group.
    ///
    /// # Safety
    /// See [`Caller::of_key`].
    #[inline(always)]
    unsafe fn take_unpaid(&'static self, class: SizeClass, slab: usize, key: usize) -> *mut u8 {
        let Some(word) = self.ledger.books.sites.cached(key) else {
            return self.take_bare(class);
        };
        // SAFETY: the cache knows a key, so the instance has started its slots. Each class has an
        // array.
        let item = unsafe { self.heap().slots.pop(class.array()) };
        if item.is_none() {
            return null_mut();
        }
        self.book(item, class, slab, word)
    }

    /// [`Self::take`] for an instance without books; null if it has books.
    #[inline(always)]
    fn take_bare(&'static self, class: SizeClass) -> *mut u8 {
        if self.ledger.books.mode() != Mode::NEVER {
            return null_mut();
        }
        // SAFETY: the mode is known, so the instance has started its slots. Each class has an
        // array.
        unsafe { self.heap().slots.pop(class.array()) }.address() as *mut u8
    }

    /// Writes the extension word of an object that just came off an array.
    #[inline(always)]
    fn book(&self, item: Item, class: SizeClass, slab: usize, word: u32) -> *mut u8 {
        let at = item.address();
        let offset = at & (slab - 1);
        let location = Location { class, slab: at - offset, offset };
        // SAFETY: an object of that class, in an instance with books: the site is known.
        let ext = unsafe { self.heap().classes.extension(location) };
        ext.store(word, Ordering::Relaxed);
        // SAFETY: the callers have tested that the item is not none.
        unsafe { core::hint::assert_unchecked(at != 0) };
        at as *mut u8
    }

    /// [`Self::alloc`] of any size and in any mode, after [`Self::alloc_fast`] returned null.
    #[inline(never)]
    pub fn alloc_any(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if size >= self.heap().fast.slab_bound() {
            return self.alloc_aside(size, caller);
        }
        // SAFETY: the bound is at most `MAX_OBJECT + 1`.
        unsafe { core::hint::assert_unchecked(size <= MAX_OBJECT) };
        let class = SizeClass::of(size);
        if size > FINE {
            // SAFETY: the key of a caller.
            let at = unsafe { self.take(class, self.heap().slab_bytes(class), caller.key()) };
            if !at.is_null() {
                return at;
            }
        }
        self.alloc_slow(class, caller)
    }

    /// The word of an object that a group pays for, without books. `None`: there are books, or no
    /// groups.
    #[inline]
    fn word_of_charge(&'static self, objcg: ObjcgId) -> Option<u32> {
        (objcg != ObjcgId::ROOT
            && self.ledger.books.mode() == Mode::NEVER
            && self.heap().format().charges)
            .then_some(EXT_LIVE | TAG_UNTAGGED)
    }

    /// [`Self::take`] for a call whose callers are told apart, or which a group pays for without
    /// books, after [`Self::take`] returned null. With `SAMPLED`, for a call of any caller while a
    /// tracer is told of samples.
    #[inline(always)]
    fn take_again<const SAMPLED: bool>(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        let (objcg, array) = (caller.objcg(), class.array());
        let (books, platform) = (&self.ledger.books, self.platform());
        let word = if SAMPLED {
            books.word_for_sample(platform, caller)
        } else {
            let of_chain = books.word_of_chain(platform, caller);
            of_chain.or_else(|| self.word_of_charge(objcg))
        };
        let Some(word) = word else { return null_mut() };
        // SAFETY: a site or the mode is known, so the instance has started its slots. Each class
        // has an array.
        let item = unsafe {
            let slots = &self.heap().slots;
            if objcg == ObjcgId::ROOT { slots.pop(array) } else { slots.pop_paid(array, objcg) }
        };
        if item.is_none() {
            return null_mut();
        }
        let slab = self.heap().slab_bytes(class);
        let at = self.book(item, class, slab, word | objcg_bits(objcg));
        if SAMPLED {
            self.ledger.sample_alloc(at as usize, u64::from(class.size()), caller);
        }
        at
    }

    /// [`Self::take`] while a tracer is told of samples.
    #[inline(never)]
    fn take_sampled(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        self.take_again::<true>(class, caller)
    }

    /// Allocates an object after [`Self::take`] returned null.
    #[inline(always)]
    fn alloc_slow(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        let at = self.take_again::<false>(class, caller);
        if !at.is_null() {
            return at;
        }
        if caller.objcg() == ObjcgId::ROOT {
            self.alloc_missed(class, caller)
        } else {
            self.alloc_charged(class, caller)
        }
    }

    /// Allocates an object for a group without a stock on the array's head, as if groups alternate.
    /// Pays from the group's cell.
    #[inline(never)]
    fn alloc_charged(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        let (array, objcg) = (class.array(), caller.objcg());
        let cached = self.ledger.books.sites.cached(caller.key());
        if let Some(word) = cached.or_else(|| self.word_of_charge(objcg))
            && self.heap().slots.uses_rseq()
            && self.ledger.charging().pay_from_cell(array, objcg)
        {
            // SAFETY: the slots are of the rseq kind, so they have started. Each class has an
            // array.
            let item = unsafe { self.heap().slots.pop(array) };
            if !item.is_none() {
                let slab = self.heap().slab_bytes(class);
                return self.book(item, class, slab, word | objcg_bits(objcg));
            }
            self.ledger.charging().refund(Price::Item(array), objcg);
        }
        self.alloc_missed(class, caller)
    }

    /// Allocates an object through the ledger.
    #[cold]
    #[inline(never)]
    fn alloc_missed(&'static self, class: SizeClass, caller: Caller) -> *mut u8 {
        if !self.ready() {
            return null_mut();
        }
        // If the tracer is gone, the ledger opens the fast paths again.
        if self.ledger.books.watch().samples() && self.platform().is_traced() {
            let at = self.take_sampled(class, caller);
            if !at.is_null() {
                return at;
            }
        }
        // If the site is known, the fast path found the array empty, unless the group could not
        // pay.
        let uncharged = caller.objcg() == ObjcgId::ROOT;
        let known = self.ledger.books.sites.cached(caller.key()).is_some();
        let looked =
            if known && uncharged { Looked::after_miss(&self.heap().slots) } else { Looked::Not };
        self.ledger.alloc_object(class, looked, caller).address() as *mut u8
    }

    /// Serves requests of at least the slab bound. Before start, and if objects are guarded, these
    /// are all requests.
    #[cold]
    #[inline(never)]
    fn alloc_whole(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if !self.ready() {
            return null_mut();
        }
        let Some(class) = self.ledger.class_for(size) else {
            return self.alloc_run(size, 1, Gfp::KERNEL, caller);
        };
        let at = self.take_aside(class, size, caller);
        if at.is_null() { self.alloc_guarded(class, size, caller) } else { at }
    }

    /// Serves requests of at least the slab bound: objects where they are zeroed or guarded, and
    /// pages. This is the fast path of the former, if no group pays.
    #[inline(never)]
    fn alloc_aside(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if let Some(class) = self.ledger.class_for(size)
            && caller.objcg() == ObjcgId::ROOT
            && let Some(word) = self.ledger.books.sites.cached_aside(caller.key())
            && self.is_ready()
        {
            // SAFETY: the instance has started its slots. Each class has an array.
            let item = unsafe { self.heap().slots.pop(class.array()) };
            if !item.is_none() {
                return self.hand_out_aside(item, class, size, word);
            }
        }
        self.alloc_whole(size, caller)
    }

    /// Zeroes or guards an object that just came off an array, and writes its extension word.
    #[inline(always)]
    fn hand_out_aside(&self, item: Item, class: SizeClass, len: usize, word: u32) -> *mut u8 {
        // SAFETY: a free object of the class, which the caller took off the array. It has room for
        // `len` bytes and the red zone.
        unsafe { self.ledger.prepare_object(item.address(), class, len) };
        self.book(item, class, self.heap().slab_bytes(class), word)
    }

    /// Takes an object off the CPU's array, and zeroes or guards it for `len` bytes, where that
    /// closes the fast paths. Null: see [`Self::take`]; or other options close them.
    #[inline(never)]
    fn take_aside(&'static self, class: SizeClass, len: usize, caller: Caller) -> *mut u8 {
        let (books, slots, array) = (&self.ledger.books, &self.heap().slots, class.array());
        let guards = self.ledger.guards.checks().any();
        if !guards && !self.heap().zones.checks().zeroes_on_alloc() {
            return null_mut();
        }
        let word = match books.mode() {
            // The ledger charges a group.
            Mode::NEVER_CLOSED if caller.objcg() != ObjcgId::ROOT => return null_mut(),
            Mode::NEVER_CLOSED => None,
            _ => match books.word_aside(self.platform(), caller) {
                None => return null_mut(),
                word => word,
            },
        };
        // SAFETY: the callers have seen that the instance started. Each class has an array.
        let item = unsafe {
            match (word, caller.objcg()) {
                (None, _) | (_, ObjcgId::ROOT) => slots.pop(array),
                (_, objcg) => slots.pop_paid(array, objcg),
            }
        };
        if item.is_none() {
            return null_mut();
        }
        let Some(word) = word else {
            let at = item.address() as *mut u8;
            // SAFETY: a free object of the class, which this call took off the array.
            unsafe { zero_object(at, class) };
            return at;
        };
        self.hand_out_aside(item, class, len, word | objcg_bits(caller.objcg()))
    }

    /// Allocates pages for `size` bytes, at a multiple of `align`, a power of two.
    pub(super) fn alloc_run(
        &'static self,
        size: usize,
        align: usize,
        gfp: Gfp,
        caller: Caller,
    ) -> *mut u8 {
        if !self.ready() {
            return null_mut();
        }
        let Ok(pages) = u32::try_from(align.div_ceil(PAGE_SIZE)) else { return null_mut() };
        let checks = self.ledger.guards.checks();
        if (checks.has_fences() || checks.guards_pages()) && isize::try_from(size).is_ok() {
            return self.alloc_area(size, align, gfp, caller);
        }
        self.ledger.alloc_run(size, PageCount(pages), Fit::Loose, gfp, caller)
    }

    /// [`Self::alloc_run`] of an area. Not inlined: its stack is not taken from the rest.
    #[cold]
    #[inline(never)]
    fn alloc_area(&'static self, size: usize, align: usize, gfp: Gfp, caller: Caller) -> *mut u8 {
        let fences = self.ledger.guards.checks().has_fences();
        let request = AreaRequest {
            // A block has a byte, if it has none for its user.
            size: size.max(1),
            align: align.next_multiple_of(PAGE_SIZE),
            huge: false,
            fence: fences.then_some(align.max(16)),
        };
        self.areas().alloc(request, Looked::Not, gfp, caller)
    }

    /// Allocates an object of `len` bytes with its record and red zone, as configured.
    fn alloc_guarded(&'static self, class: SizeClass, len: usize, caller: Caller) -> *mut u8 {
        let item = self.ledger.alloc_object(class, Looked::Not, caller);
        if !item.is_none() {
            // SAFETY: this call allocated the object, whose class has room for `len` bytes and the
            // red zone.
            unsafe { self.ledger.guard_object(item.address(), class, len) };
        }
        item.address() as *mut u8
    }

    /// Allocates `size` bytes of zeroes; null on failure.
    pub fn alloc_zeroed(&'static self, size: usize, caller: Caller) -> *mut u8 {
        if size > MAX_OBJECT {
            return self.alloc_run(size, 1, Gfp::ZERO, caller);
        }
        let object = self.alloc(size, caller);
        if !object.is_null() {
            // SAFETY: this call allocated the object, which has at least `size` bytes.
            unsafe { object.write_bytes(0, size) };
        }
        object
    }

    /// Allocates `size` bytes at a multiple of `align`, a power of two; null on failure.
    pub fn alloc_aligned(&'static self, size: usize, align: usize, caller: Caller) -> *mut u8 {
        if align <= 16 {
            return self.alloc(size, caller);
        }
        let Some(class) = SizeClass::aligned(size, align) else {
            return self.alloc_run(size, align, Gfp::KERNEL, caller);
        };
        // SAFETY: the key of a caller.
        let object = unsafe { self.take(class, self.heap().slab_bytes(class), caller.key()) };
        if object.is_null() { self.alloc_aligned_slow((size, align), caller) } else { object }
    }

    /// [`Self::alloc_aligned`] of an object, after [`Self::take`] found none.
    #[cold]
    #[inline(never)]
    fn alloc_aligned_slow(&'static self, (size, align): (usize, usize), caller: Caller) -> *mut u8 {
        if !self.ready() {
            return null_mut();
        }
        let checks = self.ledger.guards.checks();
        let Some(class) = self.ledger.class_aligned(size, align) else {
            return self.alloc_run(size, align, Gfp::KERNEL, caller);
        };
        let at = self.take_aside(class, size, caller);
        match at.is_null() {
            true if checks.any() => self.alloc_guarded(class, size, caller),
            true => self.alloc_slow(class, caller),
            false => at,
        }
    }
}
