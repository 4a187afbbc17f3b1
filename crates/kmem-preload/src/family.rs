//! The malloc family for any [`Caller`]: checks of arguments, results and `errno`.
//! [`crate::malloc`] passes a call site, [`crate::tagged`] a static tag.
//!
//! | call                         | result                                             |
//! |------------------------------|----------------------------------------------------|
//! | `malloc(0)`                  | a unique pointer to memory without access          |
//! | `realloc(p, 0)`              | frees `p`, returns null (as glibc)                 |
//! | more than `PTRDIFF_MAX`      | null, `ENOMEM`                                     |
//! | `aligned_alloc`, `memalign`  | null, `EINVAL` if `align` is no power of two       |
//! | `posix_memalign`             | returns the error; `errno` and `*out` are kept     |

use core::ffi::c_int;
use core::ptr::null_mut;

use kmem_core::Interface;
use kmem_core::request::Caller;

use crate::{KMEM, errno};

/// Returns `at`; sets `errno` to `ENOMEM` if it is null.
#[inline(always)]
pub(crate) fn or_errno(at: *mut u8) -> *mut u8 {
    if at.is_null() { errno::no_memory() } else { at }
}

/// `calloc(3)`: `count` times `size` zeroed bytes.
pub(crate) fn calloc(count: usize, size: usize, caller: Caller) -> *mut u8 {
    match count.checked_mul(size) {
        Some(bytes) => or_errno(KMEM.alloc_zeroed(bytes, caller)),
        None => errno::no_memory(),
    }
}

/// `realloc(3)`: moves or resizes `at` to `size` bytes.
///
/// # Safety
/// As for `realloc(3)`.
pub(crate) unsafe fn realloc(at: *mut u8, size: usize, caller: Caller) -> *mut u8 {
    KMEM.check_interface("realloc", at, Interface::Malloc);
    // SAFETY: the same contract.
    unsafe {
        if size == 0 && !at.is_null() {
            KMEM.free(at);
            return null_mut();
        }
        or_errno(KMEM.realloc(at, size, caller))
    }
}

/// `reallocarray(3)`: [`realloc`] to `count` times `size` bytes.
///
/// # Safety
/// As for `reallocarray(3)`.
pub(crate) unsafe fn reallocarray(
    at: *mut u8,
    count: usize,
    size: usize,
    caller: Caller,
) -> *mut u8 {
    match count.checked_mul(size) {
        // SAFETY: the same contract.
        Some(bytes) => unsafe { realloc(at, bytes, caller) },
        None => errno::no_memory(),
    }
}

/// `memalign(3)`: `size` bytes at a multiple of `align` bytes.
pub(crate) fn memalign(align: usize, size: usize, caller: Caller) -> *mut u8 {
    if !align.is_power_of_two() {
        errno::set(libc::EINVAL);
        return null_mut();
    }
    or_errno(KMEM.alloc_aligned(size, align, caller))
}

/// `posix_memalign(3)`: stores the address in `*out`; returns 0, `EINVAL` or `ENOMEM`.
///
/// # Safety
/// `out` is valid for writing.
pub(crate) unsafe fn posix_memalign(
    out: *mut *mut u8,
    align: usize,
    size: usize,
    caller: Caller,
) -> c_int {
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let at = KMEM.alloc_aligned(size, align, caller);
    if at.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the contract says that `out` is valid for writing.
    unsafe { *out = at };
    0
}
