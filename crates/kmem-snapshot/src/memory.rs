//! The memory of a process: its bytes, and which of its pages are resident.
//!
//! This file and its tests hold all unsafe code of the crate.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::core_file::CoreMemory;
use crate::error::ReadError;
use crate::maps::{PAGE, Smaps, Span};
use crate::process::Process;

#[cfg(test)]
mod tests;

/// Most spans in one system call (`IOV_MAX`).
const MAX_SPANS: usize = 1024;
/// Longest name taken from a process or a file, in bytes.
pub const MAX_NAME: usize = 1024;

/// Memory of one process.
#[derive(Debug, Clone)]
pub enum Memory {
    /// Memory of a live process.
    Live(LiveMemory),
    /// Memory in a core file.
    Core(CoreMemory),
}

impl Memory {
    /// Copies `into.len()` bytes from `addr`.
    ///
    /// # Errors
    ///
    /// [`ReadError::Memory`] or [`ReadError::NotInCore`] when part of the range is absent; errors
    /// of access to the process or to the file.
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), ReadError> {
        match self {
            Self::Live(memory) => memory.read(addr, into),
            Self::Core(memory) => memory.read(addr, into),
        }
    }

    /// Copies spans into `into`, one after the other. Returns, for each, whether all of it could
    /// be read. An absent span does not stop the others.
    ///
    /// # Errors
    ///
    /// Fails when the process has ended, or the caller may not read it or its core file.
    ///
    /// # Panics
    ///
    /// When `into` is shorter than all spans together.
    pub fn read_spans(&self, spans: &[Span], into: &mut [u8]) -> Result<Vec<bool>, ReadError> {
        match self {
            Self::Live(memory) => memory.read_spans(spans, into),
            Self::Core(memory) => memory.read_spans(spans, into),
        }
    }
}

/// Memory of a live process, through `process_vm_readv` and `process_vm_writev`.
#[derive(Debug, Clone)]
pub struct LiveMemory {
    pid: u32,
}

impl Process {
    /// Access to the memory of the process.
    #[must_use]
    pub fn memory(&self) -> LiveMemory {
        LiveMemory { pid: self.pid() }
    }

    /// Opens the page map, where the caller may read it. `resident` is an address whose page is
    /// resident, as the page of an address just read is. A map that denies this hides its content.
    #[must_use]
    pub fn pagemap(&self, resident: u64) -> Option<PageMap> {
        let map = PageMap::open(&self.path("pagemap"))?;
        map.resident(resident, 1).filter(|&bytes| bytes != 0)?;
        Some(map)
    }
}

impl LiveMemory {
    /// Copies `into.len()` bytes from `addr`.
    ///
    /// # Errors
    ///
    /// [`ReadError::Memory`] when part of the range is not mapped; [`ReadError::NoProcess`];
    /// [`ReadError::Permission`].
    pub fn read(&self, addr: u64, into: &mut [u8]) -> Result<(), ReadError> {
        let span = Span { addr, len: into.len() };
        if self.read_spans(&[span], into)?[0] {
            Ok(())
        } else {
            Err(self.error(span, io::Error::from_raw_os_error(libc::EFAULT)))
        }
    }

    /// Copies spans into `into`, as [`Memory::read_spans`] does.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`]; [`ReadError::Permission`].
    ///
    /// # Panics
    ///
    /// When `into` is shorter than all spans together.
    pub fn read_spans(&self, spans: &[Span], into: &mut [u8]) -> Result<Vec<bool>, ReadError> {
        let mut whole = vec![false; spans.len()];
        let mut next = 0;
        let mut offset = 0;
        while next < spans.len() {
            let batch = &spans[next..spans.len().min(next + MAX_SPANS)];
            let total: usize = batch.iter().map(|s| s.len).sum();
            let copied = match read_batch(self.pid, batch, &mut into[offset..offset + total]) {
                Ok(copied) => copied,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => 0,
                Err(source) => return Err(self.error(batch[0], source)),
            };
            // Spans within the copied bytes are whole. The call stopped in the one after them.
            let mut done = 0;
            for span in batch {
                if done + span.len > copied {
                    break;
                }
                done += span.len;
                whole[next] = true;
                next += 1;
            }
            offset += done;
            if done < total {
                offset += spans[next].len;
                next += 1;
            }
        }
        Ok(whole)
    }

    /// Writes `bytes` at `addr`, in one system call when the kernel takes all of them.
    ///
    /// The kernel writes only to pages that the process itself may write.
    ///
    /// # Errors
    ///
    /// [`ReadError::Memory`] when part of the range is not mapped or not writable: the bytes
    /// before that part may have been written. [`ReadError::NoProcess`];
    /// [`ReadError::Permission`].
    pub fn write(&self, addr: u64, bytes: &[u8]) -> Result<(), ReadError> {
        let mut done = 0;
        while done < bytes.len() {
            let span = Span { addr: addr.wrapping_add(done as u64), len: bytes.len() - done };
            match write_at(self.pid, span.addr, &bytes[done..]) {
                Ok(0) => return Err(self.error(span, io::ErrorKind::WriteZero.into())),
                Ok(written) => done += written.min(span.len),
                Err(source) => return Err(self.error(span, source)),
            }
        }
        Ok(())
    }

    fn error(&self, span: Span, source: io::Error) -> ReadError {
        match source.raw_os_error() {
            Some(libc::ESRCH) => ReadError::NoProcess { pid: self.pid },
            Some(libc::EPERM) => ReadError::Permission { pid: self.pid, what: "memory".to_owned() },
            _ => ReadError::Memory { pid: self.pid, addr: span.addr, len: span.len, source },
        }
    }
}

/// Address of the list of robust futexes of a thread. The C library keeps it in the descriptor of
/// the thread. None for a thread without one, and where the caller may not know.
pub(crate) fn robust_list(tid: u32) -> Option<u64> {
    let (mut head, mut len) = (0_u64, 0_usize);
    // SAFETY:
    // - The kernel writes one pointer to `head` and one length to `len`, which outlive the call.
    // - The call changes nothing in the other process.
    let result = unsafe {
        libc::syscall(libc::SYS_get_robust_list, tid.cast_signed(), &raw mut head, &raw mut len)
    };
    (result == 0 && head != 0).then_some(head)
}

/// News of a traced thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// There is none.
    None,
    /// It stands still, and this signal is to be delivered when it goes on; 0: none.
    Stopped(i32),
    /// It has ended, or is not traced.
    Ended,
}

/// Asks for news of a thread that this thread traces, without waiting. A signal may be a real-time
/// one, for which `nix` has no type.
pub(crate) fn change_of_thread(tid: i32) -> Change {
    let mut status = 0;
    // SAFETY: the kernel writes one number to `status`, which outlives the call.
    let result = unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) };
    if result == 0 || result < 0 && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
    {
        Change::None
    } else if result < 0 || !libc::WIFSTOPPED(status) {
        Change::Ended
    } else if status >> 16 == 0 {
        Change::Stopped(libc::WSTOPSIG(status))
    } else {
        // A stop by the tracer, or of the whole process, with no signal to deliver.
        Change::Stopped(0)
    }
}

/// Lets a traced thread that stands still go on, and delivers a signal to it; 0: none. A thread
/// that was killed meanwhile is gone.
pub(crate) fn detach(tid: i32, signal: i32) {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel takes two numbers, an unused null pointer and a number, and writes nothing
    // to this process.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, none, libc::c_long::from(signal)) };
}

/// Copies spans in one system call. Returns the count of bytes copied; they end at the first span
/// that could not be read whole.
fn read_batch(pid: u32, spans: &[Span], into: &mut [u8]) -> io::Result<usize> {
    let total: usize = spans.iter().map(|s| s.len).sum();
    assert!(spans.len() <= MAX_SPANS);
    let remote: Vec<RemoteIoVec> =
        spans.iter().map(|s| RemoteIoVec { base: s.addr as usize, len: s.len }).collect();
    let mut local = [IoSliceMut::new(&mut into[..total])];
    Ok(process_vm_readv(Pid::from_raw(pid.cast_signed()), &mut local, &remote)?)
}

/// Writes to the process in one system call. Returns the count of bytes written.
fn write_at(pid: u32, addr: u64, bytes: &[u8]) -> io::Result<usize> {
    let remote = [RemoteIoVec { base: addr as usize, len: bytes.len() }];
    let pid = Pid::from_raw(pid.cast_signed());
    Ok(process_vm_writev(pid, &[IoSlice::new(bytes)], &remote)?)
}

/// Place of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageState {
    /// In memory.
    Present,
    /// In swap.
    Swapped,
}

impl PageState {
    /// True for an entry of `/proc/PID/pagemap` in that state, by its bits
    /// (`Documentation/admin-guide/mm/pagemap.rst`). The entry of a guard says that it is swapped.
    fn is_of(self, entry: u64) -> bool {
        const GUARD: u64 = 1 << 58;
        match self {
            Self::Present => entry & 1 << 63 != 0,
            Self::Swapped => entry & (1 << 62 | GUARD) == 1 << 62,
        }
    }

    /// Categories that pages in that state do not have. The kernel may not know the first ones.
    fn excluded(self) -> &'static [u64] {
        match self {
            Self::Present => &[CATEGORY_ZERO_PAGE],
            Self::Swapped => &[CATEGORY_ZERO_PAGE | CATEGORY_GUARD, CATEGORY_ZERO_PAGE],
        }
    }

    /// `PAGE_IS_PRESENT`, `PAGE_IS_SWAPPED` of `<linux/fs.h>`.
    fn category(self) -> u64 {
        match self {
            Self::Present => 1 << 3,
            Self::Swapped => 1 << 4,
        }
    }
}

/// `PAGE_IS_PFNZERO` of `<linux/fs.h>`.
const CATEGORY_ZERO_PAGE: u64 = 1 << 5;
/// `PAGE_IS_GUARD` of `<linux/fs.h>`, Linux 6.15.
const CATEGORY_GUARD: u64 = 1 << 8;
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

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

/// `/proc/PID/pagemap`: which pages of a live process are resident.
///
/// The `PAGEMAP_SCAN` call (Linux 6.7) skips holes. It also leaves out the shared zero page,
/// which the kernel maps where memory was read and never written, and does not count as resident.
/// On an older kernel the entries are read one by one.
#[derive(Debug)]
pub struct PageMap {
    file: File,
}

impl PageMap {
    fn open(path: &Path) -> Option<Self> {
        Some(Self { file: File::open(path).ok()? })
    }

    /// Calls `each` with the address ranges that are in `state`, among the pages that overlap
    /// `len` bytes at `addr`. Returns `None` when the page map cannot be read.
    pub fn regions(
        &self,
        addr: u64,
        len: u64,
        state: PageState,
        mut each: impl FnMut(Range<u64>),
    ) -> Option<()> {
        let start = addr / PAGE * PAGE;
        let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        let mut scan = |&without| self.scan((start, end), state, without, &mut each).is_ok();
        if state.excluded().iter().any(&mut scan) {
            return Some(());
        }
        self.entries(start, end, state, &mut each)
    }

    /// Finds regions without the categories `without` by `PAGEMAP_SCAN`. Fails before the first
    /// call of `each`, or not at all.
    fn scan(
        &self,
        (start, end): (u64, u64),
        state: PageState,
        without: u64,
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
                category_inverted: without,
                category_mask: state.category() | without,
                return_mask: state.category(),
                ..ScanArg::default()
            };
            // SAFETY:
            // - `arg` is a `struct pm_scan_arg` of the size it states, borrowed mutably.
            // - `vec` and `vec_len` describe `regions`, which outlives the call; the kernel
            //   writes at most `vec_len` entries there.
            // - `flags` is 0, so the call does not change the process's page tables.
            let found = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arg) };
            let found = match usize::try_from(found) {
                Ok(found) => found.min(regions.len()),
                Err(_) if at == start => return Err(io::Error::last_os_error()),
                // The process has ended. The regions found so far stand.
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

    /// Finds regions by reading every entry.
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
                if state.is_of(u64_at(entry, 0)) {
                    each(at..at + PAGE);
                }
                at += PAGE;
            }
        }
        Some(())
    }

    /// Counts the resident bytes of the pages that overlap `len` bytes at `addr`.
    #[must_use]
    pub fn resident(&self, addr: u64, len: u64) -> Option<u64> {
        let mut bytes = 0;
        self.regions(addr, len, PageState::Present, |r| bytes += r.end.saturating_sub(r.start))?;
        Some(bytes)
    }
}

/// Which pages of a process are resident.
#[derive(Debug)]
pub enum Pages {
    /// By the page map of a live process: exact.
    Live(PageMap),
    /// By the resident size of each mapping of a live process: an estimate.
    Likely(Smaps),
    /// By the parts of a core file that are not holes.
    Core(CoreMemory),
}

impl Pages {
    /// Calls `each` with the address ranges, among `len` bytes at `addr`, that are in `state`.
    /// Returns `None` when the state of these pages is unknown.
    pub fn regions(
        &self,
        addr: u64,
        len: u64,
        state: PageState,
        each: impl FnMut(Range<u64>),
    ) -> Option<()> {
        match self {
            Self::Live(map) => map.regions(addr, len, state, each),
            Self::Likely(smaps) => {
                (state == PageState::Present).then(|| smaps.likely(addr, len, each))
            }
            Self::Core(memory) => {
                // The kernel dumps swapped pages like present ones.
                if state == PageState::Present {
                    memory.present(addr, len, each);
                }
                Some(())
            }
        }
    }
}

impl Pages {
    /// Parts of `len` bytes of anonymous memory at `addr` that may hold anything but zeroes, in
    /// order. None when that is unknown.
    pub fn touched(&self, addr: u64, len: u64) -> Option<Vec<Range<u64>>> {
        let mut parts = Vec::new();
        let mut add = |part: Range<u64>| {
            parts.push(part.start.max(addr)..part.end.min(addr.saturating_add(len)));
        };
        match self {
            Self::Live(map) => {
                map.regions(addr, len, PageState::Present, &mut add)?;
                map.regions(addr, len, PageState::Swapped, &mut add)?;
            }
            Self::Likely(_) => return None,
            // Memory that is absent is an error of a read, and no zeroes.
            Self::Core(memory) => {
                memory.is_there(addr, len).then(|| memory.present(addr, len, &mut add))?;
            }
        }
        parts.retain(|part| part.start < part.end);
        parts.sort_by_key(|part| part.start);
        Some(parts)
    }
}

/// The little-endian `u16` at `offset` of copied bytes, or 0 past their end.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    let field = bytes.get(offset..).and_then(|b| b.first_chunk());
    field.map_or(0, |b| u16::from_le_bytes(*b))
}

/// The little-endian `u32` at `offset` of copied bytes, or 0 past their end.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let field = bytes.get(offset..).and_then(|b| b.first_chunk());
    field.map_or(0, |b| u32::from_le_bytes(*b))
}

/// The little-endian `u64` at `offset` of copied bytes, or 0 past their end.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let field = bytes.get(offset..).and_then(|b| b.first_chunk());
    field.map_or(0, |b| u64::from_le_bytes(*b))
}

/// Reads a field of a `repr(C)` record from copied bytes: `field!(bytes, Record.field: u32)`.
macro_rules! field {
    ($bytes:expr, $record:ident.$field:ident: u16) => {
        $crate::memory::u16_at($bytes, ::std::mem::offset_of!($record, $field))
    };
    ($bytes:expr, $record:ident.$field:ident: u32) => {
        $crate::memory::u32_at($bytes, ::std::mem::offset_of!($record, $field))
    };
    ($bytes:expr, $record:ident.$field:ident: u64) => {
        $crate::memory::u64_at($bytes, ::std::mem::offset_of!($record, $field))
    };
}
pub(crate) use field;

/// Decodes a name as UTF-8 and keeps its last [`MAX_NAME`] bytes. It may hold any character.
pub(crate) fn name(bytes: &[u8]) -> String {
    bounded(&String::from_utf8_lossy(bytes)).into_owned()
}

/// Cuts a name that is longer than [`MAX_NAME`] bytes: `...` and its end, which tells more of a
/// path than its beginning.
pub(crate) fn bounded(name: &str) -> Cow<'_, str> {
    if name.len() <= MAX_NAME {
        return Cow::Borrowed(name);
    }
    let mut start = name.len() - MAX_NAME;
    while !name.is_char_boundary(start) {
        start += 1;
    }
    Cow::Owned(format!("...{}", &name[start..]))
}
