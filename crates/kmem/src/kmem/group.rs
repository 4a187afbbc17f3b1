//! Groups as a program uses them: by number, as C does; [`handle`] has them by handle.

mod handle;

use core::ffi::c_void;
use core::ptr::NonNull;

use super::Instance;
use crate::alloc_tag::Kind;
use crate::codetag::{Caller, scope};
use crate::memcg::{GroupError, GroupId, Limit, MOST_CHARGED, Shrink, Shrinker};
use crate::os::Platform;
use crate::root::{GroupBlock, MAX_GROUP_NAME, group_event};
use crate::sync::Ordering;
use crate::units::ObjcgId;

pub use handle::{Group, GroupScope, Grouped, Reservation, fallible};

/// What a group holds and may hold, in bytes; the words are those of cgroup v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupStat {
    /// Live allocations with their metadata, and reservations, of it and of all below it.
    pub current: u64,
    /// The same of its own.
    pub own: u64,
    /// Of its own, what is reserved.
    pub reserved: u64,
    /// Charged beyond that, and ready on CPUs for the next allocations, of it and of all below it.
    pub cached: u64,
    /// The highest `current + cached` since it was last reset.
    pub peak: u64,
    /// See [`Limit::Max`]; `u64::MAX` for none.
    pub max: u64,
    /// See [`Limit::High`]; `u64::MAX` for none.
    pub high: u64,
    /// See [`Limit::Low`].
    pub low: u64,
    /// See [`group_event`].
    pub events: [u64; group_event::COUNT],
    /// Whether a request that could not be refused went above a limit.
    pub over_limit: bool,
}

/// What a group's live allocations are, in bytes with their metadata; of it and of all below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupKinds {
    /// Objects of slabs.
    pub slab: u64,
    /// Pages of the heap, large blocks of `malloc` included.
    pub pages: u64,
    /// Areas of vmalloc, and pages for vmap.
    pub vmalloc: u64,
    /// Per-CPU objects: one copy of each.
    pub percpu: u64,
}

impl<P: Platform> Instance<P> {
    fn wait_for_groups(&self) -> impl Fn() {
        || self.platform.give_way()
    }

    /// Does something with a group's entry, which stays the group's meanwhile.
    fn with_group<T>(
        &'static self,
        id: GroupId,
        act: impl FnOnce(&GroupBlock) -> T,
    ) -> Result<T, GroupError> {
        self.groups_ready()?;
        let done = act(self.groups.pin(id)?);
        self.groups.unpin(id.objcg());
        Ok(done)
    }

    /// Reads a group's entry; a deleted group's, too.
    fn read_group<T>(
        &'static self,
        id: GroupId,
        read: impl FnOnce(&GroupBlock) -> T,
    ) -> Result<T, GroupError> {
        self.groups_ready()?;
        let found = read(self.groups.get(id)?);
        // Nobody keeps the entry of a deleted group: what was read may be the next one's.
        self.groups.get(id).map(|_| found)
    }

    /// In a forked child, groups are repaired before they are looked at.
    fn groups_ready(&'static self) -> Result<(), GroupError> {
        if self.ready() { Ok(()) } else { Err(GroupError::NoBooks) }
    }

    /// Makes a group below another one.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn group_create(
        &'static self,
        parent: GroupId,
        name: &[u8],
    ) -> Result<GroupId, GroupError> {
        self.groups_ready()?;
        let id = self.groups.create(parent, name, self.wait_for_groups())?;
        if let Some(root) = self.root() {
            root.group_count.fetch_max(self.groups.used(), Ordering::Release);
        }
        Ok(id)
    }

    /// Deletes a group. What it holds is its parent's from now on; nothing is walked. Threads that
    /// still work in it work for its parent.
    ///
    /// # Errors
    /// [`GroupError`]; it stays.
    pub fn group_delete(&'static self, id: GroupId) -> Result<(), GroupError> {
        self.groups_ready()?;
        let objcg = id.objcg();
        self.groups.delete(id, self.wait_for_groups())?;
        self.recall_deleted();
        self.groups.settle(objcg);
        Ok(())
    }

    /// The group of that name below another one.
    ///
    /// # Errors
    /// There is none.
    pub fn group_find(&'static self, parent: GroupId, name: &[u8]) -> Result<GroupId, GroupError> {
        self.groups_ready()?;
        self.groups.find(parent, name, self.wait_for_groups())
    }

    /// The group at a path from the root, as `a/b/c`; the root's own is empty.
    ///
    /// # Errors
    /// There is none.
    pub fn group_at(&'static self, path: &[u8]) -> Result<GroupId, GroupError> {
        let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(GroupId::ROOT, |at, name| self.group_find(at, name))
    }

    /// All groups, the root first.
    pub fn group_all(&'static self) -> impl Iterator<Item = GroupId> {
        let _ = self.groups_ready();
        self.groups.all()
    }

    /// The group a group lies below; of the root none.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_parent(&'static self, id: GroupId) -> Result<Option<GroupId>, GroupError> {
        let parent = ObjcgId(self.read_group(id, |at| at.parent.load(Ordering::Relaxed))?);
        Ok(if id == GroupId::ROOT { None } else { self.groups.id(parent) })
    }

    /// A group's name; empty for the root.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_name<'a>(
        &'static self,
        id: GroupId,
        room: &'a mut [u8; MAX_GROUP_NAME],
    ) -> Result<&'a [u8], GroupError> {
        let len = self.read_group(id, |block| block.name(room).len())?;
        Ok(&room[..len])
    }

    /// Deleted groups that something is still charged to.
    pub fn group_dying(&'static self) -> usize {
        let _ = self.groups_ready();
        self.groups.dying()
    }

    /// Sets a limit in bytes, `u64::MAX` for none. A group that holds more than its new `max` or `high`
    /// has its shrinkers called; whatever is left above `max` stays, and nothing more is granted.
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
            if limit != Limit::Low && above() > 0 && !scope::is_shrinking() {
                self.recall_below(id.objcg());
                if above() > 0 {
                    self.reclaim(id.objcg(), above());
                }
            }
        })
    }

    /// What a group holds, at this moment; a deleted one, what is still charged to its number.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_stat(&'static self, id: GroupId) -> Result<GroupStat, GroupError> {
        self.read_group(id, |block| self.stat_of(id, block))
    }

    fn stat_of(&'static self, id: GroupId, block: &GroupBlock) -> GroupStat {
        let (mut below, mut mine) = (0, 0);
        self.each_stock(|objcg, bytes| {
            if objcg == id.objcg() {
                mine += bytes;
            }
            if self.groups.is_below(objcg, id.objcg()) {
                below += bytes;
            }
        });
        let read = |word: &crate::sync::AtomicU64| word.load(Ordering::SeqCst);
        // Nobody keeps that of a deleted group.
        let live = self.groups.is_live(id.objcg());
        let charged = read(if live { &block.charged } else { &block.own });
        let mut stat = GroupStat {
            current: charged.saturating_sub(below),
            own: read(&block.own).saturating_sub(mine),
            reserved: read(&block.reserved),
            cached: below,
            peak: read(&block.peak).max(charged),
            max: read(&block.max),
            high: read(&block.high),
            low: read(&block.low),
            events: core::array::from_fn(|event| block.event_count(event)),
            over_limit: block.over.load(Ordering::Relaxed) != 0,
        };
        if id == GroupId::ROOT {
            // Nobody is charged for what is the root's.
            self.census_by_group(|held| {
                stat.current += held.charged();
                if held.objcg == ObjcgId::ROOT {
                    stat.own += held.charged();
                }
            });
            stat.current +=
                (1..self.groups.used()).map(|at| self.groups.reserved(ObjcgId(at))).sum::<u64>();
        }
        stat
    }

    /// What a group's allocations are, at this moment; takes time with the number of objects of the heap.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_kinds(&'static self, id: GroupId) -> Result<GroupKinds, GroupError> {
        self.with_group(id, |_| {
            let mut kinds = GroupKinds::default();
            self.census_by_kind(|held, kind| {
                let sum = match kind {
                    Kind::Slab => &mut kinds.slab,
                    Kind::Pages => &mut kinds.pages,
                    Kind::Vmalloc => &mut kinds.vmalloc,
                    Kind::PerCpu => &mut kinds.percpu,
                };
                if self.groups.is_below(held.objcg, id.objcg()) {
                    *sum += held.charged();
                }
            });
            kinds
        })
    }

    /// Starts a group's peak anew from what it holds, and takes its sticky mark of being over the limit.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_reset_peak(&'static self, id: GroupId) -> Result<(), GroupError> {
        self.with_group(id, |block| {
            block.peak.store(block.charged.load(Ordering::SeqCst), Ordering::SeqCst);
            block.over.store(0, Ordering::Relaxed);
        })
    }

    /// Has an eventfd told of each event of a group; `None`: none.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_notify(&'static self, id: GroupId, fd: Option<u32>) -> Result<(), GroupError> {
        let word = fd.map_or(0, |fd| fd.saturating_add(1));
        self.with_group(id, |block| block.eventfd.store(word, Ordering::Relaxed))
    }

    /// Charges bytes to a group before they are allocated, and keeps them until
    /// [`Self::group_uncharge`]: to find out that there is room for a large piece of work before
    /// it is begun.
    ///
    /// # Errors
    /// There is no such group; [`GroupError::NoMemory`]: it is at its limit.
    pub fn group_try_charge(&'static self, id: GroupId, bytes: u64) -> Result<(), GroupError> {
        // More than a counter holds is not even tried, so that nobody sees what it would come to.
        if bytes > MOST_CHARGED {
            return Err(GroupError::NoMemory);
        }
        let done = self.with_group(id, |block| {
            let root = id == GroupId::ROOT;
            let done = root || self.charge(id.objcg(), bytes, Caller::NOBODY.quietly());
            if done && !root {
                block.reserved.fetch_add(bytes, Ordering::SeqCst);
            }
            done
        })?;
        if done { Ok(()) } else { Err(GroupError::NoMemory) }
    }

    /// Gives back what was reserved; no more than that.
    ///
    /// # Errors
    /// There is no such group, or so much is not reserved.
    pub fn group_uncharge(&'static self, id: GroupId, bytes: u64) -> Result<(), GroupError> {
        if id == GroupId::ROOT {
            return Ok(());
        }
        let less = |reserved: u64| reserved.checked_sub(bytes);
        let reserved = &self.groups.get(id)?.reserved;
        if reserved.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_err() {
            return Err(GroupError::NotFound);
        }
        self.groups.uncharge(id.objcg(), bytes);
        Ok(())
    }

    /// Adds a shrinker to a group: see [`Shrink`].
    ///
    /// # Safety
    /// `call` may be called with `data` on any thread until [`Self::shrinker_remove`] returns.
    ///
    /// # Errors
    /// There is no such group, or no memory.
    pub unsafe fn shrinker_add(
        &'static self,
        id: GroupId,
        call: Shrink,
        data: *mut c_void,
    ) -> Result<&'static Shrinker, GroupError> {
        let room = || {
            let caller = Caller::tagged(crate::static_tag!("shrinker"));
            let at = self.alloc_zeroed(size_of::<Shrinker>(), caller);
            // SAFETY: memory of that size, zeroed, which is a valid shrinker; never given back.
            NonNull::new(at).map(|at| unsafe { at.cast::<Shrinker>().as_ref() })
        };
        self.with_group(id, |_| self.groups.add_shrinker(id, call, data, room))?
    }

    /// Takes a shrinker out of use; returns when no thread is in it any more.
    ///
    /// # Errors
    /// From within a shrinker that cannot be waited for: it stays.
    pub fn shrinker_remove(&'static self, shrinker: &'static Shrinker) -> Result<(), GroupError> {
        if scope::is_shrinking() {
            return Err(GroupError::InShrinker);
        }
        self.groups_ready()?;
        shrinker.remove(self.wait_for_groups());
        Ok(())
    }

    /// Makes a group the thread's, which pays for what the thread allocates from now on; the one
    /// before, for [`Self::group_leave`].
    ///
    /// # Errors
    /// There is no such group; the thread stays in the one it is in.
    pub fn group_enter(&'static self, id: GroupId) -> Result<ObjcgId, GroupError> {
        self.groups_ready()?;
        self.groups.pin(id)?;
        Ok(scope::replace_group(id.objcg()))
    }

    /// Goes back to the group that [`Self::group_enter`] returned.
    pub fn group_leave(&'static self, before: ObjcgId) {
        let entered = scope::replace_group(before);
        if entered.0 < self.groups.used() {
            self.groups.unpin(entered);
        }
    }

    /// The group of the thread.
    pub fn group_current(&'static self) -> GroupId {
        self.groups.id(self.groups.living(scope::group())).unwrap_or(GroupId::ROOT)
    }

    /// The group that pays for a live allocation.
    ///
    /// # Safety
    /// As for [`Self::usable_size`].
    pub unsafe fn group_of_allocation(&'static self, at: *mut u8) -> GroupId {
        let objcg = self.payer(at);
        self.groups.id(self.groups.living(objcg)).unwrap_or(GroupId::ROOT)
    }

    /// A handle of a group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group(&'static self, id: GroupId) -> Result<Group<P>, GroupError> {
        self.groups_ready()?;
        self.groups.pin(id)?;
        Ok(Group::pinned(self, id))
    }

    /// Recounts the groups; for an instance at rest.
    ///
    /// # Errors
    /// The first group whose charge is not the sum of what it and those below it own, or whose own is
    /// not what the census, the stocks and its reservations say; and both figures.
    pub fn validate_groups(&'static self) -> Result<(), (GroupId, u64, u64)> {
        /// Groups counted in one census.
        const PART: u32 = 256;
        self.groups.validate()?;
        let used = self.groups.used();
        for first in (1..used).step_by(PART as usize) {
            let mut sums = [0; PART as usize];
            let mut add = |objcg: ObjcgId, bytes: u64| {
                if let Some(sum) = sums.get_mut(objcg.0.wrapping_sub(first) as usize) {
                    *sum += bytes;
                }
            };
            self.census_by_group(|held| add(held.objcg, held.charged()));
            self.each_stock(&mut add);
            for (objcg, sum) in (first..used).map(ObjcgId).zip(sums) {
                let (own, sum) = (self.groups.own(objcg), sum + self.groups.reserved(objcg));
                if own != sum {
                    let id = self.groups.id(objcg).unwrap_or(GroupId(objcg.0.into()));
                    return Err((id, own, sum));
                }
            }
        }
        Ok(())
    }
}
