//! The loops of the kernel's test: `kmalloc` and `kfree` of growing sizes, pages of order 0.
//!
//! | loop      | one operation                                                                |
//! |-----------|------------------------------------------------------------------------------|
//! | `kmalloc` | a kmalloc and its kfree, of sizes 8, 16 .. 240; 100 are allocated, then freed |
//! | `page`    | an alloc_pages(0) and its __free_pages; 100 are allocated, then freed        |
//!
//! The first eight bytes of objects are written; pages are not.

use crate::kernel::Kernel;
use kmem_core::StaticTag;
use std::ptr::NonNull;
use std::time::Instant;

/// Number of objects or pages that are live at once.
const BATCH: usize = 100;
const SIZES: usize = 30;

/// The call site of each loop: `kmem.h` makes one per line.
pub(super) static KMALLOC: StaticTag = StaticTag::new(c"kernel_test.rs", c"kmalloc", 1);
static PAGE: StaticTag = StaticTag::new(c"kernel_test.rs", c"page", 2);

/// The lists of a loop, allocated before the measurement.
#[derive(Debug)]
pub(super) struct Loops {
    live: Vec<NonNull<u8>>,
}

impl Loops {
    pub(super) fn new() -> Self {
        Self { live: Vec::with_capacity(BATCH) }
    }

    /// Nanoseconds per kmalloc and kfree, over `times` turns of all sizes.
    pub(super) fn kmalloc(&mut self, kernel: &Kernel, times: usize) -> f64 {
        let kernel = kernel.opaque();
        let start = Instant::now();
        for size in (0..times).flat_map(|_| (1..=SIZES).map(|step| 8 * step)) {
            self.live.clear();
            for _ in 0..BATCH {
                self.live.push(kernel.kmalloc(size, &KMALLOC));
            }
            for &at in &self.live {
                // SAFETY: allocated in the loop above, freed once.
                unsafe { kernel.kfree(at) };
            }
        }
        start.elapsed().as_secs_f64() * 1e9 / (times * SIZES * BATCH) as f64
    }

    /// Nanoseconds per page allocated and freed, over `times` batches.
    pub(super) fn page(&mut self, kernel: &Kernel, times: usize) -> f64 {
        let kernel = kernel.opaque();
        let start = Instant::now();
        for _ in 0..times {
            self.live.clear();
            for _ in 0..BATCH {
                self.live.push(kernel.pages(0, &PAGE));
            }
            for &at in &self.live {
                // SAFETY: allocated in the loop above, freed once.
                unsafe { kernel.free_pages(at, 0) };
            }
        }
        start.elapsed().as_secs_f64() * 1e9 / (times * BATCH) as f64
    }
}
