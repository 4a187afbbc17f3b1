//! `kmem-bench vmalloc`: areas of whole pages, against mmap and munmap per call.
//!
//! The workloads are those of the kernel's `test_vmalloc`, and pairs:
//!
//! | workload            | one operation: allocate, write a byte of each area, free             |
//! |---------------------|----------------------------------------------------------------------|
//! | `pair_16k`          | 16 KiB, which are not written                                        |
//! | `pair_16k_write`    | 16 KiB, of which every page is written                               |
//! | `fix_size`          | 10 pages                                                             |
//! | `full_fit`          | 100 pages, then 1 page; before, half of 3000 areas of 1 page is freed |
//! | `long_busy_list`    | 100 pages and 1 page, while 5000 areas of 1 page are live            |
//! | `random_size`       | 1 to 100 pages                                                       |
//! | `fix_align`         | 5 pages at a multiple of 16 KiB                                      |
//! | `random_size_align` | 1 to 10 pages at a multiple of 1 to 8 pages                          |
//! | `pcpu`              | a per-CPU object of 1 to 8192 bytes, in batches of 2000, not written |
//!
//! | variant | implementation                                                              |
//! |---------|-----------------------------------------------------------------------------|
//! | `kmem`  | `vmalloc` with a guard page; `vfree`                                        |
//! | `mmap`  | `mmap` without a guard page; `munmap`; maps more pages for an alignment     |

use crate::cells::{Cell, timed};
use crate::prng::Prng;
use crate::{Failure, cells};
use kmem_core::request::Caller;
use kmem_core::units::Gfp;
use kmem_core::{Kmem, static_tag};
use std::hint::black_box;
use std::time::Duration;

/// Time for all rounds.
const SECONDS: u64 = 10;

static KMEM: Kmem = Kmem::new();
const PAGE: usize = 4096;
/// Number of pairs of a visit.
const PAIRS: usize = 2000;

/// The functions of a variant. Lengths and alignments are in pages.
#[derive(Clone, Copy)]
struct Areas {
    name: &'static str,
    alloc: fn(usize, usize) -> *mut u8,
    free: fn(*mut u8, usize),
    /// Number of pairs of a visit with equal pairs: enough for some milliseconds.
    alike: usize,
}

const VARIANTS: [Areas; 2] = [
    Areas { name: "kmem", alloc: vmalloc, free: vfree, alike: 100 * PAIRS },
    Areas { name: "mmap", alloc: mmap, free: munmap, alike: PAIRS },
];

fn vmalloc(pages: usize, align: usize) -> *mut u8 {
    let caller = Caller::tagged(static_tag!());
    if align == 1 {
        KMEM.vmalloc(pages * PAGE, Gfp::KERNEL, caller)
    } else {
        KMEM.vmalloc_aligned(pages * PAGE, align * PAGE, Gfp::KERNEL, caller)
    }
}

fn vfree(at: *mut u8, _: usize) {
    // SAFETY: an area of `vmalloc`, which no code uses any more.
    unsafe { KMEM.vfree(at) }
}

fn mmap(pages: usize, align: usize) -> *mut u8 {
    let span = (pages + align - 1) * PAGE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, whose surplus ends are unmapped.
    unsafe {
        let at = libc::mmap(
            std::ptr::null_mut(),
            span,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            -1,
            0,
        );
        assert_ne!(at, libc::MAP_FAILED, "mmap");
        if align == 1 {
            return at.cast();
        }
        let start = (at as usize).next_multiple_of(align * PAGE);
        let (head, end) = (start - at as usize, start + pages * PAGE);
        if head > 0 {
            libc::munmap(at, head);
        }
        if at as usize + span > end {
            libc::munmap(end as *mut _, at as usize + span - end);
        }
        start as *mut u8
    }
}

fn munmap(at: *mut u8, pages: usize) {
    // SAFETY: a mapping of `mmap`, which no code uses any more.
    unsafe { libc::munmap(at.cast(), pages * PAGE) };
}

impl Areas {
    fn pair(self, pages: usize, align: usize, write: bool) {
        let at = black_box((self.alloc)(pages, align));
        assert!(!at.is_null());
        if write {
            // SAFETY: the area is at least that long.
            unsafe { at.write_volatile(1) };
        }
        (self.free)(at, pages);
    }
}

/// Measures the table and prints it.
pub(crate) fn run(options: &cells::Options) -> Result<(), Failure> {
    cells::run("vmalloc", options, SECONDS, &all())
}

fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for threads in [1, 2] {
        for areas in VARIANTS {
            let mut cell = |workload, work: fn(Areas, usize) -> (usize, Duration)| {
                cells.push(Cell::new(areas.name, workload, threads, move |number| {
                    work(areas, number)
                }));
            };
            cell("pair_16k", |areas, _| {
                timed(areas.alike, || (0..areas.alike).for_each(|_| areas.pair(4, 1, false)))
            });
            cell("pair_16k_write", |areas, _| {
                timed(areas.alike, || {
                    for _ in 0..areas.alike {
                        let at = black_box((areas.alloc)(4, 1));
                        // SAFETY: the area is at least that long.
                        (0..4).for_each(|page| unsafe { at.add(page * PAGE).write_volatile(1) });
                        (areas.free)(at, 4);
                    }
                })
            });
            cell("fix_size", |areas, _| {
                timed(areas.alike, || (0..areas.alike).for_each(|_| areas.pair(10, 1, true)))
            });
            cell("full_fit", |areas, _| full_fit(areas));
            cell("long_busy_list", |areas, _| long_busy_list(areas));
            cell("random_size", |areas, number| {
                let mut prng = Prng::new(number as u64 + 1);
                let sizes: Vec<_> = (0..PAIRS).map(|_| prng.between(1, 100)).collect();
                timed(PAIRS, || sizes.iter().for_each(|&pages| areas.pair(pages, 1, true)))
            });
            cell("fix_align", |areas, _| {
                timed(PAIRS, || (0..PAIRS).for_each(|_| areas.pair(5, 4, true)))
            });
            cell("random_size_align", |areas, number| {
                let mut prng = Prng::new(number as u64 + 1);
                let draw = |_| (prng.between(1, 10), 1usize << prng.between(0, 3));
                let sizes: Vec<_> = (0..PAIRS).map(draw).collect();
                timed(PAIRS, || {
                    sizes.iter().for_each(|&(pages, align)| areas.pair(pages, align, true))
                })
            });
        }
        cells.push(Cell::new("kmem", "pcpu", threads, pcpu));
    }
    cells
}

fn full_fit(areas: Areas) -> (usize, Duration) {
    const JUNK: usize = 3000;
    let junk: Vec<_> = (0..JUNK).map(|_| (areas.alloc)(1, 1)).collect();
    for &at in junk.iter().step_by(2) {
        (areas.free)(at, 1);
    }
    let measured = timed(PAIRS / 4, || {
        for _ in 0..PAIRS / 4 {
            let (long, short) = ((areas.alloc)(100, 1), (areas.alloc)(1, 1));
            // SAFETY: the area is at least that long.
            unsafe {
                long.write_volatile(1);
                short.write_volatile(1);
            }
            (areas.free)(long, 100);
            (areas.free)(short, 1);
        }
    });
    for &at in junk.iter().skip(1).step_by(2) {
        (areas.free)(at, 1);
    }
    measured
}

fn long_busy_list(areas: Areas) -> (usize, Duration) {
    let busy: Vec<_> = (0..5000).map(|_| (areas.alloc)(1, 1)).collect();
    let measured = timed(PAIRS / 4, || {
        for _ in 0..PAIRS / 4 {
            areas.pair(100, 1, true);
            areas.pair(1, 1, true);
        }
    });
    busy.into_iter().for_each(|at| (areas.free)(at, 1));
    measured
}

fn pcpu(number: usize) -> (usize, Duration) {
    const OBJECTS: usize = 2000;
    let mut prng = Prng::new(number as u64 + 1);
    let draw = |_| (prng.between(1, 8192), 1usize << prng.between(0, 6));
    let wishes: Vec<_> = (0..OBJECTS).map(draw).collect();
    let mut held = Vec::with_capacity(OBJECTS);
    timed(OBJECTS, || {
        for (size, align) in wishes {
            held.push(KMEM.alloc_percpu(size, align, Gfp::KERNEL, Caller::tagged(static_tag!())));
        }
        for handle in held {
            // SAFETY: allocated above; no code uses it any more.
            unsafe { KMEM.free_percpu(handle) };
        }
    })
}
