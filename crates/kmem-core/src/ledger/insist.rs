//! Requests of an interpreter that may exceed a limit, since it cannot go on without them.
//!
//! To handle an exception, CPython allocates an integer of 28 bytes: the number of an instruction.
//! If it gets none, it raises `MemoryError`, handles that, and so asks again, for ever
//! (`exception_unwind` in `ceval.c`). So a thread at the `max` of its group would never see the
//! exception. Therefore the second such request in a row is granted. As the kernel does for a task
//! that it kills (`try_charge_memcg`), it charges above the limit.
//!
//! Context: any. Lock-free.

use super::Ledger;
use crate::memcg::Limits;
use crate::memcg::stock::Price;
use crate::os::Platform;
use crate::request::Caller;
use crate::sync::{AtomicUsize, Ordering};
use crate::task;
use crate::units::ObjcgId;

/// Most bytes of such a request.
const MOST_BYTES: usize = 32;
/// Most bytes above its limit that a group is charged for such requests.
const MOST_ABOVE: u64 = 1 << 20;

/// The request that was refused last, of those that may insist. Zeroed memory is a valid value:
/// there was none.
pub(super) struct Refused {
    /// Key of the caller.
    key: AtomicUsize,
}

impl Refused {
    /// No request was refused.
    pub(super) const fn new() -> Self {
        Self { key: AtomicUsize::new(0) }
    }
}

impl<P: Platform> Ledger<P> {
    /// Charges a request that was refused at the `max` of the group `at`, if an interpreter insists
    /// on it. It does if its last request came from the same place and was refused. Returns
    /// whether the request is charged.
    #[cold]
    pub(super) fn pay_insistent(
        &'static self,
        (price, bytes): (Price, usize),
        (at, objcg): (ObjcgId, ObjcgId),
        caller: Caller,
    ) -> bool {
        if bytes > MOST_BYTES || !task::follows_frames() {
            return false;
        }
        let last = &self.refused.key;
        if last.swap(caller.key(), Ordering::Relaxed) != caller.key() {
            return false;
        }
        last.store(0, Ordering::Relaxed);
        let Some(group) = self.groups.entries().get(at.0 as usize) else { return false };
        let most = group.max.load(Ordering::Relaxed).saturating_add(MOST_ABOVE);
        group.charged.load(Ordering::Relaxed) <= most
            && self.charging().pay(price, objcg, Limits::Exceed).is_ok()
    }
}
