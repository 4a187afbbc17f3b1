//! `bulk64_alloc` and `bulk64_free`: a heap that grows, then shrinks to nothing.

use super::timed;
use crate::heap::Heap;

pub(super) fn samples(heap: &Heap) -> [Vec<f64>; 2] {
    const COUNT: usize = 1_000_000;
    let mut blocks = vec![heap.alloc(64); COUNT];
    let first = blocks[0];
    // SAFETY: allocated above; the addresses in `blocks` are overwritten before use.
    unsafe { heap.free(first) };
    let mut samples = [Vec::new(), Vec::new()];
    // Only the first turn grows the heap, unless the allocator gives memory back at once.
    for warm in [false, true, true, true] {
        let alloc = timed(COUNT, || {
            for block in &mut blocks {
                *block = heap.alloc(64);
            }
        });
        // SAFETY: all allocated in the loop above, none freed yet.
        let free = timed(COUNT, || unsafe { heap.free_all(&blocks) });
        if warm {
            samples[0].push(alloc);
            samples[1].push(free);
        }
    }
    samples
}
