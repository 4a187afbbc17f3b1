//! Memory of other nodes on a CPU's arrays, and its way back.
//!
//! An item that is freed goes onto the array of the CPU that frees it, of whatever node it is. It
//! leaves the array in two ways:
//!
//! - When the array is full, the items that leave it are sorted by zone. Each part goes back to its
//!   node as a batch: as a sheaf into that node's barn, or to slabs and zones.
//! - Every four seconds the newest items of every array of a CPU are searched for those of other
//!   nodes, which go back. Without that, a CPU that allocates as much as it frees would use them
//!   for ever. Each refill and flush on the CPU searches one array, so no call takes long.

use super::Heap;
use super::array::Backing;
use super::objects::Objects;
use crate::class::{ArrayId, Contents, SizeClass};
use crate::os::Platform;
use crate::slab::sheaf::SHEAF_OBJECTS;
use crate::units::Item;

/// log2 of the ticks between two searches of an array: four seconds.
const PERIOD: u32 = 32;

impl<P: Platform> Heap<P> {
    /// Gives free objects of any nodes back. Objects of one zone go into a sheaf if they fill half
    /// a batch. Smaller sheaves would make refills on their node frequent.
    pub(super) fn give_mixed(&'static self, class: SizeClass, items: &mut [Item]) {
        self.zones.gather(items);
        let geometry = self.classes.geometry(class);
        let mut rest = &*items;
        while let Some(&first) = rest.first() {
            let Some(set) = self.zones.of(first.address()) else { return };
            let (here, others) = rest.split_at(self.zones.prefix_in(set, rest));
            rest = others;
            let barn = self.barns().get(set.node as usize);
            let fills = 2 * here.len() >= usize::from(geometry.batch);
            if let Some(barn) = barn.filter(|_| fills)
                && let Some(held) = barn.take_empty(&self.platform, class, geometry)
            {
                held.sheaf.objects[..here.len()].copy_from_slice(here);
                held.sheaf.len = here.len() as u32;
                barn.give_full(class, held);
            } else {
                Objects { heap: self, class }.give(here);
            }
        }
    }

    /// Searches an array of this CPU for items of other nodes, and gives these back: the next array
    /// that was not searched in this period.
    #[inline]
    pub(super) fn send_home(&'static self) {
        if self.zones.has_several_nodes() {
            self.search_array();
        }
    }

    #[cold]
    #[inline(never)]
    fn search_array(&'static self) {
        let period = (self.platform.ticks() >> PERIOD) as u32;
        let hint = self.slots.hint(&self.platform);
        let area = self.slots.current(hint).and_then(|cpu| self.slots.area(cpu));
        if let Some(array) = area.and_then(|area| area.next_search(period)) {
            self.send_array_home(array, hint);
        }
    }

    /// Gives the items of other nodes among the newest of an array of this CPU back. Older ones are
    /// not handed out before they become the newest.
    fn send_array_home(&'static self, array: ArrayId, hint: u32) {
        let node = self.zones.node(&self.platform);
        let is_near =
            |item: Item| self.zones.of(item.address()).is_some_and(|set| set.node == node);
        let mut buffer = [Item::NONE; SHEAF_OBJECTS / 2];
        let len = self.slots.pop_many(array, hint, &mut buffer);
        // The near items keep their order.
        let mut near = 0;
        for i in 0..len {
            if is_near(buffer[i]) {
                buffer.swap(near, i);
                near += 1;
            }
        }
        // SAFETY: items that this thread took off that array, and alone uses.
        let kept = unsafe { self.slots.push_many(array, hint, &buffer[..near]) };
        match array.contents() {
            Contents::Objects(class) => self.give_mixed(class, &mut buffer[kept..len]),
            _ => self.give_drained(array, &mut buffer[kept..len]),
        }
    }
}
