//! The zones of an instance: their purposes, claims across them, new ones.
//!
//! ```text
//! reservation:  | pages, committed as needed | classes | words | ZoneSet | other tables |
//! ```
//!
//! The first zones of all nodes share one reservation: they lie side by side, and so do their
//! tables of classes and of words. So the fast paths look up an address of any node in one step.

use core::marker::PhantomData;
use core::ptr::NonNull;

use kmem_layout::root::{MAX_ZONES, RootBlock, ZoneBlock, zone_purpose};

use super::check::PageChecks;
use super::node::{Nodes, Placement};
use super::space::Words;
use super::tables::WORD_TABLES;
use super::{Run, SlabTables, Zone};
use crate::conf::Thp;
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{Item, MAX_ORDER, PAGE_SIZE, PAGEBLOCK_SIZE, PageCount};

/// Room for a `ZoneSet` in front of a zone's tables.
const SET_BYTES: usize = 4096;
/// Zones of at least this many bytes have an address that is a multiple of [`LARGE_ALIGN`].
const LARGE: usize = 4 << 30;
/// The longest block of an order, for the fast path of its free. A larger alignment would take from
/// the random bits of the address.
const LARGE_ALIGN: usize = PAGE_SIZE << MAX_ORDER;
/// Distance of each table of words from the start of a page. Long runs start at the start of a
/// pageblock, so their words lie half a page apart, in few sets of a CPU's first cache. Without a
/// distance, both tables and the runs themselves would share these sets. Large blocks took 7 % more
/// time then.
const SKEW: usize = 512;
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
    /// The [`Thp`] of the heap.
    huge: AtomicU32,
    /// 1 if address space is limited.
    sparing: AtomicU32,
    /// The [`PageFormat`] of the heap.
    format: AtomicU32,
    pub(super) nodes: Nodes,
    _sets: PhantomData<fn() -> S>,
}

/// Words that pages have beside their lengths, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFormat(u32);

impl PageFormat {
    const EXTENSION: u32 = 1;
    const TIMES: u32 = 2;
    const BOUNDS: u32 = 4;

    /// Extension words, and times.
    pub const fn new(extension: bool, times: bool) -> Self {
        let times = if times { Self::TIMES } else { 0 };
        Self(if extension { Self::EXTENSION } else { 0 } | times)
    }

    /// Extension words, and the places of blocks in their pages.
    pub const fn with_bounds(bounds: bool) -> Self {
        Self(Self::EXTENSION | if bounds { Self::BOUNDS } else { 0 })
    }

    const fn has(self, word: u32) -> bool {
        self.0 & word != 0
    }
}

/// Address space for zones of one length, side by side, with their metadata behind them.
struct Reservation {
    at: NonNull<u8>,
    /// Pages of each zone.
    pages: PageCount,
    /// Number of zones.
    zones: u32,
    layout: Layout,
    /// True if the tables of words can be read before they are committed.
    shows_words: bool,
}

/// Distances from the start of the metadata of zones that lie side by side. The table of classes
/// is at the start.
#[derive(Clone, Copy)]
struct Layout {
    /// Table of extension words, if there is one.
    ext: Option<usize>,
    /// Table of lengths.
    len: usize,
    /// Table of times, if there is one.
    time: Option<usize>,
    /// Table of bounds, if there is one.
    bounds: Option<usize>,
    /// The first zone's set, followed by its other tables.
    set: usize,
    /// From one zone's set to that of the next.
    stride: usize,
    /// The end.
    end: usize,
}

impl Reservation {
    /// Address of the first page of a zone.
    fn base(&self, zone: u32) -> *mut u8 {
        self.at.as_ptr().wrapping_add(zone as usize * self.pages.bytes())
    }

    fn metadata(&self) -> *mut u8 {
        self.base(self.zones)
    }

    fn bytes(&self) -> usize {
        self.pages.bytes() * self.zones as usize + self.layout.end
    }

    /// Tables of extension words, of lengths, of times and of bounds of a zone; null where there is
    /// none.
    fn words(&self, zone: u32) -> [*mut u8; WORD_TABLES] {
        let mine = zone as usize * Zone::word_bytes(self.pages.0);
        let Layout { ext, len, time, bounds, .. } = self.layout;
        [ext, Some(len), time, bounds].map(|table| {
            table.map_or(core::ptr::null_mut(), |at| self.metadata().wrapping_add(at + mine))
        })
    }
}

/// The first zones of all nodes, as the fast paths see them.
pub struct FirstZones<'a, S> {
    /// The zone with the lowest addresses.
    pub set: &'a ZoneSet<S>,
    /// Number of zones of its length that lie side by side.
    pub count: u32,
    /// True if the words of all their pages can be read, also those of pages that are not
    /// committed.
    pub shows_words: bool,
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
            huge: AtomicU32::new(0),
            sparing: AtomicU32::new(0),
            format: AtomicU32::new(0),
            nodes: Nodes::new(),
            _sets: PhantomData,
        }
    }

    /// Lets zones be added.
    ///
    /// # Safety
    /// `root` leads to a valid root block that is never freed. Its table of zones has [`MAX_ZONES`]
    /// entries, to which only this value writes. `nodes` is a number of nodes of the platform.
    /// `format` is that of the heap.
    pub unsafe fn start(
        &self,
        platform: &impl Platform,
        root: *const RootBlock,
        (checks, huge): (PageChecks, Thp),
        (nodes, format): (u32, PageFormat),
    ) {
        self.format.store(format.0, Ordering::Relaxed);
        self.nodes.start(platform, nodes);
        self.huge.store(huge as u32, Ordering::Relaxed);
        self.checks.store(checks.0, Ordering::Relaxed);
        // INVARIANT: valid and never freed, by this function's contract.
        self.root.store(root as usize, Ordering::Release);
    }

    /// Pages in use by slabs and page allocations.
    pub fn used(&self) -> PageCount {
        PageCount(self.root().map_or(0, |root| root.used_pages.load(Ordering::Relaxed)))
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

    fn huge_policy(&self) -> Thp {
        match self.huge.load(Ordering::Relaxed) {
            0 => Thp::Never,
            1 => Thp::Auto,
            _ => Thp::Always,
        }
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

    /// Takes a run out of the nearest zone of a placement that has one, or out of a new zone.
    /// `None`: no zone has one, and the platform has no address space or memory for another.
    pub fn claim(
        &self,
        platform: &impl Platform,
        placement: Placement,
        pages: PageCount,
        align: PageCount,
    ) -> Option<(&ZoneSet<S>, Run)> {
        if !platform.grants(pages.bytes()) {
            return None;
        }
        for set in self.nearest(platform, placement) {
            if pages <= set.zone.pages()
                && let Some(run) = self.claim_in(set, platform, pages, align)
            {
                return Some((set, run));
            }
        }
        let span = pages.0.checked_add(align.0 - 1)?;
        let set = self.add(platform, PageCount(span), placement.node())?;
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
        let words = if self.has_several_nodes() { Words::Read } else { Words::NotRead };
        zones.map(|set| set.zone.on(platform).give_back_space(keep, words)).sum()
    }

    /// Adds a zone of the heap to a node, with room for a run of `pages`. `None`: the platform has
    /// no address space or no memory.
    pub(super) fn add(
        &self,
        platform: &impl Platform,
        pages: PageCount,
        node: u32,
    ) -> Option<&ZoneSet<S>> {
        let budget = platform.budget();
        let found = self.reserve_most(platform, (budget.min_zone, budget.scarce), pages, 1)?;
        self.install(platform, &found, 0, (Purpose::Heap, node))
    }

    /// Adds the first zone of each node. `None`: the platform has no address space or no memory for
    /// that of the first node.
    pub fn add_first(&self, platform: &impl Platform) -> Option<FirstZones<'_, S>> {
        let nodes = self.nodes();
        let budget = platform.budget();
        let share = budget.first_zone / nodes as usize;
        // Each zone of several is aligned as the first one is.
        let wish = if share >= LARGE { share & !(LARGE_ALIGN - 1) } else { share };
        let wish = (wish, budget.scarce);
        let found = self.reserve_most(platform, wish, PageCount::PAGEBLOCK, nodes)?;
        let set = self.install(platform, &found, 0, (Purpose::Heap, 0))?;
        for node in 1..nodes {
            // A node whose zone fails here gets one when it is first used.
            self.install(platform, &found, node, (Purpose::Heap, node));
        }
        Some(FirstZones { set, count: nodes, shows_words: found.shows_words })
    }

    /// Reserves `zones` of `wish` bytes each, or of less, but with room for a run of `pages`. If
    /// address space is `scarce`, other zones give up theirs for it.
    fn reserve_most(
        &self,
        platform: &impl Platform,
        (wish, scarce): (usize, bool),
        pages: PageCount,
        zones: u32,
    ) -> Option<Reservation> {
        let need = pages.bytes().checked_next_multiple_of(PAGEBLOCK_SIZE)?;
        let mut bytes = wish.max(need).min(MAX_ZONE) & !(PAGEBLOCK_SIZE - 1);
        self.sparing.store(u32::from(scarce), Ordering::Relaxed);
        let mut spared = !scarce;
        loop {
            if bytes < need || bytes == 0 {
                if spared || self.spare_space(platform, PageCount::ZERO) == 0 {
                    return None;
                }
                (bytes, spared) = (need, true);
            }
            let format = PageFormat(self.format.load(Ordering::Relaxed));
            if let Some(found) = self.reserve(platform, bytes, zones, format) {
                return Some(found);
            }
            bytes = (bytes / 2).max(if bytes > need { need } else { 0 }) & !(PAGEBLOCK_SIZE - 1);
        }
    }

    /// Adds a zone of `bytes` (whole pageblocks) for a purpose other than the heap. With `bounds`,
    /// blocks need not fill their pages.
    pub fn add_for(
        &self,
        platform: &impl Platform,
        (purpose, bounds): (Purpose, bool),
        bytes: usize,
    ) -> Option<&ZoneSet<S>> {
        let found = self.reserve(platform, bytes, 1, PageFormat::with_bounds(bounds))?;
        // SAFETY: the pages of a fresh reservation, none of them committed.
        if purpose == Purpose::Shared && !unsafe { platform.share(found.at, found.pages.bytes()) } {
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { platform.release(found.at, found.bytes()) };
            return None;
        }
        let node = self.node(platform);
        self.install(platform, &found, 0, (purpose, node))
    }

    /// Makes a part of a reservation a zone of this instance, with this purpose and this node.
    fn install(
        &self,
        platform: &impl Platform,
        found: &Reservation,
        part: u32,
        (purpose, node): (Purpose, u32),
    ) -> Option<&ZoneSet<S>> {
        let Reservation { pages, layout, .. } = *found;
        let root = self.root()?;
        let number = self.count.fetch_add(1, Ordering::AcqRel) as usize;
        if number >= MAX_ZONES {
            self.count.store(MAX_ZONES as u32, Ordering::Relaxed);
            // There are never that many nodes, so the reservation has this zone only.
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { platform.release(found.at, found.bytes()) };
            return None;
        }
        let at = NonNull::new(found.base(part))?;
        if self.has_several_nodes() && purpose == Purpose::Heap {
            // SAFETY: the pages of a fresh reservation, none of them committed.
            unsafe { platform.prefer_node(at, pages.bytes(), node) };
        }
        // SAFETY: the table of zones has MAX_ZONES entries, by the contract of `start`.
        let block = unsafe { (root.zones as *mut ZoneBlock).add(number) };
        let metadata = found.metadata().wrapping_add(layout.set + part as usize * layout.stride);
        let tables = metadata.wrapping_add(SET_BYTES);
        let classes = found.metadata().wrapping_add(part as usize * S::class_bytes(pages.0));
        let used: *const AtomicU32 = &raw const root.used_pages;
        // SAFETY: `reserve` made metadata of the sizes that both require, with room for the set,
        // committed the fixed parts, and made the classes readable. Nothing else uses it, and it is
        // never released.
        let set = unsafe {
            let slab_tables = tables.wrapping_add(Zone::metadata_bytes(pages.0));
            let slabs = S::new(at.as_ptr() as usize, pages, slab_tables, classes);
            let words = found.words(part);
            let zone = Zone::new(at, pages, tables, words, slabs.tables(), block, used);
            let set = metadata.cast::<ZoneSet<S>>();
            set.write(ZoneSet { zone, slabs, purpose, node });
            &*set
        };
        if !set.zone.on(platform).describe(PageCount::ZERO) {
            // The number stays without a zone.
            return None;
        }
        // Checks keep contents in free pages, or make them inaccessible one by one.
        let (policy, checks) = (self.huge_policy(), self.checks());
        if set.is_heap() && !(policy == Thp::Auto && (checks.poisons() || checks.protects())) {
            set.zone.on(platform).follow(policy);
        }
        if set.is_heap() && checks.protects() {
            set.zone.hide_unused();
        }
        // The first zone's metadata includes the tables in front of it, which all share.
        let mine = if part == 0 { found.metadata() } else { metadata };
        let end = metadata.wrapping_add(layout.stride);
        // SAFETY: only this call got the entry's number. Readers do not read the entry before
        // `zone_count` includes it.
        let entry = unsafe { &mut *block };
        entry.meta_base = mine as u64;
        entry.meta_len = (end as usize - mine as usize) as u64;
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

    /// The metadata of a number of zones of `pages` each.
    fn layout(pages: u32, zones: u32, format: PageFormat) -> Layout {
        let zones = zones as usize;
        let words = (zones * S::class_bytes(pages)).next_multiple_of(PAGE_SIZE) + SKEW;
        let ext = format.has(PageFormat::EXTENSION).then_some(words);
        let len = ext.map_or(words, |at| at + zones * Zone::word_bytes(pages) + SKEW);
        let end = len + zones * Zone::word_bytes(pages);
        let time = format.has(PageFormat::TIMES).then_some(end + SKEW);
        let end = time.map_or(end, |at| at + zones * Zone::word_bytes(pages));
        let bounds = format.has(PageFormat::BOUNDS).then_some(end + SKEW);
        let end = bounds.map_or(end, |at| at + zones * Zone::word_bytes(pages));
        let set = end.next_multiple_of(PAGE_SIZE);
        let own = SET_BYTES + Zone::metadata_bytes(pages) + S::metadata_bytes(pages);
        let stride = own.next_multiple_of(PAGE_SIZE);
        Layout { ext, len, time, bounds, set, stride, end: set + zones * stride }
    }

    /// Reserves address space for `zones` of `data` bytes each, with metadata behind them. Commits
    /// the parts of the metadata that a zone needs from the beginning. Makes the classes readable,
    /// and the words of several zones: the fast paths read those of any page.
    fn reserve(
        &self,
        platform: &impl Platform,
        data: usize,
        zones: u32,
        format: PageFormat,
    ) -> Option<Reservation> {
        const { Self::SET_FITS };
        let pages = PageCount::for_bytes(data)?;
        let layout = Self::layout(pages.0, zones, format);
        let bytes = data.checked_mul(zones as usize)?.checked_add(layout.end)?;
        let align = if data >= LARGE { LARGE_ALIGN } else { PAGEBLOCK_SIZE };
        let at = platform.reserve(bytes, align)?;
        let mut found = Reservation { at, pages, zones, layout, shows_words: false };
        let classes = zones as usize * S::class_bytes(pages.0);
        let readable = if zones > 1 { layout.set } else { classes.next_multiple_of(PAGE_SIZE) };
        // SAFETY: whole pages of a fresh reservation, of which none is committed.
        let shown =
            NonNull::new(found.metadata()).is_some_and(|at| unsafe { platform.show(at, readable) });
        found.shows_words = shown && zones > 1;
        let classes = 0..if shown { 0 } else { classes };
        let own = (0..zones as usize).flat_map(|zone| {
            let set = layout.set + zone * layout.stride;
            let slabs = set + SET_BYTES + Zone::metadata_bytes(pages.0);
            let sets = S::fixed_part(pages.0);
            let fixed = set..set + SET_BYTES + Zone::fixed_bytes(pages.0);
            [fixed, slabs + sets.start..slabs + sets.end]
        });
        let mut parts = core::iter::once(classes).chain(own).filter(|part| !part.is_empty());
        let committed = parts.all(|part| {
            let from = part.start & !(PAGE_SIZE - 1);
            let to = part.end.next_multiple_of(PAGE_SIZE);
            NonNull::new(found.metadata().wrapping_add(from))
                // SAFETY: page-aligned parts of a fresh reservation.
                .is_some_and(|at| unsafe { platform.commit(at, to - from) })
        });
        if !committed {
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { platform.release(found.at, bytes) };
            return None;
        }
        Some(found)
    }
}

impl<S: SlabTables> Default for Zones<S> {
    fn default() -> Self {
        Self::new()
    }
}
