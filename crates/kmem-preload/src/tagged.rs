//! The malloc family with a static tag, and scopes, as `kmem/hooks.h` and `kmem/tag.h` declare
//! them. A null result sets `errno` as for the C library's function.

use core::ffi::{c_char, c_int};

use kmem_core::codetag::StaticTag;
use kmem_core::request::Caller;
use kmem_core::task;

use crate::call_site::scoped;
use crate::{KMEM, family};

/// `malloc(3)`, billed to the thread's scope, else to `tag`.
///
/// # Safety
/// `tag` is valid as long as its object is loaded.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_malloc_tag(size: usize, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the same contract.
    let caller = unsafe { scoped(tag) };
    // SAFETY: the key of a caller.
    let at = unsafe { KMEM.alloc_fast(size, caller.key()) };
    if at.is_null() { malloc_any(size, caller) } else { at }
}

/// A separate function, so that the fast path has no frame.
#[inline(never)]
fn malloc_any(size: usize, caller: Caller) -> *mut u8 {
    family::or_errno(KMEM.alloc_any(size, caller))
}

/// # Safety
/// See [`kmem_malloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_calloc_tag(count: usize, size: usize, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the same contract.
    family::calloc(count, size, unsafe { scoped(tag) })
}

/// # Safety
/// See [`kmem_malloc_tag`]; and as for `realloc(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_realloc_tag(at: *mut u8, size: usize, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the same contract.
    unsafe { family::realloc(at, size, scoped(tag)) }
}

/// # Safety
/// See [`kmem_realloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_reallocarray_tag(
    at: *mut u8,
    count: usize,
    size: usize,
    tag: *const StaticTag,
) -> *mut u8 {
    // SAFETY: the same contract.
    unsafe { family::reallocarray(at, count, size, scoped(tag)) }
}

/// # Safety
/// See [`kmem_malloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_memalign_tag(
    align: usize,
    size: usize,
    tag: *const StaticTag,
) -> *mut u8 {
    // SAFETY: the same contract.
    family::memalign(align, size, unsafe { scoped(tag) })
}

/// # Safety
/// See [`kmem_malloc_tag`]; `out` is valid for writing.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_posix_memalign_tag(
    out: *mut *mut u8,
    align: usize,
    size: usize,
    tag: *const StaticTag,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { family::posix_memalign(out, align, size, scoped(tag)) }
}

/// # Safety
/// See [`kmem_malloc_tag`]; and as for `strdup(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_strdup_tag(text: *const c_char, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the contract: a C string, which can be read up to its zero byte.
    unsafe { copy(text.cast(), libc::strlen(text) + 1, tag) }
}

/// # Safety
/// See [`kmem_malloc_tag`]; and as for `strndup(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_strndup_tag(
    text: *const c_char,
    most: usize,
    tag: *const StaticTag,
) -> *mut u8 {
    // SAFETY: the contract for `text`; `copy` has `len + 1` bytes.
    unsafe {
        let len = libc::strnlen(text, most);
        let copy = kmem_malloc_tag(len + 1, tag);
        if !copy.is_null() {
            copy.copy_from_nonoverlapping(text.cast(), len);
            copy.add(len).write(0);
        }
        copy
    }
}

/// # Safety
/// See [`kmem_malloc_tag`]; and as for `wcsdup(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_wcsdup_tag(text: *const libc::wchar_t, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the contract: a wide string, which can be read up to its zero.
    unsafe { copy(text.cast(), (libc::wcslen(text) + 1) * size_of::<libc::wchar_t>(), tag) }
}

/// Allocates a copy of `bytes` bytes.
///
/// # Safety
/// See [`kmem_malloc_tag`]; `from` is valid for reading `bytes` bytes.
unsafe fn copy(from: *const u8, bytes: usize, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the same contract.
    unsafe {
        let copy = kmem_malloc_tag(bytes, tag);
        if !copy.is_null() {
            copy.copy_from_nonoverlapping(from, bytes);
        }
        copy
    }
}

/// Makes `tag` (null: none) the thread's scope. Returns the previous scope.
///
/// # Safety
/// See [`kmem_malloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tag_enter(tag: *const StaticTag) -> usize {
    // SAFETY: the same contract.
    unsafe { task::replace_tag(if tag.is_null() { 0 } else { Caller::tagged_by(tag).key() }) }
}

/// Restores the scope that [`kmem_tag_enter`] returned.
///
/// # Safety
/// `before` is from [`kmem_tag_enter`] on this thread, and its tag is still loaded.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tag_leave(before: usize) {
    // SAFETY: the same contract.
    unsafe { task::replace_tag(before) };
}

/// Switches memory allocation profiling. Returns 0, or `-ENOTSUP` without books.
#[unsafe(no_mangle)]
extern "C" fn kmem_profiling_set(on: c_int) -> c_int {
    if KMEM.set_profiling(on != 0) { 0 } else { -libc::ENOTSUP }
}

/// Returns 1 or 0, or `-ENOTSUP` without books.
#[unsafe(no_mangle)]
extern "C" fn kmem_profiling_get() -> c_int {
    KMEM.profiling().map_or(-libc::ENOTSUP, c_int::from)
}
