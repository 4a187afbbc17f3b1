//! The clock of the vDSO (`vdso(7)`): a function of the kernel that reads the time without a system
//! call, which a sandbox may forbid.
//!
//! The coarse clocks are words in memory that the kernel updates, so the function never falls back
//! to a system call.
//!
//! Context: any, signal handlers included.

use super::start;
use super::syscall::sys;
use crate::sync::{AtomicUsize, Ordering};

#[cfg(target_arch = "x86_64")]
const NAME: &[u8] = b"__vdso_clock_gettime\0";
#[cfg(target_arch = "aarch64")]
const NAME: &[u8] = b"__kernel_clock_gettime\0";

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
/// Bytes of a program header, a dynamic entry, and a symbol.
const HEADER: usize = 56;
const ENTRY: usize = 16;
const SYMBOL: usize = 24;

/// Address of the vDSO's function: 0 before it was looked for.
pub(super) struct ClockFunction(AtomicUsize);

/// Value of a [`ClockFunction`] where there is none.
const NONE: usize = 1;

type GetTime = unsafe extern "C" fn(i32, *mut libc::timespec) -> i32;

impl ClockFunction {
    pub(super) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Reads a coarse clock.
    pub(super) fn read(&self, clock: i32) -> libc::timespec {
        let mut at = self.0.load(Ordering::Relaxed);
        if at == 0 {
            at = find().unwrap_or(NONE);
            self.0.store(at, Ordering::Relaxed);
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel or its function fills `time`. An address that is not NONE is that of
        // the function, which stays mapped.
        unsafe {
            if at == NONE {
                sys!(libc::SYS_clock_gettime, clock, &raw mut time);
            } else {
                core::mem::transmute::<usize, GetTime>(at)(clock, &raw mut time);
            }
        }
        time
    }
}

/// Finds the function.
fn find() -> Option<usize> {
    let base = start::auxiliary(libc::AT_SYSINFO_EHDR).filter(|&base| base != 0)?;
    // The headers are in the first page.
    let headers = image(base, 4096);
    let size = segments(headers).find(|segment| segment.kind == PT_LOAD)?.bytes;
    Some(base.wrapping_add(symbol(image(base, size))?))
}

/// The first bytes of the vDSO.
fn image(base: usize, bytes: usize) -> &'static [u8] {
    // SAFETY: the kernel maps the vDSO at this address for the life of the process. It has a page
    // at least, and the size that its headers say. Nothing writes to it.
    unsafe { core::slice::from_raw_parts(base as *const u8, bytes) }
}

/// A program header.
struct Segment {
    kind: u32,
    at: usize,
    bytes: usize,
}

/// The program headers of an ELF file.
fn segments(file: &[u8]) -> impl Iterator<Item = Segment> {
    let first = word(file, 32).unwrap_or(0) as usize;
    let count = half(file, 56).unwrap_or(0);
    (0..usize::from(count)).filter_map(move |n| {
        let at = first.checked_add(n * HEADER)?;
        let kind = word(file, at)? as u32;
        Some(Segment {
            kind,
            at: word(file, at + 16)? as usize,
            bytes: word(file, at + 40)? as usize,
        })
    })
}

/// Address of the function in the vDSO, from its begin.
fn symbol(file: &[u8]) -> Option<usize> {
    let dynamic = segments(file).find(|segment| segment.kind == PT_DYNAMIC)?;
    let value = |tag| {
        (0..dynamic.bytes / ENTRY).find_map(|n| {
            let at = dynamic.at + n * ENTRY;
            (word(file, at)? == tag).then(|| word(file, at + 8))?
        })
    };
    let (symbols, names) = (value(DT_SYMTAB)? as usize, value(DT_STRTAB)? as usize);
    // The names follow the symbols.
    (0..names.checked_sub(symbols)? / SYMBOL).find_map(|n| {
        let at = symbols + n * SYMBOL;
        let name = names.checked_add(word(file, at)? as u32 as usize)?;
        let section = half(file, at + 6)?;
        let found = section != 0 && file.get(name..)?.starts_with(NAME);
        found.then(|| word(file, at + 8))?.map(|value| value as usize)
    })
}

fn word(file: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(file.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn half(file: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(file.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_of_the_vdso_is_that_of_the_kernel() {
        let clock = ClockFunction::new();
        let read = || clock.read(libc::CLOCK_MONOTONIC_COARSE);
        let mut kernel = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let before = read();
        // SAFETY: the kernel fills `kernel`.
        unsafe { sys!(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC_COARSE, &raw mut kernel) };
        let after = read();
        let ns = |time: libc::timespec| {
            i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
        };
        assert!((ns(before)..=ns(after)).contains(&ns(kernel)));
        assert!(clock.0.load(Ordering::Relaxed) > NONE, "the kernel has a vDSO");
    }

    #[test]
    fn a_damaged_image_has_no_function() {
        assert_eq!(symbol(&[0; 64]), None);
        assert_eq!(symbol(&[0xff; 4096]), None);
        assert_eq!(symbol(&[]), None);
    }
}
