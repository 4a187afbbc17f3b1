//! What `kmem.h` and `kmem/hooks.h` call: allocation for a static tag, scopes, and the tags of
//! objects that are loaded and unloaded.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;

use kmem_core::LiveTag;
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

/// # Safety
/// See [`kmem_malloc_tag`]; as for `strdup(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_strdup_tag(text: *const c_char, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the caller's promise; the zero byte is part of it.
    unsafe { copy(text.cast(), libc::strlen(text) + 1, tag) }
}

/// # Safety
/// See [`kmem_malloc_tag`]; as for `strndup(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_strndup_tag(
    text: *const c_char,
    most: usize,
    tag: *const StaticTag,
) -> *mut u8 {
    // SAFETY: the caller's promise; `copy` leaves room for the zero byte.
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
/// See [`kmem_malloc_tag`]; as for `wcsdup(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_wcsdup_tag(text: *const libc::wchar_t, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the caller's promise; the zero is part of it.
    unsafe { copy(text.cast(), (libc::wcslen(text) + 1) * size_of::<libc::wchar_t>(), tag) }
}

/// # Safety
/// See [`kmem_malloc_tag`]; `bytes` can be read at `from`.
unsafe fn copy(from: *const u8, bytes: usize, tag: *const StaticTag) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        let copy = kmem_malloc_tag(bytes, tag);
        if !copy.is_null() {
            copy.copy_from_nonoverlapping(from, bytes);
        }
        copy
    }
}

/// Makes `tag` (null: none) the thread's scope; returns the one before.
///
/// # Safety
/// See [`kmem_malloc_tag`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tag_enter(tag: *const StaticTag) -> usize {
    // SAFETY: the caller's promise.
    scope::replace_tag(if tag.is_null() { 0 } else { unsafe { Caller::tagged_by(tag) }.key })
}

/// Goes back to the scope that [`kmem_tag_enter`] returned.
#[unsafe(no_mangle)]
extern "C" fn kmem_tag_leave(before: usize) {
    scope::replace_tag(before);
}

/// A loaded object.
struct Object {
    /// Its addresses.
    start: usize,
    stop: usize,
    /// The name without directories; empty for the main program.
    name: &'static [u8],
}

/// The object that holds `tag`; tags lie anywhere in it (those of C++ are in no section of their
/// own). If the loader does not know it, the given range without a name.
fn object_of(tag: *const StaticTag, stop: *const StaticTag) -> Object {
    let mut object = Object { start: tag as usize, stop: stop as usize, name: &[] };
    // SAFETY: `visit` is of the type wanted; constructors and destructors may ask the loader.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut object).cast()) };
    object
}

/// Fills in the object if it is this one.
///
/// # Safety
/// `info` is the loader's; `data` is an [`Object`].
unsafe extern "C" fn visit(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    data: *mut c_void,
) -> c_int {
    // SAFETY: the caller's promise; the loader keeps headers and names while the object is loaded.
    let (info, object) = unsafe { (&*info, &mut *data.cast::<Object>()) };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    let (mut start, mut stop) = (usize::MAX, 0);
    for i in 0..info.dlpi_phnum.into() {
        // SAFETY: as above.
        let header = unsafe { &*info.dlpi_phdr.add(i) };
        if header.p_type == libc::PT_LOAD {
            let at = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            start = start.min(at);
            stop = stop.max(at.saturating_add(header.p_memsz as usize));
        }
    }
    if !(start..stop).contains(&object.start) {
        return 0;
    }
    let path = if info.dlpi_name.is_null() {
        &[]
    } else {
        // SAFETY: a C string.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes()
    };
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or(path);
    *object = Object { start, stop, name };
    1
}

/// # Safety
/// Tags of one loaded object, or one address in it.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tags_register(start: *const StaticTag, stop: *const StaticTag) {
    let object = object_of(start, stop);
    KMEM.register_tags(object.start as *const _, object.stop as *const _, object.name);
}

/// # Safety
/// As given to [`kmem_tags_register`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_tags_unregister(start: *const StaticTag, stop: *const StaticTag) {
    // At exit everything goes, and nothing is wrong with that.
    if crate::process::is_unloading() {
        let object = object_of(start, stop);
        KMEM.unregister_tags(object.start as *const _, object.stop as *const _, object.name);
    }
}

/// The name of a module, of which there are `len` bytes.
///
/// # Safety
/// They can be read.
unsafe fn module_name<'a>(name: *const c_char, len: usize) -> &'a [u8] {
    // SAFETY: the caller's promise.
    unsafe { core::slice::from_raw_parts(name.cast(), len) }
}

/// Makes the tags of a module known that a loader put into memory, of which the dynamic linker knows nothing.
///
/// # Safety
/// Tags, and a name of that length.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_module_tags_register(
    start: *const StaticTag,
    stop: *const StaticTag,
    name: *const c_char,
    len: usize,
) {
    // SAFETY: the caller's promise.
    KMEM.register_tags(start, stop, unsafe { module_name(name, len) });
}

/// Takes leave of them: see [`kmem_tags_unregister`].
///
/// # Safety
/// As given to [`kmem_module_tags_register`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_module_tags_unregister(
    start: *const StaticTag,
    stop: *const StaticTag,
    name: *const c_char,
    len: usize,
) {
    // SAFETY: the caller's promise.
    KMEM.unregister_tags(start, stop, unsafe { module_name(name, len) });
}

/// Bytes that are live of the tags of a module. `out` names the sites, as many as it has room for; the rest of it has null tags.
///
/// # Safety
/// Tags, and room for so many entries.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_module_tags_live(
    start: *const StaticTag,
    stop: *const StaticTag,
    out: *mut LiveTag,
    room: usize,
) -> u64 {
    // SAFETY: the caller's promise.
    KMEM.live_tags(start, stop, unsafe { core::slice::from_raw_parts_mut(out, room) })
}
