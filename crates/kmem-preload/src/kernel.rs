//! The kernel's allocation functions, as `kmem.h` declares them: `_tag` bills a static tag, `_noprof`
//! the thread's scope. Nothing sets `errno`. Their symbols begin with `kmem_`: a program may have a
//! `kfree` of its own.

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::{NonNull, null_mut};

use kmem_core::Cache;
use kmem_core::codetag::{Caller, StaticTag, scope};
use kmem_core::units::{Gfp, Order};

use crate::KMEM;

/// Marks the return address that a `_noprof` function passes in place of a tag.
const NO_TAG: usize = 1 << 63;

/// The tag; without one the thread's scope, else nobody; in the thread's group.
///
/// # Safety
/// `tag` is null, marked, or valid as long as its object is loaded.
#[inline(always)]
pub(crate) unsafe fn caller(tag: *const StaticTag) -> Caller {
    // SAFETY: the caller's promise.
    unsafe { who(tag) }.here()
}

/// The same without the thread's group.
///
/// # Safety
/// See [`caller`].
#[inline(always)]
pub(crate) unsafe fn who(tag: *const StaticTag) -> Caller {
    if tag.is_null() {
        Caller::NOBODY
    } else if (tag as isize) < 0 {
        // A call without a tag, and where it returns to.
        match scope::tag() {
            0 => Caller::nobody_at(tag as usize & !NO_TAG),
            scope => Caller::at(scope),
        }
    } else {
        // SAFETY: the caller's promise.
        unsafe { Caller::tagged_by(tag) }
    }
}

/// An array of pointers, as C passes it: an empty one may be null.
///
/// # Safety
/// `at` has `count` entries, which nobody else uses.
pub(crate) unsafe fn entries<'a>(at: *mut *mut u8, count: usize) -> &'a mut [*mut u8] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(at, count) }
}

/// Exports each function with a tag, and its twin without, which passes its return address instead,
/// marked, in the register of the tag.
macro_rules! twins {
    ($($(#[$doc:meta])* fn $tagged:ident = $tagged_name:literal, $noprof:ident = $noprof_name:literal in $x86:literal, $arm:literal ($($arg:ident: $ty:ty),*) -> $ret:ty { $tag:ident => $body:expr })*) => {$(
        $(#[$doc])*
        #[unsafe(export_name = $tagged_name)]
        unsafe extern "C" fn $tagged($($arg: $ty,)* $tag: *const StaticTag) -> $ret {
            $body
        }

        $(#[$doc])*
        #[unsafe(export_name = $noprof_name)]
        #[unsafe(naked)]
        unsafe extern "C" fn $noprof($($arg: $ty),*) -> $ret {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                concat!("mov ", $x86, ", [rsp]"), concat!("bts ", $x86, ", 63"), "jmp {}", sym $tagged);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("orr ", $arm, ", x30, #0x8000000000000000"), "b {}", sym $tagged);
        }
    )*};
}

pub(crate) use twins;

twins! {
    /// # Safety
    /// The tag is null or valid; so for all functions here.
    fn kmalloc_tag = "kmem_kmalloc_tag", kmalloc_noprof = "kmem_kmalloc_noprof" in "rdx", "x2" (size: usize, flags: Gfp) -> *mut u8 {
        tag => {
            // SAFETY: the caller's promise.
            KMEM.kmalloc_here(size, flags, unsafe { who(tag) })
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`].
    fn kcalloc_tag = "kmem_kcalloc_tag", kcalloc_noprof = "kmem_kcalloc_noprof" in "rcx", "x3" (count: usize, size: usize, flags: Gfp) -> *mut u8 {
        tag => match count.checked_mul(size) {
            // SAFETY: the caller's promise.
            Some(bytes) => KMEM.alloc_zeroed(bytes, unsafe { caller(tag) }.with(flags)),
            None => null_mut(),
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`]; `at` is null or a live allocation, which is free if this moves it.
    fn krealloc_tag = "kmem_krealloc_tag", krealloc_noprof = "kmem_krealloc_noprof" in "rcx", "x3" (at: *mut u8, size: usize, flags: Gfp) -> *mut u8 {
        tag => {
            // SAFETY: the caller's promise.
            unsafe {
                if size == 0 {
                    KMEM.free(at);
                    return null_mut();
                }
                let old = KMEM.usable_size(at);
                let new = KMEM.realloc(at, size, caller(tag).with(flags));
                if flags.has(Gfp::ZERO) && !new.is_null() && size > old {
                    new.add(old).write_bytes(0, size - old);
                }
                new
            }
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`]; `text` is null or a C string.
    fn kstrdup_tag = "kmem_kstrdup_tag", kstrdup_noprof = "kmem_kstrdup_noprof" in "rdx", "x2" (text: *const c_char, flags: Gfp) -> *mut u8 {
        tag => {
            if text.is_null() {
                return null_mut();
            }
            // SAFETY: the caller's promise; the copy is as long as the text.
            unsafe {
                let bytes = CStr::from_ptr(text).to_bytes_with_nul();
                let copy = KMEM.alloc(bytes.len(), caller(tag).with(flags));
                if !copy.is_null() {
                    copy.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                }
                copy
            }
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`]; `out` has room for `count` pointers.
    fn kmalloc_bulk_tag = "kmem_kmalloc_bulk_tag", kmalloc_bulk_noprof = "kmem_kmalloc_bulk_noprof" in "r8", "x4" (size: usize, flags: Gfp, count: usize, out: *mut *mut u8) -> usize {
        tag => {
            // SAFETY: the caller's promise.
            unsafe {
                let out = entries(out, count);
                KMEM.all_or_none(out, || kmalloc_tag(size, flags, tag), |at| KMEM.free(at))
            }
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`]; a live cache.
    fn kmem_cache_alloc_tag = "kmem_cache_alloc_tag", kmem_cache_alloc_noprof = "kmem_cache_alloc_noprof" in "rdx", "x2" (cache: &'static Cache, flags: Gfp) -> *mut u8 {
        // SAFETY: the caller's promise.
        tag => KMEM.cache_alloc(cache, flags, unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`kmalloc_tag`]; a live cache; `out` has room for `count` pointers.
    fn kmem_cache_alloc_bulk_tag = "kmem_cache_alloc_bulk_tag", kmem_cache_alloc_bulk_noprof = "kmem_cache_alloc_bulk_noprof" in "r8", "x4" (cache: &'static Cache, flags: Gfp, count: usize, out: *mut *mut u8) -> usize {
        tag => {
            // SAFETY: the caller's promise.
            unsafe {
                let out = entries(out, count);
                let one = || kmem_cache_alloc_tag(cache, flags, tag);
                KMEM.all_or_none(out, one, |object| KMEM.cache_free(cache, object))
            }
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`]; `name` is a C string.
    fn kmem_cache_create_tag = "kmem_cache_create_tag", kmem_cache_create_noprof = "kmem_cache_create_noprof" in "r8", "x4" (
        name: *const c_char, size: usize, align: usize,
        ctor: Option<unsafe extern "C" fn(*mut c_void)>) -> Option<NonNull<Cache>> {
        tag => {
            // SAFETY: the caller's promise.
            let (name, caller) = unsafe { (CStr::from_ptr(name), caller(tag)) };
            KMEM.cache_create(name.to_bytes(), size, align, ctor, caller)
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`].
    fn alloc_pages_tag = "kmem_alloc_pages_tag", alloc_pages_noprof = "kmem_alloc_pages_noprof" in "rdx", "x2" (flags: Gfp, order: c_uint) -> *mut u8 {
        tag => match u8::try_from(order) {
            // SAFETY: the caller's promise.
            Ok(order) => KMEM.alloc_pages(Order(order), flags, unsafe { caller(tag) }),
            Err(_) => null_mut(),
        }
    }
    /// # Safety
    /// See [`kmalloc_tag`].
    fn alloc_pages_exact_tag = "kmem_alloc_pages_exact_tag", alloc_pages_exact_noprof = "kmem_alloc_pages_exact_noprof" in "rdx", "x2" (size: usize, flags: Gfp) -> *mut u8 {
        // SAFETY: the caller's promise.
        tag => KMEM.alloc_pages_exact(size, flags, unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`kmalloc_tag`]; `pages` has `count` entries.
    fn alloc_pages_bulk_tag = "kmem_alloc_pages_bulk_tag", alloc_pages_bulk_noprof = "kmem_alloc_pages_bulk_noprof" in "rcx", "x3" (flags: Gfp, count: usize, pages: *mut *mut u8) -> usize {
        tag => {
            // SAFETY: the caller's promise.
            unsafe {
                let pages = entries(pages, count);
                KMEM.alloc_pages_bulk(flags, pages, caller(tag))
            }
        }
    }
}

/// # Safety
/// As for `free(3)`.
#[unsafe(export_name = "kmem_kfree")]
unsafe extern "C" fn kfree(at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { KMEM.free(at) }
}

/// # Safety
/// `objects` are `count` allocations as for `free(3)`.
#[unsafe(export_name = "kmem_kfree_bulk")]
unsafe extern "C" fn kfree_bulk(count: usize, objects: *const *mut u8) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe { KMEM.free(*objects.add(i)) }
    }
}

/// # Safety
/// `at` is null or a live allocation.
#[unsafe(export_name = "kmem_ksize")]
unsafe extern "C" fn ksize(at: *mut u8) -> usize {
    // SAFETY: the caller's promise.
    unsafe { KMEM.usable_size(at) }
}

/// # Safety
/// A live cache, which is gone if this succeeds.
#[unsafe(export_name = "kmem_cache_destroy")]
unsafe extern "C" fn kmem_cache_destroy(cache: Option<NonNull<Cache>>) -> c_int {
    // SAFETY: the caller's promise.
    c_int::from(cache.is_none_or(|cache| unsafe { KMEM.cache_destroy(cache) }))
}

/// # Safety
/// A live cache, and null or a live object of it.
#[unsafe(export_name = "kmem_cache_free")]
unsafe extern "C" fn kmem_cache_free(cache: &'static Cache, object: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { KMEM.cache_free(cache, object) }
}

/// # Safety
/// A live cache, and `count` live objects of it.
#[unsafe(export_name = "kmem_cache_free_bulk")]
unsafe extern "C" fn kmem_cache_free_bulk(
    cache: &'static Cache,
    count: usize,
    objects: *const *mut u8,
) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe { KMEM.cache_free(cache, *objects.add(i)) }
    }
}

/// # Safety
/// A block of `order`, in nobody else's use.
#[unsafe(export_name = "kmem_split_page")]
unsafe extern "C" fn split_page(pages: *mut u8, order: c_uint) {
    if let Ok(order) = u8::try_from(order) {
        // SAFETY: the caller's promise.
        unsafe { KMEM.split_page(pages, Order(order)) }
    }
}

/// # Safety
/// A block of `order`, whole or split, that nobody uses any more.
#[unsafe(export_name = "kmem_free_pages")]
unsafe extern "C" fn __free_pages(pages: *mut u8, order: c_uint) {
    if let Ok(order) = u8::try_from(order) {
        // SAFETY: the caller's promise.
        unsafe { KMEM.free_pages(pages, Order(order)) }
    }
}

/// # Safety
/// Pages of that size, that nobody uses any more.
#[unsafe(export_name = "kmem_free_pages_exact")]
unsafe extern "C" fn free_pages_exact(pages: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { KMEM.free_pages_exact(pages, size) }
}
