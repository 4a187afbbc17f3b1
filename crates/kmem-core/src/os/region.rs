//! A platform over a fixed region of memory: for a kernel, a unikernel, or a test.
//!
//! Context: any.

use core::ptr::NonNull;

use super::{Budget, Clock, Console, Cpus, Memory, Process};
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
    /// The memory is valid for reads and writes, and zero. Nothing else uses it for as long as
    /// this value, or memory allocated from it, is used.
    pub unsafe fn new(
        at: *mut u8,
        bytes: usize,
        cpus: u32,
        print: fn(&[u8]),
        fatal: fn() -> !,
    ) -> Self {
        let start = at as usize;
        // INVARIANT: `next` begins at `start`, which does not pass `end`.
        let next = AtomicUsize::new(start);
        Self { next, end: start + bytes, start, cpus, cpu: || 0, print, fatal }
    }

    /// A platform without memory.
    #[cfg(test)]
    pub fn empty() -> Self {
        // SAFETY: a region of no bytes.
        unsafe { Self::new(core::ptr::null_mut(), 0, 1, |_| (), || panic!("fatal")) }
    }

    /// Makes the region ask `cpu` for the number of the CPU that a thread runs on.
    pub fn with_cpu(self, cpu: fn() -> u32) -> Self {
        Self { cpu, ..self }
    }
}

// SAFETY: `reserve` hands out each byte once; all of it is readable, writable and zero.
unsafe impl Memory for FixedRegion {
    fn reserve(&self, bytes: usize, align: usize) -> Option<NonNull<u8>> {
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            let at = next.checked_next_multiple_of(align)?;
            let end = at.checked_add(bytes)?;
            if end > self.end {
                return None;
            }
            // INVARIANT: `end` is not below the old `next`, and not above the region's end.
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

    fn budget(&self) -> Budget {
        let left = self.end - self.next.load(Ordering::Relaxed).max(self.start);
        // The zone's tables and alignment need the rest.
        let zone = (left / 8 * 7) & !(PAGE_SIZE - 1);
        Budget::of(zone, self.cpus)
    }
}

impl Cpus for FixedRegion {
    fn slot_hint(&self) -> u32 {
        (self.cpu)() % self.cpus.max(1)
    }
}

impl Clock for FixedRegion {}

impl Console for FixedRegion {
    fn print(&self, text: &[u8]) {
        (self.print)(text);
    }

    fn fatal(&self) -> ! {
        (self.fatal)()
    }
}

impl Process for FixedRegion {}
