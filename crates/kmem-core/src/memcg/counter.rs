//! Charging (the kernel's `page_counter`): a charge to a group counts for all groups above it.

use super::Groups;
use crate::sync::{AtomicU64, Ordering};
use crate::units::ObjcgId;
use kmem_layout::group::{GroupBlock, NO_LIMIT, group_state};

/// Most bytes to which a charge that obeys limits brings a group, whatever its `max`. A charge
/// above limits stands for memory that exists, so the rest of the counter is enough for it.
pub const MOST_CHARGED: u64 = 1 << 62;

/// Effect of the `max` of groups on a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limits {
    /// It is refused if it would bring a group above its `max` or [`MOST_CHARGED`].
    Obey,
    /// It may bring groups above both. It is refused only if a counter would overflow.
    Exceed,
}

/// A charge that was granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Charged {
    /// The lowest charged group that is above its `high` now.
    pub above_high: Option<ObjcgId>,
}

/// A charge that was refused: it would have brought this group above its `max`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtMax(pub ObjcgId);

impl Groups {
    /// A group and all groups above it, deleted ones included, without the root.
    pub(super) fn way_up(&self, from: ObjcgId) -> impl Iterator<Item = (ObjcgId, &GroupBlock)> {
        let step = |at: ObjcgId| {
            let block = self.blocks().get(at.0 as usize)?;
            (at != ObjcgId::ROOT).then_some((at, block))
        };
        core::iter::successors(step(from), move |(_, block)| {
            step(ObjcgId(block.parent.load(Ordering::Relaxed)))
        })
    }

    /// The groups that a charge to a group counts for: it and all groups above it that are not
    /// deleted, without the root.
    pub fn charged_for(&self, from: ObjcgId) -> impl Iterator<Item = (ObjcgId, &GroupBlock)> {
        self.way_up(from).filter(|(_, block)| is_live(block))
    }

    /// The group itself, or if it is deleted its nearest living ancestor.
    pub fn living(&self, objcg: ObjcgId) -> ObjcgId {
        self.charged_for(objcg).next().map_or(ObjcgId::ROOT, |(at, _)| at)
    }

    /// Returns whether a group is not deleted. The root never is.
    pub fn is_live(&self, objcg: ObjcgId) -> bool {
        is_live(self.block(objcg))
    }

    /// Charges bytes to a group and all groups above it, or to none of them.
    ///
    /// # Errors
    /// The group that would go above its `max`.
    pub fn charge(&self, objcg: ObjcgId, bytes: u64, limits: Limits) -> Result<Charged, AtMax> {
        self.block(objcg).own.fetch_add(bytes, Ordering::SeqCst);
        let mut above_high = None;
        for (at, block) in self.charged_for(objcg) {
            let max = block.max.load(Ordering::Relaxed).min(MOST_CHARGED);
            let max = if limits == Limits::Exceed { NO_LIMIT } else { max };
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

    /// The group that pays for a request in the name of `objcg`. For a deleted group, its nearest
    /// living ancestor: its entry gets no more charges and becomes free. For an unknown id, the
    /// root.
    pub fn payer(&self, objcg: ObjcgId) -> ObjcgId {
        if objcg.0 < self.used() { self.living(objcg) } else { ObjcgId::ROOT }
    }

    /// Returns whether a group and all groups above it can take `bytes` more within `max` and
    /// `high`, at this moment.
    pub fn has_room(&self, objcg: ObjcgId, bytes: u64) -> bool {
        self.charged_for(objcg).all(|(_, block)| {
            let limit = block.max.load(Ordering::Relaxed).min(block.high.load(Ordering::Relaxed));
            block.charged.load(Ordering::Relaxed).saturating_add(bytes) <= limit
        })
    }

    /// Takes back a charge, in bytes.
    pub fn uncharge(&self, objcg: ObjcgId, bytes: u64) {
        if bytes > 0 {
            self.take_back(objcg, bytes, |_| false);
        }
    }

    /// Takes back a charge from a group and those above it, up to the first that `stop` accepts. A
    /// group that is deleted meanwhile keeps its `charged`, which is not read again.
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
        // Last: from here on, the entry may be another group's.
        if self.block(objcg).own.fetch_sub(bytes, Ordering::SeqCst) == bytes {
            self.reap(objcg);
        }
    }
}

fn is_live(block: &GroupBlock) -> bool {
    block.state.load(Ordering::SeqCst) & group_state::MASK == group_state::LIVE
}

/// Adds to a counter unless the sum exceeds `max` or overflows. Returns the sum.
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
