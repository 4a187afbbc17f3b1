//! Memory pools over an instance.

use core::ffi::c_void;
use core::ptr::NonNull;

use super::account::{objcg_bits, objcg_of, pages_cost};
use super::realloc::Live;
use super::{Cache, Instance};
use crate::codetag::Caller;
use crate::mempool::{BackEnd, NoReserve};
use crate::os::Platform;
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Gfp, ObjcgId, Order};

/// What the elements of a pool are.
#[derive(Clone, Copy)]
pub enum Elements {
    /// So many bytes from `kmalloc`.
    Kmalloc(usize),
    /// Objects of a cache.
    Slab(&'static Cache),
    /// Blocks of pages.
    Pages(Order),
    /// What two functions of the user's make and free, given flags or the element, and `data`.
    Custom {
        /// Makes one, or returns null.
        alloc: unsafe extern "C" fn(Gfp, *mut c_void) -> *mut c_void,
        /// Frees one.
        free: unsafe extern "C" fn(*mut c_void, *mut c_void),
        /// Passed on to both.
        data: *mut c_void,
    },
}

// SAFETY: who makes a pool of functions lets any thread call them.
unsafe impl Send for Elements {}
// SAFETY: as above.
unsafe impl Sync for Elements {}

/// The back end of a pool: elements of an instance.
pub struct FromInstance<P: 'static> {
    instance: &'static Instance<P>,
    elements: Elements,
}

/// A memory pool of an instance: see [`crate::mempool`].
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

    /// Bills a live allocation to another site and group. A group at its limit goes above it.
    ///
    /// # Safety
    /// A live allocation. (What is not live is left alone.)
    pub unsafe fn rebill(&'static self, at: *mut u8, caller: Caller) {
        if !self.books() {
            return;
        }
        let (new, caller) = (self.group_of(caller), caller.nofail());
        let (ext, bytes) = match self.find(at) {
            Ok(Live::Object { class, ext: Some(ext) }) => {
                self.regroup(
                    ext,
                    new,
                    || self.pay_object(class, new, caller),
                    |old| self.refund_object(class, old),
                );
                (ext, self.geometry(class).size.into())
            }
            Ok(Live::Pages { set, pfn, pages }) => {
                let ext = set.zone.ext(pfn);
                let cost = pages_cost(pages);
                self.regroup(
                    ext,
                    new,
                    || self.pay_bytes(new, cost, caller),
                    |old| self.refund_bytes(old, cost),
                );
                (ext, pages.bytes() as u64)
            }
            _ => return,
        };
        self.rebook(ext, caller, (bytes, bytes));
    }

    /// Puts another group into the word of a live allocation, once it has paid.
    fn regroup(
        &self,
        ext: &AtomicU32,
        new: ObjcgId,
        pay: impl FnOnce() -> bool,
        refund: impl FnOnce(ObjcgId),
    ) {
        let word = ext.load(Ordering::Relaxed);
        let old = objcg_of(word);
        if old == new || new != ObjcgId::ROOT && !pay() {
            return;
        }
        ext.store(word & (TAG_MASK | EXT_LIVE) | objcg_bits(new), Ordering::Relaxed);
        if old != ObjcgId::ROOT {
            refund(old);
        }
    }
}

// SAFETY: elements are the instance's allocations, or the user's.
unsafe impl<P: Platform> BackEnd for FromInstance<P> {
    fn take(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>> {
        let gfp = gfp.and(Gfp::NOWARN);
        let kmem = self.instance;
        NonNull::new(match self.elements {
            Elements::Kmalloc(size) => kmem.kmalloc(size, gfp, caller),
            Elements::Slab(cache) => kmem.cache_alloc(cache, gfp, caller),
            Elements::Pages(order) => kmem.alloc_pages(order, gfp, caller),
            // SAFETY: what the pool was made with.
            Elements::Custom { alloc, data, .. } => unsafe { alloc(gfp, data) }.cast(),
        })
    }

    unsafe fn give(&self, element: NonNull<u8>) {
        let at = element.as_ptr();
        // SAFETY: the caller's promise.
        unsafe {
            match self.elements {
                Elements::Kmalloc(_) => self.instance.free_of(None, "mempool_free", at),
                Elements::Slab(cache) => {
                    self.instance.free_of(Some(cache), "mempool_free", at);
                    cache.note_free();
                }
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
        if !matches!(self.elements, Elements::Custom { .. }) {
            // SAFETY: the caller's promise.
            unsafe { self.instance.rebill(element.as_ptr(), caller) };
        }
    }

    unsafe fn zero(&self, element: NonNull<u8>) {
        let bytes = match self.elements {
            Elements::Kmalloc(size) => size,
            Elements::Slab(cache) => cache.size(),
            Elements::Pages(order) => order.pages().bytes(),
            Elements::Custom { .. } => 0,
        };
        // SAFETY: the caller's promise.
        unsafe { element.write_bytes(0, bytes) };
    }
}
