//! A sequence number: it tells a reader whether all that it read beside it was of one write (a
//! seqlock; Boehm: Can seqlocks get along with programming language memory models?, MSPC 2012).
//!
//! A writer never waits. If another one is at work, it gives up.

use crate::sync::{AtomicU32, Ordering, fence};

/// The number; odd while a thread writes. Zeroed, nothing was written.
#[repr(transparent)]
pub(super) struct Sequence(AtomicU32);

impl Sequence {
    /// Begins to read. `None`: a thread writes.
    #[inline(always)]
    pub(super) fn read(&self) -> Option<u32> {
        // Acquire pairs with the release that ends a write.
        Some(self.0.load(Ordering::Acquire)).filter(|seq| seq & 1 == 0)
    }

    /// Returns whether all that was read since [`Self::read`] was of one write.
    #[inline(always)]
    pub(super) fn is_still(&self, seq: u32) -> bool {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed) == seq
    }

    /// The number as it is, for [`Self::write`].
    #[inline(always)]
    pub(super) fn now(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Calls `write`, unless another thread writes, or has written since the number was `seq`.
    #[inline(always)]
    pub(super) fn write(&self, seq: u32, write: impl FnOnce()) {
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if seq & 1 != 0 || self.0.compare_exchange(seq, seq + 1, done, failed).is_err() {
            return;
        }
        // Pairs with the fence of a reader: who reads a word of this write sees an odd number, or a
        // later one.
        fence(Ordering::Release);
        write();
        self.0.store(seq.wrapping_add(2), Ordering::Release);
    }

    /// In a forked child: ends a write that another thread of the parent had begun. Calls `empty`
    /// first.
    pub(super) fn end_lost(&self, empty: impl FnOnce()) {
        if self.now() & 1 != 0 {
            empty();
            self.0.fetch_add(1, Ordering::Release);
        }
    }
}
