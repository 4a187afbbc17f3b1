//! Guards: the last bytes of each object of a slab, where objects have red zones. They are set before anybody
//! has an object of the slab, and never change: so whoever has the next object may look at them, too.

use crate::class::ClassGeometry;
use crate::sync::{AtomicU64, Ordering};

/// What red zones are filled with (the kernel's `SLUB_RED_ACTIVE`).
pub const PATTERN: u8 = 0xCC;
/// Bytes of a guard: the least red zone.
pub const RED_ZONE: usize = 8;

const GUARD: u64 = u64::from_ne_bytes([PATTERN; RED_ZONE]);

/// # Safety
/// `end` is the end of an object of a slab that stays.
unsafe fn guard<'a>(end: usize) -> &'a AtomicU64 {
    // SAFETY: the caller's promise; sizes are multiples of 16.
    unsafe { &*((end - RED_ZONE) as *const AtomicU64) }
}

/// Sets the guards of a slab.
///
/// # Safety
/// A slab of this geometry; nobody else writes to the ends of its objects.
pub(super) unsafe fn set_all(slab: usize, geometry: &ClassGeometry) {
    for end in (1..=geometry.objects).map(|n| slab + (n * geometry.size) as usize) {
        // SAFETY: the caller's promise.
        unsafe { guard(end).store(GUARD, Ordering::Relaxed) };
    }
}

/// The bytes of a guard that was written to, and which of them is the first that is not as it was set.
///
/// # Safety
/// `end` is the end of an object of a slab with guards; somebody has that object or the next one.
pub unsafe fn damage(end: usize) -> Option<([u8; RED_ZONE], usize)> {
    // SAFETY: the caller's promise.
    let found = unsafe { guard(end) }.load(Ordering::Relaxed).to_ne_bytes();
    found.iter().position(|&byte| byte != PATTERN).map(|first| (found, first))
}
