//! Giving back at once all free memory, also that which CPUs and the barn keep.

use super::{Heap, ZoneSet};
use crate::class::{ArrayId, Contents, SizeClass};
use crate::os::Platform;
use crate::page::{Keep, Run};
use crate::slab::purge::Work;
use crate::units::{CpuId, Item};

impl<P: Platform> Heap<P> {
    /// Empties into slabs and zones: memory that the layers above keep, the arrays of all CPUs,
    /// their reserves, and the barn.
    pub fn drain(&'static self) {
        if let Some(owner) = self.owner() {
            owner.drain();
        }
        self.drain_cpus();
    }

    /// Empties the arrays of all CPUs, their reserves, and the barn.
    pub(super) fn drain_cpus(&'static self) {
        self.drain_arrays(|_| ArrayId::all());
        self.pcps().iter().for_each(|pcp| self.unreserve(pcp));
        for barn in self.barns() {
            SizeClass::all().for_each(|class| self.empty_sheaves(barn, class, u32::MAX));
        }
    }

    /// Empties arrays of each CPU into slabs and zones.
    pub(super) fn drain_arrays<I: Iterator<Item = ArrayId>>(
        &'static self,
        arrays: impl Fn(CpuId) -> I,
    ) {
        self.arrays().drain(arrays, |array, items| self.give_drained(array, items));
    }

    /// Gives items of an array back, each to its node.
    pub(super) fn give_drained(&'static self, array: ArrayId, items: &mut [Item]) {
        self.zones.gather(items);
        match array.contents() {
            // SAFETY: free objects of this class, taken off the array of a stopped CPU.
            Contents::Objects(class) => unsafe { self.give_objects(class, items) },
            // SAFETY: free blocks of this class, taken off the array of a stopped CPU.
            Contents::Blocks(class) => unsafe { self.give_blocks(class, items) },
            Contents::Runs(class) => {
                for at in items.iter().map(|item| item.address()) {
                    if let Some(set) = self.zones.of(at)
                        && let Some(start) = set.zone.pfn(at)
                    {
                        self.give_pages(set, Run { start, pages: class.pages() });
                    }
                }
            }
        }
    }

    /// Gives all memory that is not in use back to the platform now. Returns the bytes given back.
    pub fn trim(&'static self) -> usize {
        self.drain();
        self.purge_all()
    }

    /// Gives all free memory of slabs and zones back to the platform. Returns the bytes given back.
    pub(super) fn purge_all(&'static self) -> usize {
        let slabs = |set| self.purge_slabs(set, Keep::NOTHING, Work::ALL);
        let in_slabs: usize = self.zones.heap().map(slabs).sum();
        let purge =
            |set: &ZoneSet| set.zone.on(&self.platform).purge(Keep::NOTHING, u32::MAX).bytes;
        in_slabs + self.zones.all().map(purge).sum::<usize>()
    }
}
