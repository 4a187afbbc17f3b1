//! Files of the system, by descriptors that live for one call of this library.
//!
//! Context: any, signal handlers included.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use super::memory::limit;
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

    /// Makes a file of `bytes` zeroes in memory. `None`: there can be none. The kernel ends
    /// programs that make a file longer than their limit.
    pub(super) fn in_memory(name: &CStr, bytes: usize) -> Option<Self> {
        if bytes > limit(libc::RLIMIT_FSIZE) {
            return None;
        }
        // SAFETY: the name ends with a NUL; the descriptor is new.
        unsafe {
            let fd = sys!(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC);
            // INVARIANT: `memfd_create` just returned the descriptor.
            let file = (fd >= 0).then(|| Self(fd))?;
            (sys!(libc::SYS_ftruncate, file.0, bytes) == 0).then_some(file)
        }
    }

    /// Reads the next bytes into `buf`, in one call of the kernel. Returns their number; 0 at the
    /// end of the file, and on failure.
    pub(super) fn read(&self, buf: &mut [u8]) -> usize {
        // SAFETY: the kernel writes only into `buf`.
        let got = unsafe { sys!(libc::SYS_read, self.0, buf.as_mut_ptr(), buf.len()) };
        usize::try_from(got).unwrap_or(0)
    }

    /// Fills `buf` with the bytes at an offset. False: the file is shorter, or cannot be read.
    pub(super) fn read_at(&self, mut offset: usize, mut buf: &mut [u8]) -> bool {
        while !buf.is_empty() {
            let (at, len) = (buf.as_mut_ptr(), buf.len());
            // SAFETY: the kernel writes only into `buf`.
            let got = unsafe { sys!(libc::SYS_pread64, self.0, at, len, offset) };
            match usize::try_from(got) {
                Ok(0) => return false,
                Ok(got) => (offset, buf) = (offset + got, &mut buf[got..]),
                Err(_) if got == -(libc::EINTR as isize) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Status of the file; `None` on failure.
    pub(super) fn status(&self) -> Option<libc::stat> {
        let mut status = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: the kernel writes one `stat`, of which all bytes are initialised before.
        unsafe {
            let done = sys!(libc::SYS_fstat, self.0, status.as_mut_ptr()) == 0;
            done.then(|| status.assume_init())
        }
    }

    /// Locks the file for this open file description, without waiting. The lock ends when the
    /// descriptor and all mappings that were made by it are gone.
    pub(super) fn lock(&self) -> Lock {
        let (l_type, l_whence) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16);
        // A length of 0 means up to the end of the file.
        let lock = libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 };
        // SAFETY: the kernel reads one `flock`.
        match unsafe { sys!(libc::SYS_fcntl, self.0, libc::F_OFD_SETLK, &raw const lock) } {
            0 => Lock::Taken,
            held if held == -(libc::EAGAIN as isize) => Lock::Held,
            _ => Lock::Unsupported,
        }
    }
}

/// Result of [`Descriptor::lock`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lock {
    /// The caller has the lock.
    Taken,
    /// Another process has it, or another descriptor of this one.
    Held,
    /// The file system, or the kernel, has no such locks.
    Unsupported,
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: nothing else uses the descriptor, by the invariant.
        unsafe { sys!(libc::SYS_close, self.0) };
    }
}
