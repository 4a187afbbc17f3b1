//! Names of groups, and the index that finds them.

use super::{GroupError, Groups};
use crate::sync::{AtomicU32, Ordering};
use crate::units::ObjcgId;
use kmem_layout::group::{GroupBlock, MAX_GROUP_NAME};

/// Checks a name.
///
/// # Errors
/// [`GroupError::BadName`].
pub(super) fn check(name: &[u8]) -> Result<(), GroupError> {
    let bad = name.is_empty()
        || name.len() > MAX_GROUP_NAME
        || name.contains(&b'/')
        || name.contains(&0)
        || name == b"."
        || name == b".."
        || core::str::from_utf8(name).is_err();
    if bad { Err(GroupError::BadName) } else { Ok(()) }
}

/// The groups by parent and name: open addressing with linear probing; 0 is a free slot. Only the
/// thread that holds the lock of the groups uses it.
pub(super) struct Index<'a> {
    pub(super) slots: &'a [AtomicU32],
    pub(super) groups: &'a Groups,
}

impl Index<'_> {
    /// The group of that name below a parent.
    pub(super) fn find(&self, parent: ObjcgId, name: &[u8]) -> Option<ObjcgId> {
        let mut at = self.home(parent, name);
        loop {
            let found = ObjcgId(self.slots[at].load(Ordering::Relaxed));
            if found == ObjcgId::ROOT {
                return None;
            }
            let block = self.groups.block(found);
            let same = block.parent.load(Ordering::Relaxed) == parent.0
                && block.name(&mut [0; MAX_GROUP_NAME]) == name;
            if same {
                return Some(found);
            }
            at = self.next(at);
        }
    }

    /// Adds a group under the parent and the name in its entry.
    pub(super) fn insert(&self, objcg: ObjcgId) {
        let mut at = self.home_of(self.groups.block(objcg));
        while self.slots[at].load(Ordering::Relaxed) != 0 {
            at = self.next(at);
        }
        self.slots[at].store(objcg.0, Ordering::Relaxed);
    }

    /// Removes a group and closes the gap: groups that a search would miss behind it move up. This
    /// is algorithm R of Knuth, The Art of Computer Programming, 6.4.
    pub(super) fn remove(&self, objcg: ObjcgId) {
        let mut gap = self.home_of(self.groups.block(objcg));
        while self.slots[gap].load(Ordering::Relaxed) != objcg.0 {
            gap = self.next(gap);
        }
        let mut at = gap;
        loop {
            at = self.next(at);
            let here = self.slots[at].load(Ordering::Relaxed);
            if here == 0 {
                break;
            }
            let home = self.home_of(self.groups.block(ObjcgId(here)));
            let len = self.slots.len();
            if (at + len - home) % len >= (at + len - gap) % len {
                self.slots[gap].store(here, Ordering::Relaxed);
                gap = at;
            }
        }
        self.slots[gap].store(0, Ordering::Relaxed);
    }

    fn home(&self, parent: ObjcgId, name: &[u8]) -> usize {
        // FNV-1a.
        let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        let seed = parent.0.to_le_bytes().iter().fold(0xCBF2_9CE4_8422_2325, mix);
        (name.iter().fold(seed, mix) >> 16) as usize % self.slots.len()
    }

    fn home_of(&self, block: &GroupBlock) -> usize {
        let parent = ObjcgId(block.parent.load(Ordering::Relaxed));
        self.home(parent, block.name(&mut [0; MAX_GROUP_NAME]))
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }
}
