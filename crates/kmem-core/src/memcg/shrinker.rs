//! Shrinkers: callbacks of a group that give memory back (the kernel's `struct shrinker`).
//!
//! ```text
//! GroupBlock.shrinkers --> Shrinker --> Shrinker --> ..
//! ```
//!
//! A list only grows. A removed shrinker is used again for the next one that is added to the group,
//! or to a later group with that id.

use super::{GroupError, GroupId, Groups};
use crate::callback::Callback;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use core::ffi::c_void;
use kmem_layout::group::GroupBlock;

/// Frees about `bytes` bytes of a group's memory if it can. Returns how many bytes it freed.
///
/// It is called on the thread that allocates, which holds no lock of the allocator but may hold any
/// lock of the program. So it must not wait for a lock. Its allocations are granted above `max`.
pub type Shrink = unsafe extern "C" fn(data: *mut c_void, group: GroupId, bytes: usize) -> usize;

/// A registered callback. Zeroed memory is a valid shrinker, not in use.
///
/// # Invariants
/// `shrink` is empty, or has a [`Shrink`] that any thread may call with its data until `remove`
/// returns. A shrinker in a list is never freed.
#[repr(C)]
pub struct Shrinker {
    /// The next shrinker of the list; 0 for none.
    next: AtomicU64,
    /// The function; empty while the shrinker is not in use.
    shrink: Callback,
    /// The group it was added to; the entry may be another group's by now.
    group: AtomicU64,
    /// 1 from when a thread begins to add it until its removal is complete.
    taken: AtomicU32,
}

impl Groups {
    /// Adds a shrinker to a group. Calls `room` for a new one if the group has none that is not in
    /// use.
    ///
    /// # Errors
    /// There is no such group, or no memory.
    ///
    /// # Safety
    /// Any thread may call `call` with `data` until [`Shrinker::remove`] returns. `room` returns a
    /// shrinker that is in no list, and is never freed.
    pub unsafe fn add_shrinker<'a>(
        &'a self,
        id: GroupId,
        call: Shrink,
        data: *mut c_void,
        room: impl FnOnce() -> Option<&'a Shrinker>,
    ) -> Result<&'a Shrinker, GroupError> {
        let block = self.living_block(id)?;
        let spare = list(block).find(|shrinker| {
            let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
            !shrinker.shrink.is_set() && shrinker.taken.compare_exchange(0, 1, done, failed).is_ok()
        });
        let shrinker = match spare {
            Some(spare) => spare,
            None => {
                let new = room().ok_or(GroupError::NoMemory)?;
                new.taken.store(1, Ordering::Relaxed);
                let mut first = block.shrinkers.load(Ordering::Relaxed);
                // INVARIANT: the shrinker is never freed, by the contract.
                loop {
                    new.next.store(first, Ordering::Relaxed);
                    let at = core::ptr::from_ref(new) as u64;
                    let (done, failed) = (Ordering::Release, Ordering::Relaxed);
                    match block.shrinkers.compare_exchange_weak(first, at, done, failed) {
                        Ok(_) => break new,
                        Err(now) => first = now,
                    }
                }
            }
        };
        // INVARIANT: the function may be called with the data, by the contract.
        shrinker.group.store(id.0, Ordering::Relaxed);
        shrinker.shrink.set(call as *const (), data);
        Ok(shrinker)
    }

    /// Calls the shrinkers of a group until they have freed `bytes` bytes. Returns how many bytes
    /// they say they freed.
    pub fn shrink(&self, id: GroupId, bytes: usize) -> usize {
        let Ok(block) = self.get(id) else { return 0 };
        let mut freed = 0usize;
        for shrinker in list(block) {
            if freed >= bytes {
                break;
            }
            freed = freed.saturating_add(shrinker.call(id, bytes - freed));
        }
        freed
    }

    /// Returns whether a group has shrinkers.
    pub fn has_shrinkers(&self, id: GroupId) -> bool {
        let in_use = |shrinker: &Shrinker| {
            shrinker.shrink.is_set() && shrinker.group.load(Ordering::Relaxed) == id.0
        };
        self.get(id).is_ok_and(|block| list(block).any(in_use))
    }
}

/// The shrinkers of an entry.
fn list(block: &GroupBlock) -> impl Iterator<Item = &Shrinker> {
    // Acquire pairs with the release that added the shrinker.
    // SAFETY: null, or a shrinker in a list, which is never freed (invariant).
    let at =
        |word: &AtomicU64| unsafe { (word.load(Ordering::Acquire) as *const Shrinker).as_ref() };
    core::iter::successors(at(&block.shrinkers), move |shrinker| at(&shrinker.next))
}

/// Forgets calls in progress, in a forked child: those on other threads never return.
pub(super) fn forget_calls(block: &GroupBlock) {
    list(block).for_each(|shrinker| shrinker.shrink.forget_calls());
}

impl Shrinker {
    /// A shrinker that is not in use.
    #[cfg(all(loom, test))]
    pub(super) fn unused() -> Self {
        Self {
            next: AtomicU64::new(0),
            shrink: Callback::none(),
            group: AtomicU64::new(0),
            taken: AtomicU32::new(0),
        }
    }

    /// Calls the function, if the shrinker is in use for this group. Returns the bytes it freed.
    fn call(&self, id: GroupId, bytes: usize) -> usize {
        let call = |call: *const (), data| {
            if self.group.load(Ordering::Relaxed) != id.0 {
                return 0;
            }
            // SAFETY: a `Shrink` that may be called with its data (invariant): `remove` does not
            // return while this call is counted.
            unsafe { core::mem::transmute::<*const (), Shrink>(call)(data, id, bytes) }
        };
        self.shrink.with(call).unwrap_or(0)
    }

    /// Takes the shrinker out of use. Returns when all calls have returned, and calls `wait` while
    /// one has not.
    pub fn remove(&self, wait: impl Fn()) {
        self.shrink.remove(wait);
        self.taken.store(0, Ordering::Release);
    }
}
