//! Memory for names and chains. It is never freed, and readable from outside the process.

use crate::os::Platform;
use crate::sync::{AtomicU64, Ordering};
use core::ptr::NonNull;
use kmem_layout::root::RootBlock;

/// Bytes of address space that are reserved per site. If they are refused, an eighth of them, and
/// so on.
const RESERVE: usize = 512;
/// Fewest bytes that are reserved.
const LEAST: usize = 64 << 10;
/// Bytes committed at a time.
const STEP: u64 = 64 << 10;

/// The memory. Zeroed, it is empty and grants nothing.
pub(super) struct Texts {
    base: AtomicU64,
    reserved: AtomicU64,
    used: AtomicU64,
}

impl Texts {
    pub(super) const fn new() -> Self {
        Self { base: AtomicU64::new(0), reserved: AtomicU64::new(0), used: AtomicU64::new(0) }
    }

    /// Reserves memory for `sites` sites. Returns its address, 0 if it was refused. Called once.
    pub(super) fn start(&self, platform: &impl Platform, sites: u32) -> u64 {
        let mut bytes = RESERVE * sites as usize;
        while bytes >= LEAST {
            if let Some(at) = platform.reserve(bytes, crate::units::PAGE_SIZE) {
                self.reserved.store(bytes as u64, Ordering::Relaxed);
                self.base.store(at.as_ptr() as u64, Ordering::Release);
                return at.as_ptr() as u64;
            }
            bytes /= 8;
        }
        0
    }

    /// Takes `bytes` of zeroed memory, at a multiple of 8, for the caller alone. `None`: there is
    /// none.
    pub(super) fn take(
        &self,
        platform: &impl Platform,
        root: &RootBlock,
        bytes: usize,
    ) -> Option<NonNull<u8>> {
        let base = self.base.load(Ordering::Acquire);
        let bytes = (bytes as u64).next_multiple_of(8);
        let mut from = self.used.load(Ordering::Relaxed);
        loop {
            let end = from.checked_add(bytes)?;
            if end > self.reserved.load(Ordering::Relaxed) {
                return None;
            }
            match self.used.compare_exchange_weak(from, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => from = now,
            }
        }
        let end = (from + bytes).next_multiple_of(STEP).min(self.reserved.load(Ordering::Relaxed));
        let committed = root.texts_len.load(Ordering::Acquire);
        if end > committed {
            let at = NonNull::new((base + committed) as *mut u8)?;
            // SAFETY: a part of the reservation. Committing a part again leaves its contents.
            if !unsafe { platform.commit(at, (end - committed) as usize) } {
                return None;
            }
            root.texts_len.fetch_max(end, Ordering::AcqRel);
        }
        NonNull::new((base + from) as *mut u8)
    }
}
