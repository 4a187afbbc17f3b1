//! What `kmem.h` and `kmem/hooks.h` call: allocation for a static tag, scopes, and the tags of
//! objects that are loaded and unloaded.

use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;

use kmem_core::codetag::{Caller, StaticTag, scope};

use crate::{KMEM, errno};

/// The one to bill for a call with a tag in the malloc family: the thread's scope, else the tag.
///
/// # Safety
/// `tag` is valid as long as its object is loaded.
#[inline(always)]
unsafe fn caller(tag: *const StaticTag) -> Caller {
    // SAFETY: the caller's promise.
    let tag = unsafe { Caller::tagged_by(tag) };
    Caller::at(scope::caller(tag.key))
}

fn or_errno(at: *mut u8) -> *mut u8 {
    if at.is_null() { errno::no_memory() } else { at }
}

/// # Safety
/// `tag` is valid as long as its object is loaded; so for all functions here.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_malloc_tag(size: usize, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the caller's promise.
    let caller = unsafe { caller(tag) };
    let at = KMEM.alloc_fast(size, caller.key);
    if at.is_null() { malloc_any(size, caller.key) } else { at }
}

/// Apart, so that the fast path has no frame.
#[inline(never)]
fn malloc_any(size: usize, key: usize) -> *mut u8 {
    or_errno(KMEM.alloc_any(size, Caller::at(key)))
}

/// # Safety
/// See [`kmem_malloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_calloc_tag(count: usize, size: usize, tag: *const StaticTag) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else {
        return errno::no_memory();
    };
    // SAFETY: the caller's promise.
    or_errno(KMEM.alloc_zeroed(bytes, unsafe { caller(tag) }))
}

/// # Safety
/// See [`kmem_malloc_tag`]; as for `realloc(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_realloc_tag(at: *mut u8, size: usize, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        if size == 0 && !at.is_null() {
            KMEM.free(at);
            return null_mut();
        }
        or_errno(KMEM.realloc(at, size, caller(tag)))
    }
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
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { kmem_realloc_tag(at, bytes, tag) },
        None => errno::no_memory(),
    }
}

/// # Safety
/// See [`kmem_malloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_memalign_tag(
    align: usize,
    size: usize,
    tag: *const StaticTag,
) -> *mut u8 {
    if !align.is_power_of_two() {
        errno::set(libc::EINVAL);
        return null_mut();
    }
    // SAFETY: the caller's promise.
    or_errno(KMEM.alloc_aligned(size, align, unsafe { caller(tag) }))
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
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    // SAFETY: the caller's promise.
    let at = KMEM.alloc_aligned(size, align, unsafe { caller(tag) });
    if at.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *out = at };
    0
}

/// Makes `tag` (null: none) the thread's scope; returns the one before.
///
/// # Safety
/// See [`kmem_malloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tag_enter(tag: *const StaticTag) -> usize {
    // SAFETY: the caller's promise.
    scope::replace(if tag.is_null() { 0 } else { unsafe { Caller::tagged_by(tag) }.key })
}

/// Goes back to the scope that [`kmem_tag_enter`] returned.
#[unsafe(no_mangle)]
extern "C" fn kmem_tag_leave(before: usize) {
    scope::replace(before);
}

/// Name of the object that holds `tag`; none for the main program.
fn object_of(tag: *const StaticTag) -> Option<&'static [u8]> {
    // SAFETY: all zero is a valid value, and dladdr fills it.
    let mut info: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address may be asked for; constructors run with the loader ready.
    if unsafe { libc::dladdr(tag.cast::<c_void>(), &raw mut info) } == 0 || info.dli_fname.is_null()
    {
        return None;
    }
    // SAFETY: a C string of the loader's, which outlives the object's registration.
    let path = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    // The loader knows the main program by argv[0], or by its path.
    name.windows(3).any(|part| part == b".so").then_some(name)
}

/// # Safety
/// The tags of one loaded object.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tags_register(start: *const StaticTag, stop: *const StaticTag) {
    KMEM.register_tags(start, stop, object_of(start).unwrap_or_default());
}

/// # Safety
/// As given to [`kmem_tags_register`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tags_unregister(start: *const StaticTag, stop: *const StaticTag) {
    if crate::process::is_unloading() {
        KMEM.unregister_tags(start, stop, object_of(start).unwrap_or_default());
    }
}
