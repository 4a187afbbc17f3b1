//! The workloads, and one operation of each.
//!
//! | row                 | threads | one operation                                                |
//! |---------------------|---------|--------------------------------------------------------------|
//! | `pair64`            | 1       | malloc and free of 64 bytes                                  |
//! | `bulk64_alloc`      | 1       | one of a million mallocs of 64 bytes                         |
//! | `bulk64_free`       | 1       | one of the million frees, in the order of allocation         |
//! | `sizes8_240`        | 1       | malloc and free, for 100 blocks of each size 8, 16 .. 240    |
//! | `random8_519`       | 1       | free of one of 65,536 blocks, malloc of 8 .. 519 bytes       |
//! | `larson`            | 2       | free of one of 5,000 blocks, malloc of 8 .. 1,000 bytes      |
//! | `producer_consumer` | 2       | malloc by one thread, free by the other, of 16 .. 256 bytes  |
//! | `medium`            | 1       | free of one of 20,000 blocks, malloc of 16 KiB .. 1 MiB      |
//! | `large`             | 1       | free of one of 16 blocks, malloc of 64 KiB .. 4 MiB          |
//!
//! `sizes8_240` allocates all blocks, then frees them. The threads of `larson` swap their blocks
//! after every 5,000 operations. Blocks to free are chosen at random.
//!
//! A *visit* is one turn of one allocator at one workload: it starts without blocks, warms up,
//! takes samples and frees all blocks. A sample is wall time divided by the operations of one
//! thread (for `producer_consumer`, by the number of blocks). Each allocation writes its first
//! eight bytes only. All random numbers are drawn before.

mod bulk;
mod larson;
mod pair;
mod producer_consumer;
mod replace;
mod ring;
mod sizes;

use crate::affinity::{Places, pin};
use crate::heap::Heap;
use crate::prng::Prng;
use replace::Replacements;
use std::cell::OnceCell;
use std::time::{Duration, Instant};

/// The work of an allocator in a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Workload {
    /// Allocation and free of 64 bytes.
    Pair64,
    /// A million blocks of 64 bytes, then none.
    Bulk64,
    /// Batches of every small size.
    Sizes,
    /// Random replacement of small blocks.
    Random,
    /// Random replacement in blocks that two threads exchange.
    Larson,
    /// One thread allocates, the other frees.
    ProducerConsumer,
    /// Random replacement of blocks of pages in a large heap.
    Medium,
    /// Random replacement of large blocks.
    Large,
}

impl Workload {
    /// Every workload, in the order of the table.
    pub(crate) const ALL: [Self; 8] = [
        Self::Pair64,
        Self::Bulk64,
        Self::Sizes,
        Self::Random,
        Self::Larson,
        Self::ProducerConsumer,
        Self::Medium,
        Self::Large,
    ];

    /// The rows of the table that one visit fills.
    pub(crate) fn rows(self) -> &'static [&'static str] {
        match self {
            Self::Pair64 => &["pair64"],
            Self::Bulk64 => &["bulk64_alloc", "bulk64_free"],
            Self::Sizes => &["sizes8_240"],
            Self::Random => &["random8_519"],
            Self::Larson => &["larson"],
            Self::ProducerConsumer => &["producer_consumer"],
            Self::Medium => &["medium"],
            Self::Large => &["large"],
        }
    }

    /// The workload that fills the row `name`.
    pub(crate) fn of_row(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.rows().contains(&name))
    }

    /// Number of threads that allocate or free.
    pub(crate) fn threads(self) -> usize {
        match self {
            Self::Larson | Self::ProducerConsumer => 2,
            _ => 1,
        }
    }
}

/// The random numbers of each workload, drawn before its first run.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    random: OnceCell<Replacements>,
    larson: OnceCell<[Replacements; 2]>,
    producer_consumer: OnceCell<Vec<u16>>,
    medium: OnceCell<Replacements>,
    large: OnceCell<Replacements>,
}

impl Inputs {
    fn random(&self) -> &Replacements {
        self.random
            .get_or_init(|| Replacements::draw(1, 65_536, 1 << 20, |prng| prng.between(8, 519)))
    }

    fn larson(&self) -> &[Replacements; 2] {
        let draw =
            |seed| Replacements::draw(seed, larson::BLOCKS, 1 << 18, |prng| prng.between(8, 1000));
        self.larson.get_or_init(|| [draw(2), draw(3)])
    }

    fn producer_consumer(&self) -> &[u16] {
        self.producer_consumer.get_or_init(|| {
            let mut prng = Prng::new(4);
            (0..1 << 16).map(|_| prng.between(16, 256) as u16).collect()
        })
    }

    fn medium(&self) -> &Replacements {
        self.medium.get_or_init(|| {
            Replacements::draw(6, 20_000, 1 << 15, |prng| prng.log_between(16 << 10, 1 << 20))
        })
    }

    fn large(&self) -> &Replacements {
        self.large.get_or_init(|| {
            Replacements::draw(5, 16, 1 << 14, |prng| prng.log_between(64 << 10, 4 << 20))
        })
    }
}

/// Makes one visit of `heap` to `workload`. Returns the samples of each of its rows, in nanoseconds
/// per operation.
pub(crate) fn visit(
    workload: Workload,
    heap: &Heap,
    inputs: &Inputs,
    places: Places,
) -> Vec<Vec<f64>> {
    let heap = heap.opaque();
    if workload.threads() == 1 {
        pin(&[places.single]);
    }
    match workload {
        Workload::Pair64 => vec![pair::samples(&heap)],
        Workload::Bulk64 => bulk::samples(&heap).into(),
        Workload::Sizes => vec![sizes::samples(&heap)],
        Workload::Random => vec![replace::samples(&heap, inputs.random(), replace::SMALL)],
        Workload::Medium => vec![replace::samples(&heap, inputs.medium(), replace::MEDIUM)],
        Workload::Large => vec![replace::samples(&heap, inputs.large(), replace::LARGE)],
        Workload::Larson => vec![larson::samples(&heap, inputs.larson(), places)],
        Workload::ProducerConsumer => {
            vec![producer_consumer::samples(&heap, inputs.producer_consumer(), places)]
        }
    }
}

fn nanoseconds(elapsed: Duration, operations: usize) -> f64 {
    elapsed.as_secs_f64() * 1e9 / operations as f64
}

/// Nanoseconds per operation of `body`, which does `operations` of them.
fn timed(operations: usize, body: impl FnOnce()) -> f64 {
    let start = Instant::now();
    body();
    nanoseconds(start.elapsed(), operations)
}

#[cfg(test)]
mod tests {
    use super::{Inputs, Workload, visit};
    use crate::affinity::{Places, allowed};
    use crate::heap::Heap;

    #[test]
    fn every_row_has_one_workload() {
        let rows: Vec<_> = Workload::ALL.iter().flat_map(|w| w.rows()).collect();
        assert_eq!(rows.len(), 9);
        for row in rows {
            assert!(Workload::of_row(row).unwrap().rows().contains(row));
        }
        assert_eq!(Workload::of_row("none"), None);
    }

    #[test]
    fn every_workload_fills_its_rows() {
        // SAFETY: malloc and free of the C library belong together.
        let heap = unsafe { Heap::new(libc::malloc, libc::free) };
        let (inputs, cpus) = (Inputs::default(), allowed());
        for workload in Workload::ALL {
            let samples = visit(workload, &heap, &inputs, Places::among(&cpus));
            assert_eq!(samples.len(), workload.rows().len());
            assert!(samples.iter().flatten().all(|&ns| ns > 0.0), "{workload:?}");
        }
        crate::affinity::pin(&cpus);
    }
}
