//! The vmalloc and vmap functions, as `kmem.h` declares them.

use core::ffi::{c_int, c_uint};

use kmem_core::units::Gfp;
use kmem_core::vmalloc::Kind;

use crate::KMEM;
use crate::call_site::{Tag, tagged, twins};
use crate::kernel::entries;

twins! {
    /// # Safety
    /// `tag` is as for [`tagged`]. This holds for all functions here.
    fn vmalloc(size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.vmalloc(size, flags, unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`vmalloc`].
    fn vmalloc_huge(size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.vmalloc_huge(size, flags, unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`vmalloc`].
    fn vmalloc_aligned(size: usize, align: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.vmalloc_aligned(size, align, flags, unsafe { tagged(tag) })
    }

    /// # Safety
    /// See [`vmalloc`]; `at` is null or a live area, which no other code uses.
    fn vrealloc(at: *mut u8, size: usize, flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        unsafe {
            if size == 0 {
                KMEM.vfree(at);
                return core::ptr::null_mut();
            }
            KMEM.vrealloc(at, size, flags, tagged(tag))
        }
    }

    /// # Safety
    /// See [`vmalloc`].
    fn vmap_alloc_page(flags: Gfp, tag: Tag) -> *mut u8 {
        // SAFETY: the same contract.
        KMEM.alloc_vmap_page(flags, unsafe { tagged(tag) })
    }
}

/// # Safety
/// `at` is null, or a live area that no thread uses any more.
#[unsafe(export_name = "kmem_vfree")]
unsafe extern "C" fn vfree(at: *mut u8) {
    // SAFETY: the same contract.
    unsafe { KMEM.vfree(at) }
}

/// # Safety
/// `pages` has `count` entries: live pages from [`vmap_alloc_page`], not freed before
/// [`vunmap`].
#[unsafe(export_name = "kmem_vmap")]
unsafe extern "C" fn vmap(pages: *mut *mut u8, count: c_uint) -> *mut u8 {
    // SAFETY: the same contract.
    unsafe { KMEM.vmap(entries(pages, count as usize)) }
}

/// # Safety
/// `at` is null, or a mapping that no thread uses any more.
#[unsafe(export_name = "kmem_vunmap")]
unsafe extern "C" fn vunmap(at: *mut u8) {
    // SAFETY: the same contract.
    unsafe { KMEM.vunmap(at) }
}

/// Returns 1 if `at` is in a live area, else 0.
#[unsafe(export_name = "kmem_is_vmalloc_addr")]
extern "C" fn is_vmalloc_addr(at: *const u8) -> c_int {
    c_int::from(KMEM.find_area(at as usize).is_some_and(|area| area.kind != Kind::Unpurged))
}

/// Writes the areas to `fd`, in the layout of `/proc/vmallocinfo`.
#[unsafe(export_name = "kmem_vmallocinfo")]
extern "C" fn vmallocinfo(fd: c_int) {
    KMEM.vmallocinfo(|line| {
        // A line that cannot be written is lost.
        // SAFETY: `line` is valid for reading its length.
        unsafe { libc::write(fd, line.as_ptr().cast(), line.len()) };
    });
}
