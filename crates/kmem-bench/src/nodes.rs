//! `kmem-bench nodes`: machines with several NUMA nodes beside a machine with one.
//!
//! The nodes are simulated: one CPU says that it is of one node or of another. So the figures show
//! the work of the allocator, and not the distance of memory.
//!
//! | workload    | one operation                                                          |
//! |-------------|------------------------------------------------------------------------|
//! | `malloc`    | allocate 100 bytes and free them                                       |
//! | `page`      | allocate a page and free it                                            |
//! | `elsewhere` | allocate 100 bytes on one node and free them on another, in batches    |

use crate::cells::{Cell, timed};
use crate::{Failure, cells};
use kmem_core::os::Budget;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Instance, static_tag};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Time for all rounds.
const SECONDS: u64 = 6;
const PAIRS: usize = 1 << 16;
const BATCH: usize = 1000;
const BATCHES: usize = 50;
const ZONE: usize = 1 << 30;
const BUDGET: Budget = Budget::of(ZONE, 64);

type Simulated = Instance<Sim<Linux>>;

const fn machine(nodes: u32) -> Simulated {
    Instance::over(Sim::new(Linux::new(), BUDGET).with_nodes(nodes).with_rseq())
}

/// Visits of pairs so far.
static VISITS: AtomicUsize = AtomicUsize::new(0);
static ONE: Simulated = machine(1);
static TWO: Simulated = machine(2);
static EIGHT: Simulated = machine(8);

/// Measures the table and prints it.
pub(crate) fn run(options: &cells::Options) -> Result<(), Failure> {
    let machines = [("1 node", &ONE), ("2 nodes", &TWO), ("8 nodes", &EIGHT)];
    let all: Vec<Cell> = machines.into_iter().flat_map(|(name, kmem)| of(name, kmem)).collect();
    cells::run("nodes", options, SECONDS, &all)
}

fn of(name: &'static str, kmem: &'static Simulated) -> [Cell; 3] {
    [
        Cell::new(name, "malloc", 1, move |_| pairs(kmem, alloc, free)),
        Cell::new(name, "page", 1, move |_| pairs(kmem, alloc_page, free_page)),
        Cell::new(name, "elsewhere", 1, move |_| elsewhere(kmem)),
    ]
}

fn alloc(kmem: &'static Simulated) -> *mut u8 {
    kmem.alloc(100, Caller::tagged(static_tag!()))
}

fn free(kmem: &'static Simulated, at: *mut u8) {
    // SAFETY: `alloc` or `elsewhere` allocated it, and no code uses it any more.
    unsafe { kmem.free(at) }
}

fn alloc_page(kmem: &'static Simulated) -> *mut u8 {
    kmem.alloc_pages(Order(0), Gfp::KERNEL, Caller::tagged(static_tag!()))
}

fn free_page(kmem: &'static Simulated, at: *mut u8) {
    // SAFETY: `alloc_page` allocated it, and no code uses it any more.
    unsafe { kmem.free_pages(at, Order(0)) }
}

fn pairs(
    kmem: &'static Simulated,
    alloc: impl Fn(&'static Simulated) -> *mut u8,
    free: impl Fn(&'static Simulated, *mut u8),
) -> (usize, Duration) {
    kmem.platform().run_on(1);
    // A page whose words share a place in the cache with the CPU's array is slow, on any machine.
    // So each visit has another page.
    let visit = VISITS.fetch_add(1, Ordering::Relaxed);
    let held: Vec<_> = (0..visit / 9 % 32).map(|_| alloc(kmem)).collect();
    let time = timed(PAIRS, || (0..PAIRS).for_each(|_| free(kmem, black_box(alloc(kmem)))));
    held.into_iter().for_each(|at| free(kmem, at));
    time
}

fn elsewhere(kmem: &'static Simulated) -> (usize, Duration) {
    let mut held = Vec::with_capacity(BATCH);
    timed(BATCH * BATCHES, || {
        for batch in 0..BATCHES {
            kmem.platform().run_on(batch as u32);
            held.extend((0..BATCH).map(|_| alloc(kmem)));
            kmem.platform().run_on(batch as u32 + 1);
            held.drain(..).for_each(|at| free(kmem, at));
        }
    })
}
