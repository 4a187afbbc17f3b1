//! The malloc family of the C library. Each symbol passes its return address, the call site, to a
//! function of [`family`].

use core::ffi::{c_int, c_void};

use kmem_core::request::Caller;
use kmem_core::{Interface, SizedFree, task};

use crate::call_site::{at, with_call_site, with_caller, with_frame};
use crate::preemption::{free_foreign, goes_through, jump};
use crate::{KMEM, errno, family, thread};

const PAGE: usize = 4096;

with_call_site! {
    malloc (size: usize) => malloc_at, "rsi", "x1";
    __libc_malloc (size: usize) => malloc_at, "rsi", "x1";
    calloc (count: usize, size: usize) => calloc_at, "rdx", "x2";
    __libc_calloc (count: usize, size: usize) => calloc_at, "rdx", "x2";
}

with_caller! {
    realloc (at: *mut c_void, size: usize) => realloc_at, "rdx", "rcx", "x2", "x3";
    __libc_realloc (at: *mut c_void, size: usize) => realloc_at, "rdx", "rcx", "x2", "x3";
    memalign (align: usize, size: usize) => memalign_at, "rdx", "rcx", "x2", "x3";
    __libc_memalign (align: usize, size: usize) => memalign_at, "rdx", "rcx", "x2", "x3";
    aligned_alloc (align: usize, size: usize) => memalign_at, "rdx", "rcx", "x2", "x3";
    valloc (size: usize) => valloc_at, "rsi", "rdx", "x1", "x2";
    __libc_valloc (size: usize) => valloc_at, "rsi", "rdx", "x1", "x2";
    pvalloc (size: usize) => pvalloc_at, "rsi", "rdx", "x1", "x2";
    __libc_pvalloc (size: usize) => pvalloc_at, "rsi", "rdx", "x1", "x2";
}

with_frame! {
    malloc_any (size: usize, key: usize) => malloc_any_at, "rdx", "x2";
    calloc_any (size: usize, key: usize) => calloc_any_at, "rdx", "x2";
}

extern "C" fn malloc_at(size: usize, ret: usize) -> *mut u8 {
    if task::is_in_any() {
        return malloc_scoped(size, ret);
    }
    // SAFETY: a return address.
    let at = unsafe { KMEM.alloc_fast_root(size, ret) };
    if at.is_null() { malloc_any(size, ret) } else { at }
}

/// `malloc` for a thread with a tag, a group or an interpreter. A separate function, so that other
/// threads pay for one test only.
#[inline(never)]
extern "C" fn malloc_scoped(size: usize, ret: usize) -> *mut u8 {
    if task::follows_frames() {
        return malloc_framed(size, ret);
    }
    let (key, at) = keyed(size, || thread::key_of_code(ret));
    if at.is_null() { malloc_any(size, key) } else { at }
}

/// `malloc` for a thread with an interpreter.
#[inline(never)]
extern "C" fn malloc_framed(size: usize, ret: usize) -> *mut u8 {
    let (key, at) = keyed(size, || thread::key(ret));
    if at.is_null() {
        return malloc_any(size, key);
    }
    KMEM.given(at, size);
    at
}

/// The key that a function of [`thread`] returns, and a block if the CPU has one for it.
#[inline(always)]
fn keyed(size: usize, key: impl FnOnce() -> usize) -> (usize, *mut u8) {
    let key = key();
    // SAFETY: the functions return keys of return addresses, and of lines.
    (key, unsafe { KMEM.alloc_fast(size, key) })
}

/// Returns a block of `size` bytes, on a thread that may run an interpreter.
#[inline]
fn given(at: *mut u8, size: usize) -> *mut u8 {
    if task::follows_frames() {
        KMEM.given(at, size);
    }
    at
}

extern "C" fn malloc_any_at(size: usize, key: usize, frame: usize) -> *mut u8 {
    // SAFETY: the key of a return address.
    let caller = unsafe { Caller::in_frame(key, frame) };
    given(family::or_errno(KMEM.alloc_any(size, caller)), size)
}

extern "C" fn calloc_at(count: usize, size: usize, ret: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else { return errno::no_memory() };
    let key = thread::key(ret);
    // SAFETY: the key of a return address.
    let at = unsafe { KMEM.alloc_fast(bytes, key) };
    if at.is_null() {
        return calloc_any(bytes, key);
    }
    // SAFETY: this call allocated the object, which has at least that many bytes.
    unsafe { at.write_bytes(0, bytes) };
    at
}

extern "C" fn calloc_any_at(bytes: usize, key: usize, frame: usize) -> *mut u8 {
    // SAFETY: the key of a return address.
    let caller = unsafe { Caller::in_frame(key, frame) };
    family::or_errno(KMEM.alloc_zeroed(bytes, caller))
}

/// # Safety
/// As for `realloc(3)`.
unsafe extern "C" fn realloc_at(old: *mut u8, size: usize, ret: usize, frame: usize) -> *mut u8 {
    // SAFETY: the same contract.
    given(unsafe { family::realloc(old, size, at(ret, frame)) }, size)
}

/// `reallocarray(3)`: `realloc` to `count` times `size` bytes, which may be the program's.
///
/// # Safety
/// As for `reallocarray(3)`.
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn reallocarray(at: *mut c_void, count: usize, size: usize) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "mov rax, rdx",
        "mul rsi",
        "jo {overflow}",
        "mov rsi, rax",
        jump!(realloc),
        overflow = sym errno::no_memory,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "umulh x3, x1, x2",
        "cbnz x3, 2f",
        "mul x1, x1, x2",
        jump!(realloc),
        "2: b {overflow}",
        overflow = sym errno::no_memory,
    );
}

extern "C" fn memalign_at(align: usize, size: usize, ret: usize, frame: usize) -> *mut u8 {
    family::memalign(align, size, at(ret, frame))
}

extern "C" fn valloc_at(size: usize, ret: usize, frame: usize) -> *mut u8 {
    family::memalign(PAGE, size, at(ret, frame))
}

extern "C" fn pvalloc_at(size: usize, ret: usize, frame: usize) -> *mut u8 {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(bytes) => family::memalign(PAGE, bytes, at(ret, frame)),
        None => errno::no_memory(),
    }
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    kmem_core::call_with_record!(
        posix_memalign_at,
        "r8",
        "x4",
        ["mov rcx, [rbp + 8]"],
        ["mov x3, x30"]
    );
}

/// # Safety
/// `out` is valid for writing.
unsafe extern "C" fn posix_memalign_at(
    out: *mut *mut u8,
    align: usize,
    size: usize,
    ret: usize,
    frame: usize,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { family::posix_memalign(out, align, size, at(ret, frame)) }
}

/// Exports functions that free memory. `errno` is kept.
macro_rules! frees {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for `free(3)`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(at: *mut u8) {
            // SAFETY: the same contract.
            unsafe { KMEM.free_or(at, Interface::Malloc, None) }
        }
    )*};
}

frees! { free __libc_free }

goes_through! {
    cfree => free;
}

/// `free_sized` of C23: `free` of memory whose size the caller tells.
///
/// # Safety
/// As for `free(3)`, and the size is that of the request.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_sized(at: *mut u8, size: usize) {
    // SAFETY: the same contract.
    unsafe { free_aligned_sized(at, 1, size) }
}

/// `free_aligned_sized` of C23, see [`free_sized`].
///
/// # Safety
/// As for `free(3)`, and the size and alignment are those of the request.
#[unsafe(no_mangle)]
unsafe extern "C" fn free_aligned_sized(at: *mut u8, align: usize, size: usize) {
    let told = SizedFree { size, align, interface: Interface::Malloc };
    // SAFETY: the same contract.
    unsafe { KMEM.free_sized_or(at, told, free_foreign) }
}
