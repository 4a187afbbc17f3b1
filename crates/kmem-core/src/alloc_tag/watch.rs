//! Watched calls: counts since the start (`cumulative:1`), checks for accounting errors
//! (`debug:1`), times of allocations (`age:1`), and samples for a tracer. All of them close the
//! fast paths.

use crate::codetag::StaticTag;
use crate::sync::{AtomicI64, AtomicU64, Ordering};
use crate::units::TagId;

/// Which calls are watched, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch(pub u32);

impl Watch {
    /// Every call is counted.
    pub const COUNT: u32 = 1;
    /// Every call is checked.
    pub const DEBUG: u32 = 2;
    /// Objects are guarded, so every call takes a slower path; no call is watched.
    pub const GUARD: u32 = 4;

    /// Freed memory is zeroed, so every free takes a slower path; no call is watched.
    pub const ZERO: u32 = 8;
    /// A tracer is told of samples.
    pub const SAMPLE: u32 = 16;
    /// The time of every allocation is noted.
    pub const AGE: u32 = 32;

    /// Returns whether calls are watched, for which the fast paths are closed.
    pub const fn any(self) -> bool {
        self.0 & (Self::COUNT | Self::DEBUG | Self::SAMPLE | Self::AGE) != 0
    }

    /// Returns whether frees need nothing.
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Returns whether calls are counted.
    pub const fn counts(self) -> bool {
        self.0 & Self::COUNT != 0
    }

    /// Returns whether times of allocations are noted.
    pub const fn notes_times(self) -> bool {
        self.0 & Self::AGE != 0
    }

    /// Returns whether calls are watched for a tracer alone, so that they need no care beyond that.
    pub const fn only_samples(self) -> bool {
        self.0 & !Self::ZERO == Self::SAMPLE
    }

    /// Returns whether a tracer is told of samples.
    pub const fn samples(self) -> bool {
        self.0 & Self::SAMPLE != 0
    }

    /// Returns whether calls are checked.
    pub const fn checks(self) -> bool {
        self.0 & Self::DEBUG != 0
    }
}

/// Kind of a call that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// An allocation.
    Alloc,
    /// A free.
    Free,
}

/// The subject of a warning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A place of calls; see `Caller::place`.
    Caller(usize),
    /// A tag.
    Tag(TagId),
    /// A call that frees, by its return address.
    Free(usize),
    /// Objects of a size in bytes that a call frees which is not known.
    Size(u64),
    /// A tag that free memory still names as its holder.
    Holder(TagId),
}

impl Place {
    /// Number of the place: not 0, and different for different places.
    fn number(self) -> u64 {
        match self {
            Self::Caller(place) => place as u64 | 1,
            Self::Tag(tag) => 1 << 62 | u64::from(tag.0),
            // A return address has 48 bits.
            Self::Free(ret) => 2 << 62 | ret as u64,
            Self::Size(bytes) => 2 << 62 | 1 << 61 | bytes,
            Self::Holder(tag) => 3 << 62 | u64::from(tag.0),
        }
    }
}

/// Live allocations of one static tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct LiveTag {
    /// The tag; null in an entry that is not used.
    pub tag: *const StaticTag,
    /// Bytes of its live allocations.
    pub bytes: u64,
    /// Their number.
    pub calls: u64,
}

impl LiveTag {
    /// An entry that is not used.
    pub const NONE: Self = Self { tag: core::ptr::null(), bytes: 0, calls: 0 };
}

/// Places that were warned of. Each is warned of once; once the table is full, none is.
pub struct Warned([AtomicU64; 256]);

impl Warned {
    /// No place was warned of yet.
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 256])
    }

    /// Returns whether there is room for one more place.
    pub fn has_room(&self) -> bool {
        self.0.iter().any(|slot| slot.load(Ordering::Relaxed) == 0)
    }

    /// Notes a place. Returns whether to warn of it: it is new, and the table had room.
    pub fn is_new(&self, place: Place) -> bool {
        let place = place.number();
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

/// Bytes of the live counts of `sites` tags.
pub const fn live_bytes(sites: u32) -> usize {
    sites as usize * size_of::<AtomicI64>()
}

/// Adds `by` to the live count of a tag. Returns the new count.
///
/// # Safety
/// `counts` points to [`live_bytes`] bytes of counts, and `tag` is below their number of sites.
pub(super) unsafe fn count_live(counts: *const u8, tag: TagId, by: i64) -> i64 {
    // SAFETY: the counts have one for each site, by the contract.
    let count = unsafe { &*counts.cast::<AtomicI64>().add(tag.0 as usize) };
    count.fetch_add(by, Ordering::Relaxed) + by
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_is_warned_of_once_and_a_full_table_keeps_silent() {
        let warned = Warned::new();
        for tag in 1..=256 {
            assert!(warned.has_room() && warned.is_new(Place::Tag(TagId(tag))));
            assert!(!warned.is_new(Place::Tag(TagId(tag))));
        }
        assert!(!warned.has_room() && !warned.is_new(Place::Tag(TagId(1000))));
    }

    #[test]
    fn places_of_different_kinds_are_different_places() {
        let places = [
            Place::Caller(65),
            Place::Tag(TagId(65)),
            Place::Free(65),
            Place::Size(65),
            Place::Holder(TagId(65)),
        ];
        let warned = Warned::new();
        assert!(places.iter().all(|&place| warned.is_new(place)));
        assert!(!places.iter().any(|&place| warned.is_new(place)));
    }
}
