//! The locked kind of slots: a try-lock in each area. No thread waits for it.

use super::{Area, BLOCK, Cell, Stock};
use crate::class::ArrayId;
use crate::sync::Ordering;
use crate::units::Item;

/// An area whose lock the caller holds. Its drop opens the lock.
///
/// # Invariants
/// The lock is held. While items or stocks are changed through this, no critical section uses the
/// area. Either the slots are of the locked kind, or the area is stopped.
pub(super) struct Owned<'a>(&'a Area);

impl<'a> Owned<'a> {
    /// Takes the lock of an area. `None`: it is taken.
    pub(super) fn try_lock(area: &'a Area) -> Option<Self> {
        // Acquire pairs with the release in `drop`.
        let lock = &area.front.lock;
        let done = lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
        // INVARIANT: the exchange took the lock; nothing is changed through this yet.
        done.then(|| Self(area))
    }

    /// The area.
    pub(super) fn area(&self) -> &'a Area {
        self.0
    }

    /// Block of an array.
    pub(super) fn block(&mut self, array: ArrayId) -> &mut [Item; BLOCK / 8] {
        // SAFETY: only the owner of an area reaches its blocks, by the invariant, and `&mut self`
        // lends out one at a time.
        unsafe { &mut (&mut *self.0.blocks.get())[array.0 as usize - 1] }
    }

    /// Takes up to `out.len()` items, the newest ones, in the order in which they were put. Returns
    /// the count.
    pub(super) fn take(&mut self, array: ArrayId, out: &mut [Item]) -> usize {
        let head = &self.0.front.head[array.0 as usize];
        let count = self.0.len(array).min(out.len());
        let word = head.load(Ordering::Relaxed);
        let top = word as u32 as usize / 8 % (BLOCK / 8);
        // The top of a full array is the end of its block.
        let top = if count > 0 && top == 0 { BLOCK / 8 } else { top };
        out[..count].copy_from_slice(&self.block(array)[top - count..top]);
        head.store(word - count as u64 * 8, Ordering::Relaxed);
        count
    }

    /// Puts items on an array, in order, as many as fit. Returns the count.
    ///
    /// # Safety
    /// The items are free things of `array`, and nothing else refers to them.
    pub(super) unsafe fn put(&mut self, array: ArrayId, items: &[Item]) -> usize {
        let head = &self.0.front.head[array.0 as usize];
        let word = head.load(Ordering::Relaxed);
        let top = word as u32 as usize / 8 % (BLOCK / 8);
        let room = if top == 0 { 0 } else { BLOCK / 8 - top };
        let count = items.len().min(room);
        self.block(array)[top..top + count].copy_from_slice(&items[..count]);
        head.store(word + count as u64 * 8, Ordering::Relaxed);
        count
    }

    /// Writes the stock in a place.
    pub(super) fn set_stock(&mut self, cell: Cell, stock: Stock) {
        self.0.set_stock(cell, stock);
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        self.0.front.lock.store(0, Ordering::Release);
    }
}
