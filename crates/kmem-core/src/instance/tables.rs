//! Tables of an instance that are not part of a zone: one reservation, cut into parts.

use core::ptr::NonNull;

use kmem_layout::group::{GroupBlock, MAX_GROUPS};
use kmem_layout::root::{MAX_ZONES, ZoneBlock};

use crate::alloc_tag;
use crate::codetag::{MAX_SITES, MIN_SITES, Sites};
use crate::memcg::{Groups, MIN_GROUPS};
use crate::os::{Budget, Platform};
use crate::page::Pcp;
use crate::report;
use crate::slab::quarantine::Quarantine;
use crate::slab::sheaf::Barn;
use crate::units::PAGE_SIZE;

/// Addresses of the tables, which are zeroed and never freed.
pub(super) struct Tables {
    /// Address and bytes of all tables.
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
    /// `[ZoneBlock; MAX_ZONES]`.
    pub(super) zones: *mut u8,
    /// Call sites: their number, and their tables.
    pub(super) site_count: u32,
    pub(super) sites: *mut u8,
    pub(super) index: *mut u8,
    pub(super) peak: *mut u8,
    pub(super) scratch: *mut u8,
    pub(super) live: *mut u8,
    /// Sheaves of each node's barn: their number, and the barns with their pools.
    pub(super) sheaf_count: u32,
    pub(super) barns: *mut u8,
    /// Room for reports: its bytes, and its address.
    pub(super) report_bytes: usize,
    pub(super) report: *mut u8,
    /// `[Pcp; cpus]`.
    pub(super) pcp: *mut u8,
    /// The ring of the quarantine.
    pub(super) quarantine: *mut u8,
    /// Groups: their number, and their tables.
    pub(super) group_count: u32,
    pub(super) groups: *mut GroupBlock,
    pub(super) names: *mut u8,
}

/// `count`, but at least `least` and at most `most`.
fn bounded(count: usize, least: u32, most: u32) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).clamp(least, most)
}

impl Tables {
    /// Allocates the tables for a heap of the budget's memory. They take little of a small heap: it
    /// has one site per 16 KiB, one sheaf per 64 KiB, one group per 128 KiB. `quarantine` is the
    /// most bytes of objects that are held back. `None`: the platform has no memory.
    pub(super) fn for_heap(
        platform: &impl Platform,
        &Budget { memory: heap, cpus, limit, .. }: &Budget,
        nodes: u32,
        quarantine: u64,
    ) -> Option<Self> {
        let site_count = bounded(heap >> 14, MIN_SITES, MAX_SITES);
        let sheaf_count = Barn::sheaves_for(heap.min(limit / 8) / nodes as usize);
        let group_count = bounded(heap >> 17, MIN_GROUPS, MAX_GROUPS);
        let report_bytes = report::room(site_count);
        let lengths = [
            MAX_ZONES * size_of::<ZoneBlock>(),
            Sites::sites_bytes(site_count),
            Sites::index_bytes(site_count),
            alloc_tag::peak_bytes(site_count),
            alloc_tag::scratch_bytes(site_count),
            alloc_tag::live_bytes(site_count),
            Barn::bytes(nodes, sheaf_count),
            report_bytes,
            cpus as usize * size_of::<Pcp>(),
            Quarantine::ring_bytes(quarantine),
            Groups::blocks_bytes(group_count),
            Groups::index_bytes(group_count),
        ]
        .map(|len| len.next_multiple_of(PAGE_SIZE));
        let bytes = lengths.iter().sum();
        let base = allocate(platform, bytes)?.as_ptr();
        let mut end = base;
        let parts = lengths.map(|len| {
            let start = end;
            end = end.wrapping_add(len);
            start
        });
        let [zones, sites, index, peak, scratch, live, barns, report, pcp, ring, groups, names] =
            parts;
        Some(Self {
            base,
            bytes,
            zones,
            site_count,
            sites,
            index,
            peak,
            scratch,
            live,
            sheaf_count,
            barns,
            report_bytes,
            report,
            pcp,
            quarantine: ring,
            group_count,
            groups: groups.cast(),
            names,
        })
    }
}

/// Allocates zeroed, page-aligned memory of the platform. `None`: the platform has none.
pub(super) fn allocate(platform: &impl Platform, bytes: usize) -> Option<NonNull<u8>> {
    let at = platform.reserve(bytes, PAGE_SIZE)?;
    // SAFETY: a fresh reservation.
    if unsafe { platform.commit(at, bytes) } {
        return Some(at);
    }
    // SAFETY: the fresh reservation, which nothing uses.
    unsafe { platform.release(at, bytes) };
    None
}
