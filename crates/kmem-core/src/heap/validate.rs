//! Recounts of the heap at rest.

use super::{Heap, ZoneSet};
use crate::class::{ArrayId, Contents, SizeClass};
use crate::cpu::AreaFault;
use crate::os::Platform;
use crate::page::{Run, ZoneFault};
use crate::slab::sheaf::BarnFault;
use crate::slab::{ObjectCount, SlabFault};
use crate::units::{Item, PageCount};

/// The first thing that [`Heap::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapFault {
    /// A zone.
    Zone(ZoneFault),
    /// A slab.
    Slab(SlabFault),
    /// The barn.
    Barn(BarnFault),
    /// A sheaf has an item that is no object of its barn's node which its slab gave away.
    Sheaf(Item),
    /// The arrays of a CPU.
    Area(AreaFault),
    /// More objects are kept free on CPUs and in the barn than slabs gave away and are not live, so
    /// one is kept twice.
    Objects {
        /// Objects that CPUs and the barn keep.
        kept: u64,
        /// Objects that slabs gave away, and live ones among them.
        count: ObjectCount,
    },
}

impl<P: Platform> Heap<P> {
    /// Recounts zones, slabs, the barns and the arrays of all CPUs. For a heap at rest.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn validate(&'static self) -> Result<(), HeapFault> {
        let mut count = ObjectCount::default();
        for set in self.zones.all() {
            set.zone.validate().map_err(HeapFault::Zone)?;
            let committed = set.zone.committed();
            let here = set.slabs.validate(committed, &self.classes, self.format());
            let here = here.map_err(HeapFault::Slab)?;
            if set.is_heap() {
                count.claimed += here.claimed;
                count.live += here.live;
            }
        }
        let (mut kept, mut wrong) = (0, None);
        for (node, barn) in (0..).zip(self.barns()) {
            let in_barn = barn.validate(|class, items| {
                kept += items.len() as u64;
                wrong = wrong.or(items.iter().copied().find(|&item| {
                    !self.is_free_object(item, class) || !self.is_of_node(item, node)
                }));
            });
            in_barn.map_err(HeapFault::Barn)?;
        }
        if let Some(item) = wrong {
            return Err(HeapFault::Sheaf(item));
        }
        let on_cpus = self.slots.validate(
            || self.platform.fence_cpus(),
            |array, item| {
                kept += u64::from(matches!(array.contents(), Contents::Objects(_)));
                self.may_lie_on(array, item)
            },
        );
        on_cpus.map_err(HeapFault::Area)?;
        if kept > count.claimed - count.live {
            return Err(HeapFault::Objects { kept, count });
        }
        Ok(())
    }

    /// Returns whether an item is a free thing of an array.
    fn may_lie_on(&self, array: ArrayId, item: Item) -> bool {
        match array.contents() {
            Contents::Objects(class) => self.is_free_object(item, class),
            Contents::Blocks(class) => self.is_free_run(item, class.pages()),
            Contents::Runs(class) => self.is_free_run(item, class.pages()),
        }
    }

    /// Returns whether an item is an object that its slab gave away, and that is not live.
    fn is_free_object(&self, item: Item, class: SizeClass) -> bool {
        self.zones.of(item.address()).is_some_and(|set| {
            set.is_heap()
                && set.slabs.is_claimed(item, class, &self.classes)
                && self.find_in(set, item.address()).is_err() == self.format().extension
        })
    }

    fn is_of_node(&self, item: Item, node: u32) -> bool {
        self.zones.of(item.address()).is_some_and(|set| set.node == node)
    }

    /// Returns whether pages are claimed in their zone, and not live.
    fn is_free_run(&self, item: Item, pages: PageCount) -> bool {
        let is_free = |set: &ZoneSet| {
            let run = Run { start: set.zone.pfn(item.address())?, pages };
            Some(set.zone.check_claimed(run).is_ok() && set.zone.check_taken(run).is_ok())
        };
        self.zones.of(item.address()).and_then(is_free).unwrap_or(false)
    }
}
