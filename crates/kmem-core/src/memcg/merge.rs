//! Merging: objects of deleted groups get the id of the nearest living ancestor. So the ids of
//! these groups are used again. (The kernel's `memcg_reparent_objcgs`; there the objcg stays.)
//!
//! ```text
//! mark --> recall stocks --> fence CPUs --> each word: own of parent up, word, own of group down
//!   ^                                                                              |
//!   '--- due: as many groups are deleted as there are free ids --- end: unmark <----'
//! ```
//!
//! A walk over all memory merges all groups that it marked at its start. It takes a step when a
//! group is created, so each group pays for a part of a walk.
//!
//! `charged` does not change: a deleted group counts for its nearest living ancestor already. Only
//! the counts of `own` do. The word of an object names one group, and each change of that is one
//! atomic operation. The thread that changes or clears the word has the object's charge of the
//! group that it named. So `own` of a group is exact, and zero still proves that no word has its
//! id.
//!
//! A fast path clears a word without an atomic operation. It does so only beside a stock of the
//! group on its CPU. A marked group has no stock, and never gets one again:
//!
//! - It is deleted and has no pins. A thread that puts a stock in place pins the group first, and
//!   then looks whether it lives.
//! - Stocks from before are recalled. A section that has seen one is aborted by the fence.
//!
//! A thread that changes the length of its own memory first moves that to a living group, which it
//! pins meanwhile: see [`Groups::pin_payer`].
//!
//! Context: a walk is not for signal handlers, the rest is for any. Only a thread that found no
//! free id waits, for the step of another thread.

use super::{Groups, objcg_bits, objcg_of};
use crate::sync::{AtomicU32, Ordering, const_fn, fence, spin};
use crate::units::ObjcgId;
use kmem_layout::group::{GroupBlock, group_state};
use kmem_layout::word::{EXT_LIVE, TAG_MASK};

/// Value of [`GroupBlock::merging`]: the start of a walk looks whether the group can be merged.
const CHOSEN: u32 = 1;
/// Value of [`GroupBlock::merging`]: the group is marked, and the walk has a pin of it.
pub(super) const MARKED: u32 = 2;

/// Progress of the walk. Zeroed memory is a valid value.
#[repr(C)]
pub(super) struct Merge {
    /// 1 while a thread takes a step.
    lock: AtomicU32,
    /// 1 from the start of a walk to its end.
    walking: AtomicU32,
    /// Zone and chunk at which the walk goes on.
    zone: AtomicU32,
    chunk: AtomicU32,
    /// Deleted groups that the last walk could not merge.
    left: AtomicU32,
    /// Entries that are not free, but for the root's.
    taken: AtomicU32,
    /// Entries of deleted groups.
    dying: AtomicU32,
}

impl Merge {
    const_fn! {
        /// No walk, and no groups.
        pub(super) const fn new() -> Self {
            Self {
                lock: AtomicU32::new(0),
                walking: AtomicU32::new(0),
                zone: AtomicU32::new(0),
                chunk: AtomicU32::new(0),
                left: AtomicU32::new(0),
                taken: AtomicU32::new(0),
                dying: AtomicU32::new(0),
            }
        }
    }

    /// An entry is a living group's from now on.
    pub(super) fn created(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// A living group is a deleted one from now on.
    pub(super) fn deleted(&self) {
        self.dying.fetch_add(1, Ordering::Relaxed);
    }

    /// The entry of a deleted group is free from now on.
    pub(super) fn freed(&self) {
        self.dying.fetch_sub(1, Ordering::Relaxed);
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }

    /// In a forked child: ends a walk, and sets both counts.
    pub(super) fn forget(&self, taken: u32, dying: u32) {
        for (count, value) in [(&self.taken, taken), (&self.dying, dying)] {
            count.store(value, Ordering::Relaxed);
        }
        for word in [&self.lock, &self.walking, &self.left] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Number of deleted groups.
    pub(super) fn dying(&self) -> u32 {
        self.dying.load(Ordering::Relaxed)
    }
}

/// A step of the walk, which this thread takes. Its drop ends the step.
pub struct Step<'a>(&'a Groups);

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.0.merge.lock.store(0, Ordering::Release);
    }
}

impl Step<'_> {
    /// Returns whether a walk has begun and not ended.
    pub fn is_walking(&self) -> bool {
        self.0.merge.walking.load(Ordering::Relaxed) != 0
    }

    /// Marks the deleted groups that can be merged, and begins a walk for them. Returns their
    /// count. For 0 there is no walk.
    ///
    /// The caller then recalls stocks. It calls [`Self::spare`] for groups that still have one, and
    /// fences all CPUs.
    pub fn begin(&self) -> u32 {
        let groups = self.0;
        for block in &groups.blocks()[1..] {
            let has_objects =
                || block.own.load(Ordering::Relaxed) > block.reserved.load(Ordering::Relaxed);
            if state(block) == group_state::DYING
                && block.pins.load(Ordering::Relaxed) == 0
                && has_objects()
            {
                block.merging.store(CHOSEN, Ordering::SeqCst);
            }
        }
        // Pairs with the fences of threads that pin a group and then look whether it lives. They
        // see that it is deleted, or this thread sees the pin.
        fence(Ordering::SeqCst);
        let mut count = 0;
        for (objcg, block) in (0..).map(ObjcgId).zip(groups.blocks()).skip(1) {
            if block.merging.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // The pin keeps the entry until the walk ends. Its charge did so until the pin.
            let alone = block.pins.fetch_add(1, Ordering::SeqCst) == 0;
            // Pairs with that of a thread that frees the entry: it sees the pin, or this thread
            // sees that nothing is charged.
            fence(Ordering::SeqCst);
            let charged = block.own.load(Ordering::SeqCst) != 0;
            if alone && charged && state(block) == group_state::DYING {
                block.merging.store(MARKED, Ordering::SeqCst);
                count += 1;
            } else {
                block.merging.store(0, Ordering::SeqCst);
                groups.unpin(objcg);
            }
        }
        let merge = &groups.merge;
        merge.zone.store(0, Ordering::Relaxed);
        merge.chunk.store(0, Ordering::Relaxed);
        merge.walking.store(u32::from(count > 0), Ordering::Relaxed);
        if count == 0 {
            merge.left.store(merge.dying(), Ordering::Relaxed);
        }
        count
    }

    /// Leaves a marked group out of the walk.
    pub fn spare(&self, objcg: ObjcgId) {
        let block = self.0.block(objcg);
        if block.merging.swap(0, Ordering::SeqCst) == MARKED {
            self.0.unpin(objcg);
        }
    }

    /// Zone and chunk at which the walk goes on.
    pub fn place(&self) -> (u32, u32) {
        let merge = &self.0.merge;
        (merge.zone.load(Ordering::Relaxed), merge.chunk.load(Ordering::Relaxed))
    }

    /// Sets the place at which the walk goes on.
    pub fn go_on_at(&self, zone: u32, chunk: u32) {
        self.0.merge.zone.store(zone, Ordering::Relaxed);
        self.0.merge.chunk.store(chunk, Ordering::Relaxed);
    }

    /// Ends the walk, and frees the entries of groups that are wholly merged.
    pub fn end(&self) {
        for objcg in (1..self.0.used()).map(ObjcgId) {
            self.spare(objcg);
        }
        let merge = &self.0.merge;
        merge.left.store(merge.dying(), Ordering::Relaxed);
        merge.walking.store(0, Ordering::Relaxed);
    }

    /// Moves a live allocation of `bytes` charged bytes to the nearest living ancestor, if its
    /// group is marked. `ext` is, or was a moment ago, its extension word. It stays an extension
    /// word during the call.
    #[inline]
    pub fn merge(&self, ext: &AtomicU32, bytes: u64) {
        let word = ext.load(Ordering::Relaxed);
        let objcg = objcg_of(word);
        if objcg != ObjcgId::ROOT
            && word & EXT_LIVE != 0
            && self.0.block(objcg).merging.load(Ordering::Relaxed) == MARKED
        {
            self.0.move_up(ext, objcg, bytes);
        }
    }
}

impl Groups {
    /// Returns whether a step of a walk should be taken before a group is created.
    pub fn merge_is_due(&self) -> bool {
        let merge = &self.merge;
        if merge.walking.load(Ordering::Relaxed) != 0 {
            return true;
        }
        let dying = merge.dying();
        // Some of those that were left may be gone.
        let left = merge.left.fetch_min(dying, Ordering::Relaxed).min(dying);
        dying - left > self.free_ids()
    }

    /// Number of ids that are free.
    pub fn free_ids(&self) -> u32 {
        let ids = self.capacity.load(Ordering::Relaxed).saturating_sub(1);
        ids.saturating_sub(self.merge.taken.load(Ordering::Relaxed))
    }

    /// Begins a step of the walk. `None`: another thread takes one.
    pub fn try_step(&self) -> Option<Step<'_>> {
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.merge.lock.compare_exchange(0, 1, done, failed).is_ok().then(|| Step(self))
    }

    /// Begins a step of the walk. Calls `wait` while another thread takes one.
    pub fn step(&self, wait: impl Fn()) -> Step<'_> {
        loop {
            if let Some(step) = self.try_step() {
                return step;
            }
            spin();
            wait();
        }
    }

    /// The living group that pays for a live allocation of `bytes` charged bytes. Moves that of a
    /// deleted group to the nearest living ancestor first. Pins the group, but not the root.
    ///
    /// The caller alone uses the allocation, and `ext` is its extension word. Until the caller
    /// removes the pin, only the caller changes the group in the word.
    pub fn pin_payer(&self, ext: &AtomicU32, bytes: u64) -> ObjcgId {
        loop {
            let objcg = objcg_of(ext.load(Ordering::Relaxed));
            if objcg == ObjcgId::ROOT {
                return objcg;
            }
            // The word is read again: it keeps the entry, or the pin does.
            self.pin_again(objcg);
            fence(Ordering::SeqCst);
            if objcg_of(ext.load(Ordering::Relaxed)) == objcg {
                if self.is_live(objcg) {
                    return objcg;
                }
                self.move_up(ext, objcg, bytes);
            }
            self.unpin(objcg);
        }
    }

    /// Removes the pin of [`Self::pin_payer`].
    pub fn unpin_payer(&self, objcg: ObjcgId) {
        if objcg != ObjcgId::ROOT {
            self.unpin(objcg);
        }
    }

    /// Moves a live allocation of a deleted group to the nearest living ancestor, unless its word
    /// names the group no longer. The caller has a pin of the group.
    fn move_up(&self, ext: &AtomicU32, from: ObjcgId, bytes: u64) {
        let to = self.living(from);
        let add = |objcg: ObjcgId| {
            if objcg != ObjcgId::ROOT {
                self.block(objcg).own.fetch_add(bytes, Ordering::SeqCst);
            }
        };
        let take = |objcg: ObjcgId| {
            if objcg != ObjcgId::ROOT
                && self.block(objcg).own.fetch_sub(bytes, Ordering::SeqCst) == bytes
            {
                self.reap(objcg);
            }
        };
        // First: a thread that sees the new group in the word takes the charge back from it.
        add(to);
        let moved = ext.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            let same = word & EXT_LIVE != 0 && objcg_of(word) == from;
            same.then_some(word & (TAG_MASK | EXT_LIVE) | objcg_bits(to))
        });
        take(if moved.is_ok() { from } else { to });
    }
}

fn state(block: &GroupBlock) -> u32 {
    block.state.load(Ordering::SeqCst) & group_state::MASK
}
