//! A forked child repairs its own state; the parent does nothing and waits for nobody.
//!
//! The child's copy of memory was made page by page while other threads went on, so tables on
//! different pages may disagree. The words that say what is live (extension words, lengths of
//! page runs, classes of chunks) are each right on their own: all else is computed from them.
//! What other threads had in their hands and on CPUs' arrays is free by these words, so nothing
//! is lost (without books, objects on arrays are).
//!
//! The child finds out by its wiped slots: fast paths fail over, and the first slow path, while
//! there is only one thread, comes here. Slabs are mended when they are first used.

//!
//! A child of `vfork` shares memory with its parent but not its rseq registration: to it, the
//! CPU number is that of the parent's thread, and the kernel restarts none of its sections. So
//! while there is such a child, arrays are out of use and everybody takes the slow path.

use super::{Instance, start};
use crate::os::Platform;
use crate::page::Pcp;
use crate::sync::Ordering;
use crate::units::PageCount;

impl<P: Platform> Instance<P> {
    /// Prepares for a thread that shares memory but has no rseq. False: it must not be made.
    pub fn before_vfork(&'static self) -> bool {
        self.ready();
        // Fenced with the arrays below.
        self.percpu.units.pause();
        self.percpu.slots.pause(|| true);
        self.vmalloc.slots.pause(|| true);
        let done = self.slots.pause(|| self.platform.fence_cpus());
        if !done {
            self.resume_others();
        }
        done
    }

    fn resume_others(&self) {
        self.vmalloc.slots.resume();
        self.percpu.slots.resume();
        self.percpu.units.resume();
    }

    /// That thread is gone.
    pub fn after_vfork(&'static self) {
        self.slots.resume();
        self.resume_others();
    }

    #[cold]
    #[inline(never)]
    pub(super) fn restart_in_child(&'static self) {
        if self
            .state
            .compare_exchange(start::READY, start::MENDING, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        // SAFETY: only a freshly forked child has a wiped table, and it has one thread.
        unsafe {
            self.barn.forget();
            self.quarantine.forget();
            if let Some(root) = self.root() {
                root.used_pages.store(0, Ordering::Relaxed);
            }
            for set in self.zone_sets() {
                let committed = PageCount(set.zone.committed());
                set.slabs.distrust(committed, self.geometries());
                set.zone.rebuild(|pfn| set.slabs.pages_used(pfn));
            }
            self.pcps().iter().for_each(Pcp::forget);
            self.scratch.forget();
            self.blackbox.leave();
            self.percpu.slots.restart_empty();
            self.vmalloc.slots.restart_empty();
            self.slots.restart_empty();
            self.recharge();
        }
        // SAFETY: as above.
        unsafe { self.mend_areas() };
        // Pages that can be mapped again are the parent's alone.
        self.vmalloc.shared.store(0, Ordering::Relaxed);
        self.state.store(start::READY, Ordering::Release);
    }
}
