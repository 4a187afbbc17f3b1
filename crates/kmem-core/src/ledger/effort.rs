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

/// Tries of a request so far.
#[derive(Default)]
pub(super) struct Tried {
    /// Tries after memory was freed.
    tries: u32,
    /// Tries after which nothing more could be freed.
    failures: u32,
    /// Bytes freed before the last try; `None` before the first.
    freed: Option<u64>,
}

impl<P: Platform> Ledger<P> {
    /// Frees memory for a request that found none, with the effort that the caller asked for.
    /// False: the request is refused.
    #[cold]
    #[inline(never)]
    pub(super) fn try_again(
        &'static self,
        Request { bytes, endless, .. }: Request,
        caller: Caller,
        tried: &mut Tried,
    ) -> bool {
        if caller.effort() == Effort::Once {
            return false;
        }
        let endless = caller.effort() == Effort::Endless && bytes <= endless.bytes();
        if let Some(freed) = tried.freed {
            tried.tries += 1;
            if freed == 0 || tried.tries >= TRIES {
                tried.failures += 1;
                if !endless && (tried.failures == FAILURES || tried.tries >= TRIES) {
                    return false;
                }
                if tried.failures == FAILURES {
                    // The wait may have no end, so report the lack of memory now.
                    self.reporter().out_of_memory(&self.census(), bytes, caller);
                }
                self.back_off(tried.failures);
            }
        }
        tried.freed = Some(self.give_back(bytes as u64));
        true
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
