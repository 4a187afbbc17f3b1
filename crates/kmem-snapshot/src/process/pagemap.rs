//! `/proc/PID/pagemap`: which pages are in memory.
//!
//! Asked by the `PAGEMAP_SCAN` call where the kernel has it (Linux 6.7): it skips holes, and
//! leaves out the shared zero page, which is mapped where memory was read but never written
//! and which the kernel does not count as resident. Else the entries are read one by one.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const PAGE: u64 = 4096;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// In memory.
    Present,
    /// In swap.
    Swapped,
}

impl PageState {
    /// Bit of a page map entry.
    fn entry_bit(self) -> u64 {
        match self {
            Self::Present => 1 << 63,
            Self::Swapped => 1 << 62,
        }
    }

    /// `PAGE_IS_PRESENT`, `PAGE_IS_SWAPPED`.
    fn category(self) -> u64 {
        match self {
            Self::Present => 1 << 3,
            Self::Swapped => 1 << 4,
        }
    }
}

/// `PAGE_IS_PFNZERO`.
const CATEGORY_ZERO_PAGE: u64 = 1 << 5;

/// `struct pm_scan_arg` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<ScanArg>() == 96 && size_of::<Region>() == 24);

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

/// The page map of a process.
#[derive(Debug)]
pub struct PageMap {
    file: File,
}

impl PageMap {
    pub(super) fn open(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        Some(Self { file })
    }

    /// Calls `each` with the address ranges, in pages that overlap `len` bytes at `addr`, that
    /// are in the state asked for. Returns `None` when the page map cannot be read.
    pub fn regions(
        &self,
        addr: u64,
        len: u64,
        state: PageState,
        mut each: impl FnMut(Range<u64>),
    ) -> Option<()> {
        let start = addr / PAGE * PAGE;
        let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        match self.scan(start, end, state, &mut each) {
            Ok(()) => Some(()),
            Err(_) => self.entries(start, end, state, &mut each),
        }
    }

    /// By `PAGEMAP_SCAN`. Fails before the first call of `each` or not at all.
    fn scan(
        &self,
        start: u64,
        end: u64,
        state: PageState,
        each: &mut impl FnMut(Range<u64>),
    ) -> io::Result<()> {
        let mut regions = [Region::default(); 512];
        let mut at = start;
        while at < end {
            let mut arg = ScanArg {
                size: size_of::<ScanArg>() as u64,
                start: at,
                end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                category_inverted: CATEGORY_ZERO_PAGE,
                category_mask: state.category() | CATEGORY_ZERO_PAGE,
                return_mask: state.category(),
                ..ScanArg::default()
            };
            // SAFETY:
            // - `arg` is a `struct pm_scan_arg` of the size it states, borrowed mutably.
            // - `vec` and `vec_len` describe `regions`, which outlives the call; the kernel
            //   writes at most `vec_len` entries there.
            // - no flag that changes the process's memory is set.
            let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let found = match usize::try_from(found) {
                Ok(found) => found.min(regions.len()),
                Err(_) if at == start => return Err(io::Error::last_os_error()),
                // The process ended: what was found so far stands.
                Err(_) => return Ok(()),
            };
            for region in &regions[..found] {
                each(region.start..region.end);
            }
            if arg.walk_end <= at {
                break;
            }
            at = arg.walk_end;
        }
        Ok(())
    }

    /// By reading every entry.
    fn entries(
        &self,
        start: u64,
        end: u64,
        state: PageState,
        each: &mut impl FnMut(Range<u64>),
    ) -> Option<()> {
        const BATCH: u64 = 8192;
        let mut buffer = vec![0; BATCH as usize * 8];
        let mut at = start;
        while at < end {
            let want = ((end - at) / PAGE).min(BATCH) as usize * 8;
            let got = self.file.read_at(&mut buffer[..want], at / PAGE * 8).ok()?;
            if got < 8 {
                return None;
            }
            for entry in buffer[..got].chunks_exact(8) {
                let entry = u64::from_le_bytes(entry.try_into().ok()?);
                if entry & state.entry_bit() != 0 {
                    each(at..at + PAGE);
                }
                at += PAGE;
            }
        }
        Some(())
    }

    /// Bytes in memory of the pages that overlap `len` bytes at `addr`.
    #[must_use]
    pub fn resident(&self, addr: u64, len: u64) -> Option<u64> {
        let mut bytes = 0;
        self.regions(addr, len, PageState::Present, |r| bytes += r.end.saturating_sub(r.start))?;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_pages() {
        let map = PageMap::open(Path::new("/proc/self/pagemap")).unwrap();
        let touched = vec![1_u8; 64 << 10];
        let at = touched.as_ptr() as u64;
        assert!(map.resident(at, 64 << 10).unwrap() >= 64 << 10);
        assert_eq!(map.resident(0, 4096), Some(0));
        assert_eq!(map.resident(u64::MAX - 4096, 8192), None);
    }

    #[test]
    fn both_ways_agree_but_for_the_zero_page() {
        let map = PageMap::open(Path::new("/proc/self/pagemap")).unwrap();
        // Large enough to be a mapping of its own; one page in ten is touched.
        let mut memory = vec![0_u8; 8 << 20];
        let start = (memory.as_ptr() as u64).next_multiple_of(PAGE);
        for page in (0..1000).step_by(10) {
            memory[page * 4096 + 4096] = 1;
        }
        let pages = |scan: bool| {
            let mut found = Vec::new();
            let mut each = |r: Range<u64>| found.extend((r.start..r.end).step_by(PAGE as usize));
            let end = start + 1000 * PAGE;
            if scan {
                map.scan(start, end, PageState::Present, &mut each).map(|()| found)
            } else {
                map.entries(start, end, PageState::Present, &mut each);
                Ok(found)
            }
        };
        // The system may join pages or take some away between the two.
        let agree = |_| {
            let Ok(scanned) = pages(true) else { return true };
            scanned == pages(false).unwrap() && scanned.len() >= 100
        };
        assert!((0..10).any(agree));
    }
}
