//! Caches: objects of one kind (the kernel's `kmem_cache`). Caches of one size share their slabs, as
//! SLUB merges them; what a cache adds is its name, alignment, constructor and count.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::Instance;
use crate::codetag::Caller;
use crate::os::Platform;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::units::Gfp;

/// Longest name of a cache.
const MAX_NAME: usize = 48;

/// A cache; lives in the instance it was made from.
#[repr(C)]
pub struct Cache {
    name: [u8; MAX_NAME],
    size: usize,
    align: usize,
    ctor: Option<unsafe extern "C" fn(*mut core::ffi::c_void)>,
    live: AtomicU64,
    /// See [`Index`].
    number: u16,
    /// There is more to do with an object than to allocate it.
    prepares: bool,
}

/// Caches whose objects are told apart.
const MAX_CACHES: usize = 1023;
/// The number of all further ones.
const OTHERS: u16 = u16::MAX;

/// The caches by number, from 1, where objects are asked which one they are of.
pub(super) struct Index([AtomicUsize; MAX_CACHES]);

impl Index {
    pub(super) const fn new() -> Self {
        Self([const { AtomicUsize::new(0) }; MAX_CACHES])
    }

    /// Gives a cache a number.
    fn enter(&self, cache: usize) -> u16 {
        let free = |place: &AtomicUsize| {
            place.compare_exchange(0, cache, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        self.0.iter().position(free).map_or(OTHERS, |place| place as u16 + 1)
    }

    fn place(&self, number: u16) -> Option<&AtomicUsize> {
        self.0.get(usize::from(number).checked_sub(1)?)
    }

    /// The name of the cache with a number, for a last message: whoever destroys it meanwhile spoils that.
    pub(super) fn name(&self, number: u16) -> Option<[u8; MAX_NAME]> {
        let cache = self.place(number)?.load(Ordering::Acquire) as *const Cache;
        // SAFETY: a cache, or memory of the heap that was one.
        (!cache.is_null()).then(|| unsafe { (&raw const (*cache).name).read() })
    }
}

impl Cache {
    /// Its number in the index; 0 where nobody asks.
    pub(super) fn number(&self) -> u16 {
        self.number
    }

    /// An object of it was freed.
    pub(super) fn note_free(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
    }

    /// Its name, cut to 48 bytes.
    pub fn name(&self) -> &[u8] {
        let len = self.name.iter().position(|&b| b == 0).unwrap_or(MAX_NAME);
        &self.name[..len]
    }

    /// Objects in use.
    pub fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    /// Bytes of an object.
    pub fn size(&self) -> usize {
        self.size
    }
}

impl<P: Platform> Instance<P> {
    /// Makes a cache of objects of `size` bytes at multiples of `align` (0, or a power of two);
    /// `ctor` is called for each object that is handed out. `None`: no memory, or no such alignment.
    pub fn cache_create(
        &'static self,
        name: &[u8],
        size: usize,
        align: usize,
        ctor: Option<unsafe extern "C" fn(*mut core::ffi::c_void)>,
        caller: Caller,
    ) -> Option<NonNull<Cache>> {
        if size == 0 || (align != 0 && !align.is_power_of_two()) {
            return None;
        }
        let at = NonNull::new(self.alloc(size_of::<Cache>(), caller))?.cast::<MaybeUninit<Cache>>();
        let mut short = [0; MAX_NAME];
        let len = name.len().min(MAX_NAME);
        short[..len].copy_from_slice(&name[..len]);
        let align = align.max(16);
        let live = AtomicU64::new(0);
        let numbered = self.object_debug().checks_caches();
        let number = if numbered { self.caches.enter(at.as_ptr() as usize) } else { 0 };
        let prepares = numbered || ctor.is_some();
        // SAFETY: fresh memory of that size, aligned to 16.
        unsafe {
            (*at.as_ptr()).write(Cache { name: short, size, align, ctor, live, number, prepares });
        }
        Some(at.cast())
    }

    /// Gives a cache up. False, and it stays: objects of it are in use.
    ///
    /// # Safety
    /// A cache of this instance that is not used any more if this succeeds.
    pub unsafe fn cache_destroy(&'static self, cache: NonNull<Cache>) -> bool {
        // SAFETY: the caller's promise.
        let of = unsafe { cache.as_ref() };
        if of.live() != 0 {
            let mut line = super::fault::Line::new();
            line.bytes(b"kmem: the cache ");
            line.printable(of.name());
            line.bytes(b" stays: ");
            line.decimal(of.live() as usize);
            line.bytes(b" of its objects are in use\n");
            self.platform.print(line.text());
            return false;
        }
        if let Some(place) = self.caches.place(of.number) {
            place.store(0, Ordering::Release);
        }
        // SAFETY: allocated in `cache_create`, given up by the caller.
        unsafe { self.free(cache.as_ptr().cast()) };
        true
    }

    /// Takes an object out of a cache; null if there is no memory.
    pub fn cache_alloc(&'static self, cache: &Cache, gfp: Gfp, caller: Caller) -> *mut u8 {
        let caller = caller.with(gfp);
        let object = self.alloc_aligned(cache.size, cache.align, caller);
        if object.is_null() {
            return object;
        }
        cache.live.fetch_add(1, Ordering::Relaxed);
        if gfp.has(Gfp::ZERO) {
            // SAFETY: an object of that size, ours alone.
            unsafe { object.write_bytes(0, cache.size) };
        }
        if cache.prepares {
            self.prepare(cache, object);
        }
        object
    }

    fn prepare(&'static self, cache: &Cache, object: *mut u8) {
        if cache.number != 0 {
            self.note_cache(object, cache);
        }
        if let Some(ctor) = cache.ctor {
            // SAFETY: an object of the cache, ours alone.
            unsafe { ctor(object.cast()) };
        }
    }

    /// Gives an object back to its cache; null is nothing.
    ///
    /// # Safety
    /// A live object of this cache that nobody uses any more.
    pub unsafe fn cache_free(&'static self, cache: &Cache, object: *mut u8) {
        if object.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.free_of(Some(cache), "kmem_cache_free", object) };
        cache.note_free();
    }

    /// Frees what was given to `call` as an object of a cache, or of none.
    ///
    /// # Safety
    /// As for [`Self::free`].
    #[inline(always)]
    pub(super) unsafe fn free_of(
        &'static self,
        cache: Option<&Cache>,
        call: &'static str,
        object: *mut u8,
    ) {
        // SAFETY: the caller's promise.
        if !unsafe { self.free_fast(object) } {
            self.free_of_slow(cache, call, object);
        }
    }

    #[cold]
    #[inline(never)]
    fn free_of_slow(&'static self, cache: Option<&Cache>, call: &str, object: *mut u8) {
        self.check_cache(call, object, cache);
        self.free_slow(object);
    }

    /// Fills all of `out` with what `one` gives, or nothing: then what was taken is given back by
    /// `back`. How many there are: all or 0.
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
