//! Distributions of numbers.
//!
//! Buckets are log-linear, as in HdrHistogram: four of equal width in each power of two. A bucket
//! is at most a quarter as wide as its numbers are large.

use crate::counter::Word;

/// Number of buckets: one for each number below 4, and four for each power of two above.
pub const BUCKETS: usize = 4 + 62 * 4;

/// A distribution of numbers. [`define!`](crate::define) makes it.
///
/// A bucket takes memory once it has counted: eight bytes for each CPU.
pub struct Histogram {
    /// Counts of the buckets, and behind them the sum of the numbers.
    words: [Word; BUCKETS + 1],
}

/// The bucket of a number.
const fn bucket(of: u64) -> usize {
    if of < 4 {
        return of as usize;
    }
    let power = of.ilog2() as usize;
    (power - 1) * 4 + ((of >> (power - 2)) & 3) as usize
}

/// The largest number in a bucket.
const fn highest(bucket: usize) -> u64 {
    if bucket < 4 {
        return bucket as u64;
    }
    let (power, quarter) = (bucket / 4 + 1, bucket as u64 % 4);
    let width = 1 << (power - 2);
    (1 << power) + quarter * width + (width - 1)
}

impl Histogram {
    /// For the macro.
    #[doc(hidden)]
    pub const fn of(words: [Word; BUCKETS + 1]) -> Self {
        Self { words }
    }

    /// Counts a number. Signal handlers may call it.
    #[inline]
    pub fn record(&'static self, number: u64) {
        self.words[bucket(number)].add(1);
        self.words[BUCKETS].add(number);
    }

    /// Reads all buckets. It is exact while no thread records.
    pub fn snapshot(&'static self) -> Snapshot {
        let (counts, sum) = self.words.split_at(BUCKETS);
        Snapshot { counts: counts.iter().map(Word::sum).collect(), sum: sum[0].sum() }
    }
}

/// The counts of a [`Histogram`] at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    counts: Vec<u64>,
    sum: u64,
}

impl Snapshot {
    /// Returns what was recorded since an earlier snapshot of the same histogram.
    pub fn since(&self, earlier: &Self) -> Self {
        let pairs = self.counts.iter().zip(&earlier.counts);
        let counts = pairs.map(|(now, then)| now.wrapping_sub(*then)).collect();
        Self { counts, sum: self.sum.wrapping_sub(earlier.sum) }
    }

    /// Returns how many numbers were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the numbers, modulo 2^64.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Returns a number that a part of the numbers do not exceed: `quantile(0.5)` is the median.
    /// It is the largest number of its bucket, so it is up to a quarter too high, and never too
    /// low. Zero if there are no numbers. A part below 0 counts as 0, and one above 1 as 1.
    pub fn quantile(&self, part: f64) -> u64 {
        let count = self.count();
        let rank = ((part.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let reaches = |&(_, so_far): &(u64, u64)| so_far >= rank;
        self.buckets().find(reaches).map_or(0, |(highest, _)| highest)
    }

    /// Returns the largest number of each bucket that has counted, and how many numbers do not
    /// exceed it. These are the `le` and the value of a bucket of Prometheus.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let mut so_far = 0;
        let used = self.counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        used.map(move |(at, count)| {
            so_far += count;
            (highest(at), so_far)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{BUCKETS, bucket, highest};

    #[test]
    fn every_number_lies_in_the_bucket_that_ends_at_or_above_it() {
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
        assert_eq!(highest(BUCKETS - 1), u64::MAX);
        for at in 0..BUCKETS {
            assert_eq!(bucket(highest(at)), at);
            if at + 1 < BUCKETS {
                assert_eq!(bucket(highest(at) + 1), at + 1);
            }
        }
    }

    #[test]
    fn a_bucket_is_at_most_a_quarter_as_wide_as_its_numbers_are_large() {
        for at in 1..BUCKETS {
            let (lowest, highest) = (highest(at - 1) + 1, highest(at));
            assert!(highest - lowest < lowest.div_ceil(4), "{lowest} to {highest}");
        }
    }
}
