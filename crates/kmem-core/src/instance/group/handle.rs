//! Groups by handle, the interface for Rust programs.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

use kmem_layout::group::{Limit, NO_LIMIT};

use super::{GroupKinds, GroupStat};
use crate::instance::Instance;
use crate::memcg::{GroupError, GroupId, Shrinker};
use crate::os::Platform;
use crate::report::GroupPath;
use crate::task;
use crate::units::ObjcgId;

/// A handle of a group: while it lives, the group's number is not used for another group.
///
/// Dropping it does not delete the group.
///
/// # Examples
/// ```
/// static KMEM: kmem_core::Kmem = kmem_core::Kmem::new();
/// use kmem_core::memcg::GroupId;
/// let caller = kmem_core::Caller::tagged(kmem_core::static_tag!());
/// let jobs = KMEM.group(GroupId::ROOT)?.create("jobs")?;
/// let scope = jobs.enter();
/// let at = KMEM.alloc(100, caller.here());
/// drop(scope);
/// assert!(jobs.stat().current >= 100);
/// // SAFETY: a live allocation, which is used no longer.
/// unsafe { KMEM.free(at) };
/// assert_eq!(jobs.stat().current, 0);
/// # Ok::<(), kmem_core::memcg::GroupError>(())
/// ```
pub struct Group<P: Platform + 'static> {
    kmem: &'static Instance<P>,
    id: GroupId,
}

impl<P: Platform> Group<P> {
    /// A handle of a group that the caller pinned for it.
    pub(super) fn pinned(kmem: &'static Instance<P>, id: GroupId) -> Self {
        Self { kmem, id }
    }

    /// Number of the group.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Returns the nearest living group above this one; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        let (groups, objcg) = (&self.kmem.ledger.groups, self.id.objcg());
        if objcg == ObjcgId::ROOT {
            return None;
        }
        loop {
            let above = groups.charged_for(objcg).find(|&(at, _)| at != objcg);
            // A group above may be deleted before it is pinned. The root is not.
            let id = above.map_or(Some(GroupId::ROOT), |(at, _)| groups.id(at));
            if let Some(Ok(above)) = id.map(|id| self.kmem.group(id)) {
                return Some(above);
            }
        }
    }

    /// Makes a group below this one.
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn create(&self, name: &str) -> Result<Self, GroupError> {
        let id = self.kmem.group_create(self.id, name.as_bytes())?;
        self.kmem.group(id)
    }

    /// Deletes the group; see [`Instance::group_delete`].
    ///
    /// # Errors
    /// See [`GroupError`].
    pub fn delete(&self) -> Result<(), GroupError> {
        self.kmem.group_delete(self.id)
    }

    /// Sets a limit in bytes, `None` for none; see [`Instance::group_set`].
    ///
    /// # Errors
    /// The group was deleted, or is the root.
    pub fn set(&self, limit: Limit, bytes: Option<u64>) -> Result<(), GroupError> {
        let none = if limit == Limit::Low { 0 } else { NO_LIMIT };
        self.kmem.group_set(self.id, limit, bytes.unwrap_or(none))
    }

    /// Charges and limits of the group.
    pub fn stat(&self) -> GroupStat {
        self.kmem.group_stat(self.id).unwrap_or_default()
    }

    /// Live allocations of the group by kind; see [`Instance::group_kinds`].
    pub fn kinds(&self) -> GroupKinds {
        self.kmem.group_kinds(self.id).unwrap_or_default()
    }

    /// Makes the group pay for allocations of the calling thread until the scope is dropped. Scopes
    /// nest: the innermost counts. A signal handler works for the group that it interrupts, unless
    /// it enters the root group.
    pub fn enter(&self) -> GroupScope<'_> {
        GroupScope { before: task::replace_group(self.id.objcg()), _group: PhantomData }
    }

    /// Wraps a future: the group pays for allocations in its polls, on any thread.
    pub fn run<F: Future>(self, future: F) -> Grouped<P, F> {
        Grouped { group: self, future }
    }

    /// Reserves bytes before they are allocated; see [`Instance::group_try_charge`].
    ///
    /// # Errors
    /// The group is at its limit.
    pub fn try_charge(&self, bytes: u64) -> Result<Reservation<P>, GroupError> {
        self.kmem.group_try_charge(self.id, bytes)?;
        Ok(Reservation { group: self.clone(), bytes })
    }

    /// Adds a shrinker, which is called with a number of bytes when the group must give memory
    /// back. It returns the number of bytes that it freed. See [`crate::memcg::Shrink`] for its
    /// rules.
    ///
    /// # Errors
    /// The group was deleted, or there is no memory.
    pub fn add_shrinker<F: Fn(usize) -> usize + Sync>(
        &self,
        shrink: &'static F,
    ) -> Result<&'static Shrinker, GroupError> {
        /// # Safety
        /// `data` is the `&'static F` below.
        unsafe extern "C" fn call<F: Fn(usize) -> usize + Sync>(
            data: *mut c_void,
            _: GroupId,
            bytes: usize,
        ) -> usize {
            // SAFETY: `data` is a reference to a static `F`, by the contract.
            (unsafe { &*data.cast::<F>() })(bytes)
        }
        let data = core::ptr::from_ref(shrink).cast_mut().cast();
        // SAFETY: `shrink` is a static reference to a `Sync` function, so any thread may call it.
        unsafe { self.kmem.shrinker_add(self.id, call::<F>, data) }
    }
}

impl<P: Platform> Clone for Group<P> {
    fn clone(&self) -> Self {
        self.kmem.ledger.groups.pin_again(self.id.objcg());
        Self { kmem: self.kmem, id: self.id }
    }
}

impl<P: Platform> Drop for Group<P> {
    fn drop(&mut self) {
        self.kmem.ledger.groups.unpin(self.id.objcg());
    }
}

/// Displays the path from the root, with a slash in front of each name.
impl<P: Platform> core::fmt::Display for Group<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        GroupPath(&self.kmem.ledger.groups, self.id.objcg()).fmt(f)
    }
}

impl<P: Platform> core::fmt::Debug for Group<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group").field("id", &self.id).finish()
    }
}

/// A scope in which a group pays for allocations of the thread. See [`Group::enter`].
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct GroupScope<'a> {
    before: ObjcgId,
    /// Borrows the group's handle, and keeps the scope on its thread.
    _group: PhantomData<(&'a (), *mut ())>,
}

impl Drop for GroupScope<'_> {
    #[inline]
    fn drop(&mut self) {
        task::replace_group(self.before);
    }
}

/// A future that a group pays for. See [`Group::run`].
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Grouped<P: Platform + 'static, F> {
    group: Group<P>,
    future: F,
}

impl<P: Platform, F: Future> Future for Grouped<P, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // SAFETY: `future` is not moved, and `Grouped` is `Unpin` only if `future` is.
        let this = unsafe { self.get_unchecked_mut() };
        let _scope = this.group.enter();
        // SAFETY: `future` is pinned, because `self` is.
        unsafe { Pin::new_unchecked(&mut this.future) }.poll(context)
    }
}

/// Bytes that are charged to a group, but not allocated. See [`Group::try_charge`].
#[derive(Debug)]
#[must_use = "the bytes are given back when this is dropped"]
pub struct Reservation<P: Platform + 'static> {
    group: Group<P>,
    bytes: u64,
}

impl<P: Platform> Drop for Reservation<P> {
    fn drop(&mut self) {
        let _ = self.group.kmem.group_uncharge(self.group.id, self.bytes);
    }
}
