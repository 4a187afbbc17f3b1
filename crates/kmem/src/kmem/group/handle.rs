//! Groups by handle: what Rust programs work with.

use core::ffi::c_void;
use core::marker::PhantomData;
use core::pin::Pin;
use core::task::{Context, Poll};

use super::{GroupKinds, GroupStat, Instance};
use crate::codetag::scope;
use crate::memcg::{GroupError, GroupId, Limit, Shrinker};
use crate::os::Platform;
use crate::root::NO_LIMIT;
use crate::units::ObjcgId;

/// A handle of a group: while it lives, the group's number means this group.
///
/// Dropping it does not delete the group.
pub struct Group<P: Platform + 'static> {
    kmem: &'static Instance<P>,
    id: GroupId,
}

impl<P: Platform> Group<P> {
    /// A handle of a group that is pinned for it.
    pub(super) fn pinned(kmem: &'static Instance<P>, id: GroupId) -> Self {
        Self { kmem, id }
    }

    /// Its number.
    pub fn id(&self) -> GroupId {
        self.id
    }

    /// Makes a group below it.
    ///
    /// # Errors
    /// [`GroupError`].
    pub fn create(&self, name: &str) -> Result<Self, GroupError> {
        let id = self.kmem.group_create(self.id, name.as_bytes())?;
        self.kmem.group(id)
    }

    /// Deletes the group; see [`Instance::group_delete`].
    ///
    /// # Errors
    /// [`GroupError`].
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

    /// What it holds.
    pub fn stat(&self) -> GroupStat {
        self.kmem.group_stat(self.id).unwrap_or_default()
    }

    /// What its allocations are; see [`Instance::group_kinds`].
    pub fn kinds(&self) -> GroupKinds {
        self.kmem.group_kinds(self.id).unwrap_or_default()
    }

    /// Pays for what the thread allocates until the scope ends. Scopes nest: the innermost counts.
    pub fn enter(&self) -> GroupScope<'_> {
        GroupScope { before: scope::replace_group(self.id.objcg()), _group: PhantomData }
    }

    /// A future whose every poll runs in this group, whichever thread polls it.
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

    /// Calls `shrink` when the group is to give memory back, with how many bytes; it returns how many it
    /// freed. See [`Shrink`] for what it may do.
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
            // SAFETY: the caller's promise.
            (unsafe { &*data.cast::<F>() })(bytes)
        }
        let data = core::ptr::from_ref(shrink).cast_mut().cast();
        // SAFETY: `shrink` is there for good.
        unsafe { self.kmem.shrinker_add(self.id, call::<F>, data) }
    }
}

impl<P: Platform> Clone for Group<P> {
    fn clone(&self) -> Self {
        self.kmem.groups.pin_again(self.id.objcg());
        Self { kmem: self.kmem, id: self.id }
    }
}

impl<P: Platform> Drop for Group<P> {
    fn drop(&mut self) {
        self.kmem.groups.unpin(self.id.objcg());
    }
}

impl<P: Platform> core::fmt::Debug for Group<P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Group").field("id", &self.id).finish()
    }
}

/// While it lives, a group pays for what its thread allocates. See [`Group::enter`].
#[derive(Debug)]
#[must_use = "the scope ends when this is dropped"]
pub struct GroupScope<'a> {
    before: ObjcgId,
    /// Keeps the group's handle; and scopes belong to a thread.
    _group: PhantomData<(&'a (), *mut ())>,
}

impl Drop for GroupScope<'_> {
    #[inline]
    fn drop(&mut self) {
        scope::replace_group(self.before);
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
        // SAFETY: `future` is never moved out of, and `Grouped` is not `Unpin` unless it is.
        let this = unsafe { self.get_unchecked_mut() };
        let _scope = this.group.enter();
        // SAFETY: as above.
        unsafe { Pin::new_unchecked(&mut this.future) }.poll(context)
    }
}

/// Bytes charged to a group without being allocated. See [`Group::try_charge`].
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

/// Runs `work`, during which a Rust collection whose group is at its limit is refused memory (so
/// `try_reserve` and its like fail) instead of going above the limit.
pub fn fallible<T>(work: impl FnOnce() -> T) -> T {
    let before = scope::replace_fallible(true);
    let done = work();
    scope::replace_fallible(before);
    done
}
