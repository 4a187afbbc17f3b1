//! The loader's door to the platform: memory for modules, buffers, files. Whatever can fail goes through
//! [`Os`], so that a test makes each call fail in turn; [`Account`] counts every byte that comes through it.

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::alloc::Shared;
use crate::error::{Error, Result};

/// Bytes of a page: what protection is given by.
pub const PAGE: u64 = 4096;

/// What a range of a module's memory may be used for. There is no writable and executable.
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
    /// Zeroed memory of whole pages, readable and writable.
    ///
    /// # Errors
    /// What the system says.
    fn map(&self, len: usize) -> io::Result<NonNull<u8>>;

    /// Changes what a range of pages may be used for.
    ///
    /// # Errors
    /// What the system says.
    ///
    /// # Safety
    /// A range of memory from [`Os::map`] that nobody uses otherwise meanwhile.
    unsafe fn protect(&self, at: NonNull<u8>, len: usize, to: Protection) -> io::Result<()>;

    /// Sees to it that what was written to a range of memory is what is executed there, on every CPU.
    ///
    /// # Safety
    /// A range of memory from [`Os::map`], which is readable.
    unsafe fn synchronise(&self, at: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { instruction_cache(at, len) };
    }

    /// Gives memory back. A range the system does not take back is lost to the process.
    ///
    /// # Safety
    /// A range of memory from [`Os::map`] that nobody uses any more.
    unsafe fn unmap(&self, at: NonNull<u8>, len: usize);

    /// Whether a buffer of so many bytes is to be had.
    ///
    /// # Errors
    /// There is no memory.
    fn reserve(&self, _bytes: usize) -> io::Result<()> {
        Ok(())
    }

    /// Reads from a file; a short count is what there is.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, file: BorrowedFd<'_>, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct Linux;

/// x86-64 keeps its instruction caches coherent, and what other CPUs prefetched was never executable.
#[cfg(not(target_arch = "aarch64"))]
unsafe fn instruction_cache(_: NonNull<u8>, _: usize) {}

/// Cleans the data caches to the point of unification, and invalidates the instruction caches of all CPUs (Arm Architecture
/// Reference Manual, section "Concurrent modification and execution of instructions"). The memory was not executable before, so
/// no CPU can have fetched older instructions from it; the calling one is synchronised here.
#[cfg(target_arch = "aarch64")]
unsafe fn instruction_cache(at: NonNull<u8>, len: usize) {
    use std::arch::asm;

    let kind: usize;
    // SAFETY: reads the cache type register, which Linux lets programs do.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) kind, options(nomem, nostack, preserves_flags)) };
    let start = at.as_ptr() as usize;
    let lines = |bytes: usize| (start & !(bytes - 1)..start + len).step_by(bytes);
    // Bit 28: instructions are fetched through coherent data caches; bit 29: the same of the instruction caches.
    if kind & 1 << 28 == 0 {
        for line in lines(4 << (kind >> 16 & 0xf)) {
            // SAFETY: a line with a byte of memory that is readable.
            unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    if kind & 1 << 29 == 0 {
        for line in lines(4 << (kind & 0xf)) {
            // SAFETY: as above.
            unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        // SAFETY: a barrier.
        unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    }
    // SAFETY: a barrier.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

fn check(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Os for Linux {
    fn map(&self, len: usize) -> io::Result<NonNull<u8>> {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping disturbs nobody.
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
        // SAFETY: the caller's promise.
        check(unsafe { libc::mprotect(at.as_ptr().cast(), len, prot) })
    }

    unsafe fn unmap(&self, at: NonNull<u8>, len: usize) {
        // SAFETY: the caller's promise.
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

/// Bytes that a loader holds now and held at most.
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

    /// Most bytes held at one time.
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

/// The books of one request: what it has taken from the platform so far, freed or not.
#[derive(Clone)]
pub struct Account {
    os: Arc<dyn Os>,
    gauge: Arc<Gauge>,
    spent: Shared<AtomicU64>,
}

impl Account {
    /// An account over a platform, for a loader's gauge.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(os: Arc<dyn Os>, gauge: Arc<Gauge>) -> Result<Self> {
        Ok(Self { os, gauge, spent: Shared::new(AtomicU64::new(0))? })
    }

    /// Bytes taken by this request.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent.load(Ordering::Relaxed)
    }

    /// The platform.
    #[must_use]
    pub fn os(&self) -> &dyn Os {
        &*self.os
    }

    /// A zeroed buffer.
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

    /// Memory for a module.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn map(&self, bytes: u64) -> Result<Mapped> {
        let nomem = || Error::nomem(bytes, "the module");
        let len = usize::try_from(bytes).map_err(|_| nomem())?;
        let at = self.os.map(len).map_err(|_| nomem())?;
        self.gauge.add(bytes);
        self.spent.fetch_add(bytes, Ordering::Relaxed);
        Ok(Mapped { at, len, os: self.os.clone(), gauge: self.gauge.clone() })
    }
}

/// Bytes for a while, counted while they are held.
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
pub struct Mapped {
    at: NonNull<u8>,
    len: usize,
    os: Arc<dyn Os>,
    gauge: Arc<Gauge>,
}

// SAFETY: memory has no thread; who may touch it when is the module's matter.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// First address.
    #[must_use]
    pub fn at(&self) -> NonNull<u8> {
        self.at
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is left of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Protects a range of pages.
    ///
    /// # Errors
    /// The system refused; the range may have been protected in part.
    ///
    /// # Safety
    /// Nobody uses the range in another way.
    ///
    /// # Panics
    /// When the range is not in it.
    pub unsafe fn protect(&self, from: usize, to: usize, what: Protection) -> Result<()> {
        assert!(from <= to && to <= self.len);
        if from == to {
            return Ok(());
        }
        if what == Protection::ReadExecute {
            // SAFETY: in the mapping, and readable.
            unsafe { self.os.synchronise(self.at.add(from), to - from) };
        }
        // SAFETY: in the mapping; the rest is the caller's promise.
        unsafe { self.os.protect(self.at.add(from), to - from, what) }
            .map_err(|e| Error::new(crate::error::Errno::ENOMEM, format_args!("mprotect: {e}")))
    }

    /// Gives back all from `from` on.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub unsafe fn truncate(&mut self, from: usize) {
        if from < self.len {
            // SAFETY: in the mapping; the rest is the caller's promise.
            unsafe { self.os.unmap(self.at.add(from), self.len - from) };
            self.gauge.sub((self.len - from) as u64);
            self.len = from;
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: whoever drops it has seen to it that nobody is inside.
        unsafe { self.truncate(0) };
    }
}
