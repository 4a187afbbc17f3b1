//! Caches: objects of one kind (the kernel's `kmem_cache`). Caches of one size share their slabs,
//! as SLUB merges them. A cache has a name, an alignment, a constructor and a count of its own.

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use kmem_layout::cache::{CacheBlock, MAX_CACHE_NAME, unpadded};

use super::Instance;
use super::constructed::Constructed;
use crate::class::{MAX_OBJECT, SizeClass};
use crate::ledger::CacheNumber;
use crate::mempool::Shelf;
use crate::os::Platform;
use crate::report::{Printable, print};
use crate::request::Caller;
use crate::sync::{AtomicU64, Ordering};
use crate::units::Gfp;

/// A constructor, which gets each new object before it is handed out. Objects are freed in their
/// constructed state, and handed out again without a call.
pub type Constructor = unsafe extern "C" fn(*mut c_void);

/// A cache, in memory of the instance that made it. See [`Instance::cache_create`].
#[repr(C)]
pub struct Cache {
    /// The part that readers see.
    block: CacheBlock,
    ctor: Option<Constructor>,
    number: CacheNumber,
    /// True if new objects are numbered or constructed.
    prepares: bool,
    /// Free objects, if there is a constructor. Its shelves lie behind the cache.
    pub(super) constructed: Constructed,
}

/// Flags of a cache (the kernel's `SLAB_` flags, with its values).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct CacheFlags(pub u32);

impl CacheFlags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// Objects are aligned to cache lines, small ones to parts of them.
    pub const HWCACHE_ALIGN: Self = Self(0x2000);
    /// A failure ends the program.
    pub const PANIC: Self = Self(0x4_0000);
    /// Groups pay for objects, as they do without it.
    pub const ACCOUNT: Self = Self(0x400_0000);
    /// Flags without effect: accounting, reclaim, and debugging, which the configuration chooses.
    const IGNORED: u32 = Self::ACCOUNT.0 | 0x2_0000 | 0x100 | 0x400 | 0x800 | 0x1_0000;
    /// Flags that are refused, with their names.
    const REFUSED: [(u32, &'static str); 4] = [
        (0x8_0000, "SLAB_TYPESAFE_BY_RCU"),
        (0x4000, "SLAB_CACHE_DMA"),
        (0x8000, "SLAB_CACHE_DMA32"),
        (0x100_0000, "SLAB_NO_MERGE"),
    ];

    const fn has(self, flag: Self) -> bool {
        self.0 & flag.0 != 0
    }

    /// The name of a flag that is refused; an empty one for a flag that is not known.
    fn refused(self) -> Option<&'static str> {
        let named = Self::REFUSED.iter().find(|(bit, _)| self.0 & bit != 0);
        let known = Self::HWCACHE_ALIGN.0 | Self::PANIC.0 | Self::IGNORED;
        named.map(|(_, name)| *name).or_else(|| (self.0 & !known != 0).then_some(""))
    }

    /// The alignment of objects of `size` bytes that ask for `align`.
    fn align(self, size: usize, align: usize) -> usize {
        let mut line = if self.has(Self::HWCACHE_ALIGN) { CACHE_LINE } else { 0 };
        while line > 16 && size <= line / 2 {
            line /= 2;
        }
        line.max(align)
    }
}

/// Bytes of a cache line, for [`CacheFlags::HWCACHE_ALIGN`].
const CACHE_LINE: usize = 64;

impl Cache {
    /// Counts a freed object.
    pub(super) fn note_free(&self) {
        self.block.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Name of the cache, cut to 48 bytes.
    pub fn name(&self) -> &[u8] {
        unpadded(&self.block.name)
    }

    /// Number of objects in use.
    pub fn live(&self) -> u64 {
        self.block.live.load(Ordering::Relaxed)
    }

    /// Bytes of an object, and its alignment.
    pub(super) fn layout(&self) -> (usize, usize) {
        (self.size(), self.block.align as usize)
    }

    /// Size class of the objects; `None` if they are runs of pages.
    pub(super) fn class(&self) -> Option<SizeClass> {
        let (size, align) = self.layout();
        class_of(size, align)
    }

    /// Returns whether the cache has a constructor, whose work zeroes would undo.
    pub(super) fn has_constructor(&self) -> bool {
        self.ctor.is_some()
    }

    /// Bytes of an object.
    pub fn size(&self) -> usize {
        self.block.size as usize
    }
}

/// Size class of objects of `size` bytes at multiples of `align`.
fn class_of(size: usize, align: usize) -> Option<SizeClass> {
    match align {
        _ if size > MAX_OBJECT => None,
        ..=16 => Some(SizeClass::of(size)),
        _ => SizeClass::aligned(size, align),
    }
}

impl<P: Platform> Instance<P> {
    /// [`Self::cache_create`] with flags. `None`: also if a flag is refused. That is reported.
    pub fn cache_create_with(
        &'static self,
        name: &[u8],
        (size, align): (usize, usize),
        flags: CacheFlags,
        ctor: Option<Constructor>,
        caller: Caller,
    ) -> Option<NonNull<Cache>> {
        let made = match flags.refused() {
            None => self.cache_create(name, size, flags.align(size, align), ctor, caller),
            Some(flag) => {
                let (platform, name) = (self.platform(), Printable(name));
                if flag.is_empty() {
                    let flags = flags.0;
                    print!(platform, "kmem: no cache {name}: flags {flags:#x} are not known\n");
                } else {
                    print!(platform, "kmem: no cache {name}: {flag} is not supported\n");
                }
                None
            }
        };
        if made.is_none() && flags.has(CacheFlags::PANIC) {
            let name = Printable(name);
            print!(self.platform(), "kmem: the cache {name} with SLAB_PANIC cannot be made\n");
            self.platform().fatal();
        }
        made
    }

    /// Makes a cache of objects of `size` bytes at multiples of `align` (0, or a power of two).
    /// `ctor` is called once for each new object. Objects must be freed in the state that it made.
    /// With `redzone`, `quarantine_kb` or `check_caches` it is called for each allocation. `None`:
    /// there is no memory, the size is 0, or the alignment is not allowed.
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
        let align = align.max(16);
        let keeps = ctor.is_some() && self.ready() && !self.ledger.guards.checks().any();
        let class = class_of(size, align).filter(|_| keeps);
        let shelves = class.map_or(0, Constructed::shelves);
        let bytes = size_of::<Cache>() + shelves * size_of::<Shelf>();
        let at = NonNull::new(self.alloc(bytes, caller))?.cast::<MaybeUninit<Cache>>();
        let mut short = [0; MAX_CACHE_NAME];
        let len = name.len().min(MAX_CACHE_NAME);
        short[..len].copy_from_slice(&name[..len]);
        let guards = &self.ledger.guards;
        // With a red zone, an object may have the next class.
        let class = class_of(size.saturating_add(guards.checks().red_zone()), align);
        let cache = Cache {
            block: CacheBlock {
                name: short,
                size: size as u64,
                align: align as u64,
                class: class.map_or(0, |class| u64::from(class.0)),
                live: AtomicU64::new(0),
            },
            ctor,
            number: CacheNumber::NONE,
            prepares: guards.checks().checks_caches() || ctor.is_some(),
            constructed: Constructed::new(),
        };
        // SAFETY: this call allocated the memory, of that size and aligned to 16. The shelves
        // behind the cache live as long as it does.
        unsafe {
            let cache = (*at.as_ptr()).write(cache);
            // Readers see what is written so far.
            cache.number = guards.enter_cache(&cache.block);
            let forks = self.forks.load(Ordering::Relaxed);
            cache.constructed.start(at.add(1).cast(), shelves, forks);
        }
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
        self.empty_constructed(of);
        self.ledger.guards.leave_cache(of.number);
        // SAFETY: `cache_create` allocated the memory, and the caller gave it up.
        unsafe { self.free(cache.as_ptr().cast()) };
        true
    }

    /// Gives free objects of a cache back to the heap, and unused memory of the heap to the
    /// platform. Returns whether no object of the cache is in use (the kernel's
    /// `kmem_cache_shrink`, which returns 0 then).
    pub fn cache_shrink(&'static self, cache: &Cache) -> bool {
        self.empty_constructed(cache);
        self.trim();
        cache.live() == 0
    }

    /// Allocates an object of a cache. Null: there is no memory, the group is at its limit, or the
    /// request is for a zeroed object of a cache with a constructor.
    #[inline(always)]
    pub fn cache_alloc(&'static self, cache: &Cache, gfp: Gfp, caller: Caller) -> *mut u8 {
        if gfp != Gfp::KERNEL || cache.prepares {
            return self.cache_alloc_any(cache, gfp, caller);
        }
        let (size, align) = cache.layout();
        let object = self.alloc_aligned(size, align, caller);
        if !object.is_null() {
            cache.block.live.fetch_add(1, Ordering::Relaxed);
        }
        object
    }

    /// [`Self::cache_alloc`] with any flags, and of a cache whose new objects are prepared.
    #[inline(never)]
    fn cache_alloc_any(&'static self, cache: &Cache, gfp: Gfp, caller: Caller) -> *mut u8 {
        if self.refuses_zeroes(cache, gfp) {
            return core::ptr::null_mut();
        }
        let caller = caller.with(gfp);
        if gfp.has(Gfp::THISNODE)
            && let Some(here) = self.placement(None, gfp)
        {
            return self.cache_alloc_on(cache, here, gfp, caller);
        }
        if cache.prepares
            && let Some(object) = self.alloc_constructed(cache, caller)
        {
            cache.block.live.fetch_add(u64::from(!object.is_null()), Ordering::Relaxed);
            return object;
        }
        let (size, align) = cache.layout();
        let object = self.alloc_aligned(size, align, caller);
        if !object.is_null() {
            if gfp.has(Gfp::ZERO) {
                // SAFETY: this call allocated the object, of that size.
                unsafe { object.write_bytes(0, size) };
            }
            self.enter_object(cache, object);
        }
        object
    }

    /// Counts a new object of a cache, and prepares it.
    pub(super) fn enter_object(&'static self, cache: &Cache, object: *mut u8) {
        cache.block.live.fetch_add(1, Ordering::Relaxed);
        if cache.prepares {
            self.prepare(cache, object);
        }
    }

    /// Records the cache of a new object for checks, and constructs the object.
    fn prepare(&'static self, cache: &Cache, object: *mut u8) {
        if self.ledger.guards.checks().checks_caches() {
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
        if !object.is_null() {
            // SAFETY: the same contract.
            unsafe { self.cache_free_by("kmem_cache_free", cache, object) };
        }
    }

    /// [`Self::cache_free`] of an object that was passed to `call`.
    ///
    /// # Safety
    /// See [`Self::cache_free`]; `object` is not null.
    #[inline(always)]
    pub(super) unsafe fn cache_free_by(
        &'static self,
        call: &'static str,
        cache: &Cache,
        object: *mut u8,
    ) {
        // SAFETY: the same contract.
        unsafe {
            if cache.prepares {
                return self.cache_free_prepared(call, cache, object);
            }
            self.free_of(Some(cache), call, object);
        }
        cache.note_free();
    }

    /// [`Self::cache_free_by`] for a cache whose new objects are numbered or constructed.
    ///
    /// # Safety
    /// See [`Self::cache_free_by`].
    #[inline(never)]
    unsafe fn cache_free_prepared(
        &'static self,
        call: &'static str,
        cache: &Cache,
        object: *mut u8,
    ) {
        // SAFETY: the same contract.
        unsafe {
            if !self.free_constructed(cache, object) {
                self.free_of(Some(cache), call, object);
            }
        }
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
        unsafe { self.free_slow(object, None) };
    }

    /// Ends the program if the object that was passed to `call` is not of this cache, or is of a
    /// cache although `cache` is `None`.
    pub(super) fn check_cache(&'static self, call: &str, object: *mut u8, cache: Option<&Cache>) {
        if !self.ledger.guards.checks().checks_caches() || !self.ready() {
            return;
        }
        let (number, size) = match cache {
            Some(cache) => (cache.number, cache.size()),
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
