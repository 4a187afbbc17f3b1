//! Live objects one by one, for a reader that looks at their contents.

use super::zone::Class;
use crate::budget::{Budget, OverBudget};
use kmem_layout::word::{EXT_LIVE, TAG_MASK};

/// Objects for which memory is drawn at once.
const STEP: usize = 1 << 16;

/// A live object, or a page allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Object {
    /// First address.
    pub(crate) addr: u64,
    /// Length in bytes.
    pub(crate) bytes: u64,
    /// Tag of its call site.
    pub(crate) tag: u32,
    /// True for the handle of a per-CPU object, whose copies lie elsewhere.
    pub(crate) is_handle: bool,
}

/// The objects that a census meets.
#[derive(Debug, Default)]
pub(super) struct Objects {
    pub(super) all: Vec<Object>,
}

impl Objects {
    /// Adds an object, as far as the budget allows.
    pub(super) fn add(&mut self, object: Object, budget: &Budget) -> Result<(), OverBudget> {
        if self.all.len().is_multiple_of(STEP) {
            // Readers sort the objects, with their state.
            budget.memory((STEP * 3 * size_of::<Object>()) as u64)?;
        }
        self.all.push(object);
        Ok(())
    }

    /// Adds the live objects of the slab at `addr`, by its extension vector.
    pub(super) fn slab(
        &mut self,
        addr: u64,
        class: &Class,
        vector: &[u8],
        is_handle: bool,
        budget: &Budget,
    ) -> Result<(), OverBudget> {
        let size = u64::from(class.size);
        let words = vector.as_chunks::<4>().0;
        // A shift finds the word of an object, so some words belong to none.
        let shift = class.size.max(1).ilog2();
        for at in (0..class.limit).step_by(class.size.max(1) as usize) {
            let word =
                words.get((at >> shift) as usize).map_or(0, |word| u32::from_le_bytes(*word));
            if word & EXT_LIVE != 0 {
                let (addr, tag) = (addr + at, word & TAG_MASK);
                self.add(Object { addr, bytes: size, tag, is_handle }, budget)?;
            }
        }
        Ok(())
    }
}
