//! What can be watched beyond the census, at a price: calls since the start (`cumulative:1`), and
//! mistakes of accounting (`debug:1`). Both take the fast paths out of use.

use crate::codetag::StaticTag;
use crate::sync::{AtomicI64, AtomicU64, Ordering};
use crate::units::TagId;

/// What is watched: bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch(pub u32);

impl Watch {
    /// Every call is counted.
    pub const COUNT: u32 = 1;
    /// Every call is checked.
    pub const DEBUG: u32 = 2;
    /// Objects are guarded, for which every call takes the slow path; nothing is watched.
    pub const GUARD: u32 = 4;

    /// Whether fast paths must stay closed.
    pub const fn any(self) -> bool {
        self.0 != 0
    }

    /// Whether calls are counted.
    pub const fn counts(self) -> bool {
        self.0 & Self::COUNT != 0
    }

    /// Whether calls are checked.
    pub const fn checks(self) -> bool {
        self.0 & Self::DEBUG != 0
    }
}

/// What is live of one static tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LiveTag {
    /// The tag; null in an entry that is not used.
    pub tag: *const StaticTag,
    /// Bytes of its live allocations.
    pub bytes: u64,
    /// How many there are.
    pub calls: u64,
}

impl LiveTag {
    /// An entry that is not used.
    pub const NONE: Self = Self { tag: core::ptr::null(), bytes: 0, calls: 0 };
}

/// Places that were warned of: each once. When it is full, nothing more is said.
pub struct Warned([AtomicU64; 256]);

impl Warned {
    /// Nothing said yet.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 256])
    }

    /// Whether this is the first time that `place` (not 0) is to be warned of.
    pub fn is_new(&self, place: u64) -> bool {
        let first = place.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56;
        for i in 0..self.0.len() {
            let slot = &self.0[(first as usize + i) % self.0.len()];
            match slot.compare_exchange(0, place, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) if other == place => return false,
                Err(_) => {}
            }
        }
        false
    }
}

impl Default for Warned {
    fn default() -> Self {
        Self::new()
    }
}

/// Bytes of the live counts by tag, for so many sites, that checks compare with.
pub const fn live_bytes(sites: u32) -> usize {
    sites as usize * size_of::<AtomicI64>()
}

/// Adds to the live count of a tag; the new count.
///
/// # Safety
/// `counts` has [`live_bytes`] bytes, zero at first, and `tag` is below the number of sites.
pub(crate) unsafe fn count_live(counts: *const u8, tag: TagId, by: i64) -> i64 {
    // SAFETY: the caller's promise.
    let count = unsafe { &*counts.cast::<AtomicI64>().add(tag.0 as usize) };
    count.fetch_add(by, Ordering::Relaxed) + by
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_warned_of_once_and_a_full_table_keeps_silent() {
        let warned = Warned::new();
        for place in 1..=256 {
            assert!(warned.is_new(place));
            assert!(!warned.is_new(place));
        }
        assert!(!warned.is_new(1000));
    }
}
