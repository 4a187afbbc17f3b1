//! Caches: objects of one kind (the kernel's `kmem_cache`). Caches of one size share their slabs, as
//! SLUB merges them; what a cache adds is its name, alignment, constructor and count.

use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::Instance;
use crate::codetag::Caller;
use crate::os::Platform;
use crate::sync::{AtomicU64, Ordering};
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
}

impl Cache {
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
        // SAFETY: fresh memory of that size, aligned to 16.
        unsafe { (*at.as_ptr()).write(Cache { name: short, size, align, ctor, live }) };
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
        // SAFETY: an object of that size, ours alone.
        unsafe {
            if gfp.has(Gfp::ZERO) {
                object.write_bytes(0, cache.size);
            }
            if let Some(ctor) = cache.ctor {
                ctor(object.cast());
            }
        }
        object
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
        unsafe { self.free(object) };
        cache.live.fetch_sub(1, Ordering::Relaxed);
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
