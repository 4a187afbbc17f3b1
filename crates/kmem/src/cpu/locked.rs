//! The locked kind: a try-lock in each area. Nobody waits for it.

use super::{Area, MAX_CAP};
use crate::slab::class::SizeClass;
use crate::sync::Ordering;

/// Takes the lock if it is free.
pub(super) fn try_lock(area: &Area) -> bool {
    // Acquire pairs with the release in `unlock`.
    area.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

/// Gives the lock back; the caller holds it.
pub(super) fn unlock(area: &Area) {
    area.lock.store(0, Ordering::Release);
}

/// The array of a class.
///
/// # Safety
/// The caller owns the area (its lock, or it is stopped).
#[expect(clippy::mut_from_ref, reason = "the area's owner is the only one to reach its arrays")]
unsafe fn array(area: &Area, class: SizeClass) -> &mut [u64; MAX_CAP] {
    // SAFETY: exclusive, by the caller's promise; `class` is in range by its type's use.
    unsafe { &mut (&mut *area.objects.get())[class.0 as usize] }
}

/// Takes the newest objects; the caller owns the area.
pub(super) fn take(area: &Area, class: SizeClass, out: &mut [u64]) -> usize {
    let head = &area.head[class.0 as usize];
    let word = head.load(Ordering::Relaxed);
    let len = word as u32 as usize;
    let count = len.min(out.len());
    // SAFETY: the caller owns the area.
    out[..count].copy_from_slice(&unsafe { array(area, class) }[len - count..len]);
    head.store(word - count as u64, Ordering::Relaxed);
    count
}

pub(super) fn pop_many(area: &Area, class: SizeClass, out: &mut [u64]) -> usize {
    if !try_lock(area) {
        return 0;
    }
    let count = take(area, class, out);
    unlock(area);
    count
}

pub(super) fn push_many(area: &Area, class: SizeClass, objects: &[u64]) -> usize {
    if !try_lock(area) {
        return 0;
    }
    let head = &area.head[class.0 as usize];
    let word = head.load(Ordering::Relaxed);
    let (len, cap) = (word as u32 as usize, (word >> 32) as usize);
    let count = objects.len().min(cap - len);
    // SAFETY: we hold the lock.
    let objects_of_class = unsafe { array(area, class) };
    objects_of_class[len..len + count].copy_from_slice(&objects[..count]);
    head.store(word + count as u64, Ordering::Relaxed);
    unlock(area);
    count
}
