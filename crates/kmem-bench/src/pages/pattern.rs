//! Patterns of a thread's allocations and frees of blocks of pages.
//!
//! | pattern  | one operation                                                               |
//! |----------|-----------------------------------------------------------------------------|
//! | `bulk`   | one of many allocations, then one of the frees, in the order of allocation  |
//! | `pair`   | an allocation and the free of the block; half of the time is given for each |
//! | `random` | one of the frees in random order, then one of the allocations that follow   |
//!
//! Blocks are not written. A visit has several turns, because the first ones fill caches. Its
//! figure is the fastest turn of each thread, and the slower thread of two.

use crate::affinity::{Places, pin};
use crate::prng::Prng;
use std::sync::Barrier;
use std::time::Instant;

/// An order of allocations and frees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pattern {
    Bulk,
    Pair,
    Random,
}

impl Pattern {
    pub(super) const ALL: [Self; 3] = [Self::Bulk, Self::Pair, Self::Random];

    /// The name in the rows.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Pair => "pair",
            Self::Random => "random",
        }
    }
}

/// A workload: a pattern, an order and a number of threads.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) pattern: Pattern,
    pub(super) order: u8,
    pub(super) threads: usize,
}

impl Work {
    /// Number of blocks that a thread has at once.
    pub(super) fn blocks(self) -> usize {
        blocks(self.order)
    }
}

/// Number of blocks of an order that a thread has at once: 256 MiB, or 1 GiB of huge pages.
pub(super) fn blocks(order: u8) -> usize {
    if order < 9 { 1 << 16 >> order } else { 512 }
}

/// Turns of a visit, which takes about a millisecond.
fn turns(order: u8) -> usize {
    if order < 9 { 3 << order } else { 100 }
}

/// An allocator of blocks for one thread.
pub(super) trait Pages {
    /// Allocates a block of an order.
    fn alloc(&mut self, order: u8) -> u64;
    /// Frees a block of `alloc`.
    fn free(&mut self, block: u64, order: u8);
}

/// Makes one visit. Returns nanoseconds per allocation and per free.
pub(super) fn visit<P: Pages>(
    work: Work,
    places: Places,
    pages: impl Fn() -> P + Sync,
) -> (f64, f64) {
    let barrier = Barrier::new(work.threads);
    let thread = |number: usize| {
        pin(&[if work.threads == 1 { places.single } else { places.pair[number] }]);
        let mut pages = pages();
        (0..turns(work.order)).fold((f64::MAX, f64::MAX), |(alloc, free): (f64, f64), turn| {
            let seed = (turn * work.threads + number) as u64;
            let (a, f) = one_thread(work, &mut pages, &barrier, seed);
            (alloc.min(a), free.min(f))
        })
    };
    if work.threads == 1 {
        return thread(0);
    }
    std::thread::scope(|scope| {
        let thread = &thread;
        let threads: Vec<_> =
            (0..work.threads).map(|number| scope.spawn(move || thread(number))).collect();
        threads.into_iter().fold((0.0, 0.0), |(alloc, free): (f64, f64), thread| {
            let (a, f) = thread.join().expect("no panic in a loop without one");
            (alloc.max(a), free.max(f))
        })
    })
}

fn one_thread(work: Work, pages: &mut impl Pages, barrier: &Barrier, seed: u64) -> (f64, f64) {
    let (order, count) = (work.order, work.blocks());
    let mut blocks = vec![0; count];
    let mut timed = |body: &mut dyn FnMut(&mut [u64])| {
        barrier.wait();
        let start = Instant::now();
        body(&mut blocks);
        start.elapsed().as_secs_f64() * 1e9 / count as f64
    };
    let mut alloc = |pages: &mut _| timed(&mut |blocks| alloc_all(pages, order, blocks));
    match work.pattern {
        Pattern::Bulk => {
            let alloc = alloc(pages);
            let free = timed(&mut |blocks| free_all(pages, order, blocks));
            (alloc, free)
        }
        Pattern::Pair => {
            let both = timed(&mut |blocks| {
                for _ in 0..blocks.len() {
                    let block = pages.alloc(order);
                    pages.free(block, order);
                }
            });
            (both / 2.0, both / 2.0)
        }
        Pattern::Random => {
            alloc(pages);
            let mut prng = Prng::new(seed + 1);
            let mut shuffle = |blocks: &mut [u64]| {
                for last in (1..blocks.len()).rev() {
                    blocks.swap(last, prng.between(0, last));
                }
            };
            timed(&mut shuffle);
            let free = timed(&mut |blocks| free_all(pages, order, blocks));
            let alloc = timed(&mut |blocks| alloc_all(pages, order, blocks));
            timed(&mut |blocks| free_all(pages, order, blocks));
            (alloc, free)
        }
    }
}

#[inline(never)]
fn alloc_all(pages: &mut impl Pages, order: u8, blocks: &mut [u64]) {
    for block in blocks {
        *block = pages.alloc(order);
    }
}

#[inline(never)]
fn free_all(pages: &mut impl Pages, order: u8, blocks: &mut [u64]) {
    for &mut block in blocks {
        pages.free(block, order);
    }
}
