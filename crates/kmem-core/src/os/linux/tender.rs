//! The tender: a thread of the process that gives free memory back while the program makes no
//! calls. Another part makes the thread, outside of any call of the allocator. (The C library
//! starts threads under locks that a caller of `free` may hold.) Here is its state, by which other
//! threads wake it.
//!
//! ```text
//!      begin             rest             rest
//! OFF -------> CALLED ---------> AWAKE ---------> ASLEEP
//!  ^             ^    call_tender  |   call_tender   |
//!  |             '-----------------'-----------------'
//!  '--- any state: end, and in a forked child
//! ```
//!
//! Context: any, signal handlers included.

use core::time::Duration;

use super::Linux;
use crate::os::Process;
use crate::sync::{AtomicU32, Ordering};

const OFF: u32 = 0;
const AWAKE: u32 = 1;
const CALLED: u32 = 2;
const ASLEEP: u32 = 3;

/// State of the tender: one of those above, and a futex. Zeroed, there is none.
pub(super) struct Tender(AtomicU32);

impl Tender {
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(OFF))
    }

    fn becomes(&self, from: u32, to: u32) -> bool {
        self.0.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

impl Linux {
    /// The caller starts the tender's thread. False: the process has one.
    pub fn begin_tender(&self) -> bool {
        self.tender.becomes(OFF, CALLED)
    }

    /// Lets the tender's thread end, which [`Self::has_tender`] tells it.
    pub fn end_tender(&self) {
        if self.tender.0.swap(OFF, Ordering::SeqCst) != OFF {
            self.wake(&self.tender.0);
        }
    }

    /// Returns whether the process has a tender.
    pub fn has_tender(&self) -> bool {
        self.tender.0.load(Ordering::Relaxed) != OFF
    }

    /// Lets the tender's thread sleep for a time.
    pub fn pause_tender(&self, time: Duration) {
        let state = self.tender.0.load(Ordering::Relaxed);
        if state != OFF {
            self.sleep_while(&self.tender.0, state, Some(time));
        }
    }

    /// Lets the tender's thread sleep until it is called, unless it was called already.
    pub fn rest_tender(&self) {
        let tender = &self.tender;
        if tender.becomes(AWAKE, ASLEEP) {
            while tender.0.load(Ordering::Acquire) == ASLEEP {
                self.sleep_while(&tender.0, ASLEEP, None);
            }
        }
        tender.becomes(CALLED, AWAKE);
    }

    pub(super) fn wake_tender(&self) {
        let tender = &self.tender;
        loop {
            match tender.0.load(Ordering::Relaxed) {
                OFF | CALLED => return,
                before if tender.becomes(before, CALLED) => {
                    return if before == ASLEEP {
                        self.wake(&tender.0)
                    };
                }
                _ => {}
            }
        }
    }

    /// In a forked child, which has one thread.
    pub(super) fn forget_tender_thread(&self) {
        self.tender.0.store(OFF, Ordering::Relaxed);
    }
}
