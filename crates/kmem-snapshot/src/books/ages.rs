//! Live allocations of each tag by their age, where the process notes times (`age:1`).

use kmem_layout::time::{self, UNIT_MS};

use super::by_tag::ByTag;
use super::root::Root;
use crate::clock;
use crate::memory::Memory;

/// Bounds of the ages that are told apart, in seconds.
const BOUNDS: [u64; 6] = [1, 10, 60, 600, 3600, 86_400];
/// One for each bound and one above. The last one has allocations whose time is not known.
const COUNTS: usize = BOUNDS.len() + 2;
/// The counts of one tag.
type Counts = [Count; COUNTS];

/// Bytes and number of allocations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Count {
    bytes: u64,
    calls: u64,
}

/// Live allocations of one age.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfAge {
    /// Least age in seconds. None: the age is not known.
    pub from_s: Option<u64>,
    /// Age in seconds that none of them reaches. None: there is no such bound.
    pub below_s: Option<u64>,
    /// Bytes of them.
    pub bytes: u64,
    /// Their number.
    pub calls: u64,
}

/// Live allocations of each tag by age.
#[derive(Debug, Clone, Default)]
pub struct Ages {
    /// The word of this moment; 0: times are not noted.
    now: u32,
    by_tag: ByTag<Box<Counts>>,
}

impl Ages {
    /// Counts that take at most `memory` bytes. A core file does not tell when the process ended,
    /// so there the newest allocation has age 0.
    pub(super) fn of_root(root: &Root, memory: &Memory, room: u64) -> Self {
        let (_, newest, started_ms) = root.times;
        let clock = match memory {
            Memory::Live(_) => time::word(clock::monotonic_ms().saturating_sub(started_ms)),
            Memory::Core(_) => 0,
        };
        let now = if root.has_times() { newest.max(clock).max(1) } else { 0 };
        Self { now, by_tag: ByTag::with_room(room) }
    }

    /// Memory of the counts, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.by_tag.memory()
    }

    /// Adds an allocation of `bytes` with this time. It is left out if there is no room.
    pub(super) fn add(&mut self, tag: u32, time: u32, bytes: u64) {
        let age_s = u64::from(self.now.saturating_sub(time)) * UNIT_MS / 1000;
        let nth = match time {
            0 => COUNTS - 1,
            _ => BOUNDS.iter().take_while(|&&bound| bound <= age_s).count(),
        };
        let counts = self.by_tag.of(tag, size_of::<Counts>(), Box::default);
        if let Some(count) = counts.and_then(|counts| counts.get_mut(nth)) {
            count.bytes = count.bytes.saturating_add(bytes);
            count.calls += 1;
        }
    }

    /// Allocations of some tags, the youngest first. Ages that none of them has are left out, and
    /// so are allocations that found no room.
    pub fn of(&self, tags: &[u32]) -> Vec<OfAge> {
        let mut sums = Counts::default();
        for counts in tags.iter().filter_map(|&tag| self.by_tag.get(tag)) {
            for (sum, count) in sums.iter_mut().zip(counts.iter()) {
                sum.bytes = sum.bytes.saturating_add(count.bytes);
                sum.calls += count.calls;
            }
        }
        let of = |(nth, Count { bytes, calls }): (usize, Count)| OfAge {
            from_s: (nth <= BOUNDS.len())
                .then(|| nth.checked_sub(1).and_then(|nth| BOUNDS.get(nth)).map_or(0, |&s| s)),
            below_s: BOUNDS.get(nth).copied(),
            bytes,
            calls,
        };
        sums.into_iter().enumerate().filter(|(_, sum)| sum.calls != 0).map(of).collect()
    }

    /// Adds up the ages of several processes.
    #[must_use]
    pub fn together(all: impl Iterator<Item = OfAge>) -> Vec<OfAge> {
        let mut sums: Vec<OfAge> = Vec::new();
        for one in all {
            match sums.iter_mut().find(|sum| sum.from_s == one.from_s) {
                Some(sum) => {
                    sum.bytes = sum.bytes.saturating_add(one.bytes);
                    sum.calls += one.calls;
                }
                None => sums.push(one),
            }
        }
        sums.sort_by_key(|of| of.from_s.unwrap_or(u64::MAX));
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::super::by_tag::MAX;
    use super::*;

    fn ages(room: u64) -> Ages {
        // A day and an hour after the start.
        Ages { now: time::word(90_000 * 1000), by_tag: ByTag::with_room(room) }
    }

    #[test]
    fn allocations_are_counted_by_age_and_those_without_a_time_apart() {
        let mut ages = ages(MAX);
        let at = |seconds_ago: u64| time::word((90_000 - seconds_ago) * 1000);
        for (tag, seconds_ago, bytes) in [(7, 0, 10), (7, 9, 20), (9, 2, 5), (7, 86_400, 1)] {
            ages.add(tag, at(seconds_ago), bytes);
        }
        ages.add(7, 0, 64);
        ages.add(7, u32::MAX, 3);
        ages.add(8, at(0), 100);
        let of = ages.of(&[7, 9]);
        let flat: Vec<_> =
            of.iter().map(|of| (of.from_s, of.below_s, of.bytes, of.calls)).collect();
        let expected = [
            (Some(0), Some(1), 13, 2),
            (Some(1), Some(10), 25, 2),
            (Some(86_400), None, 1, 1),
            (None, None, 64, 1),
        ];
        assert_eq!(flat, expected);
        assert_eq!(ages.of(&[]), []);
        assert_eq!(ages.of(&[6, 1 << 16]), []);
        let twice = Ages::together(of.iter().rev().chain(&of).copied());
        assert_eq!(twice.iter().map(|of| of.bytes).collect::<Vec<_>>(), [26, 50, 2, 128]);
    }

    #[test]
    fn what_finds_no_room_is_left_out() {
        let mut ages = ages((size_of::<Counts>() + 2 * 8) as u64);
        ages.add(1, 5, 16);
        ages.add(1, 6, 16);
        let held = ages.memory();
        ages.add(2, 5, 16);
        assert_eq!((ages.of(&[1])[0].calls, ages.of(&[2])), (2, vec![]));
        assert!(ages.memory() == held && held > 0);
    }
}
