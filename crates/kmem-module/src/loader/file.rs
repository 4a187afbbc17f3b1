//! The file of a request: checks its descriptor, and gets its identity and path.

use std::io::Write as _;
use std::os::fd::{BorrowedFd, RawFd};

use crate::describe;
use crate::error::{Errno, Error, Result};
use crate::name::Name;
use crate::registry::FileId;

/// Checks that a descriptor is that of a file that can be loaded, and returns the file's identity.
///
/// # Errors
/// `EBADF`, `EINVAL`, `EFBIG` or `ETXTBSY`, with the reason.
pub(super) fn open<'a>(fd: RawFd) -> Result<(BorrowedFd<'a>, FileId)> {
    let bad =
        |errno, what: &str| Err(Error::new(errno, format_args!("file descriptor {fd}: {what}")));
    // SAFETY: F_GETFL takes no pointer.
    let mode = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if mode < 0 || mode & libc::O_PATH != 0 || mode & libc::O_ACCMODE == libc::O_WRONLY {
        return bad(Errno::EBADF, "not open for reading");
    }
    // SAFETY: all zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid for writing.
    if unsafe { libc::fstat(fd, &raw mut stat) } != 0 {
        return bad(Errno::EBADF, "cannot be looked at");
    }
    if stat.st_mode & libc::S_IFMT != libc::S_IFREG {
        return bad(Errno::EINVAL, "not a regular file");
    }
    if mode & libc::O_ACCMODE == libc::O_RDWR {
        return bad(Errno::ETXTBSY, "open for writing");
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if size == 0 {
        return bad(Errno::EINVAL, "empty");
    }
    if let Err(error) = describe::check_length(size) {
        return bad(error.errno, &error.what);
    }
    let id = FileId {
        file: (stat.st_dev, stat.st_ino),
        size,
        mtime: (stat.st_mtime, stat.st_mtime_nsec),
        ctime: (stat.st_ctime, stat.st_ctime_nsec),
    };
    // SAFETY: the caller keeps it open. If the caller closes it, reads fail or return bytes of
    // another file, and all bytes are checked.
    Ok((unsafe { BorrowedFd::borrow_raw(fd) }, id))
}

/// The name of a module by the path of its open file.
pub(super) fn name(fd: RawFd) -> Option<Name> {
    let mut link = [0; 32];
    write!(&mut link[..], "/proc/self/fd/{fd}\0").ok()?;
    let mut path = [0_u8; libc::PATH_MAX as usize];
    // SAFETY: `link` is a C string, and `path` is valid for writing its length.
    let len = unsafe { libc::readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), path.len()) };
    Name::of_path(path.get(..usize::try_from(len).ok()?)?).ok()
}
