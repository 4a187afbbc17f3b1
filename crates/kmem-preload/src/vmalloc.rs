//! vmalloc, as `kmem.h` declares it.

use core::ffi::{c_int, c_uint};

use kmem_core::codetag::StaticTag;
use kmem_core::units::Gfp;
use kmem_core::vmalloc::Kind;

use crate::KMEM;
use crate::kernel::{caller, entries, twins};

twins! {
    /// # Safety
    /// The tag is null or valid; so for all functions here.
    fn vmalloc_tag = "kmem_vmalloc_tag", vmalloc_noprof = "kmem_vmalloc_noprof" in "rdx", "x2" (size: usize, flags: Gfp) -> *mut u8 {
        // SAFETY: the caller's promise.
        tag => KMEM.vmalloc(size, flags, unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`vmalloc_tag`].
    fn vmalloc_huge_tag = "kmem_vmalloc_huge_tag", vmalloc_huge_noprof = "kmem_vmalloc_huge_noprof" in "rdx", "x2" (size: usize, flags: Gfp) -> *mut u8 {
        // SAFETY: the caller's promise.
        tag => KMEM.vmalloc_huge(size, flags, unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`vmalloc_tag`].
    fn vmalloc_aligned_tag = "kmem_vmalloc_aligned_tag", vmalloc_aligned_noprof = "kmem_vmalloc_aligned_noprof" in "rcx", "x3" (size: usize, align: usize, flags: Gfp) -> *mut u8 {
        // SAFETY: the caller's promise.
        tag => KMEM.vmalloc_aligned(size, align, flags, unsafe { caller(tag) })
    }
    /// # Safety
    /// See [`vmalloc_tag`]; null or a live area, which is free if this moves it.
    fn vrealloc_tag = "kmem_vrealloc_tag", vrealloc_noprof = "kmem_vrealloc_noprof" in "rcx", "x3" (at: *mut u8, size: usize, flags: Gfp) -> *mut u8 {
        tag => {
            // SAFETY: the caller's promise.
            unsafe {
                if size == 0 {
                    KMEM.vfree(at);
                    return core::ptr::null_mut();
                }
                KMEM.vrealloc(at, size, flags, caller(tag))
            }
        }
    }
    /// # Safety
    /// See [`vmalloc_tag`].
    fn vmap_alloc_page_tag = "kmem_vmap_alloc_page_tag", vmap_alloc_page_noprof = "kmem_vmap_alloc_page_noprof" in "rsi", "x1" (flags: Gfp) -> *mut u8 {
        // SAFETY: the caller's promise.
        tag => KMEM.alloc_vmap_page(flags, unsafe { caller(tag) })
    }
}

/// # Safety
/// Null, or an area that nobody uses any more.
#[unsafe(export_name = "kmem_vfree")]
unsafe extern "C" fn vfree(at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { KMEM.vfree(at) }
}

/// # Safety
/// `count` live pages from [`vmap_alloc_page_tag`], that are not freed before the mapping is taken back.
#[unsafe(export_name = "kmem_vmap")]
unsafe extern "C" fn vmap(pages: *mut *mut u8, count: c_uint) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { KMEM.vmap(entries(pages, count as usize)) }
}

/// # Safety
/// Null, or a mapping that nobody uses any more.
#[unsafe(export_name = "kmem_vunmap")]
unsafe extern "C" fn vunmap(at: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { KMEM.vunmap(at) }
}

#[unsafe(export_name = "kmem_is_vmalloc_addr")]
extern "C" fn is_vmalloc_addr(at: *const u8) -> c_int {
    c_int::from(KMEM.find_area(at as usize).is_some_and(|area| area.kind != Kind::Unpurged))
}

/// Writes `/proc/vmallocinfo`'s lines to a file.
#[unsafe(export_name = "kmem_vmallocinfo")]
extern "C" fn vmallocinfo(fd: c_int) {
    KMEM.vmallocinfo(|line| {
        // SAFETY: a line that is there. What cannot be written is lost.
        unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
    });
}
