//! Files of the system, by descriptors that live for one call of this library.
//!
//! Context: any, signal handlers included.

use core::ffi::CStr;

use super::syscall::sys;

/// A file descriptor that its drop closes.
///
/// # Invariants
/// Nothing else uses or closes the descriptor.
pub(super) struct Descriptor(pub(super) isize);

impl Descriptor {
    /// Opens a file. Programs that the process starts do not inherit it.
    ///
    /// # Errors
    /// The negated errno.
    pub(super) fn open(path: &CStr, flags: i32) -> Result<Self, isize> {
        let (at, flags) = (libc::AT_FDCWD, flags | libc::O_CLOEXEC);
        // SAFETY: the path ends with a NUL; the new descriptor harms no other.
        let fd = unsafe { sys!(libc::SYS_openat, at, path.as_ptr(), flags, 0o600) };
        // INVARIANT: `openat` just returned the descriptor.
        if fd < 0 { Err(fd) } else { Ok(Self(fd)) }
    }

    /// Reads the next bytes into `buf`, in one call of the kernel. Returns their number; 0 at the
    /// end of the file, and on failure.
    pub(super) fn read(&self, buf: &mut [u8]) -> usize {
        // SAFETY: the kernel writes only into `buf`.
        let got = unsafe { sys!(libc::SYS_read, self.0, buf.as_mut_ptr(), buf.len()) };
        usize::try_from(got).unwrap_or(0)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nothing else uses the descriptor, by the invariant.
        unsafe { sys!(libc::SYS_close, self.0) };
    }
}
