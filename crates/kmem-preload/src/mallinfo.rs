//! glibc's functions beside allocation: `mallinfo`, `mallopt`, `malloc_trim`, `malloc_usable_size`.

use core::ffi::{c_int, c_void};

use crate::KMEM;
use crate::preemption::program_has_malloc;

/// Returns 0 for memory of a program with its own `malloc`, whose size kmem does not know.
///
/// # Safety
/// `at` is null or a live allocation.
#[unsafe(no_mangle)]
unsafe extern "C" fn malloc_usable_size(at: *mut c_void) -> usize {
    if program_has_malloc() && !KMEM.owns(at.cast()) {
        return 0;
    }
    // SAFETY: the same contract.
    unsafe { KMEM.usable_size(at.cast()) }
}

/// Gives unused memory back to the kernel. Returns 1 if there was any, else 0.
#[unsafe(no_mangle)]
extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(KMEM.trim() > 0)
}

/// Accepts the parameters that glibc documents, without any effect. Returns 1; 0 for an unknown
/// parameter, or an M_MXFAST that is too large.
#[unsafe(no_mangle)]
extern "C" fn mallopt(param: c_int, value: c_int) -> c_int {
    // M_MXFAST is 1; M_TRIM_THRESHOLD down to M_ARENA_MAX are -1 to -8.
    match param {
        1 => c_int::from((0..=160).contains(&value)),
        -8..=-1 => 1,
        _ => 0,
    }
}

/// `struct mallinfo` (`c_int`) or `struct mallinfo2` (`usize`), see `mallinfo(3)`.
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
    // glibc's values wrap around at 2 GiB; the largest value is less misleading.
    mallinfo_of(|value| c_int::try_from(value).unwrap_or(c_int::MAX))
}

#[unsafe(no_mangle)]
extern "C" fn mallinfo2() -> Mallinfo<usize> {
    mallinfo_of(|value| value as usize)
}
