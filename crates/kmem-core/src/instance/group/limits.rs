//! Limits of groups, reservations, and shrinkers, which are called at a limit.

use core::ffi::c_void;
use core::ptr::NonNull;

use kmem_layout::group::Limit;

use crate::instance::Instance;
use crate::memcg::{GroupError, GroupId, Limits, MOST_CHARGED, Shrink, Shrinker};
use crate::os::Platform;
use crate::request::Caller;
use crate::sync::Ordering;
use crate::task;

impl<P: Platform> Instance<P> {
    /// Sets a limit in bytes, `u64::MAX` for none. If the group is charged more than its new `max`
    /// or `high`, calls its shrinkers. Allocations above `max` stay; new ones are refused.
    ///
    /// # Errors
    /// There is no such group, or it is the root.
    pub fn group_set(
        &'static self,
        id: GroupId,
        limit: Limit,
        bytes: u64,
    ) -> Result<(), GroupError> {
        if id == GroupId::ROOT {
            return Err(GroupError::IsRoot);
        }
        self.with_group(id, |block| {
            block.limit(limit).store(bytes, Ordering::SeqCst);
            let above = || block.charged.load(Ordering::SeqCst).saturating_sub(bytes);
            if limit != Limit::Low && above() > 0 && !task::is_shrinking() {
                self.ledger.charging().recall_below(id.objcg());
                if above() > 0 {
                    self.ledger.charging().reclaim(id.objcg(), above());
                }
            }
        })
    }

    /// Sets a group's peak to its current charge, and clears its mark of having exceeded its limit.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_reset_peak(&'static self, id: GroupId) -> Result<(), GroupError> {
        self.with_group(id, |block| {
            block.peak.store(block.charged.load(Ordering::SeqCst), Ordering::SeqCst);
            block.over.store(0, Ordering::Relaxed);
        })
    }

    /// Makes each event of a group signal an eventfd; `None` ends that.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_notify(&'static self, id: GroupId, fd: Option<u32>) -> Result<(), GroupError> {
        let word = fd.map_or(0, |fd| fd.saturating_add(1));
        self.with_group(id, |block| block.eventfd.store(word, Ordering::Relaxed))
    }

    /// Reserves bytes: charges them to a group until [`Self::group_uncharge`], without allocating
    /// them. A program does so before it begins work that takes much memory.
    ///
    /// # Errors
    /// There is no such group; [`GroupError::NoMemory`]: it is at its limit.
    pub fn group_try_charge(&'static self, id: GroupId, bytes: u64) -> Result<(), GroupError> {
        // Refuse more than a counter can hold at once: a reader must not see it overflow.
        if bytes > MOST_CHARGED {
            return Err(GroupError::NoMemory);
        }
        self.with_group(id, |block| {
            if id == GroupId::ROOT {
                return Ok(());
            }
            let charged = self.ledger.charging().charge(id.objcg(), bytes, Limits::Obey);
            charged.map_err(|_| GroupError::NoMemory)?;
            block.reserved.fetch_add(bytes, Ordering::SeqCst);
            Ok(())
        })?
    }

    /// Gives reserved bytes back.
    ///
    /// # Errors
    /// There is no such group, or fewer bytes are reserved.
    pub fn group_uncharge(&'static self, id: GroupId, bytes: u64) -> Result<(), GroupError> {
        if id == GroupId::ROOT {
            return Ok(());
        }
        let groups = &self.ledger.groups;
        let less = |reserved: u64| reserved.checked_sub(bytes);
        let reserved = &groups.get(id)?.reserved;
        if reserved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            return Err(GroupError::NotFound);
        }
        groups.uncharge(id.objcg(), bytes);
        Ok(())
    }

    /// Adds a shrinker to a group; see [`Shrink`].
    ///
    /// # Errors
    /// There is no such group, or no memory.
    ///
    /// # Safety
    /// `call` may be called with `data` on any thread until [`Self::shrinker_remove`] returns.
    pub unsafe fn shrinker_add(
        &'static self,
        id: GroupId,
        call: Shrink,
        data: *mut c_void,
    ) -> Result<&'static Shrinker, GroupError> {
        let room = || {
            let caller = Caller::tagged(crate::static_tag!("shrinker"));
            let at = self.alloc_zeroed(size_of::<Shrinker>(), caller);
            // SAFETY: this call allocated the memory, of that size, and it is never freed. Zeroes
            // are a valid shrinker.
            NonNull::new(at).map(|at| unsafe { at.cast::<Shrinker>().as_ref() })
        };
        // SAFETY: the same contract; `room` allocates a shrinker that is never freed.
        self.with_group(id, |_| unsafe { self.ledger.groups.add_shrinker(id, call, data, room) })?
    }

    /// Removes a shrinker. Waits until no thread runs its function.
    ///
    /// # Errors
    /// The calling thread is within a shrinker, which it cannot wait for; the shrinker stays.
    pub fn shrinker_remove(&'static self, shrinker: &'static Shrinker) -> Result<(), GroupError> {
        if task::is_shrinking() {
            return Err(GroupError::InShrinker);
        }
        self.groups_ready()?;
        shrinker.remove(self.wait_for_groups());
        Ok(())
    }
}
