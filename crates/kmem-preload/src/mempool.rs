//! Memory pools, as `kmem.h` declares them.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};

use kmem_core::codetag::{Caller, StaticTag};
use kmem_core::os::linux::Linux;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Cache, Elements};

use crate::KMEM;
use crate::kernel::{caller, entries, twins};

/// What C knows as `struct mempool`.
type Pool = kmem_core::Mempool<Linux>;

fn create(min: c_int, elements: Elements, caller: Caller) -> *mut Pool {
    let Ok(min) = u32::try_from(min) else { return null_mut() };
    let Some(at) = NonNull::new(KMEM.alloc(size_of::<Pool>(), caller)) else { return null_mut() };
    let at = at.cast::<MaybeUninit<Pool>>();
    match KMEM.mempool_create(min, elements, caller) {
        Ok(pool) => {
            // SAFETY: fresh memory of that size.
            unsafe { at.as_ptr().write(MaybeUninit::new(pool)) };
            at.as_ptr().cast()
        }
        Err(_) => {
            // SAFETY: allocated above, unused.
            unsafe { KMEM.free(at.as_ptr().cast()) };
            null_mut()
        }
    }
}

type Alloc = unsafe extern "C" fn(Gfp, *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);

twins! {
    /// # Safety
    /// The tag is null or valid; so for all functions here. Both functions fit each other.
    fn mempool_create_tag = "kmem_mempool_create_tag", mempool_create_noprof = "kmem_mempool_create_noprof" in "r8", "x4" (
        min: c_int, alloc: Alloc, free: Free, data: *mut c_void) -> *mut Pool {
        // SAFETY: the caller's promise.
        tag => create(min, Elements::Custom { alloc, free, data }, unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`mempool_create_tag`]; a cache that lives longer than the pool.
    fn mempool_create_slab_pool_tag = "kmem_mempool_create_slab_pool_tag", mempool_create_slab_pool_noprof = "kmem_mempool_create_slab_pool_noprof" in "rdx", "x2" (
        min: c_int, cache: &'static Cache) -> *mut Pool {
        // SAFETY: the caller's promise.
        tag => create(min, Elements::Slab(cache), unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`mempool_create_tag`].
    fn mempool_create_kmalloc_pool_tag = "kmem_mempool_create_kmalloc_pool_tag", mempool_create_kmalloc_pool_noprof = "kmem_mempool_create_kmalloc_pool_noprof" in "rdx", "x2" (
        min: c_int, size: usize) -> *mut Pool {
        // SAFETY: the caller's promise.
        tag => create(min, Elements::Kmalloc(size), unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`mempool_create_tag`].
    fn mempool_create_page_pool_tag = "kmem_mempool_create_page_pool_tag", mempool_create_page_pool_noprof = "kmem_mempool_create_page_pool_noprof" in "rdx", "x2" (
        min: c_int, order: c_uint) -> *mut Pool {
        tag => match u8::try_from(order) {
            // SAFETY: the caller's promise.
            Ok(order) => create(min, Elements::Pages(Order(order)), unsafe { caller(tag) }),
            Err(_) => null_mut(),
        }
    }
    /// # Safety
    /// See [`mempool_create_tag`]; a live pool.
    fn mempool_alloc_tag = "kmem_mempool_alloc_tag", mempool_alloc_noprof = "kmem_mempool_alloc_noprof" in "rdx", "x2" (pool: &Pool, flags: Gfp) -> *mut u8 {
        // SAFETY: the caller's promise.
        tag => pool.alloc(flags, unsafe { caller(tag) }).map_or(null_mut(), NonNull::as_ptr)
    }
    /// # Safety
    /// See [`mempool_alloc_tag`]; `out` has room for `count` pointers.
    fn mempool_alloc_bulk_tag = "kmem_mempool_alloc_bulk_tag", mempool_alloc_bulk_noprof = "kmem_mempool_alloc_bulk_noprof" in "r8", "x4" (
        pool: &Pool, flags: Gfp, count: usize, out: *mut *mut u8) -> usize {
        tag => {
            // SAFETY: the caller's promise.
            let done = unsafe { pool.alloc_bulk(flags, entries(out, count), caller(tag)) };
            if done { count } else { 0 }
        }
    }
}

/// # Safety
/// A live pool; null, or an element of it that nobody uses any more.
#[unsafe(export_name = "kmem_mempool_free")]
unsafe extern "C" fn mempool_free(element: *mut u8, pool: &Pool) {
    if let Some(element) = NonNull::new(element) {
        // SAFETY: the caller's promise.
        unsafe { pool.free(element) }
    }
}

/// # Safety
/// A live pool, and `count` elements as for [`mempool_free`].
#[unsafe(export_name = "kmem_mempool_free_bulk")]
unsafe extern "C" fn mempool_free_bulk(pool: &Pool, count: usize, elements: *const *mut u8) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe { mempool_free(*elements.add(i), pool) }
    }
}

/// # Safety
/// A live pool.
#[unsafe(export_name = "kmem_mempool_resize")]
unsafe extern "C" fn mempool_resize(pool: &Pool, min: c_int) -> c_int {
    match u32::try_from(min) {
        Ok(min) if pool.resize(min).is_ok() => 0,
        Ok(_) => -libc::ENOMEM,
        Err(_) => -libc::EINVAL,
    }
}

/// # Safety
/// Null, or a live pool that nobody uses any more.
#[unsafe(export_name = "kmem_mempool_destroy")]
unsafe extern "C" fn mempool_destroy(pool: *mut Pool) {
    if !pool.is_null() {
        // SAFETY: made by `create`, given up by the caller.
        unsafe {
            pool.drop_in_place();
            KMEM.free(pool.cast());
        }
    }
}
