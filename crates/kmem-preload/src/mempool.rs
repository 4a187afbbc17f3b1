//! The memory pool functions, as `kmem.h` declares them.

use core::ffi::{c_int, c_uint, c_void};
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};

use kmem_core::os::linux::Linux;
use kmem_core::request::Caller;
use kmem_core::task;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Cache, Elements};

use crate::KMEM;
use crate::call_site::{Tag, tagged, twins};
use crate::kernel::entries;

/// A pool of the library.
type Pool = kmem_core::Mempool<Linux>;

/// `struct mempool` of `kmem.h`. All zero, it has no pool.
///
/// # Invariants
/// `pool` is initialised if `live` is 1; else `live` is 0.
#[repr(C)]
struct Place {
    pool: MaybeUninit<Pool>,
    live: usize,
}

// `struct mempool` has 16 words.
const _: () = assert!(size_of::<Place>() <= 16 * 8 && align_of::<Place>() <= 8);

/// Makes a pool with a reserve of `min` elements at `place`. Returns 0; `-EINVAL` or `-ENOMEM`, and
/// then the place is all zero.
///
/// # Safety
/// `place` is memory of that size, which the caller alone uses.
unsafe fn init(place: *mut Place, min: c_int, elements: Elements, caller: Caller) -> c_int {
    // SAFETY: the same contract. Zeroes are a place without a pool.
    let place = unsafe {
        place.write_bytes(0, 1);
        &mut *place
    };
    let Ok(min) = u32::try_from(min) else { return -libc::EINVAL };
    let Ok(pool) = KMEM.mempool_create(min, elements, caller) else { return -libc::ENOMEM };
    place.pool.write(pool);
    // INVARIANT: the pool was written above.
    place.live = 1;
    0
}

/// Frees the reserve of the pool at a place. The place is all zero then.
///
/// # Safety
/// `place` is all zero, or one of [`init`], whose pool no thread uses any more.
unsafe fn exit(place: &mut Place) {
    if core::mem::take(&mut place.live) == 1 {
        // SAFETY: initialised (invariant), and used no longer, by the contract.
        unsafe { place.pool.assume_init_drop() };
    }
    place.pool = MaybeUninit::zeroed();
}

/// Makes a pool in memory of the library. Null: there is no memory, or `min` is negative.
fn create(min: c_int, elements: Elements, caller: Caller) -> *mut Place {
    let at = KMEM.alloc(size_of::<Place>(), caller).cast::<Place>();
    // SAFETY: fresh memory of that size; after a failure it is not used.
    unsafe {
        if !at.is_null() && init(at, min, elements, caller) != 0 {
            KMEM.free(at.cast());
            return null_mut();
        }
    }
    at
}

impl Place {
    /// The pool.
    ///
    /// # Safety
    /// There is one.
    unsafe fn pool(&self) -> &Pool {
        debug_assert!(self.live == 1);
        // SAFETY: the same contract, and the invariant.
        unsafe { self.pool.assume_init_ref() }
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
    ) -> *mut Place {
        // SAFETY: the same contract.
        create(min, Elements::Custom { alloc, free, data }, unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`mempool_create`]; `cache` lives longer than the pool.
    fn mempool_create_slab_pool(min: c_int, cache: &'static Cache, tag: Tag) -> *mut Place {
        // SAFETY: the same contract.
        create(min, Elements::Slab(cache), unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`mempool_create`].
    fn mempool_create_kmalloc_pool(min: c_int, size: usize, tag: Tag) -> *mut Place {
        // SAFETY: the same contract.
        create(min, Elements::Kmalloc(size), unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`mempool_create`].
    fn mempool_create_page_pool(min: c_int, order: c_uint, tag: Tag) -> *mut Place {
        match u8::try_from(order) {
            // SAFETY: the same contract.
            Ok(order) => create(min, Elements::Pages(Order(order)), unsafe { tagged(tag) }),
            Err(_) => null_mut(),
        }
    }

    /// # Safety
    /// See [`mempool_create`]; `pool` is memory for one, which no other thread uses.
    fn mempool_init(
        pool: *mut Place,
        min: c_int,
        alloc: Alloc,
        free: Free,
        data: *mut c_void,
        tag: Tag,
    ) -> c_int {
        // SAFETY: the same contract.
        unsafe { init(pool, min, Elements::Custom { alloc, free, data }, tagged(tag)) }
    }

    /// # Safety
    /// See [`mempool_init`]; `cache` lives longer than the pool.
    fn mempool_init_slab_pool(
        pool: *mut Place,
        min: c_int,
        cache: &'static Cache,
        tag: Tag,
    ) -> c_int {
        // SAFETY: the same contract.
        unsafe { init(pool, min, Elements::Slab(cache), tagged(tag)) }
    }

    /// # Safety
    /// See [`mempool_init`].
    fn mempool_init_kmalloc_pool(pool: *mut Place, min: c_int, size: usize, tag: Tag) -> c_int {
        // SAFETY: the same contract.
        unsafe { init(pool, min, Elements::Kmalloc(size), tagged(tag)) }
    }

    /// # Safety
    /// See [`mempool_init`].
    fn mempool_init_page_pool(pool: *mut Place, min: c_int, order: c_uint, tag: Tag) -> c_int {
        let order = Order(u8::try_from(order).unwrap_or(u8::MAX));
        // SAFETY: the same contract.
        unsafe { init(pool, min, Elements::Pages(order), tagged(tag)) }
    }

    /// # Safety
    /// See [`mempool_create`]; `pool` is live.
    fn mempool_alloc_preallocated(pool: &Place, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        let element = unsafe { pool.pool().alloc_preallocated(tagged(tag)) };
        element.map_or(null_mut(), NonNull::as_ptr)
    }

    /// # Safety
    /// See [`mempool_create`]; `pool` is live.
    fn mempool_alloc(pool: &Place, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe {
            pool.pool().alloc(flags, tagged(tag)).map_or(null_mut(), NonNull::as_ptr)
        }
    }

    /// # Safety
    /// See [`mempool_alloc`]; `out` has room for `count` pointers.
    fn mempool_alloc_bulk(
        pool: &Place,
        flags: Gfp,
        count: usize,
        out: *mut *mut u8,
        tag: Tag,
    ) -> usize {
        // SAFETY: the same contract.
        let done = unsafe { pool.pool().alloc_bulk(flags, entries(out, count), tagged(tag)) };
        if done { count } else { 0 }
    }
}

/// # Safety
/// `pool` is live; `element` is null, or an element of it that no thread uses any more.
#[unsafe(export_name = "kmem_mempool_free")]
unsafe extern "C" fn mempool_free(element: *mut u8, pool: &Place) {
    if let Some(element) = NonNull::new(element) {
        // SAFETY: the same contract.
        unsafe { pool.pool().free(element) }
    }
}

/// # Safety
/// `pool` is live; `elements` has `count` entries as for [`mempool_free`].
#[unsafe(export_name = "kmem_mempool_free_bulk")]
unsafe extern "C" fn mempool_free_bulk(pool: &Place, count: usize, elements: *const *mut u8) {
    for i in 0..count {
        // SAFETY: the same contract.
        unsafe { mempool_free(*elements.add(i), pool) }
    }
}

/// # Safety
/// `pool` is live.
#[unsafe(export_name = "kmem_mempool_resize")]
unsafe extern "C" fn mempool_resize(pool: &Place, min: c_int) -> c_int {
    match u32::try_from(min) {
        // SAFETY: the same contract.
        Ok(min) if unsafe { pool.pool() }.resize(min).is_ok() => 0,
        Ok(_) => -libc::ENOMEM,
        Err(_) => -libc::EINVAL,
    }
}

/// # Safety
/// `pool` is null, or a live pool that no thread uses any more.
#[unsafe(export_name = "kmem_mempool_destroy")]
unsafe extern "C" fn mempool_destroy(pool: *mut Place) {
    if !pool.is_null() {
        // SAFETY: the contract: a pool from `create`, which no thread uses any more.
        unsafe {
            exit(&mut *pool);
            KMEM.free(pool.cast());
        }
    }
}

/// # Safety
/// `pool` is all zero, or a pool of `mempool_init` that no thread uses any more.
#[unsafe(export_name = "kmem_mempool_exit")]
unsafe extern "C" fn mempool_exit(pool: &mut Place) {
    // SAFETY: the same contract.
    unsafe { exit(pool) }
}

/// # Safety
/// `cache` is live. This function and those below are back ends of pools: the pool's scope has the
/// tag.
#[unsafe(export_name = "kmem_mempool_alloc_slab")]
unsafe extern "C" fn mempool_alloc_slab(flags: Gfp, cache: &'static Cache) -> *mut u8 {
    KMEM.cache_alloc(cache, flags, scoped_caller())
}

/// # Safety
/// See [`mempool_alloc_slab`]; `element` is a live object of the cache.
#[unsafe(export_name = "kmem_mempool_free_slab")]
unsafe extern "C" fn mempool_free_slab(element: *mut u8, cache: &'static Cache) {
    // SAFETY: the same contract.
    unsafe { KMEM.cache_free(cache, element) }
}

#[unsafe(export_name = "kmem_mempool_kmalloc")]
extern "C" fn mempool_kmalloc(flags: Gfp, size: usize) -> *mut u8 {
    KMEM.kmalloc(size, flags, scoped_caller())
}

/// # Safety
/// As for `free(3)`.
#[unsafe(export_name = "kmem_mempool_kfree")]
unsafe extern "C" fn mempool_kfree(element: *mut u8, _size: usize) {
    // SAFETY: the same contract.
    unsafe { KMEM.free(element) }
}

#[unsafe(export_name = "kmem_mempool_alloc_pages")]
extern "C" fn mempool_alloc_pages(flags: Gfp, order: usize) -> *mut u8 {
    let order = u8::try_from(order).unwrap_or(u8::MAX);
    KMEM.alloc_pages(Order(order), flags, scoped_caller())
}

/// # Safety
/// `element` is a live block of that order, which no thread uses any more.
#[unsafe(export_name = "kmem_mempool_free_pages")]
unsafe extern "C" fn mempool_free_pages(element: *mut u8, order: usize) {
    // SAFETY: the same contract.
    unsafe { KMEM.free_pages(element, Order(u8::try_from(order).unwrap_or(u8::MAX))) }
}

/// The caller that the thread's scope names, in the thread's group.
fn scoped_caller() -> Caller {
    match task::tag() {
        0 => Caller::NOBODY.here(),
        // SAFETY: the tag of a scope is loaded.
        scope => unsafe { Caller::of_key(scope) }.here(),
    }
}
