//! Demand: the pages that were in use at once lately. A program that works in phases needs as many
//! again soon, so free memory up to that many pages is kept. (This is TCMalloc's rule for skipping
//! subrelease by recent demand.)
//!
//! Time is cut into halves of the window. The demand is the highest use of this half and the last
//! one. Pages that come back say what was in use before.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::PageCount;

/// The highest use of pages in a window of time. Zeroed memory is a valid value: no use.
pub(super) struct Demand {
    /// Highest use in this half of the window.
    now: AtomicU32,
    /// Highest use in the last half.
    before: AtomicU32,
    /// Begin of this half, in milliseconds.
    began: AtomicU64,
}

impl Demand {
    pub(super) const fn new() -> Self {
        Self { now: AtomicU32::new(0), before: AtomicU32::new(0), began: AtomicU64::new(0) }
    }

    /// Notes that pages are in use at a time. `window` is in milliseconds.
    pub(super) fn note(&self, used: PageCount, now_ms: u64, window: u32) {
        let (began, half) = (self.began.load(Ordering::Relaxed), u64::from(window).div_ceil(2));
        let age = now_ms.wrapping_sub(began);
        let relaxed = Ordering::Relaxed;
        if age < half || self.began.compare_exchange(began, now_ms, relaxed, relaxed).is_err() {
            self.now.fetch_max(used.0, relaxed);
            return;
        }
        let last = self.now.swap(used.0, relaxed);
        // No thread looked for a whole half: what was before is out of the window.
        self.before.store(if age < 2 * half { last } else { 0 }, relaxed);
    }

    /// Notes that pages were in use until now, or will be in a moment.
    pub(super) fn raise(&self, used: PageCount) {
        // Most calls change nothing, and leave the cache line with the other CPUs.
        if used.0 > self.now.load(Ordering::Relaxed) {
            self.now.fetch_max(used.0, Ordering::Relaxed);
        }
    }

    /// The highest use in the window.
    pub(super) fn pages(&self) -> PageCount {
        PageCount(self.now.load(Ordering::Relaxed).max(self.before.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::Demand;
    use crate::units::PageCount;

    fn demand_after(notes: &[(u32, u64)]) -> u32 {
        let demand = Demand::new();
        for &(used, at) in notes {
            demand.note(PageCount(used), at, 100);
        }
        demand.pages().0
    }

    #[test]
    fn the_highest_use_of_the_window_counts() {
        assert_eq!(demand_after(&[]), 0);
        assert_eq!(demand_after(&[(5, 1000), (9, 1010), (3, 1020)]), 9);
        assert_eq!(demand_after(&[(9, 1000), (3, 1060)]), 9);
        assert_eq!(demand_after(&[(3, 1000), (9, 1060)]), 9);
    }

    #[test]
    fn what_was_before_the_window_does_not_count() {
        assert_eq!(demand_after(&[(9, 1000), (3, 1050), (2, 1099)]), 9);
        assert_eq!(demand_after(&[(9, 1000), (3, 1050), (2, 1100)]), 3);
        assert_eq!(demand_after(&[(9, 1000), (3, 1200)]), 3);
    }
}
