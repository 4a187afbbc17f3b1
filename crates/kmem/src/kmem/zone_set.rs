//! The zones of an instance, each with its slabs, and what they are for.

use super::Instance;
use crate::alloc_tag::{Held, Kind};
use crate::os::Platform;
use crate::page::Zone;
use crate::root::{MAX_ZONES, zone_purpose};
use crate::slab::SlabZone;
use crate::sync::Ordering;

/// A zone and its slabs; lives at the start of the zone's metadata.
pub(super) struct ZoneSet {
    pub(super) zone: Zone,
    pub(super) slabs: SlabZone,
    pub(super) purpose: Purpose,
    /// See [`super::node`].
    pub(super) node: u32,
}

impl ZoneSet {
    /// Whether its pages are anybody's, for whatever is allocated.
    pub(super) fn is_heap(&self) -> bool {
        self.purpose == Purpose::Heap
    }

    /// What allocations in it are.
    pub(super) fn kind(&self, held: &Held) -> Kind {
        match (self.purpose, held.class.0) {
            (Purpose::PerCpu, _) => Kind::PerCpu,
            (Purpose::Vmalloc | Purpose::Shared, _) => Kind::Vmalloc,
            (Purpose::Heap, 0) => Kind::Pages,
            (Purpose::Heap, _) => Kind::Slab,
        }
    }
}

/// What a zone's address space is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Purpose {
    /// Objects and pages.
    Heap = zone_purpose::HEAP,
    /// Per-CPU objects: see `percpu`.
    PerCpu = zone_purpose::PERCPU,
    /// Areas: see `vmalloc`.
    Vmalloc = zone_purpose::VMALLOC,
    /// Pages that can be mapped again: see `vmap`.
    Shared = zone_purpose::SHARED,
}

impl<P: Platform> Instance<P> {
    /// The zones, oldest first.
    pub(super) fn zone_sets(&self) -> impl Iterator<Item = &ZoneSet> {
        let count = self.zone_slots.load(Ordering::Acquire) as usize;
        self.zones[..count.min(MAX_ZONES)].iter().filter_map(|zone| {
            let set = zone.load(Ordering::Acquire) as *const ZoneSet;
            // SAFETY: null or a set that is never freed.
            unsafe { set.as_ref() }
        })
    }

    /// The zones that objects and pages come from.
    pub(super) fn heap_sets(&self) -> impl Iterator<Item = &ZoneSet> {
        self.zone_sets().filter(|set| set.is_heap())
    }

    /// The zone an address belongs to.
    pub(super) fn zone_of(&self, at: usize) -> Option<&ZoneSet> {
        self.zone_sets().find(|set| set.zone.pfn(at).is_some())
    }
}
