//! The memory pool functions, as `kmem.h` declares them.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};

use kmem_core::os::linux::Linux;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Cache, Elements};

use crate::KMEM;
use crate::call_site::{Tag, tagged, twins};
use crate::kernel::entries;

/// `struct mempool` of `kmem.h`.
type Pool = kmem_core::Mempool<Linux>;

/// Makes a pool with a reserve of `min` elements. Null: there is no memory, or `min` is negative.
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
            // SAFETY: allocated above, and not used yet.
            unsafe { KMEM.free(at.as_ptr().cast()) };
            null_mut()
        }
    }
}

type Alloc = unsafe extern "C" fn(Gfp, *mut c_void) -> *mut c_void;
type Free = unsafe extern "C" fn(*mut c_void, *mut c_void);

twins! {
    /// # Safety
    /// `tag` is as for [`tagged`]. This holds for all functions here.
    /// `free` takes the elements of `alloc`; both may be called on any thread.
    fn mempool_create(
        min: c_int,
        alloc: Alloc,
        free: Free,
        data: *mut c_void,
        tag: Tag,
    ) -> *mut Pool {
        // SAFETY: the same contract.
        create(min, Elements::Custom { alloc, free, data }, unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`mempool_create`]; `cache` lives longer than the pool.
    fn mempool_create_slab_pool(min: c_int, cache: &'static Cache, tag: Tag) -> *mut Pool {
        // SAFETY: the same contract.
        create(min, Elements::Slab(cache), unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`mempool_create`].
    fn mempool_create_kmalloc_pool(min: c_int, size: usize, tag: Tag) -> *mut Pool {
        // SAFETY: the same contract.
        create(min, Elements::Kmalloc(size), unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`mempool_create`].
    fn mempool_create_page_pool(min: c_int, order: c_uint, tag: Tag) -> *mut Pool {
        match u8::try_from(order) {
            // SAFETY: the same contract.
            Ok(order) => create(min, Elements::Pages(Order(order)), unsafe { tagged(tag) }),
            Err(_) => null_mut(),
        }
    }

    /// # Safety
    /// See [`mempool_create`]; `pool` is live.
    fn mempool_alloc(pool: &Pool, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        pool.alloc(flags, unsafe { tagged(tag) }).map_or(null_mut(), NonNull::as_ptr)
    }

    /// # Safety
    /// See [`mempool_alloc`]; `out` has room for `count` pointers.
    fn mempool_alloc_bulk(
        pool: &Pool,
        flags: Gfp,
        count: usize,
        out: *mut *mut u8,
        tag: Tag,
    ) -> usize {
        // SAFETY: the same contract.
        let done = unsafe { pool.alloc_bulk(flags, entries(out, count), tagged(tag)) };
        if done { count } else { 0 }
    }
}

/// # Safety
/// `pool` is live; `element` is null, or an element of it that no thread uses any more.
#[unsafe(export_name = "kmem_mempool_free")]
unsafe extern "C" fn mempool_free(element: *mut u8, pool: &Pool) {
    if let Some(element) = NonNull::new(element) {
        // SAFETY: the same contract.
        unsafe { pool.free(element) }
    }
}

/// # Safety
/// `pool` is live; `elements` has `count` entries as for [`mempool_free`].
#[unsafe(export_name = "kmem_mempool_free_bulk")]
unsafe extern "C" fn mempool_free_bulk(pool: &Pool, count: usize, elements: *const *mut u8) {
    for i in 0..count {
        // SAFETY: the same contract.
        unsafe { mempool_free(*elements.add(i), pool) }
    }
}

/// # Safety
/// `pool` is live.
#[unsafe(export_name = "kmem_mempool_resize")]
unsafe extern "C" fn mempool_resize(pool: &Pool, min: c_int) -> c_int {
    match u32::try_from(min) {
        Ok(min) if pool.resize(min).is_ok() => 0,
        Ok(_) => -libc::ENOMEM,
        Err(_) => -libc::EINVAL,
    }
}

/// # Safety
/// `pool` is null, or a live pool that no thread uses any more.
#[unsafe(export_name = "kmem_mempool_destroy")]
unsafe extern "C" fn mempool_destroy(pool: *mut Pool) {
    if !pool.is_null() {
        // SAFETY: the contract: a pool from `create`, which no thread uses any more.
        unsafe {
            pool.drop_in_place();
            KMEM.free(pool.cast());
        }
    }
}
