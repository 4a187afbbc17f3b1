//! Paths that are put together without memory, and names of the process and its host.

use core::ffi::CStr;

use super::syscall::sys;

/// Longest path, in bytes with its NUL.
const MAX_PATH: usize = 1024;

/// A path under construction. Bytes from `len` on are zero.
pub(super) struct Path {
    bytes: [u8; MAX_PATH],
    len: usize,
}

impl Path {
    /// An empty path.
    pub(super) const fn new() -> Self {
        Self { bytes: [0; MAX_PATH], len: 0 }
    }

    /// The path.
    pub(super) fn name(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }

    /// The path of a file in the same directory, with a name that no other process chooses. `None`:
    /// too long.
    pub(super) fn beside(&self) -> Option<Self> {
        let path = &self.bytes[..self.len];
        let name = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let mut beside = Self::new();
        let done = beside.add(&path[..name])
            && beside.add(b".kmem-")
            && beside.add_number(process().into())
            && beside.add(b"-")
            && beside.add_number(wall_ns());
        done.then_some(beside)
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

    /// Expands `%p` (process), `%h` (host), `%t` (seconds since 1970), `%n` (nanoseconds since
    /// 1970), `%e` (name of the executable) and `%%`. `None`: too long, or another `%`.
    pub(super) fn expand(pattern: &[u8]) -> Option<Self> {
        let mut path = Self::new();
        let mut rest = pattern.iter().copied();
        while let Some(byte) = rest.next() {
            let fits = match byte {
                b'%' => match rest.next() {
                    Some(b'p') => path.add_number(process().into()),
                    Some(b't') => path.add_number(wall_ns() / 1_000_000_000),
                    Some(b'n') => path.add_number(wall_ns()),
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
pub(super) fn wall_ns() -> u64 {
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
        let nanos = || std::string::String::from_utf8(expanded("%n").unwrap()).unwrap();
        assert!(nanos().parse::<u64>().unwrap() / 1_000_000_000 >= seconds);
    }

    #[test]
    fn a_bad_pattern_is_refused() {
        assert_eq!(expanded("%"), None);
        assert_eq!(expanded("%q"), None);
        assert_eq!(expanded("a\0b"), None);
        assert_eq!(expanded(&"x".repeat(MAX_PATH)), None);
    }
}
