//! `pair64`: the shortest path through an allocator.

use super::timed;
use crate::heap::Heap;

fn pairs(heap: &Heap, count: usize) {
    for _ in 0..count {
        let block = heap.alloc(64);
        // SAFETY: allocated from this heap, and not used again.
        unsafe { heap.free(block) };
    }
}

pub(super) fn samples(heap: &Heap) -> Vec<f64> {
    const COUNT: usize = 1 << 20;
    pairs(heap, COUNT / 8);
    (0..3).map(|_| timed(COUNT, || pairs(heap, COUNT))).collect()
}
