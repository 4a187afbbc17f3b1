//! A fixed region of memory: a kernel's, a unikernel's, or a test's.

use core::ptr::NonNull;

use super::{Budget, Platform};
use crate::sync::{AtomicUsize, Ordering};
use crate::units::PAGE_SIZE;

/// Memory between two addresses, handed out once, front to back.
///
/// # Invariants
/// `next` never decreases and never passes `end`.
pub struct FixedRegion {
    next: AtomicUsize,
    end: usize,
    start: usize,
    cpus: u32,
    cpu: fn() -> u32,
    print: fn(&[u8]),
    fatal: fn() -> !,
}

impl FixedRegion {
    /// Takes over `bytes` of zeroed memory at `at`, to be used from up to `cpus` CPUs.
    ///
    /// # Safety
    /// The memory is valid for reads and writes, zero, and used by nobody else for as long as
    /// anything allocated from it.
    pub unsafe fn new(
        at: *mut u8,
        bytes: usize,
        cpus: u32,
        print: fn(&[u8]),
        fatal: fn() -> !,
    ) -> Self {
        let start = at as usize;
        let next = AtomicUsize::new(start);
        Self { next, end: start + bytes, start, cpus, cpu: || 0, print, fatal }
    }

    /// The same, and how to know on which CPU one is.
    pub fn with_cpu(self, cpu: fn() -> u32) -> Self {
        Self { cpu, ..self }
    }
}

// SAFETY: `reserve` hands out each byte once; all of it is readable, writable and zero.
unsafe impl Platform for FixedRegion {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let at = next.checked_next_multiple_of(align)?;
            let end = at.checked_add(bytes)?;
            if end > self.end {
                return None;
            }
            match self.next.compare_exchange_weak(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return NonNull::new(at as *mut u8),
                Err(seen) => next = seen,
            }
        }
    }

    unsafe fn release(&self, _at: NonNull<u8>, _bytes: usize) {}

    unsafe fn commit(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        true
    }

    unsafe fn decommit(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    fn allows(&self, _committed: usize) -> bool {
        true
    }

    fn budget(&self) -> Budget {
        let left = self.end - self.next.load(Ordering::Relaxed).max(self.start);
        // Leave room for the tables of the zone and for alignment.
        let zone = (left / 8 * 7) & !(PAGE_SIZE - 1);
        Budget { first_zone: zone, min_zone: zone, memory: zone, cpus: self.cpus }
    }

    fn configuration(&self, _buf: &mut [u8]) -> Option<usize> {
        None
    }

    fn slot_hint(&self) -> u32 {
        (self.cpu)() % self.cpus.max(1)
    }

    fn now_ms(&self) -> u64 {
        0
    }

    fn ticks(&self) -> u64 {
        0
    }

    fn map_root(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.reserve(bytes.next_multiple_of(PAGE_SIZE), PAGE_SIZE)
    }

    unsafe fn wipe_on_fork(&self, _at: NonNull<u8>, _bytes: usize) -> bool {
        false
    }

    fn fence_cpus(&self) -> bool {
        false
    }

    fn rseq_offset(&self) -> Option<isize> {
        None
    }

    fn print(&self, text: &[u8]) {
        (self.print)(text);
    }

    fn fatal(&self) -> ! {
        (self.fatal)()
    }
}
