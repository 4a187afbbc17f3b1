//! Shrinkers: callbacks of a group that give memory back (the kernel's `struct shrinker`).
//!
//! ```text
//! GroupBlock.shrinkers --> Shrinker --> Shrinker --> ..
//! ```
//!
//! A list only grows; one that was removed is used again by the next one of that group, or of the next
//! group with that id.

use super::{GroupError, GroupId, Groups};
use crate::root::GroupBlock;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use core::ffi::c_void;

/// Frees memory of a group if it can: about so many bytes; returns how many it freed. Called on the
/// thread that allocates, which holds no lock of the allocator's and may hold any of the program's:
/// what cannot be had without waiting must be left alone. What it allocates is granted above `max`.
pub type Shrink = unsafe extern "C" fn(data: *mut c_void, group: GroupId, bytes: usize) -> usize;

/// A registered callback.
#[repr(C)]
pub struct Shrinker {
    next: AtomicU64,
    /// The function; 0 while it is not in use.
    call: AtomicUsize,
    data: AtomicUsize,
    /// The group it was added to: its entry may be another one's by now.
    group: AtomicU64,
    /// Calls under way.
    active: AtomicU32,
    /// 1 while somebody fills it in.
    taken: AtomicU32,
}

impl Groups {
    /// Adds a shrinker to a group. `room` gives memory for one, for good, if the group has none to spare.
    ///
    /// # Errors
    /// There is no such group, or no memory.
    pub fn add_shrinker<'a>(
        &'a self,
        id: GroupId,
        call: Shrink,
        data: *mut c_void,
        room: impl FnOnce() -> Option<&'a Shrinker>,
    ) -> Result<&'a Shrinker, GroupError> {
        let block = self.living_block(id)?;
        let spare = list(block).find(|shrinker| {
            let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
            shrinker.call.load(Ordering::Relaxed) == 0
                && shrinker.taken.compare_exchange(0, 1, done, failed).is_ok()
        });
        let shrinker = match spare {
            Some(spare) => spare,
            None => {
                let new = room().ok_or(GroupError::NoMemory)?;
                new.taken.store(1, Ordering::Relaxed);
                let mut first = block.shrinkers.load(Ordering::Relaxed);
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
        shrinker.data.store(data as usize, Ordering::Relaxed);
        shrinker.group.store(id.0, Ordering::Relaxed);
        shrinker.call.store(call as usize, Ordering::SeqCst);
        Ok(shrinker)
    }

    /// Calls the shrinkers of one group until they freed so many bytes; how many they say they did.
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

    /// Whether a group has shrinkers.
    pub fn has_shrinkers(&self, id: GroupId) -> bool {
        let in_use = |shrinker: &Shrinker| {
            shrinker.call.load(Ordering::Relaxed) != 0
                && shrinker.group.load(Ordering::Relaxed) == id.0
        };
        self.get(id).is_ok_and(|block| list(block).any(in_use))
    }
}

fn list(block: &GroupBlock) -> impl Iterator<Item = &Shrinker> {
    // SAFETY: null or a shrinker, which is never freed. Acquire pairs with the release of the list.
    let at =
        |word: &AtomicU64| unsafe { (word.load(Ordering::Acquire) as *const Shrinker).as_ref() };
    core::iter::successors(at(&block.shrinkers), move |shrinker| at(&shrinker.next))
}

/// In a forked child: other threads' calls do not return.
pub(super) fn forget_calls(block: &GroupBlock) {
    list(block).for_each(|shrinker| shrinker.active.store(0, Ordering::Relaxed));
}

impl Shrinker {
    /// One that is not in use.
    #[cfg(all(loom, test))]
    pub(super) fn unused() -> Self {
        Self {
            next: AtomicU64::new(0),
            call: AtomicUsize::new(0),
            data: AtomicUsize::new(0),
            group: AtomicU64::new(0),
            active: AtomicU32::new(0),
            taken: AtomicU32::new(0),
        }
    }

    fn call(&self, id: GroupId, bytes: usize) -> usize {
        // Before the look, as with pins: whoever removes it waits for us, or we see that it is gone.
        self.active.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let call = self.call.load(Ordering::SeqCst) as *const ();
        let freed = if call.is_null() || self.group.load(Ordering::Relaxed) != id.0 {
            0
        } else {
            let data = self.data.load(Ordering::Relaxed) as *mut c_void;
            // SAFETY: only a `Shrink` is stored there, and its owner keeps it callable until `remove`.
            unsafe { core::mem::transmute::<*const (), Shrink>(call)(data, id, bytes) }
        };
        // Zero already in a child that was forked by the callback.
        let less = |active: u32| active.checked_sub(1);
        let _ = self.active.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        freed
    }

    /// Takes it out of use, and waits for calls on other threads to return.
    pub fn remove(&self, wait: impl Fn()) {
        self.call.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while self.active.load(Ordering::SeqCst) != 0 {
            crate::sync::spin();
            wait();
        }
        self.taken.store(0, Ordering::Release);
    }
}
