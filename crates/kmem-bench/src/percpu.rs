//! `kmem-bench percpu`: per-CPU memory beside what programs do without it.
//!
//! | workload | one operation |
//! |---|---|
//! | `alloc_4` | allocate 4 bytes per CPU; a batch of 64, which is freed in between, not timed |
//! | `pair_4` | allocate 4 bytes per CPU and free them |
//! | `add` | add one to a counter of 8 bytes |
//! | `sum` | add up all copies of a counter |
//!
//! | variant | what it is |
//! |---|---|
//! | `kmem` | `alloc_percpu`, `this_cpu_add` |
//! | `thread-local` | a `thread_local!` cell: as long as the thread, and nobody else can add it up |
//! | `sharded` | an array of atomics, one per CPU and cache line, chosen by thread; allocated by the C library |
//! | `atomic` | one atomic for all |

use crate::cells::{Cell, timed};
use crate::{Failure, cells};
use kmem_core::codetag::Caller;
use kmem_core::units::Gfp;
use kmem_core::{Kmem, static_tag};
use std::cell::Cell as Plain;
use std::hint::black_box;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time for all rounds.
const SECONDS: u64 = 6;

static KMEM: Kmem = Kmem::new();
const BATCH: usize = 64;
const ADDS: usize = 1 << 20;

/// An atomic with a cache line (and the one prefetched with it) of its own.
#[repr(align(128))]
#[derive(Default)]
struct Shard(AtomicU64);

/// Measure and print.
pub(crate) fn run(options: &cells::Options) -> Result<(), Failure> {
    cells::run("percpu", options, SECONDS, &all())
}

fn alloc(size: usize) -> *mut u8 {
    KMEM.alloc_percpu(size, 4, Gfp::KERNEL, Caller::tagged(static_tag!()))
}

fn shards() -> Box<[Shard]> {
    static CPUS: OnceLock<usize> = OnceLock::new();
    let cpus = *CPUS.get_or_init(|| KMEM.possible_cpus() as usize);
    (0..cpus).map(|_| Shard::default()).collect()
}

fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for threads in [1, 2] {
        allocation(&mut cells, threads);
        addition(&mut cells, threads);
    }
    cells
}

fn allocation(cells: &mut Vec<Cell>, threads: usize) {
    cells.push(Cell::new("kmem", "alloc_4", threads, |_| batches(|| alloc(4), free)));
    cells.push(Cell::new("kmem", "pair_4", threads, |_| {
        timed(ADDS / 4, || (0..ADDS / 4).for_each(|_| free(black_box(alloc(4)))))
    }));
    cells.push(Cell::new("sharded", "alloc_4", threads, |_| batches(shards, drop)));
    cells.push(Cell::new("sharded", "pair_4", threads, |_| {
        timed(ADDS / 16, || (0..ADDS / 16).for_each(|_| drop(black_box(shards()))))
    }));
}

fn free(handle: *mut u8) {
    // SAFETY: allocated by `alloc`, used by nobody.
    unsafe { KMEM.free_percpu(handle) }
}

/// Batches of what `one` makes; only making is timed.
fn batches<T>(one: impl Fn() -> T, back: impl Fn(T)) -> (usize, std::time::Duration) {
    const BATCHES: usize = 500;
    let mut held: Vec<T> = Vec::with_capacity(BATCH);
    let mut total = std::time::Duration::ZERO;
    for _ in 0..BATCHES {
        total += timed(BATCH, || held.extend((0..BATCH).map(|_| one()))).1;
        held.drain(..).for_each(&back);
    }
    (BATCH * BATCHES, total)
}

fn addition(cells: &mut Vec<Cell>, threads: usize) {
    let counter = alloc(8) as usize;
    cells.push(Cell::new("kmem", "add", threads, move |_| {
        let counter = black_box(counter) as *mut u64;
        // SAFETY: live for good.
        timed(ADDS, || (0..ADDS).for_each(|_| unsafe { KMEM.this_cpu_add(counter, 1) }))
    }));
    cells.push(Cell::new("kmem", "sum", threads, move |_| {
        let counter = black_box(counter) as *mut u64;
        timed(ADDS / 16, || {
            for _ in 0..ADDS / 16 {
                // SAFETY: as above.
                black_box(unsafe { KMEM.percpu_sum(counter) });
            }
        })
    }));
    thread_local!(static OWN: Plain<u64> = const { Plain::new(0) });
    cells.push(Cell::new("thread-local", "add", threads, |_| {
        timed(ADDS, || {
            for _ in 0..ADDS {
                OWN.with(|own| black_box(own).set(own.get() + 1));
            }
        })
    }));
    let counters = shards();
    cells.push(Cell::new("sharded", "add", threads, move |number| {
        let mine = black_box(number) % counters.len();
        timed(ADDS, || {
            for _ in 0..ADDS {
                black_box(&counters[mine]).0.fetch_add(1, Ordering::Relaxed);
            }
        })
    }));
    let counters = shards();
    cells.push(Cell::new("sharded", "sum", threads, move |_| {
        timed(ADDS / 16, || {
            for _ in 0..ADDS / 16 {
                black_box(counters.iter().map(|c| c.0.load(Ordering::Relaxed)).sum::<u64>());
            }
        })
    }));
    let counter = Shard::default();
    cells.push(Cell::new("atomic", "add", threads, move |_| {
        timed(ADDS, || {
            for _ in 0..ADDS {
                black_box(&counter).0.fetch_add(1, Ordering::Relaxed);
            }
        })
    }));
}
