//! Tables of an instance that are not part of a zone: one reservation, cut into parts.

use kmem_layout::group::MAX_GROUPS;
use kmem_layout::root::{MAX_ZONES, ZoneBlock};

use crate::alloc_tag;
use crate::codetag::{MAX_SITES, MIN_SITES, Sites};
use crate::ledger::HeldBack;
use crate::memcg::{Groups, MIN_GROUPS};
use crate::os::stepped::Part;
use crate::os::{Budget, Platform};
use crate::page::Pcp;
use crate::report;
use crate::slab::sheaf::Barn;
use crate::units::PAGE_SIZE;

/// The tables, which are zeroed and never freed.
pub(super) struct Tables {
    /// Address and bytes of all tables.
    pub(super) base: *mut u8,
    pub(super) bytes: usize,
    /// `[ZoneBlock; MAX_ZONES]`.
    pub(super) zones: *mut u8,
    /// Call sites: their number, and their tables.
    pub(super) site_count: u32,
    pub(super) sites: Part,
    pub(super) index: *mut u8,
    pub(super) peak: Part,
    pub(super) scratch: Part,
    /// Null unless calls are checked.
    pub(super) live: *mut u8,
    /// Sheaves of each node's barn: their number, the barns, and their pools.
    pub(super) sheaf_count: u32,
    pub(super) barns: *mut u8,
    pub(super) pools: Part,
    /// Room for reports: its bytes, and its address.
    pub(super) report_bytes: usize,
    pub(super) report: *mut u8,
    /// `[Pcp; cpus]`.
    pub(super) pcp: *mut u8,
    /// Tables of the quarantine.
    pub(super) quarantine: *mut u8,
    /// Groups: their number, and their tables.
    pub(super) group_count: u32,
    pub(super) groups: Part,
    pub(super) names: *mut u8,
}

/// Bytes of the table of sites that are committed from the beginning.
const SITES_START: usize = 16 * PAGE_SIZE;

/// `count`, but at least `least` and at most `most`.
fn bounded(count: usize, least: u32, most: u32) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX).clamp(least, most)
}

impl Tables {
    /// Allocates the tables for a heap of the budget's memory on `nodes`. They take little of a
    /// small heap: it has one site per 16 KiB, one sheaf per 64 KiB, one group per 128 KiB.
    /// `held_back` is the most bytes of objects in the quarantine; `checked` says whether calls are
    /// checked. Tables whose entries are numbered are committed in steps, where the platform can
    /// show them. `None`: the platform has no memory.
    pub(super) fn for_heap(
        platform: &impl Platform,
        &Budget { memory: heap, cpus, limit, .. }: &Budget,
        (nodes, held_back, checked): (u32, u64, bool),
    ) -> Option<Self> {
        let site_count = bounded(heap >> 14, MIN_SITES, MAX_SITES);
        let sheaf_count = Barn::sheaves_for(heap.min(limit / 8) / nodes as usize);
        let group_count = bounded(heap >> 17, MIN_GROUPS, MAX_GROUPS);
        let report_bytes = report::room(site_count);
        let live_bytes = if checked { alloc_tag::live_bytes(site_count) } else { 0 };
        let whole = [
            MAX_ZONES * size_of::<ZoneBlock>(),
            Sites::index_bytes(site_count),
            live_bytes,
            Barn::bytes(nodes),
            report_bytes,
            cpus as usize * size_of::<Pcp>(),
            HeldBack::table_bytes(held_back),
            Groups::index_bytes(group_count),
        ]
        .map(|len| len.next_multiple_of(PAGE_SIZE));
        // The table of sites is the first one: its start is committed with those above.
        let stepped = [
            Sites::sites_bytes(site_count),
            alloc_tag::peak_bytes(site_count),
            alloc_tag::scratch_bytes(site_count),
            Barn::pools_bytes(nodes, sheaf_count),
            Groups::blocks_bytes(group_count),
        ]
        .map(|len| len.next_multiple_of(PAGE_SIZE));
        let from_start = whole.iter().sum::<usize>() + SITES_START.min(stepped[0]);
        let bytes = whole.iter().chain(&stepped).sum();
        let memory = allocate_from_start(platform, from_start, bytes)?;
        let mut end = 0;
        let mut next = |len| {
            let part = memory.part(end, len);
            end += len;
            part
        };
        let [zones, index, live, barns, report, pcp, quarantine, names] =
            whole.map(|len| next(len).at);
        let [sites, peak, scratch, pools, groups] = stepped.map(next);
        Some(Self {
            base: memory.at,
            bytes,
            zones,
            site_count,
            sites,
            index,
            peak,
            scratch,
            live: if checked { live } else { core::ptr::null_mut() },
            sheaf_count,
            barns,
            pools,
            report_bytes,
            report,
            pcp,
            quarantine,
            group_count,
            groups,
            names,
        })
    }
}

/// Allocates zeroed memory of which the first `from_start` bytes are committed, and all of it where
/// the platform cannot show the rest. Both are whole pages. `None`: the platform has none.
fn allocate_from_start(platform: &impl Platform, from_start: usize, bytes: usize) -> Option<Part> {
    let (at, shown) = platform.reserve_shown(bytes)?;
    let committed = if shown { from_start } else { bytes };
    // SAFETY: whole pages of the fresh reservation.
    if unsafe { platform.commit(at, committed) } {
        return Some(Part { at: at.as_ptr(), bytes, committed });
    }
    // SAFETY: the fresh reservation, which nothing uses.
    unsafe { platform.release(at, bytes) };
    None
}
