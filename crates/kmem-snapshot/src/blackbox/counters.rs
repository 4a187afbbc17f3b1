//! Allocations and frees since a process started, by tag.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use kmem_layout::blackbox::Counter;
use kmem_layout::word::TAG_FIRST_SITE;

use super::header::Header;
use crate::budget::Budget;
use crate::extents;
use crate::memory::field;

/// Counters read at a time.
const BATCH: u64 = 1 << 15;
const SIZE: u64 = size_of::<Counter>() as u64;

/// Allocations and frees since the process started, summed over all CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Count of allocations.
    pub allocations: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Count of frees.
    pub frees: u64,
    /// Bytes freed.
    pub freed_bytes: u64,
}

impl Counts {
    /// Live bytes and objects. The counters of a running process are not of one moment, so bytes
    /// may be negative; objects are 0 then.
    #[must_use]
    pub fn live(&self) -> (i64, u64) {
        let bytes = i128::from(self.allocated_bytes) - i128::from(self.freed_bytes);
        let least = if bytes < 0 { i64::MIN } else { i64::MAX };
        (i64::try_from(bytes).unwrap_or(least), self.allocations.saturating_sub(self.frees))
    }

    /// Adds other counts; sums stop at the largest number.
    pub fn add(&mut self, other: &Self) {
        let sum = |field: &mut u64, more| *field = field.saturating_add(more);
        sum(&mut self.allocations, other.allocations);
        sum(&mut self.allocated_bytes, other.allocated_bytes);
        sum(&mut self.frees, other.frees);
        sum(&mut self.freed_bytes, other.freed_bytes);
    }

    fn parse(counter: &[u8]) -> Self {
        Self {
            allocations: field!(counter, Counter.calls: u64),
            allocated_bytes: field!(counter, Counter.bytes: u64),
            frees: field!(counter, Counter.frees: u64),
            freed_bytes: field!(counter, Counter.freed: u64),
        }
    }
}

/// Sums up the counters of all CPUs, by tag. Tags without a count are left out.
pub(super) fn read(
    file: &File,
    len: u64,
    header: &Header,
    budget: &Budget,
) -> Result<BTreeMap<u32, Counts>, String> {
    let capacity = u64::from(header.site_capacity);
    let all = u64::from(header.cpus) * capacity * SIZE;
    if header.counters.checked_add(all).is_none_or(|end| end > len) {
        return Err(format!(
            "truncated: {all} bytes of counters at offset {}, the file has {len} bytes",
            header.counters
        ));
    }
    // Reserved tags have counters and no site.
    let tags = u64::from(header.site_count.max(TAG_FIRST_SITE)).min(capacity);
    let mut sums = vec![Counts::default(); usize::try_from(tags).unwrap_or(0)];
    let mut buffer = Vec::new();
    for cpu in 0..u64::from(header.cpus) {
        let base = header.counters + cpu * capacity * SIZE;
        let mut parts = Vec::new();
        extents::data(file, base..base + tags * SIZE, |part| {
            parts.push(((part.start - base) / SIZE, (part.end - base).div_ceil(SIZE)));
        });
        // Two parts may meet within one counter, which counts once.
        let mut next = 0;
        for (start, end) in parts {
            next = next.max(start);
            while next < end.min(tags) {
                let count = (end.min(tags) - next).min(BATCH);
                budget.work(count * SIZE).map_err(|over| format!("its counters are {over}"))?;
                buffer.resize(usize::try_from(count * SIZE).unwrap_or(0), 0);
                file.read_exact_at(&mut buffer, base + next * SIZE)
                    .map_err(|e| format!("counters of CPU {cpu}: {e}"))?;
                let from = usize::try_from(next).unwrap_or(usize::MAX);
                let counters = buffer.chunks_exact(size_of::<Counter>());
                for (sum, counter) in sums.iter_mut().skip(from).zip(counters) {
                    sum.add(&Counts::parse(counter));
                }
                next += count;
            }
        }
    }
    let counted = (0..).zip(sums).filter(|(_, counts)| *counts != Counts::default());
    Ok(counted.collect())
}
