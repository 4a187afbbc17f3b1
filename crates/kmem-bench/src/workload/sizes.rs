//! `sizes8_240`: batches of every small size, which are live at once.

use super::timed;
use crate::heap::{Block, Heap};

const PER_SIZE: usize = 100;
const SIZES: usize = 30;
const BATCH: usize = PER_SIZE * SIZES;

fn batch(heap: &Heap, blocks: &mut Vec<Block>) {
    blocks.clear();
    for step in 1..=SIZES {
        for _ in 0..PER_SIZE {
            blocks.push(heap.alloc(8 * step));
        }
    }
    // SAFETY: all allocated in the loop above, none freed yet.
    unsafe { heap.free_all(blocks) };
}

pub(super) fn samples(heap: &Heap) -> Vec<f64> {
    const BATCHES: usize = 400;
    let mut blocks = Vec::with_capacity(BATCH);
    for _ in 0..BATCHES / 8 {
        batch(heap, &mut blocks);
    }
    let sample = |_| {
        timed(BATCHES * BATCH, || {
            for _ in 0..BATCHES {
                batch(heap, &mut blocks);
            }
        })
    };
    (0..2).map(sample).collect()
}
