//! A shared file, for data that must outlive the process.

use core::ffi::CStr;
use core::ptr::NonNull;

use super::super::{File, Shape, SharedFile};
use super::descriptor::{Descriptor, Lock};
use super::memory::{PROT_RW, limit, mapped};
use super::path::{Path, process};
use super::syscall::sys;
use super::{owner, sigbus, start};
use crate::sync::Ordering;

/// Attempts to put a file in its place while other programs do so, too.
const ATTEMPTS: u32 = 16;
const RENAME_NOREPLACE: u32 = 1;

/// See [`crate::os::Process::make_file`].
///
/// The file is made beside its place and then renamed. So no program ever finds a part of it, and a
/// file that another program writes to keeps its contents. The mapping keeps the lock on the file
/// until the process ends. The part for direct accesses has a mapping of its own.
pub(super) fn make(
    pattern: &[u8],
    Shape { bytes, direct }: Shape,
    head: &[u8],
    decide: impl Fn(&[u8], u64) -> File,
    made: &'static SharedFile,
) -> Result<(), &'static str> {
    let path = Path::expand(pattern).ok_or("the path is too long, or has an unknown % in it")?;
    let beside = path.beside().ok_or("the path is too long")?;
    if bytes > limit(libc::RLIMIT_FSIZE) {
        return Err("the limit for the size of files is below what it takes");
    }
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_RDWR | libc::O_NOFOLLOW;
    let file = Descriptor::open(beside.name(), flags)
        .map_err(|_| "no file can be made in the directory")?;
    let at = place(&file, bytes, head, &beside, &path, decide);
    match at {
        Ok(at) => {
            if direct < bytes {
                map_direct(&file, &path, direct, bytes - direct, made)?;
            }
            made.bytes.store(bytes, Ordering::Relaxed);
            // INVARIANT: the mapping of that length is new, and never unmapped.
            made.at.store(at.as_ptr() as usize, Ordering::Release);
            Ok(())
        }
        Err(why) => {
            unlink(beside.name());
            Err(why)
        }
    }
}

/// Maps the part of `file` from `offset` on for direct accesses. The path is that of the file.
///
/// A forked child keeps this mapping, since it may go on with a call that the fork interrupted. So
/// the mapping is made by a descriptor of its own, which does not hold the lock.
fn map_direct(
    file: &Descriptor,
    path: &Path,
    offset: usize,
    bytes: usize,
    made: &'static SharedFile,
) -> Result<(), &'static str> {
    let inode = |file: &Descriptor| file.status().map(|status| (status.st_dev, status.st_ino));
    let again = Descriptor::open(path.name(), OLDER).map_err(|_| "the file cannot be opened")?;
    if inode(file) != inode(&again) {
        return Err("another program has taken the path");
    }
    let at = map(&again, offset, bytes, libc::MADV_NORMAL).ok_or("the file cannot be mapped");
    at.and_then(|at| {
        made.direct_bytes.store(bytes, Ordering::Relaxed);
        // INVARIANT: the mapping is new, and never unmapped. No access comes before the guard.
        made.direct.store(at.as_ptr() as usize, Ordering::Release);
        sigbus::guard(made)
    })
    .inspect_err(|_| unlink(path.name()))
}

/// See [`crate::os::Process::write_file`].
///
/// The kernel copies the bytes into the mapping. Where the file was cut off, or the disk is full,
/// it returns an error. A store would raise SIGBUS instead. A descriptor would do, too. But
/// programs close descriptors that they do not know, and its number may then be that of another
/// file.
pub(super) fn write(file: &SharedFile, offset: usize, bytes: &[u8]) -> bool {
    copy(file, offset, bytes.as_ptr() as usize, bytes.len())
}

/// See [`crate::os::Process::copy_to_file`].
pub(super) fn copy(file: &SharedFile, offset: usize, from: usize, len: usize) -> bool {
    let Some(at) = place_of(file, offset, len) else { return false };
    let iovec = |at: usize| libc::iovec { iov_base: at as *mut _, iov_len: len };
    let (to, from) = (iovec(at), iovec(from));
    let (to, from) = (&raw const to, &raw const from);
    // SAFETY: the kernel reads memory that may not be there, and writes within the mapping, to
    // which there is no reference, by the invariant.
    let written = unsafe { sys!(libc::SYS_process_vm_readv, process(), to, 1, from, 1, 0) };
    written == len as isize
}

/// [`write`] by stores, in a sandbox. There a file that was cut off ends the program.
pub(super) fn store(file: &SharedFile, offset: usize, bytes: &[u8]) -> bool {
    let Some(at) = place_of(file, offset, bytes.len()) else { return false };
    // SAFETY: within the mapping, to which there is no reference, by the invariant.
    unsafe { (at as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    true
}

/// Address in the mapping where bytes at an offset go. `None`: there is no file, or it has no room.
fn place_of(file: &SharedFile, offset: usize, len: usize) -> Option<usize> {
    let (at, bytes) = (file.at.load(Ordering::Acquire), file.bytes.load(Ordering::Relaxed));
    let fits = offset.checked_add(len).is_some_and(|end| end <= bytes);
    (at != 0 && fits).then_some(at + offset)
}

/// Fills the new file `file`, which is called `beside`, maps it, and renames it to `path`.
fn place(
    file: &Descriptor,
    bytes: usize,
    head: &[u8],
    beside: &Path,
    path: &Path,
    decide: impl Fn(&[u8], u64) -> File,
) -> Result<NonNull<u8>, &'static str> {
    // SAFETY: the kernel reads `head`; this function's caller made the file.
    let is_filled = unsafe {
        sys!(libc::SYS_ftruncate, file.0, bytes) == 0
            && sys!(libc::SYS_pwrite64, file.0, head.as_ptr(), head.len(), 0) == head.len() as isize
    };
    if !is_filled {
        return Err("there is no room for the file");
    }
    // Without locks, only the process in the head tells whether the file is in use.
    let _ = file.lock();
    let user = file.status().ok_or("the file cannot be examined")?.st_uid;
    for _ in 0..ATTEMPTS {
        // The older file stays locked until it is replaced: two programs do not replace it both.
        let older = match Descriptor::open(path.name(), OLDER) {
            Ok(older) => match examine(&older, user, &decide) {
                Ok(()) => Some(older),
                Err(Refusal::Renamed) => continue,
                Err(Refusal::Because(why)) => return Err(why),
            },
            Err(errno) if errno == -(libc::ENOENT as isize) => None,
            Err(errno) if errno == -(libc::ELOOP as isize) => {
                return Err("there is a symbolic link already");
            }
            Err(_) => return Err("there is a file already, which cannot be opened"),
        };
        match rename(beside.name(), path.name(), older.is_some()) {
            0 => {}
            errno if errno == -(libc::EEXIST as isize) => continue,
            _ => return Err("the file cannot be given its name"),
        }
        // A child that held the mapping would hold the lock, too.
        return map(file, 0, bytes, libc::MADV_DONTFORK).ok_or_else(|| {
            unlink(path.name());
            "the file cannot be mapped"
        });
    }
    Err("other programs make the same file all the time (use %p)")
}

/// Maps `bytes` bytes of a file, shared with it, and gives the kernel advice about the mapping.
fn map(file: &Descriptor, offset: usize, bytes: usize, advice: i32) -> Option<NonNull<u8>> {
    // SAFETY: a new mapping, at an address of the kernel's choice.
    mapped(unsafe {
        let at = sys!(libc::SYS_mmap, 0, bytes, PROT_RW, libc::MAP_SHARED, file.0, offset);
        sys!(libc::SYS_madvise, at, bytes, advice);
        at
    })
}

/// Flags to open a file that is there already. The kernel follows no link, and waits for no FIFO.
const OLDER: i32 = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;

/// The reason to leave an older file.
enum Refusal {
    /// It has no name any more: another program has replaced it.
    Renamed,
    Because(&'static str),
}

/// Locks an older file, and checks that it may be replaced. Another user who can write to the
/// directory, or to the file, must not choose what happens here.
fn examine(
    older: &Descriptor,
    user: u32,
    decide: impl Fn(&[u8], u64) -> File,
) -> Result<(), Refusal> {
    let lock = older.lock();
    let status = older.status().ok_or(Refusal::Because("the file there cannot be examined"))?;
    let is_regular = status.st_mode & libc::S_IFMT == libc::S_IFREG;
    for (wrong, why) in [
        (!is_regular, "there is a file of another kind already"),
        (status.st_uid != user, "there is a file of another user already"),
        (status.st_mode & 0o022 != 0, "there is a file already that other users may write to"),
        (status.st_nlink > 1, "there is a file with several names already"),
    ] {
        if wrong {
            return Err(Refusal::Because(why));
        }
    }
    if status.st_nlink == 0 {
        return Err(Refusal::Renamed);
    }
    let in_use = "the file belongs to a process that is still there (use %p)";
    if lock == Lock::Held {
        return Err(Refusal::Because(in_use));
    }
    let mut first = [0; 64];
    let len = older.read(&mut first);
    match decide(&first[..len], status.st_size as u64) {
        File::Keep => Err(Refusal::Because("there is a file of another kind already")),
        // The file of this process is that of the program before, which has become this one.
        File::Replace { unless_alive: Some(by) } if by != owner::this() && owner::is_alive(&by) => {
            Err(Refusal::Because(in_use))
        }
        File::Replace { .. } => Ok(()),
    }
}

/// Renames a file. Returns 0 or the negated errno. Without `replace` it fails with `EEXIST` if
/// there is a file of the new name.
fn rename(from: &CStr, to: &CStr, replace: bool) -> isize {
    let at = libc::AT_FDCWD;
    let call = |flags: u32| {
        // SAFETY: the paths end with a NUL; the caller made the file, or may replace it.
        unsafe { sys!(libc::SYS_renameat2, at, from.as_ptr(), at, to.as_ptr(), flags) }
    };
    let result = call(if replace { 0 } else { RENAME_NOREPLACE });
    // A file system without that flag lets the last of several programs win.
    if result == -(libc::EINVAL as isize) { call(0) } else { result }
}

fn unlink(path: &CStr) {
    // SAFETY: the path ends with a NUL; the caller made the file.
    unsafe { sys!(libc::SYS_unlinkat, libc::AT_FDCWD, path.as_ptr(), 0) };
}

/// See [`crate::os::Process::mappings`].
pub(super) fn mappings(buf: &mut [u8]) -> usize {
    start::read_file(c"/proc/self/maps", buf)
}
