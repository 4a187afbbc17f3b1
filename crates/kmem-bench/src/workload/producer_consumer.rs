//! `producer_consumer`: every block is freed by a thread that never allocates.

use super::ring::{BATCH, Ring};
use super::{Places, nanoseconds};
use crate::affinity::pin;
use crate::heap::{Block, Heap};
use std::time::Instant;

const WARM_BATCHES: usize = 1000;
const BATCHES: usize = 6000;

fn produce(heap: &Heap, ring: &Ring, sizes: &[u16]) {
    let mut pieces = sizes.chunks_exact(BATCH).cycle();
    for number in 0..WARM_BATCHES + BATCHES {
        let mut piece = pieces.next().unwrap_or_default().iter().copied();
        ring.put(number, || heap.alloc(usize::from(piece.next().unwrap_or(64))).as_ptr());
    }
}

fn consume(heap: &Heap, ring: &Ring) -> f64 {
    let mut start = Instant::now();
    for number in 0..WARM_BATCHES + BATCHES {
        if number == WARM_BATCHES {
            start = Instant::now();
        }
        ring.take(number, |pointer| {
            if let Some(block) = Block::new(pointer) {
                // SAFETY: the producer allocated it from this heap, and does not use it any more.
                unsafe { heap.free(block) };
            }
        });
    }
    nanoseconds(start.elapsed(), BATCHES * BATCH)
}

pub(super) fn samples(heap: &Heap, sizes: &[u16], places: Places) -> Vec<f64> {
    let ring = Ring::new();
    let sample = std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(&[places.pair[0]]);
            heap.in_thread(|| produce(heap, &ring, sizes));
        });
        let consumer = scope.spawn(|| {
            pin(&[places.pair[1]]);
            heap.in_thread(|| consume(heap, &ring))
        });
        consumer.join().unwrap_or(f64::INFINITY)
    });
    vec![sample]
}
