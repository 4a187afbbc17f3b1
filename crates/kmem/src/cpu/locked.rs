//! The locked kind: a try-lock in each area. Nobody waits for it.

use super::{Area, BLOCK};
use crate::class::SizeClass;
use crate::sync::Ordering;
use crate::units::Item;

/// Takes the lock if it is free.
pub(super) fn try_lock(area: &Area) -> bool {
    // Acquire pairs with the release in `unlock`.
    area.front.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Gives the lock back; the caller holds it.
pub(super) fn unlock(area: &Area) {
    area.front.lock.store(0, Ordering::Release);
}

/// The block of a class.
///
/// # Safety
/// The caller owns the area (its lock, or it is stopped).
#[expect(clippy::mut_from_ref, reason = "the area's owner is the only one to reach its blocks")]
unsafe fn block(area: &Area, class: SizeClass) -> &mut [Item; BLOCK / 8] {
    // SAFETY: exclusive, by the caller's promise.
    unsafe { &mut (&mut *area.blocks.get())[class.0 as usize - 1] }
}

/// Takes the newest objects; the caller owns the area.
pub(super) fn take(area: &Area, class: SizeClass, out: &mut [Item]) -> usize {
    let head = &area.front.head[class.0 as usize];
    let count = area.len(class).min(out.len());
    let word = head.load(Ordering::Relaxed);
    let top = word as u32 as usize / 8 % (BLOCK / 8);
    // A full array's top is the end of its block.
    let top = if count > 0 && top == 0 { BLOCK / 8 } else { top };
    // SAFETY: the caller owns the area.
    out[..count].copy_from_slice(&unsafe { block(area, class) }[top - count..top]);
    head.store(word - count as u64 * 8, Ordering::Relaxed);
    count
}

pub(super) fn pop_many(area: &Area, class: SizeClass, out: &mut [Item]) -> usize {
    if !try_lock(area) {
        return 0;
    }
    let count = take(area, class, out);
    unlock(area);
    count
}

pub(super) fn push_many(area: &Area, class: SizeClass, items: &[Item]) -> usize {
    if !try_lock(area) {
        return 0;
    }
    let head = &area.front.head[class.0 as usize];
    let word = head.load(Ordering::Relaxed);
    let top = word as u32 as usize / 8 % (BLOCK / 8);
    let room = if top == 0 { 0 } else { BLOCK / 8 - top };
    let count = items.len().min(room);
    // SAFETY: we hold the lock.
    let words = unsafe { block(area, class) };
    words[top..top + count].copy_from_slice(&items[..count]);
    head.store(word + count as u64 * 8, Ordering::Relaxed);
    unlock(area);
    count
}
