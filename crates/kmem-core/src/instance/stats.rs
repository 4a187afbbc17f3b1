//! Counts of an instance, computed on demand; and giving memory back at once.

use core::time::Duration;

use super::Instance;
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::{MAX_ORDER, PAGE_SIZE, PageCount, Pfn};

/// Counts of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes in live allocations; without books, the value of `used`.
    pub tracked: u64,
    /// Number of live allocations.
    pub objects: u64,
    /// Bytes in live page allocations.
    pub large: u64,
    /// Number of live page allocations.
    pub large_blocks: u64,
    /// Bytes of pages in use by slabs and page allocations.
    pub used: u64,
    /// Bytes of readable and writable address space of the zones.
    pub committed: u64,
    /// Number of blocks of pages that were found bad and are not used again.
    pub bad_pages: u64,
}

impl<P: Platform> Instance<P> {
    /// Counts everything. Takes time linear in the number of objects.
    pub fn stats(&'static self) -> Stats {
        let mut stats = Stats::default();
        if !self.ready() {
            return stats;
        }
        self.census(|_, bytes, calls| {
            stats.tracked += bytes;
            stats.objects += calls;
        });
        for set in self.heap().zones.all() {
            stats.committed += set.zone.committed().bytes() as u64;
            let mut at = Pfn::ZERO;
            while let Some(words) = set.zone.words(at) {
                let pages = words.length();
                if pages > PageCount::ZERO {
                    stats.large += pages.bytes() as u64;
                    stats.large_blocks += 1;
                }
                at += pages.max(PageCount::ONE);
            }
        }
        if let Some(root) = self.ledger.books.root() {
            stats.used = u64::from(root.used_pages.load(Ordering::Relaxed)) * PAGE_SIZE as u64;
        }
        stats.bad_pages = self.heap().bad_pages();
        if !self.ledger.books.are_kept() {
            stats.tracked = stats.used;
        }
        stats
    }

    /// Empties the quarantine, the arrays of all CPUs and the barn into the slabs and zones.
    pub fn drain(&'static self) {
        if self.ready() {
            self.heap().drain();
        }
    }

    /// Gives all memory that is not in use back to the platform now. Returns the bytes given back.
    pub fn trim(&'static self) -> usize {
        if self.ready() { self.heap().trim() } else { 0 }
    }

    /// Gives back memory that is due, while the program makes no calls. For a thread or a timer
    /// that calls it again after the time returned. `None`: it is not needed until the platform's
    /// [`call_tender`](crate::os::Process::call_tender) is called.
    ///
    /// Context: any thread, but only one at a time.
    pub fn tend(&'static self) -> Option<Duration> {
        let next = if self.ready() { self.heap().tend() } else { None };
        next.map(|ms| Duration::from_millis(u64::from(ms)))
    }

    /// Lets the platform's [`call_tender`](crate::os::Process::call_tender) be called when memory
    /// comes back, as after a [`Self::tend`] that returned `None`. Called once at the start.
    pub fn await_tender(&'static self) {
        if self.ready() {
            self.heap().await_tender();
        }
    }

    /// Gives address space that was never used back to the platform, because the program may have
    /// `limit` bytes. A little stays to grow into. From here on the instance takes no more of it
    /// than it needs. Returns the bytes given back.
    pub fn spare_space(&'static self, limit: usize) -> usize {
        let keep = PageCount::for_bytes(limit / 64).unwrap_or(PageCount::ZERO);
        if !self.ready() {
            return 0;
        }
        let platform = self.platform();
        self.heap().zones.spare_space(platform, keep)
            + self.ledger.books.sites.spare_space(platform)
    }

    /// Free blocks of each zone by order, as in `/proc/buddyinfo`. No other thread may use the
    /// instance.
    pub fn buddyinfo(&'static self) -> impl Iterator<Item = [u64; MAX_ORDER as usize + 1]> {
        self.heap().zones.all().map(|set| set.zone.free_blocks())
    }
}
