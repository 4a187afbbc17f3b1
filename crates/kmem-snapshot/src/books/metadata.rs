//! Memory of the allocator's own tables: the overhead, by kind of table.

use std::ops::Range;

use kmem_layout::root::{MAX_ZONES, ZoneBlock};
use kmem_layout::site::{PeakEntry, PeakTable};

use super::root::Root;
use super::source::Source;
use super::zone::Zone;
use crate::maps::PAGE;
use crate::memory::PageState;

/// A kind of the allocator's own tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// The list of zones, and the state of each zone's pages and slabs.
    Zones,
    /// Bytes of slabs that are not objects: rows, extension vectors, and the rest at the end.
    Slabs,
    /// Call sites by tag.
    Sites,
    /// The books at the highest use.
    Peak,
    /// Groups by id.
    Groups,
    /// The indexes of call sites and of groups' names, sheaves of free objects, arrays of CPUs.
    Other,
}

impl Table {
    /// All kinds, in the order they are shown.
    pub const ALL: [Self; 6] =
        [Self::Zones, Self::Slabs, Self::Sites, Self::Peak, Self::Groups, Self::Other];

    /// Name of the kind in allocinfo text.
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

/// Memory of the allocator's tables under one root block: the parts of the overhead.
///
/// Resident pages are counted, in one pass over the page map. A page belongs to the table that its
/// first byte is in. Without a page map the sizes are estimates; see [`Tables`].
///
/// The instance itself is a variable of the library. It is in the unaccounted rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata {
    bytes: [u64; Table::ALL.len()],
}

impl Metadata {
    /// Bytes of one kind of table.
    #[must_use]
    pub fn bytes(&self, table: Table) -> u64 {
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

    /// Counts the tables of one root block. `slabs` is bytes of slabs that are not objects.
    /// `spare` is memory of other tables.
    pub(super) fn of(
        source: &Source<'_>,
        root: &Root,
        zones: &[Zone],
        spare: &[Range<u64>],
        slabs: u64,
    ) -> Self {
        let mut metadata = Self::default();
        metadata.add(Table::Slabs, slabs);
        for zone in zones {
            resident(source, zone.meta, |pages| {
                metadata.add(Table::Zones, pages.end.saturating_sub(pages.start));
            });
        }
        for range in spare {
            resident(source, (range.start, range.end - range.start), |pages| {
                metadata.add(Table::Other, pages.end.saturating_sub(pages.start));
            });
        }
        let tables = places(root);
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
}

/// Address range of each table that a root block names.
fn places(root: &Root) -> [(Table, Range<u64>); 4] {
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
        // Keeps the ends of hostile ranges from overflowing when they are rounded up.
        let limit = |addr: u64| addr.min(u64::MAX - PAGE);
        (table, limit(at)..limit(at.saturating_add(len)))
    })
}

/// Calls `each` with the resident pages of a range of metadata.
fn resident(source: &Source<'_>, (addr, len): (u64, u64), mut each: impl FnMut(Range<u64>)) {
    let Some(known) = source.pages else {
        return;
    };
    let end = addr.saturating_add(len);
    // A range may be reserved far beyond its use: ask for the mapped parts only.
    for mapping in source.maps.overlapping(addr..end) {
        let (from, to) = (mapping.start.max(addr), mapping.end.min(end));
        if from < to && mapping.readable && mapping.is_memory() {
            let _ = known.regions(from, to - from, PageState::Present, &mut each);
        }
    }
}
