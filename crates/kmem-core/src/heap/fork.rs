//! Repair of the heap in a forked child; see [`crate::page::Zone::rebuild`].

use core::ptr::NonNull;

use super::{Heap, ZoneSet};
use crate::class::SizeClass;
use crate::os::{Access, Platform};
use crate::page::{FreeWords, Keep, Pcp, Purpose};

impl<P: Platform> Heap<P> {
    /// Rebuilds all tables from the words that say what is live. CPUs and the barn keep nothing.
    /// Slabs are mended when they are first used.
    ///
    /// # Safety
    /// This is a forked child, in which no other thread exists.
    pub unsafe fn restart_in_child(&self) {
        // SAFETY: no other thread exists that could use any of this, by the contract. `rebuild`
        // passes pages of the zone to `pages_used`. Pages that become inaccessible are committed,
        // and were so at the fork.
        unsafe {
            self.barns().iter().for_each(|barn| barn.forget());
            self.zones.forget_use();
            for set in self.zones.all() {
                set.slabs.distrust(set.zone.committed(), self.classes.all());
                set.zone.rebuild(free_words(set.purpose), |pfn| set.slabs.pages_used(pfn));
                for (at, bytes, access) in self.access(set) {
                    self.platform.protect(at, bytes, access);
                }
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

    /// The changes of access after which only slabs of objects of no bytes are inaccessible.
    /// Another thread may have been making such a slab at the fork, or retiring one: in the child,
    /// its pages are free.
    fn access(&self, set: &ZoneSet) -> impl Iterator<Item = (NonNull<u8>, usize, Access)> {
        let committed = set.zone.committed();
        let slabs = set.slabs.slabs_of(SizeClass::ZERO, committed);
        let hidden = slabs.filter_map(|start| self.slabs().hidden(set, start, SizeClass::ZERO));
        let base = NonNull::new(set.zone.base() as *mut u8);
        let all = base.map(|base| (base, committed.bytes(), Access::All));
        // With `debug_pagealloc` all free pages are inaccessible, and claims make them accessible.
        let changes = set.slabs.hides() && !self.zones.checks().protects();
        all.into_iter()
            .chain(hidden.map(|(at, bytes)| (at, bytes, Access::None)))
            .filter(move |_| changes)
    }
}

const fn free_words(purpose: Purpose) -> FreeWords {
    match purpose {
        Purpose::Heap | Purpose::PerCpu => FreeWords::Owners,
        // Areas number their pages, see `crate::vmalloc`.
        Purpose::Vmalloc | Purpose::Shared => FreeWords::Numbers,
    }
}
