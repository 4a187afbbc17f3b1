//! `errno`, the one thing of the C library that the malloc family must touch.

/// Sets `errno` to `ENOMEM` and returns null, for the end of a failed allocation.
#[cold]
#[inline(never)]
pub(crate) fn no_memory() -> *mut u8 {
    set(libc::ENOMEM);
    core::ptr::null_mut()
}

/// Sets `errno`.
pub(crate) fn set(value: i32) {
    // SAFETY: the C library's errno of this thread.
    unsafe { *libc::__errno_location() = value };
}

/// What `errno` is.
pub(crate) fn get() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}
