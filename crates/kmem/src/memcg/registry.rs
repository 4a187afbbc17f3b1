//! Creating, deleting and finding groups, one at a time.

use super::name::{self, Index};
use super::{GroupError, GroupId, Groups, Limit, shrinker};
use crate::root::{GroupBlock, MAX_GROUP_DEPTH, MAX_GROUP_NAME, NO_LIMIT, group_state};
use crate::sync::{AtomicU32, Ordering, spin};
use crate::units::ObjcgId;

impl Groups {
    /// Makes a group below another one. `wait` is called while somebody else is at the index.
    ///
    /// # Errors
    /// [`GroupError`]; nothing is left of it.
    pub fn create(
        &self,
        parent: GroupId,
        name: &[u8],
        wait: impl Fn(),
    ) -> Result<GroupId, GroupError> {
        name::check(name)?;
        let index = self.lock(wait)?;
        let above = self.living_block(parent)?;
        let levels = 1 + self.way_up(parent.objcg()).count() as u32;
        if levels >= MAX_GROUP_DEPTH {
            return Err(GroupError::TooDeep);
        }
        if index.find(parent.objcg(), name).is_some() {
            return Err(GroupError::Exists);
        }
        let objcg = self.free_entry().ok_or(GroupError::Full)?;
        let block = self.block(objcg);
        block.fill(parent.objcg(), name);
        above.children.fetch_add(1, Ordering::SeqCst);
        above.living.fetch_add(1, Ordering::SeqCst);
        index.insert(objcg);
        let generation = block.state.load(Ordering::SeqCst) >> group_state::BITS;
        // Zeroed memory: the first generation of every entry is 1, as the root's.
        let generation = generation.max(1);
        block.state.store(generation << group_state::BITS | group_state::LIVE, Ordering::SeqCst);
        Ok(GroupId::new(generation, objcg))
    }

    /// Deletes a group: its name is free at once, and what is charged to it is its parent's. What
    /// CPUs have in stock for it is for the caller to bring back, and then to call [`Self::settle`].
    ///
    /// # Errors
    /// [`GroupError`]; the group stays.
    pub fn delete(&self, id: GroupId, wait: impl Fn()) -> Result<(), GroupError> {
        if id == GroupId::ROOT {
            return Err(GroupError::IsRoot);
        }
        let index = self.lock(wait)?;
        let block = self.living_block(id)?;
        if block.living.load(Ordering::SeqCst) != 0 {
            return Err(GroupError::HasChildren);
        }
        index.remove(id.objcg());
        let parent = ObjcgId(block.parent.load(Ordering::Relaxed));
        self.block(parent).living.fetch_sub(1, Ordering::SeqCst);
        let generation = id.generation();
        block.state.store(generation << group_state::BITS | group_state::DYING, Ordering::SeqCst);
        Ok(())
    }

    /// Lets a deleted group go, if nothing refers to it any more.
    pub fn settle(&self, objcg: ObjcgId) {
        self.reap(objcg);
    }

    /// The group of that name below another one.
    ///
    /// # Errors
    /// There is none.
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

    /// Makes the index and the counts of children anew from the entries, in a forked child: other threads
    /// may have been at them, or in a shrinker. `in_shrinker`: this thread is in one.
    ///
    /// # Safety
    /// There is no other thread.
    pub unsafe fn repair(&self, in_shrinker: bool) {
        let index = self.index();
        for slot in index.slots {
            slot.store(0, Ordering::Relaxed);
        }
        self.first_free.store(0, Ordering::Relaxed);
        let each = || (0..self.used()).map(|objcg| self.block(ObjcgId(objcg)));
        for block in each() {
            block.children.store(0, Ordering::Relaxed);
            block.living.store(0, Ordering::Relaxed);
            if !in_shrinker {
                shrinker::forget_calls(block);
            }
        }
        let state = |block: &GroupBlock| block.state.load(Ordering::Relaxed) & group_state::MASK;
        for block in each().skip(1) {
            let mut above = self.block(ObjcgId(block.parent.load(Ordering::Relaxed)));
            let levels = self.way_up(ObjcgId(block.parent.load(Ordering::Relaxed)));
            // Of different moments.
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
        self.lock.store(0, Ordering::Release);
    }

    /// In a forked child: makes an entry that a live object names one that may be named. (The object's page
    /// may have been copied before it was freed, and the entry's page after that.)
    ///
    /// # Safety
    /// There is no other thread.
    pub unsafe fn adopt(&self, objcg: ObjcgId) {
        self.used.fetch_max(objcg.0 + 1, Ordering::Relaxed);
        let block = self.block(objcg);
        let state = block.state.load(Ordering::Relaxed);
        if state & group_state::MASK == group_state::FREE {
            block.fill(ObjcgId::ROOT, b"");
            self.block(ObjcgId::ROOT).children.fetch_add(1, Ordering::Relaxed);
            block.state.store(state & !group_state::MASK | group_state::DYING, Ordering::Relaxed);
        }
    }

    /// The entry of a group that is not deleted.
    pub(super) fn living_block(&self, id: GroupId) -> Result<&GroupBlock, GroupError> {
        self.in_state(id, |state| state == group_state::LIVE)
    }

    /// The lowest entry that is nobody's.
    fn free_entry(&self) -> Option<ObjcgId> {
        let capacity = self.capacity.load(Ordering::Relaxed);
        let used = self.used();
        let from = self.first_free.swap(capacity, Ordering::SeqCst);
        let is_free = |&objcg: &u32| {
            let state = self.block(ObjcgId(objcg)).state.load(Ordering::SeqCst);
            state & group_state::MASK == group_state::FREE
        };
        let found = (from..used.min(capacity)).find(is_free).unwrap_or(used);
        if found >= capacity {
            return None;
        }
        // Somebody may have gone meanwhile, from below.
        self.first_free.fetch_min(found + 1, Ordering::SeqCst);
        if found == used {
            self.used.store(used + 1, Ordering::SeqCst);
        }
        Some(ObjcgId(found))
    }

    fn index(&self) -> Index<'_> {
        let slots = self.index.load(Ordering::Relaxed) as *const AtomicU32;
        let len = 2 * self.capacity.load(Ordering::Relaxed) as usize;
        // SAFETY: `start` was given memory for that many.
        Index { slots: unsafe { core::slice::from_raw_parts(slots, len) }, groups: self }
    }

    /// The index, for one at a time.
    fn lock(&self, wait: impl Fn()) -> Result<Locked<'_>, GroupError> {
        if self.blocks().is_empty() {
            return Err(GroupError::NoBooks);
        }
        while self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spin();
            wait();
        }
        Ok(Locked(self.index()))
    }
}

/// Gives the lock back when it is dropped.
struct Locked<'a>(Index<'a>);

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

impl GroupBlock {
    /// Makes a free entry that of a new group. (Not `pins`: others may try an old number on it.)
    fn fill(&self, parent: ObjcgId, name: &[u8]) {
        for count in
            [&self.charged, &self.own, &self.reserved, &self.peak].into_iter().chain(&self.events)
        {
            count.store(0, Ordering::Relaxed);
        }
        self.limit(Limit::Max).store(NO_LIMIT, Ordering::Relaxed);
        self.limit(Limit::High).store(NO_LIMIT, Ordering::Relaxed);
        self.limit(Limit::Low).store(0, Ordering::Relaxed);
        for count in [&self.children, &self.living, &self.over, &self.eventfd] {
            count.store(0, Ordering::Relaxed);
        }
        self.parent.store(parent.0, Ordering::Relaxed);
        let len = name.len().min(MAX_GROUP_NAME);
        self.name_len.store(len as u8, Ordering::Relaxed);
        for (to, &from) in self.name.iter().zip(name) {
            to.store(from, Ordering::Relaxed);
        }
    }
}
