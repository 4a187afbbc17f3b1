//! Access to `errno`, the only state of the C library that the malloc family must change.

/// Sets `errno` to `ENOMEM` and returns null: the result of a failed allocation.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn no_memory() -> *mut u8 {
    set(libc::ENOMEM);
    core::ptr::null_mut()
}

/// Sets `errno` from the result of a failed system call; returns -1.
#[cold]
pub(crate) extern "C" fn failed(result: isize) -> isize {
    set(-result as i32);
    -1
}

/// Sets `errno` of the calling thread.
pub(crate) fn set(value: i32) {
    // SAFETY: the address of the calling thread's `errno`, valid as long as the thread runs.
    unsafe { *libc::__errno_location() = value };
}

/// Returns `errno` of the calling thread.
pub(crate) fn get() -> i32 {
    // SAFETY: the address of the calling thread's `errno`, valid as long as the thread runs.
    unsafe { *libc::__errno_location() }
}
