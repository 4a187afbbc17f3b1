//! A bounded ring from one producer to one consumer. It passes whole batches, which keeps its cost
//! per block low.

use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// Blocks in a batch.
pub(super) const BATCH: usize = 128;
const BATCHES: usize = 32;

/// A position on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Position(AtomicUsize);

/// The ring. `put - taken` batches are full; the producer owns the others.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Vec<AtomicPtr<u64>>,
    put: Position,
    taken: Position,
}

impl Ring {
    pub(super) fn new() -> Self {
        let slots = (0..BATCH * BATCHES).map(|_| AtomicPtr::new(null_mut())).collect();
        Self { slots, put: Position::default(), taken: Position::default() }
    }

    fn batch(&self, number: usize) -> &[AtomicPtr<u64>] {
        let start = number % BATCHES * BATCH;
        &self.slots[start..start + BATCH]
    }

    /// Producer: fills the batch with this number, in order from 0.
    pub(super) fn put(&self, number: usize, mut block: impl FnMut() -> *mut u64) {
        // Acquire: pairs with the release in `take`, after which the batch is not read.
        wait(|| number - self.taken.0.load(Ordering::Acquire) < BATCHES);
        for slot in self.batch(number) {
            slot.store(block(), Ordering::Relaxed);
        }
        // Release: the consumer sees the blocks and their first bytes.
        self.put.0.store(number + 1, Ordering::Release);
    }

    /// Consumer: empties the batch with this number, in order from 0.
    pub(super) fn take(&self, number: usize, mut each: impl FnMut(*mut u64)) {
        // Acquire: pairs with the release in `put`.
        wait(|| self.put.0.load(Ordering::Acquire) > number);
        for slot in self.batch(number) {
            each(slot.load(Ordering::Relaxed));
        }
        // Release: the producer may overwrite the batch.
        self.taken.0.store(number + 1, Ordering::Release);
    }
}

fn wait(ready: impl Fn() -> bool) {
    let mut spins = 0_u32;
    while !ready() {
        spins += 1;
        if spins.is_multiple_of(4096) {
            std::thread::yield_now();
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::{BATCH, BATCHES, Ring};

    #[test]
    fn every_pointer_arrives_once_and_in_order() {
        let (ring, count) = (Ring::new(), 3 * BATCHES);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut next = 0_usize;
                for number in 0..count {
                    ring.put(number, || {
                        next += 1;
                        std::ptr::without_provenance_mut(next)
                    });
                }
            });
            let mut expected = 0_usize;
            for number in 0..count {
                ring.take(number, |pointer| {
                    expected += 1;
                    assert_eq!(pointer.addr(), expected);
                });
            }
            assert_eq!(expected, count * BATCH);
        });
    }
}
