//! Fork: a forked child repairs its own state; the parent does nothing and waits for no thread.
//!
//! The kernel copies the child's memory page by page while other threads go on, so tables on
//! different pages may disagree. The words that say what is live are each right on their own:
//! extension words, lengths of page runs, classes of chunks. All else is computed from them. By
//! these words, memory that other threads held and items on CPUs' arrays are free, so nothing is
//! lost. (Without books, objects on arrays are lost.)
//!
//! The platform has wiped the child's slots. So its fast paths fail, and its first slow path, while
//! there is only one thread, comes here. Slabs are mended when they are first used.
//!
//! A child of `vfork` shares memory with its parent but is not registered for rseq. It reads the
//! CPU number of the parent's thread, and the kernel restarts none of its sections. So while there
//! is such a child, arrays are paused and every thread takes the slow path.

use super::{Instance, start};
use crate::os::Platform;
use crate::sync::Ordering;

impl<P: Platform> Instance<P> {
    /// Prepares for a thread that shares memory but has no rseq. False: the caller must not make
    /// one.
    pub fn before_vfork(&'static self) -> bool {
        self.ready();
        // The fence below ends sections of these, too.
        self.ledger.guards.held().pause();
        self.percpu.pause();
        self.vmalloc.pause();
        let done = self.heap().slots.pause(|| self.platform().fence_cpus());
        if !done {
            self.resume_others();
        }
        done
    }

    /// Undoes [`Self::before_vfork`] once that thread has ended.
    pub fn after_vfork(&'static self) {
        self.heap().slots.resume();
        self.resume_others();
    }

    fn resume_others(&self) {
        self.vmalloc.resume();
        self.percpu.resume();
        self.ledger.guards.held().resume();
    }

    /// In a forked child: repairs the instance.
    #[cold]
    #[inline(never)]
    pub(super) fn restart_in_child(&'static self) {
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if self.state.compare_exchange(start::READY, start::MENDING, done, failed).is_err() {
            return;
        }
        // SAFETY: only a child that was just forked has wiped slots, and it has one thread.
        unsafe {
            self.ledger.restart_in_child();
            self.percpu.restart_in_child();
            self.vmalloc.on(&self.ledger).mend();
        }
        self.platform().forget_tender();
        self.forks.fetch_add(1, Ordering::Relaxed);
        self.state.store(start::READY, Ordering::Release);
    }
}
