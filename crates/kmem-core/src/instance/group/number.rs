//! Groups by number: making, deleting, finding and entering them.

use core::convert::Infallible;

use kmem_layout::group::{GroupBlock, MAX_GROUP_NAME};

use super::Group;
use crate::instance::Instance;
use crate::memcg::{GroupError, GroupId, objcg_of};
use crate::os::Platform;
use crate::report::Fault;
use crate::sync::Ordering;
use crate::task;
use crate::units::ObjcgId;

impl<P: Platform> Instance<P> {
    /// Wait of a thread while another thread changes the groups.
    pub(super) fn wait_for_groups(&self) -> impl Fn() {
        || self.platform().give_way()
    }

    /// Calls `act` with a group's entry, which is pinned during the call.
    pub(super) fn with_group<T>(
        &'static self,
        id: GroupId,
        act: impl FnOnce(&GroupBlock) -> T,
    ) -> Result<T, GroupError> {
        self.groups_ready()?;
        let groups = &self.ledger.groups;
        let done = act(groups.pin(id)?);
        groups.unpin(id.objcg());
        Ok(done)
    }

    /// Calls `read` with a group's entry, which may be that of a deleted group.
    pub(super) fn read_group<T>(
        &'static self,
        id: GroupId,
        read: impl FnOnce(&GroupBlock) -> T,
    ) -> Result<T, GroupError> {
        self.groups_ready()?;
        let groups = &self.ledger.groups;
        let found = read(groups.get(id)?);
        // The entry of a deleted group is not pinned, so `read` may have seen the next group's.
        groups.get(id).map(|_| found)
    }

    /// Starts or repairs the instance before its groups are used.
    pub(super) fn groups_ready(&'static self) -> Result<(), GroupError> {
        if self.ready() { Ok(()) } else { Err(GroupError::NoBooks) }
    }

    /// Makes a group below another one.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn group_create(
        &'static self,
        parent: GroupId,
        name: &[u8],
    ) -> Result<GroupId, GroupError> {
        self.groups_ready()?;
        let groups = &self.ledger.groups;
        self.merge_some();
        let create = || groups.create(self.platform(), parent, name, self.wait_for_groups());
        let id = match create() {
            Err(GroupError::Full) if self.merge_all() => create(),
            done => done,
        }?;
        if let Some(root) = self.ledger.books.root() {
            root.group_count.fetch_max(groups.used(), Ordering::Release);
        }
        Ok(id)
    }

    /// Deletes a group. From here on its parent is charged for its allocations, and for those of
    /// threads that are still in it. Takes time independent of the number of allocations. Its id is
    /// used again once no thread is in it, no handle refers to it, and nothing of its own is left.
    /// Later calls of [`Self::group_create`] give its live allocations to the parent for that.
    ///
    /// # Errors
    /// See [`GroupError`]; the group stays.
    pub fn group_delete(&'static self, id: GroupId) -> Result<(), GroupError> {
        self.groups_ready()?;
        let (groups, objcg) = (&self.ledger.groups, id.objcg());
        groups.delete(id, self.wait_for_groups())?;
        self.ledger.charging().recall_deleted();
        groups.settle(objcg);
        Ok(())
    }

    /// Finds the group of a name below another one.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_find(&'static self, parent: GroupId, name: &[u8]) -> Result<GroupId, GroupError> {
        self.groups_ready()?;
        self.ledger.groups.find(parent, name, self.wait_for_groups())
    }

    /// Finds the group at a path from the root, such as `a/b/c`; the path of the root is empty.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_at(&'static self, path: &[u8]) -> Result<GroupId, GroupError> {
        let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(GroupId::ROOT, |at, name| self.group_find(at, name))
    }

    /// All groups, the root first.
    pub fn group_all(&'static self) -> impl Iterator<Item = GroupId> {
        let _ = self.groups_ready();
        self.ledger.groups.all()
    }

    /// Parent of a group; `None` for the root.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group_parent(&'static self, id: GroupId) -> Result<Option<GroupId>, GroupError> {
        let parent = ObjcgId(self.read_group(id, |at| at.parent.load(Ordering::Relaxed))?);
        Ok(if id == GroupId::ROOT { None } else { self.ledger.groups.id(parent) })
    }

    /// Copies a group's name into `room`; empty for the root.
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

    /// Number of deleted groups whose entries still have charges or pins.
    pub fn group_dying(&'static self) -> usize {
        let _ = self.groups_ready();
        self.ledger.groups.dying()
    }

    /// Makes a group that of the calling thread: it pays for what the thread allocates from here
    /// on. Returns the thread's old group, for [`Self::group_leave`].
    ///
    /// # Errors
    /// There is no such group; the thread's group stays.
    pub fn group_enter(&'static self, id: GroupId) -> Result<ObjcgId, GroupError> {
        self.groups_ready()?;
        self.ledger.groups.pin(id)?;
        Ok(task::replace_group(id.objcg()))
    }

    /// Makes the group that [`Self::group_enter`] returned that of the calling thread again.
    pub fn group_leave(&'static self, before: ObjcgId) {
        let entered = task::replace_group(before);
        if entered.0 < self.ledger.groups.used() {
            self.ledger.groups.unpin(entered);
        }
    }

    /// Pins a group: until [`Self::group_unpin`], [`Self::group_switch`] may make it that of a
    /// thread, even if it is deleted meanwhile.
    ///
    /// # Errors
    /// There is no such group, or it was deleted.
    pub fn group_pin(&'static self, id: GroupId) -> Result<(), GroupError> {
        self.groups_ready()?;
        self.ledger.groups.pin(id).map(|_| ())
    }

    /// Removes a pin of [`Self::group_pin`]. No thread is in the group by this pin any more.
    ///
    /// # Errors
    /// The group has no pin.
    pub fn group_unpin(&'static self, id: GroupId) -> Result<(), GroupError> {
        self.groups_ready()?;
        let groups = &self.ledger.groups;
        if groups.get(id)?.pins.load(Ordering::Relaxed) == 0 {
            return Err(GroupError::NotFound);
        }
        groups.unpin(id.objcg());
        Ok(())
    }

    /// Makes the root, or a group that the caller has pinned, that of the calling thread (the
    /// kernel's `set_active_memcg`). Returns the one before, for [`task::replace_group`].
    /// `None`: there is no such group, or the allocator has not started. The thread's group stays.
    #[inline(always)]
    pub fn group_switch(&'static self, id: GroupId) -> Option<ObjcgId> {
        self.ledger.groups.get(id).ok()?;
        Some(task::replace_group(id.objcg()))
    }

    /// Group of the calling thread, or its nearest living ancestor.
    pub fn group_current(&'static self) -> GroupId {
        self.living_id(task::group())
    }

    /// Group that pays for a live allocation. An address that is not that of one is reported, and
    /// ends the program.
    ///
    /// # Safety
    /// No other thread frees the memory concurrently.
    pub unsafe fn group_of_allocation(&'static self, at: *mut u8) -> GroupId {
        let Ok(id) = self.living_payer(|| Ok::<_, Infallible>(self.payer(at)));
        id
    }

    /// Group that `payer` returns, or its nearest living ancestor. The group may be merged
    /// meanwhile, and its entry be another group's: so `payer` is asked again.
    fn living_payer<E>(
        &'static self,
        payer: impl Fn() -> Result<ObjcgId, E>,
    ) -> Result<GroupId, E> {
        loop {
            let objcg = payer()?;
            let id = self.living_id(objcg);
            if payer()? == objcg {
                return Ok(id);
            }
        }
    }

    /// Group that pays for the memory at an address (the kernel's `/proc/kpagecgroup`): for the
    /// live allocation that the address lies in. `None`: no live allocation is there, or a per-CPU
    /// object is. Another thread may free the memory meanwhile, so the answer may be an old one.
    /// Without books the root is the answer for free objects, too.
    /// Takes time in proportion to the pages in front of the address, within its allocation.
    pub fn group_of_address(&'static self, at: *const u8) -> Option<GroupId> {
        self.groups_ready().ok()?;
        let (heap, at) = (self.heap(), at as usize);
        let start = match heap.find(at) {
            Err(Fault::InsideObject { object, .. }) => object,
            Err(Fault::InsidePages { block, .. }) => block,
            _ => at,
        };
        self.living_payer(|| Ok::<_, Fault>(objcg_of(heap.find(start)?.word()))).ok()
    }

    /// Number of a group, or of its nearest living ancestor.
    fn living_id(&'static self, objcg: ObjcgId) -> GroupId {
        let groups = &self.ledger.groups;
        groups.id(groups.living(objcg)).unwrap_or(GroupId::ROOT)
    }

    /// Makes a handle of a group.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group(&'static self, id: GroupId) -> Result<Group<P>, GroupError> {
        self.groups_ready()?;
        self.ledger.groups.pin(id)?;
        Ok(Group::pinned(self, id))
    }
}
