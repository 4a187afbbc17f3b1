//! Guards: the last bytes of each object, in slabs whose objects have red zones. They are set
//! before the slab's objects are handed out, and never change. So the owner of an object may also
//! read the guard of the object before it.

use crate::sync::{AtomicU64, Ordering};
use kmem_layout::geometry::ClassGeometry;

/// Byte that fills red zones (the kernel's `SLUB_RED_ACTIVE`).
pub const PATTERN: u8 = 0xCC;
/// Bytes of a guard: the least red zone.
pub const RED_ZONE: usize = 8;

const GUARD: u64 = u64::from_ne_bytes([PATTERN; RED_ZONE]);

/// Guard in front of `end`.
///
/// # Safety
/// `end` is the end of an object of a slab that exists for as long as the reference is used.
unsafe fn guard<'a>(end: usize) -> &'a AtomicU64 {
    // SAFETY: the object's last 8 bytes, by the contract; sizes are multiples of 16, so they are
    // aligned.
    unsafe { &*((end - RED_ZONE) as *const AtomicU64) }
}

/// Sets the guards of a slab.
///
/// # Safety
/// `slab` is the address of a slab of this geometry, and no other thread writes to its guards.
pub(super) unsafe fn set_all(slab: usize, geometry: &ClassGeometry) {
    for end in (1..=geometry.objects).map(|n| slab + (n * geometry.size) as usize) {
        // SAFETY: `end` is the end of an object of the slab, by the contract.
        unsafe { guard(end).store(GUARD, Ordering::Relaxed) };
    }
}

/// Bytes of a damaged guard, and the index of the first that changed. `None`: the guard is intact.
///
/// # Safety
/// `end` is the end of an object of a slab with guards. That object or the next one is taken.
#[inline]
pub unsafe fn damage(end: usize) -> Option<([u8; RED_ZONE], usize)> {
    // SAFETY: a slab of which an object is taken stays, by the contract.
    let found = unsafe { guard(end) }.load(Ordering::Relaxed);
    if found == GUARD {
        return None;
    }
    let found = found.to_ne_bytes();
    found.iter().position(|&byte| byte != PATTERN).map(|first| (found, first))
}
