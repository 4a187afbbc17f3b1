//! A shared file, for data that must outlive the process; and names of the process and its host.

use core::ffi::CStr;
use core::ptr::NonNull;

use super::super::File;
use super::descriptor::Descriptor;
use super::memory::{PROT_RW, limit, mapped};
use super::start;
use super::syscall::sys;

/// Longest path, in bytes with its NUL.
const MAX_PATH: usize = 1024;

/// A path under construction. Bytes from `len` on are zero.
pub(super) struct Path {
    bytes: [u8; MAX_PATH],
    len: usize,
}

impl Path {
    pub(super) const EMPTY: Self = Self { bytes: [0; MAX_PATH], len: 0 };

    /// The path up to its first NUL.
    pub(super) fn as_c_str(&self) -> &CStr {
        // The last byte is always zero.
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// Appends bytes. False: the path would be too long.
    pub(super) fn add(&mut self, bytes: &[u8]) -> bool {
        // The last byte stays zero: the path ends with a NUL.
        let fits = self.len + bytes.len() < MAX_PATH;
        if fits {
            self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
            self.len += bytes.len();
        }
        fits
    }

    /// Appends a number in decimal. False: the path would be too long.
    pub(super) fn add_number(&mut self, mut number: u64) -> bool {
        let mut digits = [0; 20];
        let mut at = digits.len();
        loop {
            at -= 1;
            digits[at] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return self.add(&digits[at..]);
            }
        }
    }

    /// Expands `%p` (process), `%h` (host), `%t` (seconds since 1970), `%e` (name of the
    /// executable) and `%%`. `None`: too long, or another `%`.
    fn expand(pattern: &[u8]) -> Option<Self> {
        let mut path = Self::EMPTY;
        let mut rest = pattern.iter().copied();
        while let Some(byte) = rest.next() {
            let fits = match byte {
                b'%' => match rest.next() {
                    Some(b'p') => path.add_number(process().into()),
                    Some(b't') => path.add_number(wall_ns() / 1_000_000_000),
                    Some(b'h') => path.add(host(&mut [0; 390])),
                    Some(b'e') => {
                        let mut exe = [0; MAX_PATH];
                        let len = executable(&mut exe);
                        let exe = &exe[..len];
                        let name = exe.rsplit(|&b| b == b'/').next().unwrap_or(exe);
                        path.add(name)
                    }
                    Some(b'%') => path.add(b"%"),
                    _ => false,
                },
                0 => false,
                other => path.add(&[other]),
            };
            if !fits {
                return None;
            }
        }
        Some(path)
    }
}

/// Number of the process.
pub(super) fn process() -> u32 {
    // SAFETY: the call only returns a number.
    unsafe { sys!(libc::SYS_getpid) as u32 }
}

/// Nanoseconds since 1970.
fn wall_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills `ts`.
    unsafe { sys!(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, &raw mut ts) };
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}

/// Writes the path of the executable into `buf`. Returns its length in bytes, 0 on failure.
pub(super) fn executable(buf: &mut [u8]) -> usize {
    let link = c"/proc/self/exe".as_ptr();
    // SAFETY: the kernel writes at most the given length into `buf`.
    let got =
        unsafe { sys!(libc::SYS_readlinkat, libc::AT_FDCWD, link, buf.as_mut_ptr(), buf.len()) };
    usize::try_from(got).unwrap_or(0)
}

/// Name of the machine.
fn host(buf: &mut [u8; 390]) -> &[u8] {
    const { assert!(size_of::<libc::utsname>() == 390) };
    // A `utsname` is six fields of 65 bytes; the second is the machine's name.
    // SAFETY: the kernel writes one `utsname`, whose size is asserted.
    unsafe { sys!(libc::SYS_uname, buf.as_mut_ptr()) };
    let name = &buf[65..130];
    &name[..name.iter().position(|&b| b == 0).unwrap_or(name.len())]
}

/// See [`crate::os::Process::map_file`].
pub(super) fn map(
    pattern: &[u8],
    bytes: usize,
    decide: impl Fn(&[u8]) -> File,
) -> Result<NonNull<u8>, &'static str> {
    let path = Path::expand(pattern).ok_or("the path is too long, or has an unknown % in it")?;
    let name = CStr::from_bytes_until_nul(&path.bytes).map_err(|_| "the path is too long")?;
    let flags = libc::O_CREAT | libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = Descriptor::open(name, flags).map_err(|_| "the file cannot be made")?;
    let mut first = [0u8; 64];
    // SAFETY: the kernel writes at most the given length into `first`.
    let got = unsafe { sys!(libc::SYS_pread64, file.0, first.as_mut_ptr(), first.len(), 0) };
    if got != 0 {
        let first = first.get(..usize::try_from(got).unwrap_or(0)).unwrap_or_default();
        match decide(first) {
            File::Keep => return Err("there is a file of another kind already"),
            File::Replace { unless_alive: pid } => {
                // SAFETY: signal 0 only asks whether the process exists.
                let alive = unsafe { sys!(libc::SYS_kill, pid, 0) } != -(libc::ESRCH as isize);
                if alive && pid != process() && pid != 0 {
                    return Err("the file belongs to a process that is still there (use %p)");
                }
            }
        }
    }
    if bytes > limit(libc::RLIMIT_FSIZE) {
        return Err("the limit for the size of files is below what it takes");
    }
    // Allocate all disk blocks now: a write to a mapped page for which the disk has no room kills
    // the program.
    // SAFETY: this function opened the descriptor.
    let ready = unsafe {
        sys!(libc::SYS_ftruncate, file.0, 0) == 0
            && sys!(libc::SYS_fallocate, file.0, 0, 0, bytes) == 0
    };
    if !ready {
        return Err("there is no room for the file");
    }
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let at = unsafe { sys!(libc::SYS_mmap, 0, bytes, PROT_RW, libc::MAP_SHARED, file.0, 0) };
    mapped(at).ok_or("the file cannot be mapped")
}

/// See [`crate::os::Process::mappings`].
pub(super) fn mappings(buf: &mut [u8]) -> usize {
    start::read_file(c"/proc/self/maps", buf)
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;
    use std::vec::Vec;

    fn expanded(pattern: &str) -> Option<Vec<u8>> {
        Path::expand(pattern.as_bytes()).map(|path| path.bytes[..path.len].to_vec())
    }

    #[test]
    fn a_pattern_names_process_host_time_and_executable() {
        let pid = std::process::id().to_string();
        assert_eq!(expanded("/x/%p.box%%"), Some(std::format!("/x/{pid}.box%").into_bytes()));
        let exe = std::env::current_exe().unwrap();
        let name = exe.file_name().unwrap().as_encoded_bytes().to_vec();
        assert_eq!(expanded("%e"), Some(name));
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert_eq!(expanded("%h"), Some(host.trim().as_bytes().to_vec()));
        let seconds: u64 = std::str::from_utf8(&expanded("%t").unwrap()).unwrap().parse().unwrap();
        assert!(seconds > 1_600_000_000);
    }

    #[test]
    fn a_bad_pattern_is_refused() {
        assert_eq!(expanded("%"), None);
        assert_eq!(expanded("%q"), None);
        assert_eq!(expanded("a\0b"), None);
        assert_eq!(expanded(&"x".repeat(MAX_PATH)), None);
    }
}
