//! `pair64`: the shortest path through an allocator.
//!
//! A load waits for an earlier store whose address has the same lowest twelve bits, as if it read
//! what was stored. So a block, or a frame of the stack, may lie where a pair takes up to twice as
//! long. Every sample has another block and another frame.

use std::hint::black_box;

use super::timed;
use crate::heap::Heap;

const COUNT: usize = 1 << 18;
const SAMPLES: usize = 12;

#[inline(always)]
fn pair(heap: &Heap, between: impl FnOnce()) {
    let block = heap.alloc(64);
    between();
    // SAFETY: allocated from this heap, and not used again.
    unsafe { heap.free(block) };
}

fn pairs(heap: &Heap, count: usize) {
    for _ in 0..count {
        pair(heap, || ());
    }
}

/// Takes a sample, and the others deeper in the stack while a block is held.
fn take(heap: &Heap, samples: &mut Vec<f64>) {
    let frame = black_box([0_u8; 64]);
    pairs(heap, COUNT / 8);
    samples.push(timed(COUNT, || pairs(heap, COUNT)));
    if samples.len() < SAMPLES {
        pair(heap, || take(heap, samples));
    }
    black_box(&frame);
}

pub(super) fn samples(heap: &Heap) -> Vec<f64> {
    let mut samples = Vec::with_capacity(SAMPLES);
    take(heap, &mut samples);
    samples
}
