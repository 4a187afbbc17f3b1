//! The allocator's own memory, part by part: what the overhead of the equation is made of.
//!
//! Tables are counted by their resident pages; a page belongs to the table that its first byte is
//! in. All parts come from one reading of the page map, and the overhead is their sum. Where there is
//! no page map to read, what `smaps` says of the mappings they are in is as close as one can get.
//!
//! Not in here, nor in the overhead, because no root block tells where they are: the per-CPU
//! arrays (132 KiB for each CPU that allocated, as far as touched) and the instance itself. They are unaccounted.

use std::mem::size_of;
use std::ops::Range;

use kmem::root::{MAX_ZONES, PeakEntry, PeakTable, ZoneBlock};

use super::Source;
use super::root::Root;
use super::zone::{PAGE, Zone};
use crate::process::PageState;

/// A kind of table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// The list of zones; of each zone, the state of its pages and of its slabs.
    Zones,
    /// Bytes of slabs that are not objects: rows, extension vectors, and what is left over.
    Slabs,
    /// Call sites by tag.
    Sites,
    /// The books at the highest use.
    Peak,
    /// Groups by id.
    Groups,
    /// The indexes of call sites and of groups' names, and sheaves of free objects.
    Other,
}

impl Table {
    /// All kinds, in the order they are shown.
    pub const ALL: [Self; 6] =
        [Self::Zones, Self::Slabs, Self::Sites, Self::Peak, Self::Groups, Self::Other];

    /// Its name, as in allocinfo text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zones => "zone_tables",
            Self::Slabs => "slab_tables",
            Self::Sites => "site_tables",
            Self::Peak => "peak_table",
            Self::Groups => "group_tables",
            Self::Other => "other_tables",
        }
    }
}

/// The bytes of each kind of table under one root block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata {
    bytes: [u64; Table::ALL.len()],
}

impl Metadata {
    /// Bytes of one kind.
    #[must_use]
    pub fn of(&self, table: Table) -> u64 {
        self.bytes[table as usize]
    }

    /// Bytes of all kinds: the overhead.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    fn add(&mut self, table: Table, bytes: u64) {
        self.bytes[table as usize] += bytes;
    }
}

/// The tables of one root block; `slabs` is bytes of slabs that are not objects.
pub(super) fn of_root(source: &Source<'_>, root: &Root, zones: &[Zone], slabs: u64) -> Metadata {
    let mut metadata = Metadata::default();
    metadata.add(Table::Slabs, slabs);
    for zone in zones {
        resident(source, zone.meta, |pages| {
            metadata.add(Table::Zones, pages.end.saturating_sub(pages.start));
        });
    }
    let tables = tables(root);
    resident(source, root.meta, |pages| {
        let mut at = pages.start;
        while at < pages.end {
            let inside = tables.iter().find(|(_, range)| range.contains(&at));
            let next = match inside {
                Some((_, range)) => range.end.next_multiple_of(PAGE),
                // Up to the next table, or to the end.
                None => tables
                    .iter()
                    .map(|(_, range)| range.start.next_multiple_of(PAGE))
                    .filter(|&start| start > at)
                    .min()
                    .unwrap_or(u64::MAX),
            };
            let end = next.clamp(at + 1, pages.end);
            metadata.add(inside.map_or(Table::Other, |(table, _)| *table), end - at);
            at = end;
        }
    });
    metadata
}

/// Where a root block says that its own tables are.
fn tables(root: &Root) -> [(Table, Range<u64>); 4] {
    let sites = u64::from(root.site_capacity);
    let peak = size_of::<PeakTable>() as u64 + sites * size_of::<PeakEntry>() as u64;
    let groups = u64::from(root.group_capacity) * u64::from(root.group_size);
    let zones = (MAX_ZONES * size_of::<ZoneBlock>()) as u64;
    [
        (Table::Zones, root.zones, zones),
        (Table::Sites, root.sites, sites * u64::from(root.site_size)),
        (Table::Peak, root.peak, peak),
        (Table::Groups, root.groups, groups),
    ]
    .map(|(table, at, len)| {
        // Far addresses must not overflow when they are rounded up.
        let limit = |addr: u64| addr.min(u64::MAX - PAGE);
        (table, limit(at)..limit(at.saturating_add(len)))
    })
}

/// Calls `each` with the resident pages of a metadata range that lies in the process's memory.
fn resident(source: &Source<'_>, (addr, len): (u64, u64), mut each: impl FnMut(Range<u64>)) {
    let Some(pagemap) = source.pagemap else {
        return;
    };
    let end = addr.saturating_add(len);
    // Only where something is mapped: the range may be reserved far beyond.
    for mapping in source.maps.all() {
        let (from, to) = (mapping.start.max(addr), mapping.end.min(end));
        if from < to && mapping.readable && mapping.is_memory() {
            let _ = pagemap.regions(from, to - from, PageState::Present, &mut each);
        }
    }
}
