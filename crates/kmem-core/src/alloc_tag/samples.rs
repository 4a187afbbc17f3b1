//! Samples of allocations for a tracer, which sees about one for each [`INTERVAL`] bytes.
//!
//! Samples are those allocations in which a point of a Poisson process over the allocated bytes
//! lies. An allocation stands for [`INTERVAL`] bytes for each of its points. So the weights of a
//! call site's samples add up to its bytes in the long run, whatever the sizes of its requests.
//! That is the sampling of TCMalloc and jemalloc, and the contract of OpenTelemetry's
//! `otel_memory` probes.

use super::unending::Unending;
use crate::os::{Clock, Memory};
use crate::prng::{Seeds, mix};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{CpuId, PAGE_SIZE};

/// Mean distance between two points, in bytes.
const INTERVAL: u64 = 512 << 10;
/// [`INTERVAL`] times the natural logarithm of two, in bytes.
const HALVED: u64 = 363_409;
/// An allocation of more bytes gets the points beyond them without drawing each.
const DRAWN: u64 = 1024 * INTERVAL;

/// Counters of bytes. CPUs that share one are no matter of concern up to this number.
const COUNTERS: usize = 256;
/// Buckets of the table. They have room for samples of 32 GiB.
const BUCKETS: usize = 1 << 13;

/// Bytes up to the next point of a CPU, in a cache line of its own; 0: none was drawn yet.
#[repr(C, align(64))]
struct Counter(AtomicU64);

/// Addresses of live samples, in one cache line. 0: there is none.
#[repr(C, align(64))]
struct Bucket([AtomicUsize; 8]);

/// The tables. Zeroed memory is a valid value.
#[repr(C)]
struct Table {
    counters: [Counter; COUNTERS],
    buckets: [Bucket; BUCKETS],
}

/// Points of the process, and the live samples. Zeroed memory is a valid value.
pub struct Samples {
    seeds: Seeds,
    table: Unending<Table>,
    /// 1 while a thread begins or ends to sample.
    switching: AtomicU32,
}

impl Samples {
    /// No samples.
    pub const fn new() -> Self {
        Self { seeds: Seeds::new(), table: Unending::new(), switching: AtomicU32::new(0) }
    }

    /// Lets the caller alone begin or end to sample, up to [`Self::unlock`]. False: another thread
    /// does.
    pub fn lock(&self) -> bool {
        self.switching.swap(1, Ordering::Acquire) == 0
    }

    /// Ends what [`Self::lock`] began.
    pub fn unlock(&self) {
        self.switching.store(0, Ordering::Release);
    }

    /// Begins to sample: forgets earlier samples. False: there is no memory for a table.
    pub fn begin(&self, platform: &(impl Memory + Clock)) -> bool {
        if let Some(table) = self.table.get() {
            for place in table.buckets.iter().flat_map(|bucket| &bucket.0) {
                // A table that is not in memory stays so.
                if place.load(Ordering::Relaxed) != 0 {
                    place.store(0, Ordering::Relaxed);
                }
            }
            return true;
        }
        let Some(table) = platform.allocate(size_of::<Table>(), PAGE_SIZE) else { return false };
        self.seeds.start(platform.entropy());
        // SAFETY: zeroed memory of that length, whose address no other thread has. It is never
        // released.
        self.table.set(unsafe { table.cast().as_ref() });
        true
    }

    /// The two buckets that may have an address.
    fn places(&self, at: usize) -> Option<impl Iterator<Item = &AtomicUsize>> {
        let hash = mix(0, at as u64) as usize;
        let [first, second] = [51, 38].map(|shift| hash >> shift & (BUCKETS - 1));
        let buckets = &self.table.get()?.buckets;
        Some([first, second].into_iter().flat_map(|bucket| &buckets[bucket].0))
    }

    /// Counts an allocation of `bytes` on a CPU, or on one that is not known. Returns the bytes for
    /// which it stands if it is a sample, else 0.
    #[inline]
    pub fn weigh(&self, cpu: Option<CpuId>, bytes: u64) -> u64 {
        let cpu = cpu.map_or(0, |cpu| cpu.0 as usize % COUNTERS);
        let Some(left) = self.table.get().map(|table| &table.counters[cpu].0) else { return 0 };
        let now = left.load(Ordering::Relaxed);
        if now > bytes {
            // If another thread of the CPU writes in between, its bytes or these are not counted.
            left.store(now - bytes, Ordering::Relaxed);
            return 0;
        }
        self.pass(left, now, bytes)
    }

    /// Counts the points in an allocation of `bytes`, the first of which comes after `now` bytes.
    #[cold]
    #[inline(never)]
    fn pass(&self, left: &AtomicU64, now: u64, bytes: u64) -> u64 {
        let (mut next, mut points) = (if now == 0 { self.gap() } else { now }, 0);
        while next <= bytes {
            if bytes - next > DRAWN {
                // As many as there are on average.
                let more = (bytes - next) / INTERVAL;
                next += more * INTERVAL;
                points += more;
            }
            next += self.gap();
            points += 1;
        }
        left.store(next - bytes, Ordering::Relaxed);
        points * INTERVAL
    }

    /// A random distance between two points, at least 1: exponentially distributed, so the points
    /// are those of a Poisson process.
    fn gap(&self) -> u64 {
        let random = self.seeds.next() | 1;
        // The random number is 2^(63 - zeros) * (1 + part / 2^16), as part of 2^64.
        let zeros = u64::from(random.leading_zeros());
        let part = (random << zeros) >> 47 & 0xFFFF;
        // log2(1 + x) is x + 0.344 * x * (1 - x) up to 0.01, with no error in the mean.
        let log = part + ((22_533 * ((part * (0x1_0000 - part)) >> 16)) >> 16);
        let halvings = ((1 + zeros) << 16) - log;
        ((halvings * HALVED) >> 16).max(1)
    }

    /// Notes a live sample. False: the table has no room for it.
    pub fn keep(&self, at: usize) -> bool {
        let take = |place: &AtomicUsize| {
            place.load(Ordering::Relaxed) == 0
                && place.compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        self.places(at).is_some_and(|mut places| places.any(take))
    }

    /// Forgets the sample at an address, which is freed. False: no sample is there.
    pub fn take(&self, at: usize) -> bool {
        let take = |place: &AtomicUsize| {
            at != 0
                && place.load(Ordering::Relaxed) == at
                && place.compare_exchange(at, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        self.places(at).is_some_and(|mut places| places.any(take))
    }
}

impl Default for Samples {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, kmem_linux, not(miri), not(loom)))]
mod tests {
    use super::*;
    use crate::os::Budget;
    use crate::os::linux::Linux;
    use crate::os::sim::Sim;

    /// Whose entropy is the same one in each run.
    static PLATFORM: Sim<Linux> = Sim::new(Linux::new(), Budget::of(1 << 20, 1));

    fn samples() -> Samples {
        let samples = Samples::new();
        assert!(samples.begin(&PLATFORM));
        samples
    }

    /// Tells if `got` is within a part in `parts` of `wanted`.
    fn is_near(got: u64, wanted: u64, parts: u64) -> bool {
        got.abs_diff(wanted) <= wanted / parts
    }

    #[test]
    fn weights_add_up_to_the_bytes_whatever_the_sizes_are() {
        for bytes in [1000, 100_000, INTERVAL, 3 << 20, 5 << 30, 1 << 45] {
            let samples = samples();
            let all = (4000 * INTERVAL).max(50 * bytes);
            let weights = (0..all / bytes).map(|_| samples.weigh(None, bytes)).sum::<u64>();
            assert!(is_near(weights, all, 20), "{bytes}: {weights} of {all}");
        }
    }

    #[test]
    fn small_allocations_are_samples_as_rarely_as_a_poisson_process_says() {
        let samples = samples();
        let (bytes, calls) = (64 << 10, 80_000);
        let sampled = (0..calls).filter(|_| samples.weigh(None, bytes) > 0).count();
        // 1 - exp(-1/8) of them.
        assert!(is_near(sampled as u64, calls * 11_750 / 100_000, 40), "{sampled}");
    }

    #[test]
    fn distances_are_exponentially_distributed() {
        let samples = samples();
        let gaps: [u64; 20_000] = core::array::from_fn(|_| samples.gap());
        let longer = |than: u64| gaps.iter().filter(|&&gap| gap > than).count() as u64;
        for (halvings, part) in [(1, 2), (2, 4), (3, 8)] {
            assert!(is_near(longer(halvings * HALVED), 20_000 / part, 20), "{halvings}");
        }
    }

    #[test]
    fn a_sample_is_found_once_and_only_where_it_is() {
        let samples = samples();
        let at = |i: usize| 0x7f00_0000_0000 + i * 48;
        let kept = (0..40_000).filter(|&i| samples.keep(at(i))).count();
        assert!(kept > 39_000, "{kept}");
        assert!(!samples.take(at(50_000)) && !samples.take(0));
        assert_eq!((0..40_000).filter(|&i| samples.take(at(i))).count(), kept);
        assert!(!samples.take(at(1)));
    }

    #[test]
    fn a_full_table_refuses_samples_and_a_new_beginning_empties_it() {
        let samples = samples();
        let kept = (0..2 * 8 * BUCKETS).filter(|&i| samples.keep(16 + i * 16)).count();
        assert!((7 * BUCKETS..=8 * BUCKETS).contains(&kept), "{kept}");
        assert!(samples.begin(&PLATFORM));
        assert!(samples.keep(16) && samples.take(16) && !samples.take(32));
    }
}
