//! Creating, deleting and finding groups, one thread at a time.

use super::merge::MARKED;
use super::name::{self, Index};
use super::{GroupError, GroupId, Groups, shrinker};
use crate::os::Memory;
use crate::sync::{AtomicU32, Ordering, spin};
use crate::units::ObjcgId;
use kmem_layout::group::{
    GroupBlock, Limit, MAX_GROUP_DEPTH, MAX_GROUP_NAME, NO_LIMIT, group_state,
};

impl Groups {
    /// Makes a group below another one. Calls `wait` while another thread holds the lock.
    ///
    /// # Errors
    /// [`GroupError`]; there is no new group.
    pub fn create(
        &self,
        platform: &impl Memory,
        parent: GroupId,
        name: &[u8],
        wait: impl Fn(),
    ) -> Result<GroupId, GroupError> {
        self.create_locked(&self.lock(wait)?, platform, parent, name)
    }

    /// [`Self::create`] by the thread that holds the lock.
    pub(super) fn create_locked(
        &self,
        index: &Locked<'_>,
        platform: &impl Memory,
        parent: GroupId,
        name: &[u8],
    ) -> Result<GroupId, GroupError> {
        name::check(name)?;
        let above = self.living_block(parent)?;
        let levels = 1 + self.way_up(parent.objcg()).count() as u32;
        if levels >= MAX_GROUP_DEPTH {
            return Err(GroupError::TooDeep);
        }
        if index.find(parent.objcg(), name).is_some() {
            return Err(GroupError::Exists);
        }
        let objcg = self.free_entry(platform)?;
        let block = self.block(objcg);
        fill(block, parent.objcg(), name);
        above.children.fetch_add(1, Ordering::SeqCst);
        above.living.fetch_add(1, Ordering::SeqCst);
        index.insert(objcg);
        let generation = block.state.load(Ordering::SeqCst) >> group_state::BITS;
        // 0 in an entry of zeroed memory: its first generation is 1, like the root's.
        let generation = generation.max(1);
        self.merge.created();
        block.state.store(generation << group_state::BITS | group_state::LIVE, Ordering::SeqCst);
        Ok(GroupId::new(generation, objcg))
    }

    /// Deletes a group. Its name is free at once, and its charges count for its parent. The caller
    /// then recalls the CPUs' stocks of it, and calls [`Self::settle`].
    ///
    /// # Errors
    /// [`GroupError`]; the group stays.
    pub fn delete(&self, id: GroupId, wait: impl Fn()) -> Result<(), GroupError> {
        if id == GroupId::ROOT {
            return Err(GroupError::IsRoot);
        }
        self.delete_locked(&self.lock(wait)?, id)
    }

    /// [`Self::delete`] by the thread that holds the lock.
    pub(super) fn delete_locked(&self, index: &Locked<'_>, id: GroupId) -> Result<(), GroupError> {
        if id == GroupId::ROOT {
            return Err(GroupError::IsRoot);
        }
        let block = self.living_block(id)?;
        if block.living.load(Ordering::SeqCst) != 0 {
            return Err(GroupError::HasChildren);
        }
        index.remove(id.objcg());
        let parent = ObjcgId(block.parent.load(Ordering::Relaxed));
        self.block(parent).living.fetch_sub(1, Ordering::SeqCst);
        let generation = id.generation();
        self.merge.deleted();
        block.state.store(generation << group_state::BITS | group_state::DYING, Ordering::SeqCst);
        Ok(())
    }

    /// Frees the entry of a deleted group if nothing refers to it.
    pub fn settle(&self, objcg: ObjcgId) {
        self.reap(objcg);
    }

    /// The group of a name below another one. Calls `wait` while another thread holds the lock.
    ///
    /// # Errors
    /// [`GroupError`]: there is no such group.
    pub fn find(
        &self,
        parent: GroupId,
        name: &[u8],
        wait: impl Fn(),
    ) -> Result<GroupId, GroupError> {
        let index = self.lock(wait)?;
        self.living_block(parent)?;
        let found = index.find(parent.objcg(), name).and_then(|objcg| self.id(objcg));
        found.ok_or(GroupError::NotFound)
    }

    /// Rebuilds the index and the counts of children from the entries, in a forked child. Threads
    /// of the parent may have been changing them, or have been in a shrinker. `in_shrinker`: this
    /// thread is in one.
    ///
    /// # Safety
    /// There is no other thread. The table was started.
    pub unsafe fn repair(&self, in_shrinker: bool) {
        // SAFETY: the table was started (contract).
        let index = unsafe { self.index() };
        for slot in index.slots {
            slot.store(0, Ordering::Relaxed);
        }
        self.first_free.store(0, Ordering::Relaxed);
        let each = || (0..self.used()).map(|objcg| self.block(ObjcgId(objcg)));
        for block in each() {
            block.children.store(0, Ordering::Relaxed);
            block.living.store(0, Ordering::Relaxed);
            if block.merging.swap(0, Ordering::Relaxed) == MARKED {
                // The pin of a walk, which ends here.
                block.pins.fetch_sub(1, Ordering::Relaxed);
            }
            if !in_shrinker {
                shrinker::forget_calls(block);
            }
        }
        let state = |block: &GroupBlock| block.state.load(Ordering::Relaxed) & group_state::MASK;
        for block in each().skip(1) {
            let mut above = self.block(ObjcgId(block.parent.load(Ordering::Relaxed)));
            let levels = self.way_up(ObjcgId(block.parent.load(Ordering::Relaxed)));
            // The child's copies of the entries may be of different moments.
            if state(above) == group_state::FREE
                || levels.take(MAX_GROUP_DEPTH as usize).count() == MAX_GROUP_DEPTH as usize
            {
                block.parent.store(0, Ordering::Relaxed);
                above = self.block(ObjcgId::ROOT);
            }
            let state = state(block);
            if state != group_state::FREE {
                above.children.fetch_add(1, Ordering::Relaxed);
            }
            if state == group_state::LIVE {
                above.living.fetch_add(1, Ordering::Relaxed);
            }
        }
        for id in self.all().filter(|&id| id != GroupId::ROOT) {
            index.insert(id.objcg());
        }
        let count = |wanted: fn(u32) -> bool| {
            each().skip(1).filter(|&block| wanted(state(block))).count() as u32
        };
        let (taken, dying) =
            (count(|state| state != group_state::FREE), count(|state| state == group_state::DYING));
        self.merge.forget(taken, dying);
        self.lock.store(0, Ordering::Release);
    }

    /// Makes a free entry that a live object names a deleted group's, in a forked child. (The fork
    /// may have copied the object's page before the object was freed, and the entry's page after
    /// that.) Without memory for the entry, the object counts as the root's.
    ///
    /// # Safety
    /// There is no other thread. The table was started.
    pub unsafe fn adopt(&self, platform: &impl Memory, objcg: ObjcgId) {
        if !self.commit(platform, objcg) {
            return;
        }
        // INVARIANT: the entries up to this one are committed.
        self.used.fetch_max(objcg.0 + 1, Ordering::Relaxed);
        let block = self.block(objcg);
        let state = block.state.load(Ordering::Relaxed);
        if state & group_state::MASK == group_state::FREE {
            fill(block, ObjcgId::ROOT, b"");
            self.block(ObjcgId::ROOT).children.fetch_add(1, Ordering::Relaxed);
            self.merge.created();
            self.merge.deleted();
            block.state.store(state & !group_state::MASK | group_state::DYING, Ordering::Relaxed);
        }
    }

    /// The entry of a living group.
    pub(super) fn living_block(&self, id: GroupId) -> Result<&GroupBlock, GroupError> {
        self.in_state(id, |state| state == group_state::LIVE)
    }

    /// The lowest free entry.
    ///
    /// # Errors
    /// [`GroupError::Full`]; [`GroupError::NoMemory`]: the platform has none for another entry.
    fn free_entry(&self, platform: &impl Memory) -> Result<ObjcgId, GroupError> {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let used = self.used();
        let from = self.first_free.swap(capacity, Ordering::SeqCst);
        let is_free = |&objcg: &u32| {
            let state = self.block(ObjcgId(objcg)).state.load(Ordering::SeqCst);
            state & group_state::MASK == group_state::FREE
        };
        let found = (from..used.min(capacity)).find(is_free).unwrap_or(used);
        if found >= capacity {
            return Err(GroupError::Full);
        }
        if found == used {
            if !self.commit(platform, ObjcgId(found)) {
                self.first_free.fetch_min(found, Ordering::SeqCst);
                return Err(GroupError::NoMemory);
            }
            // INVARIANT: the entries up to this one are committed.
            self.used.store(used + 1, Ordering::SeqCst);
        }
        // Another thread may have freed a lower entry meanwhile.
        self.first_free.fetch_min(found + 1, Ordering::SeqCst);
        Ok(ObjcgId(found))
    }

    /// The index of names.
    ///
    /// # Safety
    /// The table was started.
    unsafe fn index(&self) -> Index<'_> {
        let slots = self.index.load(Ordering::Relaxed) as *const AtomicU32;
        let len = 2 * self.capacity.load(Ordering::Relaxed) as usize;
        // SAFETY: an array of that length, as the table was started (invariant).
        Index { slots: unsafe { core::slice::from_raw_parts(slots, len) }, groups: self }
    }

    /// Locks the index. Calls `wait` while another thread holds the lock.
    ///
    /// # Errors
    /// [`GroupError::NoBooks`]: the table was not started.
    fn lock(&self, wait: impl Fn()) -> Result<Locked<'_>, GroupError> {
        if self.blocks().is_empty() {
            return Err(GroupError::NoBooks);
        }
        loop {
            if let Some(locked) = self.try_lock() {
                return Ok(locked);
            }
            spin();
            wait();
        }
    }

    /// Locks the index, unless another thread holds the lock or the table was not started.
    pub(super) fn try_lock(&self) -> Option<Locked<'_>> {
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.blocks().is_empty() || self.lock.compare_exchange(0, 1, done, failed).is_err() {
            return None;
        }
        // SAFETY: the table has entries, so it was started.
        Some(Locked(unsafe { self.index() }))
    }
}

/// The locked index. Dropping it unlocks the index.
pub(super) struct Locked<'a>(Index<'a>);

impl<'a> core::ops::Deref for Locked<'a> {
    type Target = Index<'a>;

    fn deref(&self) -> &Index<'a> {
        &self.0
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.0.groups.lock.store(0, Ordering::Release);
    }
}

/// Fills in a free entry for a new group. Leaves `pins`, which a thread with an old number may
/// raise.
fn fill(block: &GroupBlock, parent: ObjcgId, name: &[u8]) {
    for count in
        [&block.charged, &block.own, &block.reserved, &block.peak].into_iter().chain(&block.events)
    {
        count.store(0, Ordering::Relaxed);
    }
    block.limit(Limit::Max).store(NO_LIMIT, Ordering::Relaxed);
    block.limit(Limit::High).store(NO_LIMIT, Ordering::Relaxed);
    block.limit(Limit::Low).store(0, Ordering::Relaxed);
    for count in [&block.children, &block.living, &block.over, &block.eventfd, &block.merging] {
        count.store(0, Ordering::Relaxed);
    }
    block.parent.store(parent.0, Ordering::Relaxed);
    let len = name.len().min(MAX_GROUP_NAME);
    block.name_len.store(len as u8, Ordering::Relaxed);
    for (to, &from) in block.name.iter().zip(name) {
        to.store(from, Ordering::Relaxed);
    }
}
