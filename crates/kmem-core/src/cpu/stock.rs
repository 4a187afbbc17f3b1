//! Stocks: charges of groups that a CPU has paid in advance. An allocation that a stock pays for
//! does not touch its group (the kernel's `memcg_stock_pcp`).
//!
//! A stock is charged to its group in full: the group can use that memory on this CPU without a
//! new charge. Frees on this CPU refill the stock. There are two places for a stock:
//!
//! - the head of a class, in objects of that class, for one group. One store takes an object and
//!   pays for it.
//! - one of [`CELLS`] cells, by the group's number, in bytes. It pays for everything else, and for
//!   the classes whose heads have stocks of other groups.
//!
//! Context: any, signal handlers included. Nothing here waits.

use super::{Area, Front, Ordering, Slots, rseq};
use crate::class::ArrayId;
use crate::sync::AtomicU32;
use crate::units::ObjcgId;
use core::mem::offset_of;

/// Cells of a CPU. Groups whose numbers differ modulo this do not share a cell.
pub(super) const CELLS: usize = 64;

/// Bits of an amount.
const AMOUNT_BITS: u32 = 32 - ObjcgId::BITS;

// `by` and `bound` of `Slots::adjust` are at most half of an amount's range. So an amount of
// another group is never mistaken for one of this group.
const _: () = assert!(Stock::MAX >= 1 << 18);

/// Stock of one group in one place: `objcg:14 | amount:18`, in objects or in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stock(pub(super) u32);

impl Stock {
    /// No stock: the root's, which pays for nothing.
    pub const NONE: Self = Self(0);
    /// Amounts are below this.
    pub const MAX: u32 = 1 << AMOUNT_BITS;

    /// A stock of `amount` objects or bytes, below [`Self::MAX`], of a group.
    pub const fn new(objcg: ObjcgId, amount: u32) -> Self {
        debug_assert!(amount < Self::MAX);
        Self(objcg.0 << AMOUNT_BITS | amount)
    }

    /// Group of the stock; the root for [`Self::NONE`].
    pub const fn objcg(self) -> ObjcgId {
        ObjcgId(self.0 >> AMOUNT_BITS)
    }

    /// Objects or bytes in the stock.
    pub const fn amount(self) -> u32 {
        self.0 & (Self::MAX - 1)
    }

    /// This stock with its amount changed by `by`. `None`: it is of another group, or the amount
    /// would not be in `0..bound`.
    const fn adjusted(self, objcg: ObjcgId, by: i32, bound: u32) -> Option<Self> {
        // For a stock of another group this differs from every amount by at least `MAX`.
        let amount = (self.0 ^ Self::new(objcg, 0).0).wrapping_add_signed(by);
        if amount < bound { Some(Self::new(objcg, amount)) } else { None }
    }
}

/// State of an extension word and a charge after an attempt to free a live item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cleared {
    /// The word is cleared, and a stock has the charge.
    Paid,
    /// The word is cleared. The caller has the charge of the group in the word that it passed.
    Unpaid,
    /// Nothing changed: there is no stock of that group with room, or the word is another one.
    Not,
}

/// A place for a stock in every area: its offset in bytes.
///
/// # Invariants
/// The offset is that of the upper half of a head, or of a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell(pub(super) u32);

impl Cell {
    /// The head of an array, for a stock in objects.
    pub const fn of_array(array: ArrayId) -> Self {
        Self((offset_of!(Front, head) + array.0 as usize * 8 + 4) as u32)
    }

    /// The cell of a group, for a stock in bytes.
    pub const fn of_group(objcg: ObjcgId) -> Self {
        // INVARIANT: one of the cells.
        Self((offset_of!(Front, stocks) + objcg.0 as usize % CELLS * 4) as u32)
    }

    /// All places: those on heads with their array.
    pub fn all() -> impl Iterator<Item = (Self, Option<ArrayId>)> {
        let groups = (0..CELLS as u32).map(|n| (Self::of_group(ObjcgId(n)), None));
        ArrayId::all().map(|array| (Self::of_array(array), Some(array))).chain(groups)
    }
}

impl Area {
    /// Reads the stock in a place.
    pub fn stock(&self, cell: Cell) -> Stock {
        let (at, heads) = (cell.0 as usize, offset_of!(Front, stocks));
        Stock(if at < heads {
            (self.front.head[at / 8].load(Ordering::SeqCst) >> 32) as u32
        } else {
            self.front.stocks[(at - heads) / 4].load(Ordering::SeqCst)
        })
    }

    /// Writes the stock in a place. The caller owns the area.
    pub(super) fn set_stock(&self, cell: Cell, stock: Stock) {
        let (at, heads) = (cell.0 as usize, offset_of!(Front, stocks));
        if at < heads {
            let head = &self.front.head[at / 8];
            let top = head.load(Ordering::Relaxed) as u32;
            head.store(u64::from(stock.0) << 32 | u64::from(top), Ordering::Relaxed);
        } else {
            self.front.stocks[(at - heads) / 4].store(stock.0, Ordering::Relaxed);
        }
    }
}

impl Slots {
    /// Adds `by` to the amount of a group's stock on this CPU. False, without a change: the stock
    /// there is of another group, or its amount would not be in `0..bound`. `objcg` is not the
    /// root. `by` and `bound` are at most half of [`Stock::MAX`]. `slot` comes from [`Self::hint`].
    #[inline]
    pub fn adjust(&self, cell: Cell, objcg: ObjcgId, by: i32, bound: u32, slot: u32) -> bool {
        if self.uses_rseq() {
            return rseq::adjust(self, cell, objcg, by, bound);
        }
        let Some(mut owned) = self.owned(slot) else { return false };
        match owned.area().stock(cell).adjusted(objcg, by, bound) {
            Some(stock) => {
                owned.set_stock(cell, stock);
                true
            }
            None => false,
        }
    }

    /// Clears the extension word of a live item that the caller gives up. Adds the item's charge,
    /// `by` bytes, to its group's stock in a cell of this CPU. `word` is the value of the word that
    /// the caller read; its group is not the root. The locked kind clears nothing.
    #[inline]
    pub fn refund_freed(
        &self,
        cell: Cell,
        by: i32,
        word: (&AtomicU32, u32),
        bound: u32,
    ) -> Cleared {
        if self.uses_rseq() {
            rseq::refund_freed(self, cell, by, word, bound)
        } else {
            Cleared::Not
        }
    }

    /// Writes the stock in a place of this CPU. Returns the old one. `None`, without a change: the
    /// CPU has no area, or another thread has its lock. `slot` comes from [`Self::hint`].
    pub fn swap_stock(&self, cell: Cell, stock: Stock, slot: u32) -> Option<Stock> {
        if self.uses_rseq() {
            return rseq::swap(self, cell, stock);
        }
        let mut owned = self.owned(slot)?;
        let before = owned.area().stock(cell);
        owned.set_stock(cell, stock);
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::class::ARRAY_COUNT;

    #[test]
    fn a_stock_changes_only_for_its_group_and_within_bounds() {
        let mine = ObjcgId(5);
        for other in [0, 4, 6, 1, 7, (1 << ObjcgId::BITS) - 1] {
            for amount in [0, 1, 100, Stock::MAX - 1] {
                for by in [1, -1, 70_000, -70_000] {
                    assert_eq!(
                        Stock::new(ObjcgId(other), amount).adjusted(mine, by, 1 << 16),
                        None
                    );
                }
            }
        }
        let stock = Stock::new(mine, 100);
        assert_eq!(stock.adjusted(mine, -100, 128), Some(Stock::new(mine, 0)));
        assert_eq!(stock.adjusted(mine, -101, 128), None);
        assert_eq!(stock.adjusted(mine, 27, 128), Some(Stock::new(mine, 127)));
        assert_eq!(stock.adjusted(mine, 28, 128), None);
    }

    #[test]
    fn places_are_distinct() {
        let mut places: Vec<u32> = Cell::all().map(|(cell, _)| cell.0).collect();
        assert_eq!(places.len(), ARRAY_COUNT - 1 + CELLS);
        places.dedup();
        assert!(places.is_sorted());
        assert_eq!(places.len(), ARRAY_COUNT - 1 + CELLS);
    }
}
