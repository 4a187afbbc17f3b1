//! The kernel's allocation functions, as `kmem.h` declares them. A function with `_tag` bills a
//! static tag, one with `_noprof` the thread's scope. None sets `errno`. Their symbols begin with
//! `kmem_`, because a program may have a `kfree` of its own.

use core::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use core::ptr::{NonNull, null_mut};

use kmem_core::class::MAX_OBJECT;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Cache, CacheFlags};

use crate::KMEM;
use crate::call_site::{Tag, tagged, twins, ungrouped};

/// An array of pointers from C. An empty one may be null.
///
/// # Safety
/// `at` is valid for `count` entries, which no other code uses during the borrow.
pub(crate) unsafe fn entries<'a>(at: *mut *mut u8, count: usize) -> &'a mut [*mut u8] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the same contract.
    unsafe { core::slice::from_raw_parts_mut(at, count) }
}

/// Copies `size` bytes to new memory, unless it is null. Returns it.
///
/// # Safety
/// `to` is null, or memory of at least that size that the caller alone uses. `from` is valid for
/// reading it.
unsafe fn filled(to: *mut u8, from: *const u8, size: usize) -> *mut u8 {
    if !to.is_null() {
        // SAFETY: the same contract; new memory does not overlap.
        unsafe { to.copy_from_nonoverlapping(from, size) };
    }
    to
}

/// Allocates a copy of `len` bytes with a zero byte behind them; null for null.
///
/// # Safety
/// See [`kmemdup_nul`].
unsafe fn copy_with_nul(from: *const u8, len: usize, flags: Gfp, tag: Tag) -> *mut u8 {
    let Some(bytes) = len.checked_add(1).filter(|_| !from.is_null()) else { return null_mut() };
    // SAFETY: the same contract; the copy has a byte more.
    unsafe {
        let copy = filled(KMEM.kmalloc_here(bytes, flags, ungrouped(tag)), from, len);
        if !copy.is_null() {
            copy.add(len).write(0);
        }
        copy
    }
}

/// Zeroes memory that is freed next. The compiler must not leave that out.
///
/// # Safety
/// `at` has `size` bytes, which the caller alone uses.
unsafe fn wipe(at: *mut u8, size: usize) {
    // SAFETY: the same contract.
    unsafe { at.write_bytes(0, size) };
    core::hint::black_box(at);
}

twins! {
    /// # Safety
    /// `tag` is as for [`tagged`]. This holds for all functions here.
    fn kmalloc(size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.kmalloc_here(size, flags, unsafe { ungrouped(tag) })
    }

    /// # Safety
    /// See [`kmalloc`].
    fn kcalloc(count: usize, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        match count.checked_mul(size) {
            // SAFETY: the same contract.
            Some(bytes) => KMEM.alloc_zeroed(bytes, unsafe { tagged(tag) }.with(flags)),
            None => null_mut(),
        }
    }

    /// # Safety
    /// See [`kmalloc`]; `at` is null or a live allocation, which no other code uses.
    fn krealloc(at: *mut u8, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe { krealloc_node_align(at, size, 1, flags, -1, tag) }
    }

    /// # Safety
    /// See [`krealloc`].
    fn krealloc_node_align(
        at: *mut u8,
        size: usize,
        align: c_ulong,
        flags: Gfp,
        node: c_int,
        tag: Tag,
    ) -> *mut u8 {
        let (align, node) = (align as usize, u32::try_from(node).ok());
        // SAFETY: the same contract.
        unsafe { KMEM.krealloc_node_align(at, size, align, flags, node, tagged(tag)) }
    }

    /// # Safety
    /// See [`kmalloc`]; `text` is null or a C string.
    fn kstrdup(text: *const c_char, flags: Gfp, tag: Tag) -> *mut u8 {
        if text.is_null() {
            return null_mut();
        }
        // SAFETY: the contract: a C string; the copy has as many bytes.
        unsafe {
            let bytes = CStr::from_ptr(text).to_bytes_with_nul();
            let copy = KMEM.alloc(bytes.len(), tagged(tag).with(flags));
            if !copy.is_null() {
                copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            }
            copy
        }
    }

    /// # Safety
    /// See [`kmalloc`]; `from` is valid for reading `size` bytes.
    fn kmemdup(from: *const u8, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe { filled(KMEM.kmalloc_here(size, flags, ungrouped(tag)), from, size) }
    }

    /// # Safety
    /// See [`kmalloc`]; `from` is null or valid for reading `size` bytes.
    fn kmemdup_nul(from: *const u8, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe { copy_with_nul(from, size, flags, tag) }
    }

    /// # Safety
    /// See [`kmalloc`]; `text` is null, or valid for reading up to a zero byte or `most` bytes.
    fn kstrndup(text: *const c_char, most: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe {
            let len = if text.is_null() { 0 } else { libc::strnlen(text, most) };
            copy_with_nul(text.cast(), len, flags, tag)
        }
    }

    /// # Safety
    /// See [`kmalloc`].
    fn kvmalloc_node(size: usize, flags: Gfp, node: c_int, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        let caller = unsafe { ungrouped(tag) };
        if size > MAX_OBJECT {
            KMEM.vmalloc(size, flags, caller.here())
        } else if node < 0 {
            KMEM.kmalloc_here(size, flags, caller)
        } else {
            KMEM.kmalloc_node(size, flags, u32::try_from(node).ok(), caller.here())
        }
    }

    /// # Safety
    /// See [`krealloc`].
    fn kvrealloc(at: *mut u8, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe {
            if at.is_null() {
                return kvmalloc_node(size, flags, -1, tag);
            }
            if KMEM.find_area(at as usize).is_some() && size > 0 {
                return KMEM.vrealloc(at, size, flags, tagged(tag));
            }
            let new = krealloc(at, size, flags.and(Gfp::NOWARN), tag);
            if !new.is_null() || size == 0 {
                return new;
            }
            let (old, caller) = (KMEM.usable_size(at), tagged(tag));
            let area = filled(KMEM.vmalloc(size, flags, caller), at, old.min(size));
            if !area.is_null() {
                KMEM.free(at);
            }
            area
        }
    }

    /// # Safety
    /// See [`kmemdup`].
    fn kvmemdup(from: *const u8, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe { filled(kvmalloc_node(size, flags, -1, tag), from, size) }
    }

    /// # Safety
    /// See [`kmalloc`]; `out` has room for `count` pointers.
    fn kmalloc_bulk(size: usize, flags: Gfp, count: usize, out: *mut *mut u8, tag: Tag) -> usize {
        // SAFETY: the same contract.
        unsafe {
            let out = entries(out, count);
            KMEM.all_or_none(out, || kmalloc(size, flags, tag), |at| KMEM.free(at))
        }
    }

    /// # Safety
    /// See [`kmalloc`]; `cache` is live.
    fn cache_alloc(cache: &'static Cache, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.cache_alloc(cache, flags, unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`kmalloc`]; `cache` is live; `out` has room for `count` pointers.
    fn cache_alloc_bulk(
        cache: &'static Cache,
        flags: Gfp,
        count: usize,
        out: *mut *mut u8,
        tag: Tag,
    ) -> usize {
        // SAFETY: the same contract.
        unsafe {
            let out = entries(out, count);
            let one = || cache_alloc(cache, flags, tag);
            KMEM.all_or_none(out, one, |object| KMEM.cache_free(cache, object))
        }
    }

    /// # Safety
    /// See [`kmalloc`]; `name` is a C string.
    fn cache_create(
        name: *const c_char,
        size: usize,
        align: usize,
        flags: CacheFlags,
        ctor: Option<unsafe extern "C" fn(*mut c_void)>,
        tag: Tag,
    ) -> Option<NonNull<Cache>> {
        // SAFETY: the same contract.
        let (name, caller) = unsafe { (CStr::from_ptr(name), tagged(tag)) };
        KMEM.cache_create_with(name.to_bytes(), (size, align), flags, ctor, caller)
    }

    /// # Safety
    /// See [`kmalloc`].
    fn alloc_pages(flags: Gfp, order: c_uint, tag: Tag) -> *mut u8 {
        match u8::try_from(order) {
            // SAFETY: the same contract.
            Ok(order) => KMEM.alloc_pages(Order(order), flags, unsafe { tagged(tag) }),
            Err(_) => null_mut(),
        }
    }

    /// # Safety
    /// See [`kmalloc`].
    fn kmalloc_node(size: usize, flags: Gfp, node: c_int, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.kmalloc_node(size, flags, u32::try_from(node).ok(), unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`kmalloc`]; `cache` is live.
    fn cache_alloc_node(cache: &'static Cache, flags: Gfp, node: c_int, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.cache_alloc_node(cache, flags, u32::try_from(node).ok(), unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`kmalloc`].
    fn alloc_pages_node(node: c_int, flags: Gfp, order: c_uint, tag: Tag) -> *mut u8 {
        let Ok(order) = u8::try_from(order) else { return null_mut() };
        // SAFETY: the same contract.
        let caller = unsafe { tagged(tag) };
        KMEM.alloc_pages_node(u32::try_from(node).ok(), Order(order), flags, caller)
    }

    /// # Safety
    /// See [`kmalloc`].
    fn alloc_pages_exact(size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.alloc_pages_exact(size, flags, unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`kmalloc`].
    fn alloc_pages_exact_nid(node: c_int, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        let caller = unsafe { tagged(tag) };
        KMEM.alloc_pages_exact_node(u32::try_from(node).ok(), size, flags, caller)
    }

    /// # Safety
    /// See [`kmalloc`]; `pages` has `count` entries.
    fn alloc_pages_bulk_node(
        flags: Gfp,
        node: c_int,
        count: usize,
        pages: *mut *mut u8,
        tag: Tag
    ) -> usize {
        // SAFETY: the same contract.
        unsafe {
            let (node, pages) = (u32::try_from(node).ok(), entries(pages, count));
            KMEM.alloc_pages_bulk_node(node, flags, pages, tagged(tag))
        }
    }
}

/// # Safety
/// As for `free(3)`.
#[unsafe(export_name = "kmem_kfree")]
unsafe extern "C" fn kfree(at: *mut u8) {
    // SAFETY: the same contract.
    unsafe { KMEM.free(at) }
}

/// # Safety
/// `objects` has `count` entries, each as for `free(3)`.
#[unsafe(export_name = "kmem_kfree_bulk")]
unsafe extern "C" fn kfree_bulk(count: usize, objects: *const *mut u8) {
    for i in 0..count {
        // SAFETY: the same contract.
        unsafe { KMEM.free(*objects.add(i)) }
    }
}

/// # Safety
/// `at` is null, or a string that is no allocation, or as for `free(3)`.
#[unsafe(export_name = "kmem_kfree_const")]
unsafe extern "C" fn kfree_const(at: *mut u8) {
    if !at.is_null() && KMEM.owns(at) {
        // SAFETY: the same contract.
        unsafe { KMEM.free(at) }
    }
}

/// # Safety
/// As for `free(3)`.
#[unsafe(export_name = "kmem_kfree_sensitive")]
unsafe extern "C" fn kfree_sensitive(at: *mut u8) {
    // SAFETY: the same contract; an address that is no live allocation ends the program.
    unsafe {
        wipe(at, KMEM.usable_size(at));
        KMEM.free(at);
    }
}

/// # Safety
/// As for `free(3)`; `at` is null or has `size` bytes.
#[unsafe(export_name = "kmem_kvfree_sensitive")]
unsafe extern "C" fn kvfree_sensitive(at: *mut u8, size: usize) {
    if !at.is_null() {
        // SAFETY: the same contract.
        unsafe {
            wipe(at, size);
            KMEM.free(at);
        }
    }
}

/// # Safety
/// `cache` is live.
#[unsafe(export_name = "kmem_cache_shrink")]
unsafe extern "C" fn kmem_cache_shrink(cache: &'static Cache) -> c_int {
    c_int::from(!KMEM.cache_shrink(cache))
}

/// # Safety
/// `cache` is live.
#[unsafe(export_name = "kmem_cache_size")]
unsafe extern "C" fn kmem_cache_size(cache: &'static Cache) -> c_uint {
    cache.size() as c_uint
}

#[unsafe(export_name = "kmem_page_to_nid")]
extern "C" fn page_to_nid(at: *mut u8) -> c_int {
    KMEM.page_to_nid(at).map_or(-1, |node| node as c_int)
}

/// # Safety
/// `at` is null or a live allocation.
#[unsafe(export_name = "kmem_ksize")]
unsafe extern "C" fn ksize(at: *mut u8) -> usize {
    // SAFETY: the same contract.
    unsafe { KMEM.usable_size(at) }
}

/// # Safety
/// `cache` is null or live, and not used after this succeeded.
#[unsafe(export_name = "kmem_cache_destroy")]
unsafe extern "C" fn kmem_cache_destroy(cache: Option<NonNull<Cache>>) -> c_int {
    // SAFETY: the same contract.
    c_int::from(cache.is_none_or(|cache| unsafe { KMEM.cache_destroy(cache) }))
}

/// # Safety
/// `cache` is live; `object` is null or a live object of it.
#[unsafe(export_name = "kmem_cache_free")]
unsafe extern "C" fn kmem_cache_free(cache: &'static Cache, object: *mut u8) {
    // SAFETY: the same contract.
    unsafe { KMEM.cache_free(cache, object) }
}

/// # Safety
/// `cache` is live; `objects` has `count` live objects of it.
#[unsafe(export_name = "kmem_cache_free_bulk")]
unsafe extern "C" fn kmem_cache_free_bulk(
    cache: &'static Cache,
    count: usize,
    objects: *const *mut u8,
) {
    for i in 0..count {
        // SAFETY: the same contract.
        unsafe { KMEM.cache_free(cache, *objects.add(i)) }
    }
}

/// # Safety
/// `pages` is a live block of `order`, which no other thread uses.
#[unsafe(export_name = "kmem_split_page")]
unsafe extern "C" fn split_page(pages: *mut u8, order: c_uint) {
    if let Ok(order) = u8::try_from(order) {
        // SAFETY: the same contract.
        unsafe { KMEM.split_page(pages, Order(order)) }
    }
}

/// # Safety
/// `pages` is a block of `order`, whole or split, that no thread uses any more.
#[unsafe(export_name = "kmem_free_pages")]
unsafe extern "C" fn __free_pages(pages: *mut u8, order: c_uint) {
    // The highest order is that of no block, which is reported.
    let order = Order(u8::try_from(order).unwrap_or(u8::MAX));
    // SAFETY: the same contract.
    unsafe { KMEM.free_pages(pages, order) }
}

/// # Safety
/// `pages` has `size` bytes from `alloc_pages_exact`, which no thread uses any more.
#[unsafe(export_name = "kmem_free_pages_exact")]
unsafe extern "C" fn free_pages_exact(pages: *mut u8, size: usize) {
    // SAFETY: the same contract.
    unsafe { KMEM.free_pages_exact(pages, size) }
}
