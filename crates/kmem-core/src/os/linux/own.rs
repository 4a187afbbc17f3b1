//! All reservations of the platform, for readers outside the process: they tell kmem's memory from
//! that of the program.

use kmem_layout::mapping::OwnRange;

use crate::sync::Ordering;

/// Most reservations that are kept: those of 256 zones, and of as many CPUs as machines have.
/// Another one is shown as the program's.
const MOST: usize = 1024;

/// The reservations of a process. Zeroed memory is a valid value: there is none.
pub(super) struct Own {
    ranges: [OwnRange; MOST],
}

impl Own {
    pub(super) const fn new() -> Self {
        Self { ranges: [const { OwnRange::unused() }; MOST] }
    }

    /// Address and number of the entries.
    pub(super) fn place(&self) -> (u64, u32) {
        (self.ranges.as_ptr() as u64, MOST as u32)
    }

    /// Returns whether an address is in one of the ranges.
    pub(super) fn has(&self, at: usize) -> bool {
        self.ranges.iter().any(|range| {
            (at as u64) < range.end.load(Ordering::Acquire)
                && at as u64 >= range.start.load(Ordering::Relaxed)
        })
    }

    /// Adds a range.
    pub(super) fn add(&self, start: usize, bytes: usize) {
        for range in &self.ranges {
            // 1 is the end of an entry that a thread fills in.
            let taken = range.end.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                range.start.store(start as u64, Ordering::Relaxed);
                range.end.store((start + bytes) as u64, Ordering::Release);
                return;
            }
        }
    }

    /// Removes a range, which may be a part of one that was added. Its owner calls this before it
    /// unmaps the range, so no other thread changes the entry.
    pub(super) fn remove(&self, start: usize, bytes: usize) {
        let (from, to) = (start as u64, (start + bytes) as u64);
        for range in &self.ranges {
            let (first, end) =
                (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Relaxed));
            if first > from || end < to || first >= end {
                continue;
            }
            match (first < from, to < end) {
                (false, false) => range.end.store(0, Ordering::Relaxed),
                (true, false) => range.end.store(from, Ordering::Relaxed),
                (false, true) => range.start.store(to, Ordering::Relaxed),
                (true, true) => {
                    range.end.store(from, Ordering::Relaxed);
                    self.add(to as usize, (end - to) as usize);
                }
            }
            return;
        }
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use super::*;

    fn all(own: &Own) -> Vec<(u64, u64)> {
        let ends = own
            .ranges
            .iter()
            .map(|range| (range.start.load(Ordering::Relaxed), range.end.load(Ordering::Relaxed)));
        let mut ranges: Vec<_> = ends.filter(|(start, end)| start < end).collect();
        ranges.sort_unstable();
        ranges
    }

    #[test]
    fn a_part_that_is_removed_leaves_the_rest() {
        let own = Own::new();
        own.add(0x1000, 0x8000);
        own.add(0x20000, 0x1000);
        own.remove(0x3000, 0x1000);
        assert_eq!(
            [0x2fff, 0x3000, 0x4000, 0x9000].map(|at| own.has(at)),
            [true, false, true, false]
        );
        assert_eq!(all(&own), [(0x1000, 0x3000), (0x4000, 0x9000), (0x20000, 0x21000)]);
        own.remove(0x1000, 0x1000);
        own.remove(0x8000, 0x1000);
        own.remove(0x20000, 0x1000);
        assert_eq!(all(&own), [(0x2000, 0x3000), (0x4000, 0x8000)]);
        own.add(0x30000, 0x1000);
        assert_eq!(all(&own), [(0x2000, 0x3000), (0x4000, 0x8000), (0x30000, 0x31000)]);
    }

    #[test]
    fn a_range_beyond_the_most_is_left_out() {
        let own = Own::new();
        (0..=MOST).for_each(|n| own.add(n << 16, 0x1000));
        assert_eq!(all(&own).len(), MOST);
    }
}
