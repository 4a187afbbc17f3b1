//! The platform as the loader uses it: memory of modules, buffers, files. Calls that can fail go
//! through [`Os`], so a test can make each of them fail. [`Account`] counts every byte that is
//! allocated.
//!
//! Memory of modules is an area of the allocator ([`Books::area_alloc`]), so that it is in the
//! books and a group pays for it. In a process without such an allocator the platform maps it.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::alloc::Shared;
use crate::error::{Error, Result};
use crate::tags::Books;

use kmem_core::StaticTag;

/// Bytes of a page, the unit of protection.
pub const PAGE: u64 = 4096;

/// Allowed accesses to a range of a module's memory. No range is both writable and executable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Data.
    ReadWrite,
    /// Read-only data.
    Read,
    /// Text.
    ReadExecute,
}

/// The platform.
pub trait Os: Send + Sync {
    /// Maps `len` bytes of zeroed memory, whole pages, readable and writable.
    ///
    /// # Errors
    /// Any error of the system.
    fn map(&self, len: usize) -> io::Result<NonNull<u8>>;

    /// Changes the allowed accesses to a range of pages.
    ///
    /// # Errors
    /// Any error of the system.
    ///
    /// # Safety
    /// The range is memory from [`Os::map`], or of an area from [`Books::area_alloc`]. No thread
    /// accesses it in a way that `to` forbids.
    unsafe fn protect(&self, at: NonNull<u8>, len: usize, to: Protection) -> io::Result<()>;

    /// Makes every CPU execute the bytes that were written to a range of memory.
    ///
    /// # Safety
    /// The range is readable memory.
    unsafe fn synchronise(&self, at: NonNull<u8>, len: usize) {
        // SAFETY: the same contract.
        unsafe { instruction_cache(at, len) };
    }

    /// Unmaps memory. A range that the system fails to unmap is leaked.
    ///
    /// # Safety
    /// The range is memory from [`Os::map`] that no thread uses any more.
    unsafe fn unmap(&self, at: NonNull<u8>, len: usize);

    /// Called before a buffer of `bytes` bytes is allocated.
    ///
    /// # Errors
    /// The allocation must fail.
    fn reserve(&self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    /// Reads from a file at `offset`, and returns the number of bytes: fewer than asked for at its
    /// end.
    ///
    /// # Errors
    /// Any error of the system.
    fn read_at(&self, file: BorrowedFd<'_>, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

/// Nothing to do: x86-64 keeps instruction caches coherent. No CPU prefetched the bytes, which were
/// not executable.
#[cfg(not(target_arch = "aarch64"))]
unsafe fn instruction_cache(_: NonNull<u8>, _: usize) {}

/// Cleans the data caches to the point of unification, and invalidates the instruction caches of
/// all CPUs. See the Arm Architecture Reference Manual, "Concurrent modification and execution of
/// instructions". The memory was not executable before, so no other CPU can have fetched older
/// instructions from it. The calling CPU is synchronised here.
///
/// # Safety
/// The range is readable.
#[cfg(target_arch = "aarch64")]
unsafe fn instruction_cache(at: NonNull<u8>, len: usize) {
    use std::arch::asm;

    let kind: usize;
    // SAFETY: reads the cache type register, which Linux allows programs to do.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) kind, options(nomem, nostack, preserves_flags)) };
    let start = at.as_ptr() as usize;
    let lines = |bytes: usize| (start & !(bytes - 1)..start + len).step_by(bytes);
    // Bit 28: the data caches need no cleaning. Bit 29: the instruction caches need no
    // invalidation.
    if kind & 1 << 28 == 0 {
        for line in lines(4 << (kind >> 16 & 0xf)) {
            // SAFETY: by the contract the line contains readable memory.
            unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    }
    // SAFETY: a barrier accesses no memory.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    if kind & 1 << 29 == 0 {
        for line in lines(4 << (kind & 0xf)) {
            // SAFETY: by the contract the line contains readable memory.
            unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // SAFETY: a barrier accesses no memory.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    }
    // SAFETY: a barrier accesses no memory.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Os for Linux {
    fn map(&self, len: usize) -> io::Result<NonNull<u8>> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping replaces none.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(at.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }

    unsafe fn protect(&self, at: NonNull<u8>, len: usize, to: Protection) -> io::Result<()> {
        let prot = match to {
            Protection::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            Protection::Read => libc::PROT_READ,
            Protection::ReadExecute => libc::PROT_READ | libc::PROT_EXEC,
        };
        // SAFETY: the same contract.
        check(unsafe { libc::mprotect(at.as_ptr().cast(), len, prot) })
    }

    unsafe fn unmap(&self, at: NonNull<u8>, len: usize) {
        // SAFETY: the same contract.
        unsafe { libc::munmap(at.as_ptr().cast(), len) };
    }

    fn read_at(&self, file: BorrowedFd<'_>, into: &mut [u8], offset: u64) -> io::Result<usize> {
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        loop {
            // SAFETY: `into` is writable for its length.
            let got = unsafe {
                libc::pread(file.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), offset)
            };
            match usize::try_from(got) {
                Ok(got) => return Ok(got),
                Err(_) => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
    }
}

/// Bytes that a loader holds, and the most so far.
#[derive(Debug, Default)]
pub struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Gauge {
    /// Bytes held.
    #[must_use]
    pub fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// The most bytes held at one time.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        let now = self.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn sub(&self, bytes: u64) {
        self.now.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Allocates for one request, and counts all bytes that it took from the platform, freed or not.
#[derive(Clone)]
pub struct Account {
    os: Arc<dyn Os>,
    gauge: Arc<Gauge>,
    spent: Shared<AtomicU64>,
    areas: Option<Areas>,
}

/// Areas of the allocator, billed to a tag.
#[derive(Clone)]
struct Areas {
    books: Arc<dyn Books>,
    tag: &'static StaticTag,
}

impl Account {
    /// Makes an account that also counts on a loader's gauge.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(os: Arc<dyn Os>, gauge: Arc<Gauge>) -> Result<Self> {
        Ok(Self { os, gauge, spent: Shared::new(AtomicU64::new(0))?, areas: None })
    }

    /// This account, whose mappings are areas of an allocator, billed to a tag.
    pub(crate) fn of_module(&self, books: Arc<dyn Books>, tag: &'static StaticTag) -> Self {
        Self { areas: Some(Areas { books, tag }), ..self.clone() }
    }

    /// Bytes that this request took so far.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// The platform.
    #[must_use]
    pub fn os(&self) -> &dyn Os {
        &*self.os
    }

    /// Allocates a zeroed buffer. `of` names its purpose in an error.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn buffer(&self, bytes: u64, of: &str) -> Result<Buffer> {
        let nomem = || Error::nomem(bytes, of);
        let len = usize::try_from(bytes).map_err(|_| nomem())?;
        self.os.reserve(len).map_err(|_| nomem())?;
        let mut data = Vec::new();
        data.try_reserve_exact(len).map_err(|_| nomem())?;
        data.resize(len, 0);
        let held = data.capacity() as u64;
        self.gauge.add(held);
        self.spent.fetch_add(held, Ordering::Relaxed);
        Ok(Buffer { data, held, gauge: self.gauge.clone() })
    }

    /// Maps zeroed memory for a module, readable and writable.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn map(&self, bytes: u64) -> Result<Mapped> {
        let nomem = || Error::nomem(bytes, "the module");
        let len = usize::try_from(bytes).map_err(|_| nomem())?;
        let area = match &self.areas {
            Some(Areas { books, tag }) => books.area_alloc(len, tag)?,
            None => None,
        };
        let areas = area.and(self.areas.clone());
        let at = area.map_or_else(|| self.os.map(len), Ok).map_err(|_| nomem())?;
        self.gauge.add(bytes);
        self.spent.fetch_add(bytes, Ordering::Relaxed);
        Ok(Mapped { at, len, os: self.os.clone(), gauge: self.gauge.clone(), areas })
    }
}

/// A temporary buffer, counted while it is held.
pub struct Buffer {
    data: Vec<u8>,
    held: u64,
    gauge: Arc<Gauge>,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.data
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.gauge.sub(self.held);
    }
}

/// Memory of a module: whole pages, counted while they are mapped.
///
/// # Invariants
/// `at` is an area of `len` bytes of `areas`, or without them a mapping of `os` of that length.
pub struct Mapped {
    at: NonNull<u8>,
    len: usize,
    os: Arc<dyn Os>,
    gauge: Arc<Gauge>,
    areas: Option<Areas>,
}

// SAFETY: any thread may access and unmap memory; all accesses go through `unsafe` functions.
unsafe impl Send for Mapped {}
// SAFETY: any thread may access and unmap memory; all accesses go through `unsafe` functions.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Its first address.
    #[must_use]
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Bytes that are mapped.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing is mapped.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Changes the allowed accesses to the pages at offsets `from` to `to`.
    ///
    /// # Errors
    /// `ENOMEM`: the system refused; a part of the range may have changed.
    ///
    /// # Safety
    /// No thread accesses the range in a way that `what` forbids.
    ///
    /// # Panics
    /// The range is not in this memory.
    pub unsafe fn protect(&self, from: usize, to: usize, what: Protection) -> Result<()> {
        assert!(from <= to && to <= self.len);
        if from == to {
            return Ok(());
        }
        if what == Protection::ReadExecute {
            // SAFETY: a range of the mapping, which is readable.
            unsafe { self.os.synchronise(self.at.add(from), to - from) };
        }
        // SAFETY: a range of the mapping; for accesses the same contract.
        unsafe { self.os.protect(self.at.add(from), to - from, what) }
            .map_err(|e| Error::new(crate::error::Errno::ENOMEM, format_args!("mprotect: {e}")))
    }

    /// Gives back all bytes from offset `from` on. Of an area, they stay if the system refuses to
    /// make them writable; if `from` is 0, they are leaked then.
    ///
    /// # Safety
    /// No thread uses these bytes any more.
    pub unsafe fn truncate(&mut self, from: usize) {
        if from >= self.len {
            return;
        }
        let done = match &self.areas {
            None => {
                // SAFETY: a range of the mapping; for accesses the same contract.
                unsafe { self.os.unmap(self.at.add(from), self.len - from) };
                true
            }
            // SAFETY: a range of the area; for accesses the same contract.
            Some(areas) => unsafe { self.shrink(areas, from) },
        };
        if done || from == 0 {
            self.gauge.sub((self.len - from) as u64);
            self.len = from;
        }
    }

    /// Gives back all bytes of an area from offset `from` on. The allocator gets them readable and
    /// writable, as they were.
    ///
    /// # Safety
    /// No thread uses these bytes any more. `from` is less than the length.
    unsafe fn shrink(&self, Areas { books, tag }: &Areas, from: usize) -> bool {
        let to = Protection::ReadWrite;
        // SAFETY: a range of the area; for accesses the same contract.
        if unsafe { self.os.protect(self.at.add(from), self.len - from, to) }.is_err() {
            return false;
        }
        // SAFETY: by the invariant an area, whose bytes from `from` on are writable; for accesses
        // the same contract.
        unsafe {
            if from > 0 {
                return books.area_shrink(self.at, from, tag);
            }
            books.area_free(self.at);
        }
        true
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: its owner, the module's image, is dropped when no thread runs the module any
        // more.
        unsafe { self.truncate(0) };
    }
}
