//! Getting memory back before a request is refused (the kernel's direct reclaim): shrinkers of groups,
//! what CPUs keep, what is free; and how often that is tried.
//!
//! Context: requests that may wait; shrinkers are called.

use super::Instance;
use super::account::MORE;
use crate::codetag::{Caller, scope};
use crate::os::Platform;
use crate::root::group_event;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Effort, ObjcgId, PageCount};

/// Longest block that [`Effort::Endless`] waits for: the kernel's `PAGE_ALLOC_COSTLY_ORDER`.
pub(super) const COSTLY: PageCount = PageCount(1 << 3);
/// Most tries that follow each other because something was freed (the kernel's `MAX_RECLAIM_RETRIES`).
const TRIES: u32 = 16;
/// Tries in vain after which [`Effort::Retry`] gives up.
const IN_VAIN: u32 = 3;
/// Most waits between two tries; their number doubles from one to this.
const WAITS: u32 = 16;

impl<P: Platform> Instance<P> {
    /// What `attempt` finds for a request of so many bytes, with the effort that the caller asked for;
    /// without end if it is no longer than `most`.
    #[inline]
    pub(super) fn with_effort<T>(
        &'static self,
        bytes: usize,
        most: PageCount,
        caller: Caller,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let found = attempt();
        if found.is_some() || caller.effort() == Effort::Once {
            return found;
        }
        let endless = caller.effort() == Effort::Endless && bytes <= most.bytes();
        self.try_again(bytes, endless, caller, attempt)
    }

    #[cold]
    #[inline(never)]
    fn try_again<T>(
        &'static self,
        bytes: usize,
        endless: bool,
        caller: Caller,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let (mut tries, mut in_vain) = (0, 0);
        loop {
            let freed = self.give_back(bytes as u64);
            let found = attempt();
            if found.is_some() {
                return found;
            }
            tries += 1;
            if freed > 0 && tries < TRIES {
                continue;
            }
            in_vain += 1;
            if !endless && (in_vain == IN_VAIN || tries >= TRIES) {
                return None;
            }
            if in_vain == IN_VAIN {
                // The caller gets no answer, so this is where it is said who holds the memory.
                self.out_of_memory(bytes, caller);
            }
            self.back_off(in_vain);
        }
    }

    /// Lets others go on, longer from time to time.
    fn back_off(&self, time: u32) {
        let nobody = AtomicU32::new(0);
        for _ in 0..WAITS.min(1 << time.min(8)) {
            self.platform.give_way();
            self.platform.wait(&nobody, 0);
        }
    }

    /// Has shrinkers free about so many bytes, and gives everything to the platform that is not in
    /// use; the bytes of both.
    fn give_back(&'static self, bytes: u64) -> u64 {
        let shrunk = if self.groups.any() && !scope::is_shrinking() {
            self.reclaim(ObjcgId::ROOT, bytes.saturating_add(MORE))
        } else {
            0
        };
        shrunk + self.trim() as u64
    }

    /// Has a group, and those below it, give back about so many bytes; how many they say they freed.
    /// Those with less than their `low` are asked last.
    pub(super) fn reclaim(&'static self, top: ObjcgId, bytes: u64) -> u64 {
        let want = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut freed = 0;
        for spare in [true, false] {
            for id in self.groups.all_below(top) {
                if freed >= want {
                    return freed as u64;
                }
                let Ok(block) = self.groups.get(id) else { continue };
                let holds = block.charged.load(Ordering::Relaxed);
                let is_low = holds <= block.low.load(Ordering::Relaxed);
                if spare == is_low || !self.groups.has_shrinkers(id) {
                    continue;
                }
                if self.groups.pin(id).is_ok() {
                    if is_low {
                        self.tell(id.objcg(), group_event::LOW);
                    }
                    freed += scope::while_shrinking(|| self.groups.shrink(id, want - freed));
                    self.groups.unpin(id.objcg());
                }
            }
        }
        freed as u64
    }
}
