//! The zones of an instance: their purposes, claims across them, new ones.
//!
//! ```text
//! reservation:  | pages, committed as needed | ZoneSet | tables of pages | tables of slabs |
//! ```

use core::marker::PhantomData;
use core::ptr::NonNull;

use kmem_layout::root::{MAX_ZONES, RootBlock, ZoneBlock, zone_purpose};

use super::check::PageChecks;
use super::node::Nodes;
use super::{Run, SlabTables, Zone};
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{Item, PAGE_SIZE, PAGEBLOCK_SIZE, PageCount};

/// Room for a `ZoneSet` in front of a zone's tables.
const SET_BYTES: usize = 4096;
/// Most bytes of address space of a zone, by the width of a page number.
const MAX_ZONE: usize = 1 << 43;

/// The use of a zone's address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Purpose {
    /// Objects, blocks and runs of pages.
    Heap = zone_purpose::HEAP,
    /// Handles of per-CPU objects.
    PerCpu = zone_purpose::PERCPU,
    /// Areas of vmalloc.
    Vmalloc = zone_purpose::VMALLOC,
    /// Pages that vmap can map a second time.
    Shared = zone_purpose::SHARED,
}

/// A zone and its slabs. Lives at the start of the zone's metadata and is never freed.
pub struct ZoneSet<S> {
    /// The zone.
    pub zone: Zone,
    /// Its slabs.
    pub slabs: S,
    /// Use of its address space.
    pub purpose: Purpose,
    /// The node that its memory comes from.
    pub node: u32,
}

impl<S> ZoneSet<S> {
    /// Returns whether any allocation may use its pages.
    pub fn is_heap(&self) -> bool {
        self.purpose == Purpose::Heap
    }
}

/// The zones of an instance. Zeroed memory is a valid value: no zone, and none can be added.
///
/// # Invariants
/// Entries of `sets` below `count` are null or lead to a [`ZoneSet`] that is never freed. `root` is
/// null or leads to a root block that is never freed.
pub struct Zones<S> {
    sets: [AtomicUsize; MAX_ZONES],
    count: AtomicU32,
    root: AtomicUsize,
    checks: AtomicU32,
    /// 1 if address space is limited.
    sparing: AtomicU32,
    pub(super) nodes: Nodes,
    _sets: PhantomData<fn() -> S>,
}

/// Address space for a zone, with its metadata behind it.
struct Reservation {
    at: NonNull<u8>,
    metadata: *mut u8,
    pages: PageCount,
    bytes: usize,
}

impl<S: SlabTables> Zones<S> {
    const SET_FITS: () = assert!(size_of::<ZoneSet<S>>() <= SET_BYTES);

    /// No zone, until [`Self::start`].
    pub const fn new() -> Self {
        Self {
            sets: [const { AtomicUsize::new(0) }; MAX_ZONES],
            count: AtomicU32::new(0),
            root: AtomicUsize::new(0),
            checks: AtomicU32::new(0),
            sparing: AtomicU32::new(0),
            nodes: Nodes::new(),
            _sets: PhantomData,
        }
    }

    /// Lets zones be added.
    ///
    /// # Safety
    /// `root` leads to a valid root block that is never freed. Its table of zones has [`MAX_ZONES`]
    /// entries, to which only this value writes.
    pub unsafe fn start(
        &self,
        platform: &impl Platform,
        root: *const RootBlock,
        checks: PageChecks,
    ) {
        self.nodes.start(platform);
        self.checks.store(checks.0, Ordering::Relaxed);
        // INVARIANT: valid and never freed, by this function's contract.
        self.root.store(root as usize, Ordering::Release);
    }

    /// In a forked child: sets the count of pages in use to zero, before the repair counts them.
    pub fn forget_use(&self) {
        if let Some(root) = self.root() {
            root.used_pages.store(0, Ordering::Relaxed);
        }
    }

    fn root(&self) -> Option<&RootBlock> {
        let root = self.root.load(Ordering::Acquire) as *const RootBlock;
        // SAFETY: null or a block that is never freed, by the type's invariant.
        unsafe { root.as_ref() }
    }

    /// Configured checks of pages.
    #[inline]
    pub fn checks(&self) -> PageChecks {
        PageChecks(self.checks.load(Ordering::Relaxed))
    }

    /// All zones, oldest first.
    pub fn all(&self) -> impl Iterator<Item = &ZoneSet<S>> {
        let count = self.count.load(Ordering::Acquire) as usize;
        self.sets[..count.min(MAX_ZONES)].iter().filter_map(|set| {
            let set = set.load(Ordering::Acquire) as *const ZoneSet<S>;
            // SAFETY: null or a set that is never freed, by the type's invariant.
            unsafe { set.as_ref() }
        })
    }

    /// The zones that objects, blocks and runs come from.
    pub fn heap(&self) -> impl Iterator<Item = &ZoneSet<S>> {
        self.all().filter(|set| set.is_heap())
    }

    /// The zone that an address lies in.
    pub fn of(&self, address: usize) -> Option<&ZoneSet<S>> {
        self.all().find(|set| set.zone.pfn(address).is_some())
    }

    /// Number of leading items that lie in a zone. The first item does.
    pub fn prefix_in(&self, set: &ZoneSet<S>, items: &[Item]) -> usize {
        if self.count.load(Ordering::Relaxed) == 1 {
            return items.len();
        }
        let inside = |item: &&Item| set.zone.pfn(item.address()).is_some();
        items.iter().take_while(inside).count()
    }

    /// The zone with a number.
    pub fn numbered(&self, number: u32) -> Option<&ZoneSet<S>> {
        let set = self.sets.get(number as usize)?.load(Ordering::Acquire) as *const ZoneSet<S>;
        // SAFETY: null or a set that is never freed, by the type's invariant.
        unsafe { set.as_ref() }
    }

    /// The number of a zone of this instance.
    pub fn number(&self, set: &ZoneSet<S>) -> Option<u32> {
        let at = &raw const *set as usize;
        let number = self.sets.iter().position(|set| set.load(Ordering::Relaxed) == at);
        number.map(|number| number as u32)
    }

    /// Takes a run out of the first zone of the heap that has one, or out of a new zone. `None`:
    /// no zone has one, and the platform has no address space or memory for another.
    pub fn claim(
        &self,
        platform: &impl Platform,
        pages: PageCount,
        align: PageCount,
    ) -> Option<(&ZoneSet<S>, Run)> {
        if !platform.grants(pages.bytes()) {
            return None;
        }
        for set in self.near(platform) {
            if pages <= set.zone.pages()
                && let Some(run) = self.claim_in(set, platform, pages, align)
            {
                return Some((set, run));
            }
        }
        let span = pages.0.checked_add(align.0 - 1)?;
        let set = self.add(platform, PageCount(span))?;
        Some((set, self.claim_in(set, platform, pages, align)?))
    }

    fn claim_in(
        &self,
        set: &ZoneSet<S>,
        platform: &impl Platform,
        pages: PageCount,
        align: PageCount,
    ) -> Option<Run> {
        let on = set.zone.on(platform);
        if self.is_sparing() && align == PageCount::ONE {
            return on.claim_anywhere(pages);
        }
        on.claim(pages, align)
    }

    /// Returns whether address space is limited, so that no more of it is taken than is needed.
    pub fn is_sparing(&self) -> bool {
        self.sparing.load(Ordering::Relaxed) != 0
    }

    /// Gives address space that was never used back to the platform, but for about `keep` in each
    /// zone. From here on, claims take no more than they need. Returns the bytes given back.
    pub fn spare_space(&self, platform: &impl Platform, keep: PageCount) -> usize {
        self.sparing.store(1, Ordering::Relaxed);
        // The length of the handle space is that of each CPU's unit.
        let zones = self.all().filter(|set| set.purpose != Purpose::PerCpu);
        zones.map(|set| set.zone.on(platform).give_back_space(keep)).sum()
    }

    /// Adds a zone of the heap with room for a run of `pages`. `None`: the platform has no address
    /// space or no memory.
    pub fn add(&self, platform: &impl Platform, pages: PageCount) -> Option<&ZoneSet<S>> {
        let budget = platform.budget();
        let node = self.node(platform);
        let first = !self.heap().any(|set| set.node == node);
        let need = pages.bytes().checked_next_multiple_of(PAGEBLOCK_SIZE)?;
        let wish = if first { budget.first_zone } else { budget.min_zone };
        let mut bytes = wish.max(need).min(MAX_ZONE) & !(PAGEBLOCK_SIZE - 1);
        self.sparing.store(u32::from(budget.scarce), Ordering::Relaxed);
        let mut spared = !budget.scarce;
        loop {
            if bytes < need || bytes == 0 {
                if spared || self.spare_space(platform, PageCount::ZERO) == 0 {
                    return None;
                }
                (bytes, spared) = (need, true);
            }
            if let Some(found) = self.reserve(platform, bytes) {
                return self.install(platform, found, Purpose::Heap);
            }
            bytes = (bytes / 2).max(if bytes > need { need } else { 0 }) & !(PAGEBLOCK_SIZE - 1);
        }
    }

    /// Adds a zone of `bytes` (whole pageblocks) for a purpose other than the heap.
    pub fn add_for(
        &self,
        platform: &impl Platform,
        purpose: Purpose,
        bytes: usize,
    ) -> Option<&ZoneSet<S>> {
        let found = self.reserve(platform, bytes)?;
        // SAFETY: the pages of a fresh reservation, none of them committed.
        if purpose == Purpose::Shared && !unsafe { platform.share(found.at, found.pages.bytes()) } {
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { platform.release(found.at, found.bytes) };
            return None;
        }
        self.install(platform, found, purpose)
    }

    /// Makes a reservation a zone of this instance.
    fn install(
        &self,
        platform: &impl Platform,
        found: Reservation,
        purpose: Purpose,
    ) -> Option<&ZoneSet<S>> {
        let Reservation { at, metadata, pages, bytes } = found;
        let root = self.root()?;
        let number = self.count.fetch_add(1, Ordering::AcqRel) as usize;
        if number >= MAX_ZONES {
            self.count.store(MAX_ZONES as u32, Ordering::Relaxed);
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { platform.release(at, bytes) };
            return None;
        }
        let node = self.node(platform);
        if self.has_several_nodes() && purpose == Purpose::Heap {
            // SAFETY: the pages of a fresh reservation, none of them committed.
            unsafe { platform.prefer_node(at, pages.bytes(), node) };
        }
        // SAFETY: the table of zones has MAX_ZONES entries, by the contract of `start`.
        let block = unsafe { (root.zones as *mut ZoneBlock).add(number) };
        let tables = metadata.wrapping_add(SET_BYTES);
        let used: *const AtomicU32 = &raw const root.used_pages;
        // SAFETY: `reserve` made metadata of the sizes that both require, with room for the set,
        // and committed the fixed parts. Nothing else uses it, and it is never released.
        let set = unsafe {
            let slab_tables = tables.wrapping_add(Zone::metadata_bytes(pages.0));
            let slabs = S::new(at.as_ptr() as usize, pages, slab_tables);
            let zone = Zone::new(at, pages, tables, slabs.tables(), block, used);
            let set = metadata.cast::<ZoneSet<S>>();
            set.write(ZoneSet { zone, slabs, purpose, node });
            &*set
        };
        if !set.zone.on(platform).describe(PageCount::ZERO) {
            // The number stays without a zone.
            return None;
        }
        // SAFETY: only this call got the entry's number. Readers do not read the entry before
        // `zone_count` includes it.
        let entry = unsafe { &mut *block };
        entry.meta_base = metadata as u64;
        entry.meta_len = (bytes - pages.bytes()) as u64;
        entry.committed = AtomicU64::new(0);
        entry.purpose = purpose as u32;
        entry.node = node;
        set.slabs.describe(entry);
        set.zone.describe(entry);
        // INVARIANT: the set is never freed.
        self.sets[number].store(&raw const *set as usize, Ordering::Release);
        root.zone_count.fetch_max(number as u32 + 1, Ordering::Release);
        Some(set)
    }

    /// Reserves address space of `data` bytes with metadata behind it, and commits the parts of
    /// the metadata that a zone needs from the beginning.
    fn reserve(&self, platform: &impl Platform, data: usize) -> Option<Reservation> {
        const { Self::SET_FITS };
        let pages = PageCount::for_bytes(data)?;
        let slabs = SET_BYTES + Zone::metadata_bytes(pages.0);
        let meta_bytes = (slabs + S::metadata_bytes(pages.0)).next_multiple_of(PAGE_SIZE);
        let bytes = data.checked_add(meta_bytes)?;
        // Large alignments are found inside a zone whose base has them.
        let align = if data >= 4 << 30 { 1 << 30 } else { PAGEBLOCK_SIZE };
        let at = platform.reserve(bytes, align)?;
        let metadata = at.as_ptr().wrapping_add(data);
        let own = 0..SET_BYTES + Zone::fixed_bytes(pages.0);
        let parts = S::fixed_parts(pages.0).map(|part| slabs + part.start..slabs + part.end);
        let committed = core::iter::once(own).chain(parts).all(|part| {
            let from = part.start & !(PAGE_SIZE - 1);
            let to = part.end.next_multiple_of(PAGE_SIZE);
            NonNull::new(metadata.wrapping_add(from))
                // SAFETY: page-aligned parts of a fresh reservation.
                .is_some_and(|at| unsafe { platform.commit(at, to - from) })
        });
        if !committed {
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { platform.release(at, bytes) };
            return None;
        }
        Some(Reservation { at, metadata, pages, bytes })
    }
}

impl<S: SlabTables> Default for Zones<S> {
    fn default() -> Self {
        Self::new()
    }
}
