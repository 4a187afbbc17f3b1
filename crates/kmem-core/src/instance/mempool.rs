//! Memory pools over an instance.

use core::ffi::c_void;
use core::ptr::NonNull;

use super::{Cache, Instance};
use crate::mempool::{BackEnd, NoReserve};
use crate::os::Platform;
use crate::request::Caller;
use crate::units::{Gfp, Order};

/// Kind of a pool's elements.
#[derive(Clone, Copy)]
pub enum Elements {
    /// Objects from `kmalloc`, of this number of bytes.
    Kmalloc(usize),
    /// Objects of a cache.
    Slab(&'static Cache),
    /// Blocks of pages.
    Pages(Order),
    /// Elements that two functions of the user make and free.
    Custom {
        /// Makes an element, given flags and `data`; null on failure.
        alloc: unsafe extern "C" fn(Gfp, *mut c_void) -> *mut c_void,
        /// Frees an element, given the element and `data`.
        free: unsafe extern "C" fn(*mut c_void, *mut c_void),
        /// Passed to both functions.
        data: *mut c_void,
    },
}

// SAFETY: the functions of a pool may be called with `data` on any thread.
unsafe impl Send for Elements {}
// SAFETY: the functions of a pool may be called with `data` on any thread.
unsafe impl Sync for Elements {}

/// The back end of a pool: elements of an instance.
pub struct FromInstance<P: 'static> {
    instance: &'static Instance<P>,
    elements: Elements,
}

/// A memory pool of an instance; see [`crate::mempool`].
pub type Mempool<P> = crate::mempool::Mempool<FromInstance<P>, &'static Instance<P>>;

impl<P: Platform> Instance<P> {
    /// Makes a memory pool with a reserve of `min` elements, billed to the caller.
    ///
    /// # Errors
    /// There is no memory for the reserve.
    pub fn mempool_create(
        &'static self,
        min: u32,
        elements: Elements,
        caller: Caller,
    ) -> Result<Mempool<P>, NoReserve> {
        Mempool::new(FromInstance { instance: self, elements }, self, min, caller.quietly())
    }
}

// SAFETY: elements are allocations of the instance or of the user's function, each handed out once.
unsafe impl<P: Platform> BackEnd for FromInstance<P> {
    fn take(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>> {
        let gfp = gfp.and(Gfp::NOWARN);
        let kmem = self.instance;
        NonNull::new(match self.elements {
            Elements::Kmalloc(size) => kmem.kmalloc(size, gfp, caller),
            Elements::Slab(cache) => kmem.cache_alloc(cache, gfp, caller),
            Elements::Pages(order) => kmem.alloc_pages(order, gfp, caller),
            Elements::Custom { alloc, data, .. } => {
                // SAFETY: the pool was made with the function and its data, for any thread.
                caller.bill(|| unsafe { alloc(gfp, data) }).cast()
            }
        })
    }

    unsafe fn give(&self, element: NonNull<u8>) {
        let at = element.as_ptr();
        // SAFETY: the same contract.
        unsafe {
            match self.elements {
                Elements::Kmalloc(_) => self.instance.free_of(None, "mempool_free", at),
                Elements::Slab(cache) => self.instance.cache_free_by("mempool_free", cache, at),
                Elements::Pages(order) => self.instance.free_pages(at, order),
                Elements::Custom { free, data, .. } => free(at.cast(), data),
            }
        }
    }

    unsafe fn rebill(&self, element: NonNull<u8>, caller: Caller) {
        let check = |cache| self.instance.check_cache("mempool_free", element.as_ptr(), cache);
        match self.elements {
            Elements::Kmalloc(_) => check(None),
            Elements::Slab(cache) => check(Some(cache)),
            Elements::Pages(_) | Elements::Custom { .. } => {}
        }
        // An element of the user's function that is no allocation of the instance is not billed.
        // SAFETY: the same contract.
        unsafe { self.instance.rebill(element.as_ptr(), caller) };
    }

    unsafe fn zero(&self, element: NonNull<u8>) {
        let bytes = match self.elements {
            Elements::Kmalloc(size) => size,
            Elements::Slab(cache) => cache.size(),
            Elements::Pages(order) => order.pages().bytes(),
            Elements::Custom { .. } => 0,
        };
        // SAFETY: the same contract.
        unsafe { element.write_bytes(0, bytes) };
    }

    fn refuses(&self, gfp: Gfp) -> bool {
        matches!(self.elements, Elements::Slab(cache) if self.instance.refuses_zeroes(cache, gfp))
    }

    fn zeroes(&self) -> (bool, bool) {
        let checks = self.instance.heap().zones.checks();
        let constructed = matches!(self.elements, Elements::Slab(cache) if cache.has_constructor());
        (!constructed && checks.zeroes_on_free(), !constructed && checks.zeroes_on_alloc())
    }
}
