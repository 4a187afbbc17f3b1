//! Call sites of refused requests, in the header of the black box.
//!
//! A program may be refused a million requests a second. So the first refusal of a call site is
//! written into the file, the second, the fourth, and so on. A record writes all counts.

use super::BlackBox;
use crate::codetag::Sites;
use crate::os::Platform;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{ObjcgId, TagId};
use core::mem::offset_of;
use kmem_layout::blackbox::{BOX_REFUSALS, BoxHeader, BoxRefusal};

/// Refusals of the call sites that were refused first. Zeroed, there are none.
pub(super) struct Refusals {
    slots: [Slot; BOX_REFUSALS],
}

struct Slot {
    /// The tag and the group, plus one; 0: unused.
    key: AtomicU64,
    count: AtomicU64,
    /// Bytes of the last request.
    bytes: AtomicU64,
}

impl Slot {
    const fn new() -> Self {
        Self { key: AtomicU64::new(0), count: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}

impl Refusals {
    pub(super) const fn new() -> Self {
        Self { slots: [const { Slot::new() }; BOX_REFUSALS] }
    }

    /// Forgets all, for a new file.
    pub(super) fn forget(&self) {
        for slot in &self.slots {
            slot.count.store(0, Ordering::Relaxed);
            slot.key.store(0, Ordering::Relaxed);
        }
    }

    /// Number of the slot of a key, which it takes if the key has none. None: all are taken.
    fn slot_of(&self, key: u64) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let (done, failed) = (Ordering::Relaxed, Ordering::Relaxed);
            match slot.key.compare_exchange(0, key, done, failed) {
                Ok(_) => true,
                Err(taken) => taken == key,
            }
        })
    }
}

impl BlackBox {
    /// Notes that a request of `bytes` by a call site was refused at the `max` of the group `at`;
    /// the root: there was no memory. Not inlined: callers of `malloc` may have little stack.
    #[cold]
    #[inline(never)]
    pub fn note_refusal(
        &self,
        platform: &impl Platform,
        sites: &Sites,
        (tag, at): (TagId, ObjcgId),
        bytes: u64,
    ) {
        let key = (u64::from(at.0) << 32 | u64::from(tag.0)) + 1;
        let Some(nth) = self.refusals.slot_of(key).filter(|_| self.is_there()) else { return };
        let slot = &self.refusals.slots[nth];
        slot.bytes.store(bytes, Ordering::Relaxed);
        if (slot.count.fetch_add(1, Ordering::Relaxed) + 1).is_power_of_two() {
            self.note_site(platform, sites, tag);
            self.write_refusal(platform, nth);
        }
    }

    /// Writes the counts of all refusals into the file.
    pub(super) fn write_refusals(&self, platform: &impl Platform) {
        for nth in 0..BOX_REFUSALS {
            if self.refusals.slots[nth].count.load(Ordering::Relaxed) != 0 {
                self.write_refusal(platform, nth);
            }
        }
    }

    fn write_refusal(&self, platform: &impl Platform, nth: usize) {
        let slot = &self.refusals.slots[nth];
        let key = slot.key.load(Ordering::Relaxed).wrapping_sub(1);
        let mut entry = [0; size_of::<BoxRefusal>()];
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        put(offset_of!(BoxRefusal, tag), &(key as u32).to_le_bytes());
        put(offset_of!(BoxRefusal, group), &((key >> 32) as u32).to_le_bytes());
        put(offset_of!(BoxRefusal, count), &slot.count.load(Ordering::Relaxed).to_le_bytes());
        put(offset_of!(BoxRefusal, bytes), &slot.bytes.load(Ordering::Relaxed).to_le_bytes());
        let at = offset_of!(BoxHeader, refusals) + nth * size_of::<BoxRefusal>();
        self.write(platform, at, &entry);
    }
}
