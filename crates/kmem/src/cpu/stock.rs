//! Stocks: what a CPU has paid for in advance, so that an allocation for a group does not touch the
//! group (the kernel's `memcg_stock_pcp`).
//!
//! A stock is charged to its group in full: it is memory that the group could use on this CPU without
//! asking, and what is freed here goes back into it. Two places hold one:
//!
//! - the head of a class: objects of that class, for one group. One store takes an object and pays.
//! - a cell of [`CELLS`], by the number of the group: bytes for everything else, and for all classes
//!   whose heads belong to other groups.

use super::{Area, CpuId, Front, Ordering, Slots, locked, rseq};
use crate::class::{ARRAY_COUNT, SizeClass};
use crate::units::ObjcgId;
use core::mem::offset_of;

/// Stocks of a CPU beside those on the heads: so many groups alternate without disturbing each other,
/// as long as their numbers differ in the lowest bits.
pub(super) const CELLS: usize = 64;

/// Bits of an amount.
const AMOUNT_BITS: u32 = 32 - ObjcgId::BITS;

// Told apart from another group's by less than a whole step of the group's number.
const _: () = assert!(Stock::MAX >= 1 << 18);

/// What a group has in stock in one place: `objcg:14 | amount:18`, in objects or in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stock(pub(super) u32);

impl Stock {
    /// Nobody's.
    pub const NONE: Self = Self(0);
    /// Amounts are below this.
    pub const MAX: u32 = 1 << AMOUNT_BITS;

    /// So much of a group.
    pub const fn new(objcg: ObjcgId, amount: u32) -> Self {
        debug_assert!(amount < Self::MAX);
        Self(objcg.0 << AMOUNT_BITS | amount)
    }

    /// Whose it is; the root's for nobody's.
    pub const fn objcg(self) -> ObjcgId {
        ObjcgId(self.0 >> AMOUNT_BITS)
    }

    /// How much.
    pub const fn amount(self) -> u32 {
        self.0 & (Self::MAX - 1)
    }

    /// After `by` more, if it is this group's and stays below `bound`.
    const fn adjusted(self, objcg: ObjcgId, by: i32, bound: u32) -> Option<Self> {
        // Of another group, this is at least `MAX` away from every amount.
        let amount = (self.0 ^ Self::new(objcg, 0).0).wrapping_add_signed(by);
        if amount < bound { Some(Self::new(objcg, amount)) } else { None }
    }
}

/// A place for a stock in every area: its offset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cell(pub(super) u32);

impl Cell {
    /// On the head of a class, in objects.
    pub const fn of_class(class: SizeClass) -> Self {
        Self((offset_of!(Front, head) + class.0 as usize * 8 + 4) as u32)
    }

    /// Of a group, in bytes.
    pub const fn of_group(objcg: ObjcgId) -> Self {
        Self((offset_of!(Front, stocks) + objcg.0 as usize % CELLS * 4) as u32)
    }

    /// All places: those of the classes with their class.
    pub fn all() -> impl Iterator<Item = (Self, Option<SizeClass>)> {
        let classes = (1..ARRAY_COUNT as u8).map(SizeClass);
        let groups = (0..CELLS as u32).map(|n| (Self::of_group(ObjcgId(n)), None));
        classes.map(|class| (Self::of_class(class), Some(class))).chain(groups)
    }
}

impl Area {
    /// What a place holds, at this moment.
    pub fn stock(&self, cell: Cell) -> Stock {
        let (at, heads) = (cell.0 as usize, offset_of!(Front, stocks));
        Stock(if at < heads {
            (self.front.head[at / 8].load(Ordering::SeqCst) >> 32) as u32
        } else {
            self.front.stocks[(at - heads) / 4].load(Ordering::SeqCst)
        })
    }

    /// Puts another stock there; whoever calls owns the area.
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
    /// Adds `by` to this CPU's stock of a group, if it stays from 0 to below `bound` by that; false, and
    /// nothing happens, if not, or if the stock there is not this group's. `by` and `bound` are at most
    /// half of [`Stock::MAX`]. `slot` is what the locked kind uses.
    #[inline]
    pub fn adjust(&self, cell: Cell, objcg: ObjcgId, by: i32, bound: u32, slot: u32) -> bool {
        if self.uses_rseq() {
            return rseq::adjust(self, cell, objcg, by, bound);
        }
        self.with_locked(slot, |area| {
            let adjusted = area.stock(cell).adjusted(objcg, by, bound);
            adjusted.map(|stock| area.set_stock(cell, stock))
        })
        .is_some()
    }

    /// Puts another stock in a place of this CPU; the one that was there. `None`: the CPU has no place,
    /// or somebody is at it.
    pub fn swap_stock(&self, cell: Cell, stock: Stock, slot: u32) -> Option<Stock> {
        if self.uses_rseq() {
            return rseq::swap(self, cell, stock);
        }
        self.with_locked(slot, |area| {
            let before = area.stock(cell);
            area.set_stock(cell, stock);
            Some(before)
        })
    }

    fn with_locked<T>(&self, slot: u32, act: impl FnOnce(&Area) -> Option<T>) -> Option<T> {
        let area = self.area(CpuId(slot))?;
        if !locked::try_lock(area) {
            return None;
        }
        let done = act(area);
        locked::unlock(area);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn every_place_is_its_own() {
        let mut places: Vec<u32> = Cell::all().map(|(cell, _)| cell.0).collect();
        assert_eq!(places.len(), ARRAY_COUNT - 1 + CELLS);
        places.dedup();
        assert!(places.is_sorted());
        assert_eq!(places.len(), ARRAY_COUNT - 1 + CELLS);
    }
}
