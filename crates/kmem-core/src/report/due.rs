//! A report on lack of memory that is due: another thread has the scratch table, so that thread
//! makes the report when it has finished.
//!
//! ```text
//! NONE --leave--> CHANGING --> DUE --take--> CHANGING --> NONE
//! ```
//!
//! There is room for one, since reports are seconds apart. No thread waits: the one that lacks
//! memory may be a handler that interrupted the one with the table.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};
use crate::units::{ObjcgId, TagId};

const NONE: u32 = 0;
const CHANGING: u32 = 1;
const DUE: u32 = 2;

/// Subject of a report on lack of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shortage {
    /// Bytes of the request.
    pub(super) bytes: u64,
    /// Tag of the request's caller.
    pub(super) tag: TagId,
    /// The group whose limit refused the request; the root if there was no memory.
    pub(super) group: ObjcgId,
}

/// The report that is due, if any. Zeroed memory is a valid value: none.
pub(super) struct Due {
    state: AtomicU32,
    tag: AtomicU32,
    group: AtomicU32,
    bytes: AtomicU64,
}

impl Due {
    /// None is due.
    pub(super) const fn new() -> Self {
        Self {
            state: AtomicU32::new(NONE),
            tag: AtomicU32::new(0),
            group: AtomicU32::new(0),
            bytes: AtomicU64::new(0),
        }
    }

    /// Returns whether a report is due, as far as this thread knows.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.state.load(Ordering::Relaxed) == DUE
    }

    /// Makes a report due. It is lost if another one is.
    pub(super) fn leave(&self, Shortage { bytes, tag, group }: Shortage) {
        if self.change(NONE) {
            self.bytes.store(bytes, Ordering::Relaxed);
            self.tag.store(tag.0, Ordering::Relaxed);
            self.group.store(group.0, Ordering::Relaxed);
            self.state.store(DUE, Ordering::Release);
        }
        // Pairs with the fence after a thread gave the scratch table back. Either this thread finds
        // the table free, or that thread sees this report.
        fence(Ordering::SeqCst);
    }

    /// Takes the report that is due.
    pub(super) fn take(&self) -> Option<Shortage> {
        if !self.change(DUE) {
            return None;
        }
        let shortage = Shortage {
            bytes: self.bytes.load(Ordering::Relaxed),
            tag: TagId(self.tag.load(Ordering::Relaxed)),
            group: ObjcgId(self.group.load(Ordering::Relaxed)),
        };
        self.state.store(NONE, Ordering::Release);
        Some(shortage)
    }

    /// In a forked child: the report is that of the parent.
    pub(super) fn forget(&self) {
        self.state.store(NONE, Ordering::Relaxed);
    }

    fn change(&self, from: u32) -> bool {
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.state.compare_exchange(from, CHANGING, done, failed).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_due_until_one_thread_takes_it() {
        let due = Due::new();
        let first = Shortage { bytes: 7, tag: TagId(8), group: ObjcgId(9) };
        assert!(!due.any() && due.take().is_none());
        due.leave(first);
        due.leave(Shortage { bytes: 1, ..first });
        assert!(due.any());
        assert_eq!(due.take(), Some(first));
        assert_eq!(due.take(), None);
        due.leave(first);
        due.forget();
        assert!(!due.any());
    }
}
