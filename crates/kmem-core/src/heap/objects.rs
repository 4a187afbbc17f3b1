//! Objects of slabs: the barn and the slabs behind the CPU arrays.

use super::array::{Backing, Looked};
use super::{Heap, ZoneSet};
use crate::class::SizeClass;
use crate::os::{Access, Platform};
use crate::page::{Keep, Placement, Way};
use crate::slab::Retired;
use crate::slab::purge::Work;
use crate::slab::sheaf::{Barn, SHEAF_OBJECTS};
use crate::units::{CpuId, Item};

/// The objects of one class, behind the CPU arrays.
pub(super) struct Objects<P: 'static> {
    pub(super) heap: &'static Heap<P>,
    pub(super) class: SizeClass,
}

impl<P: Platform> Backing for Objects<P> {
    fn batch(&self, _: CpuId, _: Way) -> usize {
        self.heap.classes.geometry(self.class).batch.into()
    }

    fn supply(
        &self,
        _: Option<CpuId>,
        most: usize,
        take: impl FnOnce(&[Item]) -> Item,
    ) -> Option<Item> {
        let (heap, class) = (self.heap, self.class);
        heap.look_at_clock();
        heap.send_home();
        let here = heap.zones.here(&heap.platform);
        if most > 1
            && let Some(barn) = heap.barns().get(here.node() as usize)
            && let Some(held) = barn.take_full(class)
        {
            let one = take(&held.sheaf.objects[..held.sheaf.len as usize]);
            barn.give_empty(held);
            return Some(one);
        }
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        let out = &mut buffer[..most];
        let got = heap.retrying(|| heap.slabs().claim(class, here, heap.mixer(), out))?;
        Some(take(&out[most - got..]))
    }

    fn absorb(&self, most: usize, fill: impl FnOnce(&mut [Item]) -> usize) {
        let (heap, class) = (self.heap, self.class);
        // The objects of the only node go straight into its sheaf.
        if let [barn] = heap.barns()
            && let Some(held) = barn.take_empty(&heap.platform, class, heap.classes.geometry(class))
        {
            let len = fill(&mut held.sheaf.objects[..most]);
            held.sheaf.len = len as u32;
            if len > 0 {
                barn.give_full(class, held);
            } else {
                barn.give_empty(held);
            }
            return;
        }
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        let len = fill(&mut buffer[..most]);
        if heap.zones.has_several_nodes() {
            heap.give_mixed(class, &mut buffer[..len]);
        } else {
            self.give(&buffer[..len]);
        }
    }

    fn give(&self, items: &[Item]) {
        // SAFETY: free objects of this class, taken off the array.
        unsafe { self.heap.give_objects(self.class, items) };
    }
}

impl<P: Platform> Heap<P> {
    /// Takes an object of a class; none if there is no memory.
    pub fn take_object(&'static self, class: SizeClass, looked: Looked) -> Item {
        self.arrays().refill(class.array(), looked, &Objects { heap: self, class })
    }

    /// Takes an object from a slab of chosen nodes; none if these have no memory.
    pub fn take_object_on(&'static self, class: SizeClass, placement: Placement) -> Item {
        let mut one = [Item::NONE];
        let claim = || self.slabs().claim(class, placement, self.mixer(), &mut one);
        match self.retrying(claim) {
            Some(_) => one[0],
            None => Item::NONE,
        }
    }

    /// Gives a free object back because its CPU's array is full.
    ///
    /// # Safety
    /// `item` is an object of this class, which the caller alone uses.
    #[cold]
    #[inline(never)]
    pub unsafe fn flush_object(&'static self, class: SizeClass, item: Item) {
        let looked = self.look_at_clock();
        self.call_tender(looked);
        self.send_home();
        // SAFETY: a free object of the class, by the contract.
        unsafe { self.arrays().flush(class.array(), item, &Objects { heap: self, class }) };
    }

    /// Gives free objects back to their slabs, and wholly free slabs to their zone.
    ///
    /// # Safety
    /// The items are objects of this class of the heap, which the caller alone uses.
    pub unsafe fn give_objects(&'static self, class: SizeClass, items: &[Item]) {
        let retired = |set: &'static ZoneSet, slab| self.retire_slab(set, slab);
        // SAFETY: objects of this class of the heap, by the contract.
        let given = unsafe { self.slabs().give(class, items, retired) };
        if let Err(twice) = given {
            self.end_for_object(twice.0, class);
        }
    }

    /// Gives the pages of a retired slab to their zone.
    pub fn retire_slab(&'static self, set: &'static ZoneSet, slab: Retired) {
        let hidden = self.slabs().hidden(set, slab.run.start, slab.class);
        // SAFETY: the pages of a slab that this thread retired.
        unsafe {
            if hidden.is_some_and(|(at, bytes)| !self.platform.protect(at, bytes, Access::All)) {
                // They stay in use: the next user could not access them.
                return;
            }
            self.retire_pages(set, slab.run);
        }
        self.give_pages(set, slab.run);
    }

    /// Gives the memory of free objects back to the platform, in slabs from which no thread claimed
    /// in the last generations of the decay. Returns the bytes given back.
    pub(super) fn purge_slabs(
        &'static self,
        set: &'static ZoneSet,
        keep: Keep,
        work: Work,
    ) -> usize {
        // A purge reads slabs that may be retired concurrently, so their pages must be readable.
        if self.zones.checks().protects() {
            return 0;
        }
        let on = set.zone.on(&self.platform);
        let retired = |slab| self.retire_slab(set, slab);
        // SAFETY: the zone of these slabs, which this heap made; their pages are not protected.
        unsafe { set.slabs.purge(on, &self.classes, self.format(), keep, work, retired) }
    }

    /// Empties up to `most` of a barn's sheaves of a class into the slabs.
    pub(super) fn empty_sheaves(&'static self, barn: &Barn, class: SizeClass, most: u32) {
        for _ in 0..most {
            let Some(held) = barn.take_full(class) else { return };
            let len = held.sheaf.len as usize;
            // SAFETY: free objects of this class, in a sheaf that this thread holds.
            unsafe { self.give_objects(class, &held.sheaf.objects[..len]) };
            barn.give_empty(held);
        }
    }
}
