//! Reclaim before a request is refused (the kernel's direct reclaim): from shrinkers of groups,
//! CPUs and the platform's free pages; and the number of retries.
//!
//! Context: requests that may wait; shrinkers are called.

use super::{Ledger, Request};
use crate::memcg::stock::MORE;
use crate::os::Platform;
use crate::request::Caller;
use crate::sync::AtomicU32;
use crate::task;
use crate::units::{Effort, ObjcgId, PageCount};

/// Longest block that [`Effort::Endless`] waits for: the kernel's `PAGE_ALLOC_COSTLY_ORDER`.
pub const COSTLY: PageCount = PageCount(1 << 3);
/// Most tries in a row after memory was freed (the kernel's `MAX_RECLAIM_RETRIES`).
const TRIES: u32 = 16;
/// Failed tries after which [`Effort::Retry`] gives up.
const FAILURES: u32 = 3;
/// Most waits between two tries; their number doubles from one to this.
const WAITS: u32 = 16;

impl<P: Platform> Ledger<P> {
    /// Calls `attempt`, which found nothing, until it does, with the effort that the caller asked
    /// for.
    #[cold]
    #[inline(never)]
    pub(super) fn try_again<T>(
        &'static self,
        Request { bytes, endless, .. }: Request,
        caller: Caller,
        attempt: &mut impl FnMut() -> Option<T>,
    ) -> Option<T> {
        if caller.effort() == Effort::Once {
            return None;
        }
        let endless = caller.effort() == Effort::Endless && bytes <= endless.bytes();
        let (mut tries, mut failures) = (0, 0);
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
            failures += 1;
            if !endless && (failures == FAILURES || tries >= TRIES) {
                return None;
            }
            if failures == FAILURES {
                // The wait may have no end, so report the lack of memory now.
                self.reporter().out_of_memory(&self.census(), bytes, caller);
            }
            self.back_off(failures);
        }
    }

    /// Waits for other threads, longer each time.
    fn back_off(&self, time: u32) {
        let word = AtomicU32::new(0);
        for _ in 0..WAITS.min(1 << time.min(8)) {
            self.platform().give_way();
            self.platform().wait(&word, 0);
        }
    }

    /// Makes shrinkers free about `bytes`, and gives all memory that is not in use to the platform.
    /// Returns the bytes of both.
    fn give_back(&'static self, bytes: u64) -> u64 {
        let shrunk = if self.groups.any() && !task::is_shrinking() {
            self.charging().reclaim(ObjcgId::ROOT, bytes.saturating_add(MORE))
        } else {
            0
        };
        shrunk + self.heap.trim() as u64
    }
}
