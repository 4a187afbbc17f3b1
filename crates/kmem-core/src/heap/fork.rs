//! Repair of the heap in a forked child; see [`crate::page::Zone::rebuild`].

use super::Heap;
use crate::os::Platform;
use crate::page::{FreeWords, Keep, Pcp, Purpose};

impl<P: Platform> Heap<P> {
    /// Rebuilds all tables from the words that say what is live. CPUs and the barn keep nothing.
    /// Slabs are mended when they are first used.
    ///
    /// # Safety
    /// This is a forked child, in which no other thread exists.
    pub unsafe fn restart_in_child(&self) {
        // SAFETY: no other thread exists that could use any of this, by the contract. `rebuild`
        // passes pages of the zone to `pages_used`.
        unsafe {
            self.barns().iter().for_each(|barn| barn.forget());
            self.zones.forget_use();
            for set in self.zones.all() {
                set.slabs.distrust(set.zone.committed(), self.classes.all());
                set.zone.rebuild(free_words(set.purpose), |pfn| set.slabs.pages_used(pfn));
            }
            self.pcps().iter().for_each(Pcp::forget);
            self.slots.restart_empty();
        }
        // Which free pages hold the pattern, and which nothing, is not known any more.
        if self.zones.checks().poisons() {
            for set in self.zones.all() {
                set.zone.on(&self.platform).purge(Keep::NOTHING, u32::MAX);
            }
        }
    }
}

const fn free_words(purpose: Purpose) -> FreeWords {
    match purpose {
        Purpose::Heap | Purpose::PerCpu => FreeWords::Owners,
        // Areas number their pages, see `crate::vmalloc`.
        Purpose::Vmalloc | Purpose::Shared => FreeWords::Numbers,
    }
}
