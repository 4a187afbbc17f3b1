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
        // Acquire pairs with the release in `spare_space`.
        let mut from = self.used.load(Ordering::Acquire);
        let reserved = loop {
            let end = from.checked_add(bytes)?;
            let reserved = self.reserved.load(Ordering::Relaxed);
            if end > reserved {
                return None;
            }
            match self.used.compare_exchange_weak(from, end, Ordering::Relaxed, Ordering::Acquire) {
                Ok(_) => break reserved,
                Err(now) => from = now,
            }
        };
        let end = (from + bytes).next_multiple_of(STEP).min(reserved);
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

    /// Gives most of the address space that was never used back to the platform. Returns the bytes
    /// given back.
    pub(super) fn spare_space(&self, platform: &impl Platform) -> usize {
        let base = self.base.load(Ordering::Acquire);
        let old = self.reserved.load(Ordering::Relaxed);
        let kept = (self.used.load(Ordering::Relaxed) + old / 64).next_multiple_of(STEP);
        if base == 0 || kept >= old || !platform.releases_parts() {
            return 0;
        }
        if self.reserved.compare_exchange(old, kept, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return 0;
        }
        // Who takes memory from here on has seen this store to `used`, and so the new end. Who took
        // memory before is in the value.
        let used = self.used.fetch_add(8, Ordering::AcqRel) + 8;
        let from = used.next_multiple_of(STEP).max(kept);
        match NonNull::new((base + from) as *mut u8) {
            Some(at) if from < old => {
                // SAFETY: the end of the reservation, of which nothing was or will be committed.
                unsafe { platform.release(at, (old - from) as usize) };
                (old - from) as usize
            }
            _ => 0,
        }
    }
}
