//! Caches: objects of one kind (the kernel's `kmem_cache`). Caches of one size share their slabs,
//! as SLUB merges them. A cache has a name, an alignment, a constructor and a count of its own.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::Instance;
use crate::ledger::{CacheName, CacheNumber, MAX_CACHE_NAME};
use crate::os::Platform;
use crate::report::{Printable, print};
use crate::request::Caller;
use crate::sync::{AtomicU64, Ordering};
use crate::units::Gfp;

/// A constructor, which gets each object before it is handed out.
pub type Constructor = unsafe extern "C" fn(*mut c_void);

/// A cache, in memory of the instance that made it. See [`Instance::cache_create`].
#[repr(C)]
pub struct Cache {
    /// Padded with zeroes.
    name: CacheName,
    size: usize,
    align: usize,
    ctor: Option<Constructor>,
    live: AtomicU64,
    number: CacheNumber,
    /// True if new objects are numbered or constructed.
    prepares: bool,
}

impl Cache {
    /// Counts a freed object.
    pub(super) fn note_free(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Name of the cache, cut to 48 bytes.
    pub fn name(&self) -> &[u8] {
        let len = self.name.iter().position(|&b| b == 0).unwrap_or(MAX_CACHE_NAME);
        &self.name[..len]
    }

    /// Number of objects in use.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Bytes of an object, and its alignment.
    pub(super) fn layout(&self) -> (usize, usize) {
        (self.size, self.align)
    }

    /// Returns whether the cache has a constructor, whose work zeroes would undo.
    pub(super) fn has_constructor(&self) -> bool {
        self.ctor.is_some()
    }

    /// Bytes of an object.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl<P: Platform> Instance<P> {
    /// Makes a cache of objects of `size` bytes at multiples of `align` (0, or a power of two).
    /// `ctor` is called for each object before it is handed out. `None`: there is no memory, the
    /// size is 0, or the alignment is not allowed.
    ///
    /// # Examples
    /// ```
    /// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
    /// use kmem_core::units::Gfp;
    /// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
    /// let cache = KMEM.cache_create(b"nodes", 48, 0, None, caller).expect("memory");
    /// // SAFETY: the cache is not destroyed before the last use of this reference.
    /// let nodes = unsafe { cache.as_ref() };
    /// let node = KMEM.cache_alloc(nodes, Gfp::KERNEL, caller);
    /// assert_eq!((node.is_null(), nodes.live()), (false, 1));
    /// // SAFETY: a live object of the cache, and then the cache, are used no longer.
    /// unsafe {
    ///     KMEM.cache_free(nodes, node);
    ///     assert!(KMEM.cache_destroy(cache));
    /// }
    /// ```
    pub fn cache_create(
        &'static self,
        name: &[u8],
        size: usize,
        align: usize,
        ctor: Option<Constructor>,
        caller: Caller,
    ) -> Option<NonNull<Cache>> {
        if size == 0 || (align != 0 && !align.is_power_of_two()) {
            return None;
        }
        let at = NonNull::new(self.alloc(size_of::<Cache>(), caller))?.cast::<MaybeUninit<Cache>>();
        let mut short = [0; MAX_CACHE_NAME];
        let len = name.len().min(MAX_CACHE_NAME);
        short[..len].copy_from_slice(&name[..len]);
        let guards = &self.ledger.guards;
        let cache = Cache {
            name: short,
            size,
            align: align.max(16),
            ctor,
            live: AtomicU64::new(0),
            number: guards.enter_cache(at.as_ptr().cast()),
            prepares: guards.checks().checks_caches() || ctor.is_some(),
        };
        // SAFETY: this call allocated the memory, of that size and aligned to 16.
        unsafe { (*at.as_ptr()).write(cache) };
        Some(at.cast())
    }

    /// Destroys a cache. False: objects of it are in use, and it stays.
    ///
    /// # Safety
    /// `cache` is a live cache of this instance. If this succeeds, no thread uses it afterwards.
    pub unsafe fn cache_destroy(&'static self, cache: NonNull<Cache>) -> bool {
        // SAFETY: a live cache, by the contract.
        let of = unsafe { cache.as_ref() };
        if of.live() != 0 {
            print!(
                self.platform(),
                "kmem: the cache {} stays: {} of its objects are in use\n",
                Printable(of.name()),
                of.live()
            );
            return false;
        }
        self.ledger.guards.leave_cache(of.number);
        // SAFETY: `cache_create` allocated the memory, and the caller gave it up.
        unsafe { self.free(cache.as_ptr().cast()) };
        true
    }

    /// Allocates an object of a cache; null if there is no memory, or the group is at its limit.
    #[inline(always)]
    pub fn cache_alloc(&'static self, cache: &Cache, gfp: Gfp, caller: Caller) -> *mut u8 {
        let caller = caller.with(gfp);
        let object = self.alloc_aligned(cache.size, cache.align, caller);
        if object.is_null() {
            return object;
        }
        cache.live.fetch_add(1, Ordering::Relaxed);
        if gfp.any(Gfp::ZERO.and(Gfp::THISNODE)) && !self.suits(cache, object, gfp) {
            return self.cache_alloc_here(cache, gfp, caller);
        }
        if cache.prepares {
            self.prepare(cache, object);
        }
        object
    }

    /// Zeroes a new object of a cache, as the flags say. False: it may be of another node than the
    /// flags say, and is free again.
    #[cold]
    #[inline(never)]
    fn suits(&'static self, cache: &Cache, object: *mut u8, gfp: Gfp) -> bool {
        let chosen = self.placement(None, gfp).is_some();
        // SAFETY: the caller allocated the object, of that size, and no other code has it.
        unsafe {
            if chosen {
                self.free(object);
                cache.note_free();
            } else if gfp.has(Gfp::ZERO) {
                object.write_bytes(0, cache.size);
            }
        }
        !chosen
    }

    /// Counts a new object of a cache, and prepares it.
    pub(super) fn enter_object(&'static self, cache: &Cache, object: *mut u8) {
        cache.live.fetch_add(1, Ordering::Relaxed);
        if cache.prepares {
            self.prepare(cache, object);
        }
    }

    /// Records the cache of a new object for checks, and constructs the object.
    fn prepare(&'static self, cache: &Cache, object: *mut u8) {
        if cache.number != CacheNumber::NONE {
            self.ledger.note_cache(object as usize, cache.number);
        }
        if let Some(ctor) = cache.ctor {
            // SAFETY: a new object of the cache, which no other thread uses.
            unsafe { ctor(object.cast()) };
        }
    }

    /// Frees an object of a cache; null does nothing.
    ///
    /// # Safety
    /// `object` is null or a live object of this cache, which no thread uses from here on.
    pub unsafe fn cache_free(&'static self, cache: &Cache, object: *mut u8) {
        if object.is_null() {
            return;
        }
        // SAFETY: the same contract.
        unsafe { self.free_of(Some(cache), "kmem_cache_free", object) };
        cache.note_free();
    }

    /// Frees the object that was passed to `call` as one of a cache, or of no cache.
    ///
    /// # Safety
    /// See [`Self::free`].
    #[inline(always)]
    pub(super) unsafe fn free_of(
        &'static self,
        cache: Option<&Cache>,
        call: &'static str,
        object: *mut u8,
    ) {
        // SAFETY: the same contract.
        unsafe {
            if !self.free_fast(object) {
                self.free_of_slow(cache, call, object);
            }
        }
    }

    /// # Safety
    /// See [`Self::free`].
    #[cold]
    #[inline(never)]
    unsafe fn free_of_slow(&'static self, cache: Option<&Cache>, call: &str, object: *mut u8) {
        self.check_cache(call, object, cache);
        // SAFETY: the same contract.
        unsafe { self.free_slow(object) };
    }

    /// Ends the program if the object that was passed to `call` is not of this cache, or is of a
    /// cache although `cache` is `None`.
    pub(super) fn check_cache(&'static self, call: &str, object: *mut u8, cache: Option<&Cache>) {
        if !self.ledger.guards.checks().checks_caches() || !self.ready() {
            return;
        }
        let (number, size) = match cache {
            Some(cache) => (cache.number, cache.size),
            None => (CacheNumber::NONE, 0),
        };
        self.ledger.check_cache(call, object as usize, number, size);
    }

    /// Fills all of `out` with results of `one`. If one of these is null, passes the others to
    /// `back`. Returns the count of filled entries: all or 0.
    pub fn all_or_none(
        &'static self,
        out: &mut [*mut u8],
        mut one: impl FnMut() -> *mut u8,
        mut back: impl FnMut(*mut u8),
    ) -> usize {
        for i in 0..out.len() {
            out[i] = one();
            if out[i].is_null() {
                for taken in &mut out[..i] {
                    back(core::mem::replace(taken, core::ptr::null_mut()));
                }
                return 0;
            }
        }
        out.len()
    }
}
