//! Pages that fault without a mapping of their own: marks in the page tables, by
//! `MADV_GUARD_INSTALL` of madvise(2), Linux 6.13.
//!
//! A page that `mprotect` makes inaccessible splits its mapping in three, and the kernel limits
//! their number. A mark splits nothing. The kernel refuses marks in locked memory.
//!
//! Filters of system calls often list the advice that they allow, and end the process for another.
//! So in a sandbox no mark is set or removed.

use core::ptr::NonNull;

use super::Linux;
use super::syscall::sys;
use crate::sync::{AtomicU32, Ordering};

/// `MADV_GUARD_INSTALL`: marks pages.
pub(super) const INSTALL: i32 = 102;
/// `MADV_GUARD_REMOVE`: removes the marks in a range.
pub(super) const REMOVE: i32 = 103;
/// Not an action of rt_sigprocmask(2).
const NO_ACTION: i32 = 99;

/// No mark was tried yet.
const UNKNOWN: u32 = 0;
/// The kernel has marks.
const WORKS: u32 = 1;
/// The kernel has no marks.
const FAILS: u32 = 2;

/// Knowledge about marks. Zeroed memory is a valid value.
pub(super) struct Marks(AtomicU32);

impl Marks {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(UNKNOWN))
    }

    /// Returns whether to try a mark.
    pub(super) fn may_be_set(&self, linux: &Linux) -> bool {
        self.0.load(Ordering::Relaxed) != FAILS && !linux.is_in_sandbox()
    }

    /// Returns whether there may be marks.
    pub(super) fn are_set(&self) -> bool {
        self.0.load(Ordering::Relaxed) == WORKS
    }

    /// Notes whether the kernel accepted marks at `at`. Returns whether they are there. Emulators
    /// accept advice that they do not know, and ignore it.
    pub(super) fn note(&self, at: NonNull<u8>, done: bool) -> bool {
        if self.are_set() {
            return done;
        }
        let works = done && faults(at);
        if works {
            self.0.store(WORKS, Ordering::Relaxed);
        } else {
            // Another thread may have found marks that work.
            let _ = self.0.compare_exchange(UNKNOWN, FAILS, Ordering::Relaxed, Ordering::Relaxed);
        }
        works
    }
}

/// Returns whether a page cannot be read. The kernel reads the mask before it looks at the action,
/// of which there is none.
fn faults(at: NonNull<u8>) -> bool {
    // SAFETY: the kernel reads 8 bytes, or fails with EFAULT. It changes nothing.
    let result = unsafe { sys!(libc::SYS_rt_sigprocmask, NO_ACTION, at.as_ptr(), 0, 8) };
    result == -(libc::EFAULT as isize)
}
