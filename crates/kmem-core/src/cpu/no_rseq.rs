//! Stand-ins for critical sections on targets without rseq. Arrays are always empty and full.

use super::{Cell, Cleared, Slots, Stock};
use crate::class::ArrayId;
use crate::sync::AtomicU32;
use crate::units::{Item, ObjcgId};

impl Slots {
    /// Returns no item: this target has no critical sections.
    ///
    /// # Safety
    /// None here; see the rseq kind.
    #[inline(always)]
    pub unsafe fn pop(&self, _array: ArrayId) -> Item {
        Item::NONE
    }

    /// Returns false: this target has no critical sections.
    ///
    /// # Safety
    /// None here; see the rseq kind.
    #[inline(always)]
    pub unsafe fn push(&self, _array: ArrayId, _item: Item) -> bool {
        false
    }

    /// Returns no item: this target has no critical sections.
    ///
    /// # Safety
    /// None here; see the rseq kind.
    #[inline(always)]
    pub unsafe fn pop_paid(&self, _array: ArrayId, _objcg: ObjcgId) -> Item {
        Item::NONE
    }

    /// Clears nothing: this target has no critical sections.
    ///
    /// # Safety
    /// None here; see the rseq kind.
    #[inline(always)]
    pub unsafe fn push_freed(
        &self,
        _array: ArrayId,
        _item: Item,
        _word: (&AtomicU32, u32),
        _bound: u32,
    ) -> Cleared {
        Cleared::Not
    }
}

pub(super) fn refund_freed(_: &Slots, _: Cell, _: i32, _: (&AtomicU32, u32), _: u32) -> Cleared {
    Cleared::Not
}

pub(super) fn start(_: Option<isize>) {}

pub(super) fn adjust(_: &Slots, _: Cell, _: ObjcgId, _: i32, _: u32) -> bool {
    false
}

pub(super) fn swap(_: &Slots, _: Cell, _: Stock) -> Option<Stock> {
    None
}

/// # Safety
/// None here; see the rseq kind.
pub(super) unsafe fn pop_many(_: &Slots, _: ArrayId, _: *mut Item, _: u32) -> u32 {
    0
}

/// # Safety
/// None here; see the rseq kind.
pub(super) unsafe fn push_many(_: &Slots, _: ArrayId, _: *const Item, _: u32) -> u32 {
    0
}

pub(super) fn current() -> u32 {
    u32::MAX
}
