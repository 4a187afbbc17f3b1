//! `larson`: a server whose threads free blocks of other threads.
//!
//! Two arrays of blocks; in epoch `e` thread `t` replaces blocks in array
//! `(t + e) % 2`, so that almost every block it frees is the other thread's.

use super::replace::{Replacement, Replacements};
use super::{Places, nanoseconds};
use crate::affinity::pin;
use crate::heap::{Block, Heap};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Blocks per thread, and replacements between two exchanges.
pub(super) const BLOCKS: usize = 5000;
const WARM_EPOCHS: usize = 20;
const EPOCHS: usize = 60;

/// A barrier of two threads that spins, because sleeping takes longer.
#[derive(Debug, Default)]
struct Meeting(AtomicUsize);

impl Meeting {
    fn meet(&self, round: usize) {
        // Release: the other thread sees all blocks that were stored before.
        self.0.fetch_add(1, Ordering::Release);
        let mut spins = 0_u32;
        // Acquire: pairs with the other thread's release.
        while self.0.load(Ordering::Acquire) < 2 * (round + 1) {
            spins += 1;
            if spins.is_multiple_of(4096) {
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
    }
}

/// A block that another thread may free. Only the epochs order the accesses.
type Slot = AtomicPtr<u64>;

fn epoch(heap: &Heap, blocks: &[Slot], sequence: &[Replacement]) {
    for replacement in sequence {
        let slot = &blocks[replacement.slot as usize];
        if let Some(old) = Block::new(slot.load(Ordering::Relaxed)) {
            // SAFETY: in this epoch only this thread uses the array. The slot holds a live block of
            // this heap, and gets a new one below.
            unsafe { heap.free(old) };
        }
        slot.store(heap.alloc(replacement.size as usize).as_ptr(), Ordering::Relaxed);
    }
}

pub(super) fn samples(heap: &Heap, inputs: &[Replacements; 2], places: Places) -> Vec<f64> {
    let arrays = [0, 1].map(|_| (0..BLOCKS).map(|_| Slot::default()).collect::<Vec<_>>());
    let meeting = Meeting::default();
    let thread = |me: usize| {
        pin(&[places.pair[me]]);
        heap.in_thread(|| {
            for (slot, block) in arrays[me].iter().zip(inputs[me].fill(heap)) {
                slot.store(block.as_ptr(), Ordering::Relaxed);
            }
            let mut pieces = inputs[me].sequence.chunks_exact(BLOCKS).cycle();
            meeting.meet(0);
            let mut start = Instant::now();
            for number in 0..WARM_EPOCHS + EPOCHS {
                if number == WARM_EPOCHS {
                    start = Instant::now();
                }
                if let Some(piece) = pieces.next() {
                    epoch(heap, &arrays[(me + number) % 2], piece);
                }
                meeting.meet(number + 1);
            }
            let elapsed = start.elapsed();
            for slot in &arrays[me] {
                if let Some(block) = Block::new(slot.load(Ordering::Relaxed)) {
                    // SAFETY: after the last epoch only this thread uses the array.
                    unsafe { heap.free(block) };
                }
            }
            elapsed
        })
    };
    let elapsed = std::thread::scope(|scope| {
        let threads = [0, 1].map(|me| scope.spawn(move || thread(me)));
        threads.map(|thread| thread.join().unwrap_or(Duration::MAX)).into_iter().min()
    });
    vec![nanoseconds(elapsed.unwrap_or(Duration::MAX), EPOCHS * BLOCKS)]
}
