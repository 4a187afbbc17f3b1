//! The malloc family. Each symbol passes the address its caller returns to, which is the call
//! site, to a function of the same meaning.
//!
//! | call                         | result                                             |
//! |------------------------------|----------------------------------------------------|
//! | `malloc(0)`                  | a unique pointer                                   |
//! | `realloc(p, 0)`              | frees `p`, returns null (as glibc)                 |
//! | more than `PTRDIFF_MAX`      | null, `ENOMEM`                                     |
//! | `aligned_alloc`, `memalign`  | null, `EINVAL` unless a power of two               |
//! | `posix_memalign`             | returns the error, leaves `errno` and `*out` alone |
//! | `free`                       | leaves `errno` alone                               |

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use kmem_core::codetag::{Caller, scope};

use crate::{KMEM, errno, thread};

const PAGE: usize = 4096;

/// Exports `$name`: passes its return address as one argument more, in the given register of the
/// platform's calling convention, and goes on to `$inner`.
macro_rules! with_call_site {
    ($($name:ident ($($arg:ident: $ty:ty),*) => $inner:ident, $x86:literal, $arm:literal;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {}", sym $inner);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("mov ", $arm, ", x30"), "b {}", sym $inner);
        }
    )*};
}
pub(crate) use with_call_site;

/// The same with the caller's frame pointer as a further argument. What has a fast path without a
/// frame of its own passes it on only when it leaves that path: [`with_frame`].
macro_rules! with_caller {
    ($($name:ident ($($arg:ident: $ty:ty),*) => $inner:ident, $x86:literal, $xf:literal, $arm:literal, $af:literal;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> *mut c_void {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                concat!("mov ", $x86, ", [rsp]"), concat!("mov ", $xf, ", rbp"), "jmp {}", sym $inner);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                concat!("mov ", $arm, ", x30"), concat!("mov ", $af, ", x29"), "b {}", sym $inner);
        }
    )*};
}

/// Defines `$name`, which passes the frame pointer as one argument more and goes on to `$inner`.
/// Reached by a jump from a function without a frame, that is the frame of the program's call.
macro_rules! with_frame {
    ($($name:ident ($($arg:ident: $ty:ty),*) => $inner:ident, $x86:literal, $arm:literal;)*) => {$(
        #[unsafe(naked)]
        extern "C" fn $name($($arg: $ty),*) -> *mut u8 {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(concat!("mov ", $x86, ", rbp"), "jmp {}", sym $inner);
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(concat!("mov ", $arm, ", x29"), "b {}", sym $inner);
        }
    )*};
}

with_call_site! {
    malloc (size: usize) => malloc_at, "rsi", "x1";
    __libc_malloc (size: usize) => malloc_at, "rsi", "x1";
}

with_caller! {
    calloc (count: usize, size: usize) => calloc_at, "rdx", "rcx", "x2", "x3";
    __libc_calloc (count: usize, size: usize) => calloc_at, "rdx", "rcx", "x2", "x3";
    realloc (at: *mut c_void, size: usize) => realloc_at, "rdx", "rcx", "x2", "x3";
    __libc_realloc (at: *mut c_void, size: usize) => realloc_at, "rdx", "rcx", "x2", "x3";
    reallocarray (at: *mut c_void, count: usize, size: usize) => reallocarray_at, "rcx", "r8", "x3", "x4";
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
}

/// The caller of one of these functions: the thread's scope, or the call.
fn caller(ret: usize, frame: usize) -> Caller {
    Caller::in_frame(thread::key(ret), frame)
}

extern "C" fn malloc_at(size: usize, ret: usize) -> *mut u8 {
    if scope::is_in_any() {
        return malloc_scoped(size, ret);
    }
    let at = KMEM.alloc_fast_root(size, ret);
    if at.is_null() { malloc_any(size, ret) } else { at }
}

/// `malloc` for a thread that is under a tag or in a group; apart, so that the others pay one test.
#[inline(never)]
extern "C" fn malloc_scoped(size: usize, ret: usize) -> *mut u8 {
    let key = thread::key(ret);
    let at = KMEM.alloc_fast(size, key);
    if at.is_null() { malloc_any(size, key) } else { at }
}

extern "C" fn malloc_any_at(size: usize, key: usize, frame: usize) -> *mut u8 {
    let at = KMEM.alloc_any(size, Caller::in_frame(key, frame));
    if at.is_null() { errno::no_memory() } else { at }
}

extern "C" fn calloc_at(count: usize, size: usize, ret: usize, frame: usize) -> *mut u8 {
    let Some(bytes) = count.checked_mul(size) else {
        return errno::no_memory();
    };
    let at = KMEM.alloc_zeroed(bytes, caller(ret, frame));
    if at.is_null() { errno::no_memory() } else { at }
}

/// # Safety
/// As for `realloc(3)`.
unsafe extern "C" fn realloc_at(at: *mut u8, size: usize, ret: usize, frame: usize) -> *mut u8 {
    if size == 0 && !at.is_null() {
        // SAFETY: the caller's promise.
        unsafe { KMEM.free(at) };
        return null_mut();
    }
    // SAFETY: the caller's promise.
    let new = unsafe { KMEM.realloc(at, size, caller(ret, frame)) };
    if new.is_null() { errno::no_memory() } else { new }
}

/// # Safety
/// As for `reallocarray(3)`.
unsafe extern "C" fn reallocarray_at(
    at: *mut u8,
    count: usize,
    size: usize,
    ret: usize,
    frame: usize,
) -> *mut u8 {
    match count.checked_mul(size) {
        // SAFETY: the caller's promise.
        Some(bytes) => unsafe { realloc_at(at, bytes, ret, frame) },
        None => errno::no_memory(),
    }
}

extern "C" fn memalign_at(align: usize, size: usize, ret: usize, frame: usize) -> *mut u8 {
    if !align.is_power_of_two() {
        errno::set(libc::EINVAL);
        return null_mut();
    }
    let at = KMEM.alloc_aligned(size, align, caller(ret, frame));
    if at.is_null() { errno::no_memory() } else { at }
}

extern "C" fn valloc_at(size: usize, ret: usize, frame: usize) -> *mut u8 {
    memalign_at(PAGE, size, ret, frame)
}

extern "C" fn pvalloc_at(size: usize, ret: usize, frame: usize) -> *mut u8 {
    match size.max(1).checked_next_multiple_of(PAGE) {
        Some(bytes) => memalign_at(PAGE, bytes, ret, frame),
        None => errno::no_memory(),
    }
}

#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn posix_memalign(out: *mut *mut c_void, align: usize, size: usize) -> c_int {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!("mov rcx, [rsp]", "mov r8, rbp", "jmp {}", sym posix_memalign_at);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("mov x3, x30", "mov x4, x29", "b {}", sym posix_memalign_at);
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
    if !align.is_power_of_two() || align < size_of::<usize>() {
        return libc::EINVAL;
    }
    let at = KMEM.alloc_aligned(size, align, caller(ret, frame));
    if at.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's promise.
    unsafe { *out = at };
    0
}

/// Exports functions that give memory back: `free` and its relatives, forms of `operator delete`.
/// What they are told beside the address is not needed.
macro_rules! frees {
    ($($name:ident($($ignored:ident),*);)*) => {$(
        /// # Safety
        /// As for `free(3)`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(at: *mut core::ffi::c_void $(, $ignored: usize)*) {
            $(let _ = $ignored;)*
            // SAFETY: the caller's promise.
            unsafe { KMEM.free(at.cast()) }
        }
    )*};
}

pub(crate) use frees;

frees! {
    free();
    cfree();
    __libc_free();
    free_sized(_size);
    free_aligned_sized(_align, _size);
}

/// # Safety
/// `at` is null or a live allocation.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { KMEM.usable_size(at.cast()) }
}

#[unsafe(no_mangle)]
extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(KMEM.trim() > 0)
}

/// Parameters that glibc documents; they are accepted and mean nothing here.
#[unsafe(no_mangle)]
extern "C" fn mallopt(param: c_int, value: c_int) -> c_int {
    // M_MXFAST to M_TOP_PAD and M_ARENA_MAX are 1, -1..=-4, -7, -8; M_CHECK_ACTION is -5 and
    // M_PERTURB -6. glibc refuses only an M_MXFAST it cannot have.
    match param {
        1 => c_int::from((0..=160).contains(&value)),
        -8..=-1 => 1,
        _ => 0,
    }
}

/// See mallinfo(3).
#[repr(C)]
pub(crate) struct Mallinfo<T> {
    arena: T,
    ordblks: T,
    smblks: T,
    hblks: T,
    hblkhd: T,
    usmblks: T,
    fsmblks: T,
    uordblks: T,
    fordblks: T,
    keepcost: T,
}

fn mallinfo_of<T>(convert: impl Fn(u64) -> T) -> Mallinfo<T> {
    let stats = KMEM.stats();
    Mallinfo {
        arena: convert(stats.used - stats.large.min(stats.used)),
        ordblks: convert(1),
        smblks: convert(0),
        hblks: convert(stats.large_blocks),
        hblkhd: convert(stats.large),
        usmblks: convert(0),
        fsmblks: convert(0),
        uordblks: convert(stats.tracked - stats.large.min(stats.tracked)),
        fordblks: convert(stats.used.saturating_sub(stats.tracked)),
        keepcost: convert(0),
    }
}

#[unsafe(no_mangle)]
extern "C" fn mallinfo() -> Mallinfo<c_int> {
    // The old interface wraps around at 2 GiB; a full counter is less misleading.
    mallinfo_of(|value| c_int::try_from(value).unwrap_or(c_int::MAX))
}

#[unsafe(no_mangle)]
extern "C" fn mallinfo2() -> Mallinfo<usize> {
    mallinfo_of(|value| value as usize)
}
