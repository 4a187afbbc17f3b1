//! Charging (the kernel's `page_counter`): what is charged to a group counts for all above it.

use super::Groups;
use crate::root::{GroupBlock, NO_LIMIT, group_state};
use crate::sync::{AtomicU64, Ordering};
use crate::units::ObjcgId;

/// More is not charged to a group, whatever its `max`: so what is granted above any `max`, which is
/// memory that exists, never takes a counter to its end.
pub const MOST_CHARGED: u64 = 1 << 62;

/// A charge that was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charged {
    /// The lowest group on the way that is above its `high` now.
    pub above_high: Option<ObjcgId>,
}

/// A charge that was not made: it would have brought this group above its `max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtMax(pub ObjcgId);

impl Groups {
    /// A group and all above it, deleted ones included, without the root.
    pub(super) fn way_up(&self, from: ObjcgId) -> impl Iterator<Item = (ObjcgId, &GroupBlock)> {
        let step = |at: ObjcgId| (at != ObjcgId::ROOT).then(|| (at, self.block(at)));
        core::iter::successors(step(from), move |(_, block)| {
            step(ObjcgId(block.parent.load(Ordering::Relaxed)))
        })
    }

    /// The same without those that are deleted: who is charged.
    pub fn charged_for(&self, from: ObjcgId) -> impl Iterator<Item = (ObjcgId, &GroupBlock)> {
        self.way_up(from).filter(|(_, block)| is_live(block))
    }

    /// The group itself, or what it became a part of when it was deleted.
    pub fn living(&self, objcg: ObjcgId) -> ObjcgId {
        self.charged_for(objcg).next().map_or(ObjcgId::ROOT, |(at, _)| at)
    }

    /// Whether a group is not deleted. The root never is.
    pub fn is_live(&self, objcg: ObjcgId) -> bool {
        is_live(self.block(objcg))
    }

    /// Charges bytes to a group and all above it, or to none; `force` does so above any `max`.
    ///
    /// # Errors
    /// The group whose `max` is in the way.
    pub fn charge(&self, objcg: ObjcgId, bytes: u64, force: bool) -> Result<Charged, AtMax> {
        self.block(objcg).own.fetch_add(bytes, Ordering::SeqCst);
        let mut above_high = None;
        for (at, block) in self.charged_for(objcg) {
            let max = block.max.load(Ordering::Relaxed).min(MOST_CHARGED);
            let max = if force { NO_LIMIT } else { max };
            let Some(now) = add_up_to(&block.charged, bytes, max) else {
                self.take_back(objcg, bytes, |below| below == at);
                return Err(AtMax(at));
            };
            if now > block.peak.load(Ordering::Relaxed) {
                block.peak.fetch_max(now, Ordering::Relaxed);
            }
            if now > block.high.load(Ordering::Relaxed) && above_high.is_none() {
                above_high = Some(at);
            }
        }
        Ok(Charged { above_high })
    }

    /// Whether a group and all above it are below their limits by so much, at this moment.
    pub fn has_room(&self, objcg: ObjcgId, bytes: u64) -> bool {
        self.charged_for(objcg).all(|(_, block)| {
            let limit = block.max.load(Ordering::Relaxed).min(block.high.load(Ordering::Relaxed));
            block.charged.load(Ordering::Relaxed).saturating_add(bytes) <= limit
        })
    }

    /// Takes a charge back.
    pub fn uncharge(&self, objcg: ObjcgId, bytes: u64) {
        if bytes > 0 {
            self.take_back(objcg, bytes, |_| false);
        }
    }

    /// Takes a charge back from the group and those above it, up to where `stop` says so. (A group that
    /// is deleted meanwhile keeps a count that nobody looks at again.)
    fn take_back(&self, objcg: ObjcgId, bytes: u64, stop: impl Fn(ObjcgId) -> bool) {
        for (at, block) in self.way_up(objcg) {
            if stop(at) {
                break;
            }
            if is_live(block) {
                let before = block.charged.fetch_sub(bytes, Ordering::SeqCst);
                debug_assert!(before >= bytes);
            }
        }
        // Last: from here on the entry may be somebody else's.
        if self.block(objcg).own.fetch_sub(bytes, Ordering::SeqCst) == bytes {
            self.reap(objcg);
        }
    }
}

fn is_live(block: &GroupBlock) -> bool {
    block.state.load(Ordering::SeqCst) & group_state::MASK == group_state::LIVE
}

/// Adds to a counter unless that makes it more than `max`; what it is then.
fn add_up_to(counter: &AtomicU64, bytes: u64, max: u64) -> Option<u64> {
    let mut seen = counter.load(Ordering::Relaxed);
    loop {
        let new = seen.checked_add(bytes).filter(|&new| new <= max)?;
        match counter.compare_exchange_weak(seen, new, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => return Some(new),
            Err(now) => seen = now,
        }
    }
}
