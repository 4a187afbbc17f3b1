//! The last check of objects, when a program ends: of those that are held back, and of those that
//! still live.

use kmem_layout::word::EXT_LIVE;

use super::Ledger;
use crate::class::SizeClass;
use crate::os::Platform;
use crate::sync::Ordering;

impl<P: Platform> Ledger<P> {
    /// Looks at the poison of all objects in the quarantine. If `alone`, also looks at the red
    /// zones of all live objects. Damage is reported, and ends the program, as it does at a free.
    ///
    /// # Safety
    /// If `alone`, this is the only thread, and it is not inside a call of the allocator.
    pub unsafe fn check_at_exit(&'static self, alone: bool) {
        if self.guards.checks().has_quarantine() {
            self.empty_quarantine();
        }
        if !self.guards.checks().has_red_zones() || !alone {
            return;
        }
        for set in self.heap.zones.all().filter(|set| set.is_heap()) {
            let classes = self.heap.classes.all();
            // SAFETY: the zone has its committed pages. Slabs do not change: no other thread runs.
            unsafe {
                set.slabs.each_slab(set.zone.committed(), classes, |slab, class| {
                    self.check_slab(slab, class);
                });
            }
        }
    }

    /// Looks at the red zones of all live objects of a slab.
    ///
    /// # Safety
    /// A slab of that class of the heap begins at `slab`, and no other thread runs.
    unsafe fn check_slab(&'static self, slab: usize, class: SizeClass) {
        let geometry = self.heap.classes.geometry(class);
        for object in (0..geometry.objects).map(|i| slab + (i * geometry.size) as usize) {
            // SAFETY: an object of the class; red zones need the books, so it has a word. If it is
            // live, no other thread uses it.
            unsafe {
                let word = self.object_word(object, class).load(Ordering::Relaxed);
                if word & EXT_LIVE != 0 {
                    self.check_red_zones(object, class, word);
                }
            }
        }
    }
}
