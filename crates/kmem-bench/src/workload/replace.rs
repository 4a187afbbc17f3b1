//! `random8_519`, `medium` and `large`: free a random block, allocate another in its place.

use super::timed;
use crate::heap::{Block, Heap};
use crate::prng::Prng;

/// One replacement: a slot, and the size of its new block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replacement {
    pub(super) slot: u32,
    pub(super) size: u32,
}

/// A sequence of replacements in a fixed number of slots.
#[derive(Debug)]
pub(super) struct Replacements {
    pub(super) slots: usize,
    pub(super) sequence: Vec<Replacement>,
}

impl Replacements {
    /// Draws `count` replacements, with sizes by `size`.
    pub(super) fn draw(
        seed: u64,
        slots: usize,
        count: usize,
        mut size: impl FnMut(&mut Prng) -> usize,
    ) -> Self {
        let mut prng = Prng::new(seed);
        let mut one = || Replacement {
            slot: prng.between(0, slots - 1) as u32,
            size: size(&mut prng) as u32,
        };
        Self { slots, sequence: (0..count).map(|_| one()).collect() }
    }

    /// A block for every slot.
    pub(super) fn fill(&self, heap: &Heap) -> Vec<Block> {
        let sizes = self.sequence.iter().cycle().take(self.slots);
        sizes.map(|replacement| heap.alloc(replacement.size as usize)).collect()
    }
}

/// Numbers of replacements before and in the timed part.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    warm_up: usize,
    timed: usize,
}

/// `random8_519`: every slot is replaced four times before the sample, sixteen times in it.
pub(super) const SMALL: Extent = Extent { warm_up: 1 << 18, timed: 1 << 20 };
/// `medium`: half of the slots are replaced before the sample, so that the heap is fragmented.
pub(super) const MEDIUM: Extent = Extent { warm_up: 1 << 14, timed: 1 << 15 };
/// `large`.
pub(super) const LARGE: Extent = Extent { warm_up: 1 << 9, timed: 1 << 12 };

fn replace(heap: &Heap, blocks: &mut [Block], sequence: &[Replacement]) {
    for replacement in sequence {
        let slot = &mut blocks[replacement.slot as usize];
        // SAFETY: a slot holds a live block of this heap, and gets a new one below.
        unsafe { heap.free(*slot) };
        *slot = heap.alloc(replacement.size as usize);
    }
}

pub(super) fn samples(heap: &Heap, replacements: &Replacements, extent: Extent) -> Vec<f64> {
    let mut blocks = replacements.fill(heap);
    replace(heap, &mut blocks, &replacements.sequence[..extent.warm_up]);
    let sequence = &replacements.sequence[..extent.timed];
    let sample = timed(extent.timed, || replace(heap, &mut blocks, sequence));
    // SAFETY: each slot holds its own live block.
    unsafe { heap.free_all(&blocks) };
    vec![sample]
}
