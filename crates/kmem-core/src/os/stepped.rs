//! Tables that are committed in steps, so that a system that counts committed memory counts what is
//! used.
//!
//! ```text
//! | committed: readable, writable | shown: reads as zero |
//! 0                               committed              bytes
//! ```
//!
//! All of a table can be read from the beginning. A user calls [`Stepped::ensure`] before it writes
//! behind the part that is committed. On a platform that cannot show memory ([`Memory::show`]), all
//! of a table is committed before its first use.
//!
//! Context: any, signal handlers and forked children included. Lock-free. Two threads may commit
//! one part: that leaves its contents. A child forked at that moment knows of no part that it does
//! not have, because a part is noted after it is committed.

use core::ptr::NonNull;

use super::Memory;
use crate::sync::{AtomicUsize, Ordering, const_fn};
use crate::units::PAGE_SIZE;

/// Fewest bytes of a step. A step is an eighth of the committed bytes.
const STEP: usize = 64 << 10;

/// Memory for a table: zeroes, readable, and writable as far as it is committed.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its address.
    pub at: *mut u8,
    /// Its length in bytes.
    pub bytes: usize,
    /// Bytes from its start that are committed.
    pub committed: usize,
}

impl Part {
    /// Memory of which all is committed.
    pub const fn whole(at: *mut u8, bytes: usize) -> Self {
        Self { at, bytes, committed: bytes }
    }

    /// The part of `bytes` from `offset` on.
    ///
    /// # Panics
    /// It does not lie in this memory.
    pub fn part(self, offset: usize, bytes: usize) -> Self {
        assert!(offset <= self.bytes && bytes <= self.bytes - offset);
        let committed = self.committed.saturating_sub(offset).min(bytes);
        Self { at: self.at.wrapping_add(offset), bytes, committed }
    }
}

/// A table that is committed in steps. Zeroed memory is a valid value: a table without memory.
///
/// # Invariants
/// `base` is 0, or the address of `bytes` that are readable and never released, the first
/// `committed` of them committed. If `committed` is less than `bytes`, then they are whole pages of
/// one reservation, and `committed` is a number of whole pages.
pub struct Stepped {
    base: AtomicUsize,
    bytes: AtomicUsize,
    committed: AtomicUsize,
}

impl Stepped {
    const_fn! {
        /// A table without memory.
        pub const fn new() -> Self {
            Self {
                base: AtomicUsize::new(0),
                bytes: AtomicUsize::new(0),
                committed: AtomicUsize::new(0),
            }
        }
    }

    /// Gives the table its memory.
    ///
    /// # Safety
    /// The part is as its type says, used by this table alone, and never released. If not all of it
    /// is committed, it is whole pages of one reservation, and so is what is committed.
    pub unsafe fn start(&self, part: Part) {
        // INVARIANT: the contract says so.
        self.bytes.store(part.bytes, Ordering::Relaxed);
        self.committed.store(part.committed, Ordering::Relaxed);
        self.base.store(part.at as usize, Ordering::Release);
    }

    /// Its address; null before [`Self::start`].
    #[inline]
    pub fn base(&self) -> *mut u8 {
        // Acquire pairs with the release in `start`.
        self.base.load(Ordering::Acquire) as *mut u8
    }

    /// Bytes from its start that may be written.
    #[inline]
    pub fn committed(&self) -> usize {
        self.committed.load(Ordering::Acquire)
    }

    /// Makes the first `bytes` writable. False: the table is not that long, or the platform has no
    /// memory.
    #[inline]
    pub fn ensure(&self, platform: &impl Memory, bytes: usize) -> bool {
        bytes <= self.committed() || self.extend(platform, bytes)
    }

    #[cold]
    #[inline(never)]
    fn extend(&self, platform: &impl Memory, need: usize) -> bool {
        let (have, all) = (self.committed(), self.bytes.load(Ordering::Relaxed));
        if need > all {
            return false;
        }
        let step = need.max(have + have / 8).next_multiple_of(STEP).min(all);
        for end in [step, need.next_multiple_of(PAGE_SIZE).min(all)] {
            if end <= have {
                return true;
            }
            let Some(at) = NonNull::new(self.base().wrapping_add(have)) else { return false };
            // SAFETY: whole pages of one reservation, by the type's invariant.
            if unsafe { platform.commit(at, end - have) } {
                // INVARIANT: all up to `have` was committed before, and the rest is now.
                self.committed.fetch_max(end, Ordering::AcqRel);
                return true;
            }
        }
        false
    }
}

impl Default for Stepped {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, kmem_linux, not(miri), not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::os::Budget;
    use crate::os::linux::Linux;
    use crate::os::sim::Sim;

    const BYTES: usize = 1 << 20;

    /// A table that is shown, of which nothing is committed; and its platform.
    fn table() -> (Stepped, Sim<Linux>) {
        let platform = Sim::new(Linux::new(), Budget::of(BYTES, 1));
        let at = platform.reserve(BYTES, PAGE_SIZE).expect("address space");
        // SAFETY: a fresh reservation.
        assert!(unsafe { platform.show(at, BYTES) });
        let table = Stepped::new();
        // SAFETY: shown memory of this table alone, which is never released.
        unsafe { table.start(Part { at: at.as_ptr(), bytes: BYTES, committed: 0 }) };
        (table, platform)
    }

    fn byte(table: &Stepped, at: usize) -> &'static crate::sync::AtomicU8 {
        assert!(at < BYTES);
        // SAFETY: within the table, which is never released.
        unsafe { &*table.base().add(at).cast() }
    }

    #[test]
    fn all_of_a_table_reads_as_zero_and_keeps_what_was_written_when_more_is_committed() {
        let (table, platform) = table();
        assert_eq!(byte(&table, BYTES - 1).load(Ordering::Relaxed), 0);
        let mut have = 0;
        for end in (1..=BYTES).step_by(3000).chain([BYTES]) {
            assert!(table.ensure(&platform, end));
            assert!(table.committed() >= end.max(have));
            have = table.committed();
            byte(&table, end - 1).store(7, Ordering::Relaxed);
        }
        assert_eq!(have, BYTES);
        let written = (0..BYTES).filter(|&at| byte(&table, at).load(Ordering::Relaxed) == 7);
        assert_eq!(written.count(), BYTES.div_ceil(3000) + 1);
        // A step is not so small that each entry takes one.
        assert!(platform.calls() < 20, "{} calls", platform.calls());
    }

    #[test]
    fn a_table_ends_where_its_memory_does() {
        let (table, platform) = table();
        assert!(!table.ensure(&platform, BYTES + 1));
        assert!(!Stepped::new().ensure(&platform, 1));
        assert_eq!(table.committed(), 0);
    }

    #[test]
    fn where_a_step_is_refused_what_is_needed_is_tried_and_all_of_it_later() {
        let (table, platform) = table();
        platform.fail(1, 2);
        assert!(table.ensure(&platform, 100));
        assert_eq!(table.committed(), PAGE_SIZE);
        platform.fail(1, 3);
        assert!(!table.ensure(&platform, PAGE_SIZE + 1));
        assert_eq!(table.committed(), PAGE_SIZE);
        assert!(table.ensure(&platform, PAGE_SIZE + 1));
        byte(&table, PAGE_SIZE).store(1, Ordering::Relaxed);
    }

    #[test]
    fn threads_that_commit_one_part_lose_nothing() {
        let (table, platform) = table();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (table, platform) = (&table, &platform);
                scope.spawn(move || {
                    for at in (thread..BYTES).step_by(1000) {
                        assert!(table.ensure(platform, at + 1));
                        byte(table, at).fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let written = (0..BYTES).filter(|&at| byte(&table, at).load(Ordering::Relaxed) == 1);
        let all = (0..4).map(|thread| (BYTES - thread).div_ceil(1000)).sum::<usize>();
        assert_eq!(written.count(), all);
    }
}
