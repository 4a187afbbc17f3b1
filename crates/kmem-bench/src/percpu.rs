//! `kmem-bench percpu`: per-CPU memory, and what programs use instead.
//!
//! | workload  | one operation                                                            |
//! |-----------|--------------------------------------------------------------------------|
//! | `alloc_4` | allocate 4 bytes per CPU, in batches of 64; their frees are not timed    |
//! | `pair_4`  | allocate 4 bytes per CPU and free them                                   |
//! | `add`     | add one to a counter of 8 bytes                                          |
//! | `sum`     | sum up all copies of a counter                                           |
//! | `scope`   | enter the scope of a group, and leave it                                 |
//!
//! | variant        | implementation                                                      |
//! |----------------|---------------------------------------------------------------------|
//! | `kmem`         | `alloc_percpu`, `this_cpu_add`, `Group::enter`                      |
//! | `kmem-group`   | the same by a thread whose group pays                               |
//! | `kmem-c`       | C functions of libkmem.so: `kmem_group_enter` and `_leave`          |
//! | `kmem-c-pin`   | the same, `kmem_group_switch` there and back, to a pinned group     |
//! | `thread-local` | a `thread_local!` cell, which other threads cannot read             |
//! | `sharded`      | an array of atomics from the C library, one cache line for each CPU |
//! | `atomic`       | one atomic                                                          |

use crate::cells::{Cell, timed};
use crate::dynamic::Library;
use crate::preload::{NO_LIBKMEM, libkmem};
use crate::{Failure, cells};
use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::request::Caller;
use kmem_core::units::Gfp;
use kmem_core::{Group, Kmem, static_tag};
use std::cell::Cell as Plain;
use std::ffi::{c_char, c_int, c_void};
use std::hint::black_box;
use std::mem::transmute;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Time for all rounds.
const SECONDS: u64 = 6;

static KMEM: Kmem = Kmem::new();
const BATCH: usize = 64;
const ADDS: usize = 1 << 20;

/// An atomic on a cache line of its own, and on the one that is prefetched with it.
#[repr(align(128))]
#[derive(Default)]
struct Shard(AtomicU64);

/// Measures the table and prints it.
pub(crate) fn run(options: &cells::Options) -> Result<(), Failure> {
    let library = libkmem().ok_or_else(|| Failure::Absent(format!("kmem: {NO_LIBKMEM}")))?;
    let scopes = Library::load(&library).and_then(Scopes::of).map_err(Failure::Failed)?;
    cells::run("percpu", options, SECONDS, &all(scopes))
}

/// Functions of the C interface, each with a group or a token.
#[derive(Clone, Copy)]
struct Scopes {
    enter: extern "C" fn(i64) -> i64,
    leave: extern "C" fn(i64) -> c_int,
    switch: extern "C" fn(i64) -> i64,
    /// A pinned group.
    group: i64,
}

impl Scopes {
    fn of(library: Library) -> Result<Self, String> {
        let (create, pin) =
            (library.symbol(c"kmem_group_create")?, library.symbol(c"kmem_group_pin")?);
        let enter = library.symbol(c"kmem_group_enter")?;
        let leave = library.symbol(c"kmem_group_leave")?;
        let switch = library.symbol(c"kmem_group_switch")?;
        // SAFETY: functions of libkmem.so, declared so in kmem/group.h; the library stays loaded.
        unsafe {
            let create: extern "C" fn(i64, *const c_char) -> i64 = transmute(create);
            let pin: extern "C" fn(i64) -> c_int = transmute(pin);
            let group = create(GroupId::ROOT.0 as i64, c"bench".as_ptr());
            if pin(group) != 0 {
                return Err(format!("libkmem.so makes no group: error {}", -group));
            }
            Ok(Self {
                enter: transmute::<*mut c_void, extern "C" fn(i64) -> i64>(enter),
                leave: transmute::<*mut c_void, extern "C" fn(i64) -> c_int>(leave),
                switch: transmute::<*mut c_void, extern "C" fn(i64) -> i64>(switch),
                group,
            })
        }
    }
}

fn alloc(size: usize) -> *mut u8 {
    KMEM.alloc_percpu(size, 4, Gfp::KERNEL, Caller::tagged(static_tag!()).here())
}

/// The group of the rows in which a group pays.
fn group() -> &'static Group<Linux> {
    static GROUP: OnceLock<Group<Linux>> = OnceLock::new();
    GROUP.get_or_init(|| {
        let made = KMEM.group_create(GroupId::ROOT, b"bench").and_then(|id| KMEM.group(id));
        made.expect("a group")
    })
}

fn shards() -> Box<[Shard]> {
    static CPUS: OnceLock<usize> = OnceLock::new();
    let cpus = *CPUS.get_or_init(|| KMEM.possible_cpus() as usize);
    (0..cpus).map(|_| Shard::default()).collect()
}

fn all(scopes: Scopes) -> Vec<Cell> {
    let mut cells = Vec::new();
    for threads in [1, 2] {
        allocation(&mut cells, threads);
        scope(&mut cells, threads, scopes);
        addition(&mut cells, threads);
    }
    cells
}

fn allocation(cells: &mut Vec<Cell>, threads: usize) {
    cells.push(Cell::new("kmem", "alloc_4", threads, |_| batches(|| alloc(4), free)));
    cells.push(Cell::new("kmem", "pair_4", threads, |_| {
        timed(ADDS / 4, || (0..ADDS / 4).for_each(|_| free(black_box(alloc(4)))))
    }));
    cells.push(Cell::new("kmem-group", "alloc_4", threads, |_| {
        let _scope = group().enter();
        batches(|| alloc(4), free)
    }));
    cells.push(Cell::new("kmem-group", "pair_4", threads, |_| {
        let _scope = group().enter();
        timed(ADDS / 4, || (0..ADDS / 4).for_each(|_| free(black_box(alloc(4)))))
    }));
    cells.push(Cell::new("sharded", "alloc_4", threads, |_| batches(shards, drop)));
    cells.push(Cell::new("sharded", "pair_4", threads, |_| {
        timed(ADDS / 16, || (0..ADDS / 16).for_each(|_| drop(black_box(shards()))))
    }));
}

fn scope(cells: &mut Vec<Cell>, threads: usize, c: Scopes) {
    cells.push(Cell::new("kmem", "scope", threads, |_| {
        let group = group();
        timed(ADDS, || (0..ADDS).for_each(|_| drop(black_box(group.enter()))))
    }));
    cells.push(Cell::new("kmem-c", "scope", threads, move |_| {
        timed(ADDS, || (0..ADDS).for_each(|_| assert_eq!((c.leave)((c.enter)(c.group)), 0)))
    }));
    cells.push(Cell::new("kmem-c-pin", "scope", threads, move |_| {
        timed(ADDS, || (0..ADDS).for_each(|_| assert!((c.switch)((c.switch)(c.group)) > 0)))
    }));
}

fn free(handle: *mut u8) {
    // SAFETY: allocated by `alloc`; no code uses it any more.
    unsafe { KMEM.free_percpu(handle) }
}

/// Calls `one` in batches, and `back` with its results. Only `one` is timed.
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
        // SAFETY: the counter is never freed.
        timed(ADDS, || (0..ADDS).for_each(|_| unsafe { KMEM.this_cpu_add(counter, 1) }))
    }));
    cells.push(Cell::new("kmem", "sum", threads, move |_| {
        let counter = black_box(counter) as *mut u64;
        timed(ADDS / 16, || {
            for _ in 0..ADDS / 16 {
                // SAFETY: the counter is never freed.
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
