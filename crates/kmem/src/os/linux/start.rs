//! What the process was started with: environment, thread pointer, rseq.
//!
//! The first allocation may come from the dynamic loader, before the C library has set up
//! itself. So symbols of the C library are weak and their addresses are tested.

use core::ffi::CStr;

use super::syscall::sys;
use crate::units::PAGE_SIZE;

core::arch::global_asm!(".weak environ", ".weak __rseq_offset", ".weak __rseq_size",);

/// Address of a weak symbol, null when it is not there (yet).
#[cfg(target_arch = "x86_64")]
macro_rules! weak {
    ($name:literal) => {{
        let at: usize;
        // SAFETY: reads one slot of the global offset table.
        unsafe {
            core::arch::asm!(
                concat!("mov {0}, [rip + ", $name, "@GOTPCREL]"),
                out(reg) at, options(nostack, pure, readonly, preserves_flags)
            );
        }
        at
    }};
}
/// Address of a weak symbol, null when it is not there (yet).
#[cfg(target_arch = "aarch64")]
macro_rules! weak {
    ($name:literal) => {{
        let at: usize;
        // SAFETY: reads one slot of the global offset table.
        unsafe {
            core::arch::asm!(
                concat!("adrp {0}, :got:", $name),
                concat!("ldr {0}, [{0}, :got_lo12:", $name, "]"),
                out(reg) at, options(nostack, pure, readonly, preserves_flags)
            );
        }
        at
    }};
}

/// The thread pointer.
#[inline]
pub fn thread_pointer() -> usize {
    let tp: usize;
    // SAFETY: reads the register that every thread of the C library has.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!("mov {}, fs:0", out(reg) tp, options(nostack, pure, readonly, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!("mrs {}, tpidr_el0", out(reg) tp, options(nostack, pure, nomem, preserves_flags));
    }
    tp
}

/// Offset of the rseq area from the thread pointer, when glibc (2.35 or later) registered it.
///
/// glibc reports a size of zero when it did not register, or was told not to
/// (`GLIBC_TUNABLES=glibc.pthread.rseq=0`).
#[cfg(target_arch = "x86_64")]
pub fn glibc_rseq_offset() -> Option<isize> {
    let (offset, size) =
        (weak!("__rseq_offset") as *const isize, weak!("__rseq_size") as *const u32);
    if offset.is_null() || size.is_null() {
        return None;
    }
    // SAFETY: both are objects of the C library, constant since before the first thread.
    let (offset, size) = unsafe { (*offset, *size) };
    if size == 0 {
        return None;
    }
    // A thread whose registration failed shows a negative cpu_id.
    let cpu_id = (thread_pointer() as isize + offset + 4) as *const i32;
    // SAFETY: inside the thread's rseq area, which glibc allocated.
    (unsafe { cpu_id.read_volatile() } >= 0).then_some(offset)
}

/// Critical sections are written for x86-64; elsewhere the lock is used.
#[cfg(not(target_arch = "x86_64"))]
pub fn glibc_rseq_offset() -> Option<isize> {
    None
}

/// Reads the beginning of a file into `buf`; the number of bytes, 0 for any failure.
/// Never blocks on a FIFO.
pub fn read_file(path: &CStr, buf: &mut [u8]) -> usize {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a NUL-terminated path.
    let fd = unsafe { sys!(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) };
    if fd < 0 {
        return 0;
    }
    let mut len = 0;
    while len < buf.len() {
        // SAFETY: writes only into the rest of `buf`.
        let got = unsafe { sys!(libc::SYS_read, fd, buf.as_mut_ptr().add(len), buf.len() - len) };
        if got <= 0 {
            break;
        }
        len += got as usize;
    }
    // SAFETY: our own descriptor, used no more.
    unsafe { sys!(libc::SYS_close, fd) };
    len
}

/// The highest number of a list like `0-3,8`, as the kernel writes them.
pub fn highest(list: &[u8]) -> Option<u32> {
    let numbers = list.split(|byte| !byte.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let number = |digits: &[u8]| {
        digits.iter().try_fold(0u32, |value, digit| {
            value.checked_mul(10)?.checked_add(u32::from(digit - b'0'))
        })
    };
    numbers.filter_map(number).max()
}

/// Copies memory of this process that may not be mapped; how many bytes could be read.
pub fn peek(at: usize, buf: &mut [u8]) -> usize {
    let local = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // A read that begins in one page and ends in a missing one is refused as a whole, so pages
    // are asked for one by one.
    let first = (PAGE_SIZE - at % PAGE_SIZE).min(buf.len());
    let iovec = |at: usize, len| libc::iovec { iov_base: at as *mut _, iov_len: len };
    let remote = [iovec(at, first), iovec(at.wrapping_add(first), buf.len() - first)];
    // SAFETY: writes at most the given length into `buf`; reads through the kernel.
    let got = unsafe {
        let pid = sys!(libc::SYS_getpid);
        sys!(libc::SYS_process_vm_readv, pid, &raw const local, 1, remote.as_ptr(), 2, 0)
    };
    usize::try_from(got).unwrap_or(0)
}

/// Whether the program runs with more rights than its user (set-user-ID and the like).
pub fn secure() -> bool {
    // SAFETY: these calls only return numbers.
    unsafe {
        sys!(libc::SYS_getuid) != sys!(libc::SYS_geteuid)
            || sys!(libc::SYS_getgid) != sys!(libc::SYS_getegid)
    }
}

/// Copies the value of environment variable `name` (given with its `=`) into `buf`;
/// its length, more than there is room for when it is too long. `None` when unset. Takes no lock of the C library.
pub fn environment(name: &[u8], buf: &mut [u8]) -> Option<usize> {
    let environ = weak!("environ") as *const *const *const u8;
    if environ.is_null() {
        return environment_from_proc(name, buf);
    }
    // SAFETY: an object of the C library; null until it is initialised.
    let list = unsafe { *environ };
    if list.is_null() {
        return environment_from_proc(name, buf);
    }
    let mut at = list;
    loop {
        // SAFETY: the list ends with a null pointer; its entries are C strings.
        let entry = unsafe { *at };
        if entry.is_null() {
            return None;
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(entry.cast()) }.to_bytes();
        if let Some(value) = text.strip_prefix(name) {
            if let Some(room) = buf.get_mut(..value.len()) {
                room.copy_from_slice(value);
            }
            return Some(value.len());
        }
        // SAFETY: not yet at the null that ends the list.
        at = unsafe { at.add(1) };
    }
}

/// The same from `/proc/self/environ`, for calls before the C library is set up.
fn environment_from_proc(name: &[u8], buf: &mut [u8]) -> Option<usize> {
    // SAFETY: a NUL-terminated path.
    let fd = unsafe {
        sys!(
            libc::SYS_openat,
            libc::AT_FDCWD,
            c"/proc/self/environ".as_ptr(),
            libc::O_RDONLY | libc::O_CLOEXEC,
            0
        )
    };
    if fd < 0 {
        return None;
    }
    let mut matched = 0; // bytes of `name` seen; usize::MAX: not this entry
    let mut value = 0;
    let mut result = None;
    let mut chunk = [0u8; 512];
    'read: loop {
        // SAFETY: writes only into `chunk`.
        let got = unsafe { sys!(libc::SYS_read, fd, chunk.as_mut_ptr(), chunk.len()) };
        if got <= 0 {
            break;
        }
        for &byte in &chunk[..got as usize] {
            if byte == 0 {
                if matched == name.len() {
                    result = Some(value);
                    break 'read;
                }
                (matched, value) = (0, 0);
            } else if matched == name.len() {
                let Some(slot) = buf.get_mut(value) else {
                    break 'read;
                };
                *slot = byte;
                value += 1;
            } else if matched != usize::MAX {
                matched = if byte == name[matched] { matched + 1 } else { usize::MAX };
            }
        }
    }
    // SAFETY: our own descriptor, used no more.
    unsafe { sys!(libc::SYS_close, fd) };
    result
}

#[cfg(test)]
mod tests {
    use super::highest;

    #[test]
    fn a_list_of_the_kernels_is_read_for_its_highest_number() {
        assert_eq!(highest(b"0\n"), Some(0));
        assert_eq!(highest(b"0-3,8,10-11\n"), Some(11));
        assert_eq!(highest(b""), None);
        assert_eq!(highest(b"99999999999999\n"), None);
    }
}
