//! Starting an instance: configuration, tables, the first zone.
//!
//! | state    | meaning                                             |
//! |----------|-----------------------------------------------------|
//! | NEW      | all zero; the fast paths fail over to the slow ones |
//! | STARTING | one thread is at it; others wait                    |
//! | READY    | in use                                              |
//! | FAILED   | the platform gave nothing; every request is refused |
//! | MENDING  | a forked child is being repaired                    |

use core::ptr::NonNull;

use super::account::{page_stock_bound, stock_bound};
use super::page_debug::PageDebug;
use super::{Instance, Purpose, ZoneSet};
use crate::alloc_tag;
use crate::class::{CLASS_COUNT, ClassGeometry, MAX_OBJECT, PageClass, SIZES};
use crate::codetag::{MAX_SITES, MIN_SITES, Sites};
use crate::conf::{Complaint, Conf, MAX_TEXT};
use crate::cpu::{Area, Kind, Slots};
use crate::memcg::{Groups, MAX_GROUPS, MIN_GROUPS};
use crate::os::Platform;
use crate::page::{Pcp, Zone};
use crate::root::{self, GroupBlock, MAX_ZONES, RootBlock, Site, ZoneBlock};
use crate::slab::SlabZone;
use crate::slab::quarantine::Quarantine;
use crate::slab::sheaf::Barn;
use crate::sync::{AtomicU32, AtomicU64, Ordering, spin};
use crate::units::{CpuId, FRAME_PAGES, FRAME_SIZE, PAGE_SHIFT, PAGE_SIZE, PageCount};

pub(super) const NEW: u32 = 0;
pub(super) const STARTING: u32 = 1;
pub(super) const READY: u32 = 2;
pub(super) const FAILED: u32 = 3;
pub(super) const MENDING: u32 = 4;

/// Room for a `ZoneSet` in front of a zone's tables.
const SET_BYTES: usize = 4096;
const _: () = assert!(size_of::<ZoneSet>() <= SET_BYTES);
/// Most address space a zone can have, by the width of a page number.
const MAX_ZONE: usize = 1 << 43;

/// Slow paths that do without an array before the platform is asked for one again.
const RETRY_AFTER: u32 = 4096;

/// Offsets of the tables that are not a zone's, for a heap of some size.
struct Tables {
    site_count: u32,
    sheaf_count: u32,
    zones: usize,
    sites: usize,
    index: usize,
    peak: usize,
    barn: usize,
    scratch: usize,
    live: usize,
    report: usize,
    pcp: usize,
    quarantine: usize,
    group_count: u32,
    groups: usize,
    names: usize,
    bytes: usize,
}

impl Tables {
    /// Tables take little of a small heap: one site per 16 KiB, one sheaf per 64 KiB, one group per
    /// 128 KiB.
    const fn for_heap(bytes: usize, cpus: u32, quarantine: u64) -> Self {
        let sites = bytes >> 14;
        let site_count = if sites > MAX_SITES as usize {
            MAX_SITES
        } else if sites < MIN_SITES as usize {
            MIN_SITES
        } else {
            sites as u32
        };
        let sheaf_count = Barn::sheaves_for(bytes);
        let groups = bytes >> 17;
        let group_count = if groups > MAX_GROUPS as usize {
            MAX_GROUPS
        } else if groups < MIN_GROUPS as usize {
            MIN_GROUPS
        } else {
            groups as u32
        };
        let mut end = 0;
        macro_rules! part {
            ($bytes:expr) => {{
                let start = end;
                end += ($bytes as usize).next_multiple_of(PAGE_SIZE);
                start
            }};
        }
        Self {
            site_count,
            sheaf_count,
            zones: part!(MAX_ZONES * size_of::<ZoneBlock>()),
            sites: part!(Sites::sites_bytes(site_count)),
            index: part!(Sites::index_bytes(site_count)),
            peak: part!(alloc_tag::peak_bytes(site_count)),
            barn: part!(Barn::pool_bytes(sheaf_count)),
            scratch: part!(alloc_tag::scratch_bytes(site_count)),
            live: part!(alloc_tag::live_bytes(site_count)),
            report: part!(super::oom::room(site_count)),
            pcp: part!(cpus as usize * size_of::<Pcp>()),
            quarantine: part!(Quarantine::ring_bytes(quarantine)),
            group_count,
            groups: part!(Groups::blocks_bytes(group_count)),
            names: part!(Groups::index_bytes(group_count)),
            bytes: end,
        }
    }
}

impl<P: Platform> Instance<P> {
    /// Whether requests can be served; starts the instance if nobody did, and repairs it in a
    /// forked child.
    pub(super) fn ready(&'static self) -> bool {
        loop {
            match self.state.load(Ordering::Acquire) {
                READY if self.slots.alive() => return true,
                READY => self.restart_in_child(),
                NEW => self.start(),
                STARTING => spin(),
                _ => return false,
            }
        }
    }

    /// Apart, as what is read and built here takes much of a stack.
    #[cold]
    #[inline(never)]
    fn start(&'static self) {
        if self.state.compare_exchange(NEW, STARTING, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return;
        }
        let conf = self.configure();
        let done = self.build(&conf).is_some();
        if !done {
            self.platform.print(b"kmem: no memory to start with\n");
        }
        self.state.store(if done { READY } else { FAILED }, Ordering::Release);
    }

    fn configure(&self) -> Conf {
        let mut conf = Conf::DEFAULT;
        let mut text = [0; MAX_TEXT];
        if let Some(len) = self.platform.configuration(&mut text) {
            let mut bad = len > text.len();
            if bad {
                self.platform.print(b"kmem: KMEM_CONF: longer than 4096 bytes; ignored\n");
            }
            let len = if bad { 0 } else { len };
            conf.apply(&text[..len], |part, complaint| {
                bad = true;
                let what: &[u8] = match complaint {
                    Complaint::UnknownOption => b"kmem: KMEM_CONF: unknown option \"",
                    Complaint::BadValue => b"kmem: KMEM_CONF: bad value in \"",
                };
                let mut line = super::fault::Line::new();
                line.bytes(what);
                line.printable(&part[..part.len().min(64)]);
                line.bytes(b"\"\n");
                self.platform.print(line.text());
            });
            if bad && conf.strict {
                self.platform.fatal();
            }
        }
        conf
    }

    fn build(&'static self, conf: &Conf) -> Option<()> {
        let books = conf.profiling != root::profiling::NEVER;
        self.start_object_debug(conf);
        let vectors = if books { 1 + self.object_debug().records() } else { 0 };
        // SAFETY: STARTING: nobody else looks at the cells.
        unsafe {
            (*self.conf.get()).write(*conf);
            let classes = &mut *self.classes.get();
            for (class, size) in SIZES.iter().enumerate().skip(1) {
                classes[class] = ClassGeometry::with_vectors(*size, vectors);
            }
            let layout = &mut *self.hot.layout.get();
            for (i, class) in classes.iter().enumerate() {
                layout.reciprocal[i] = class.reciprocal;
                layout.slab[i] = !(class.slab_mask as usize);
                layout.ext_offset[i] = class.ext_offset as usize;
                layout.ext_shift[i] = if class.size == 0 { 0 } else { class.ext_shift() };
                layout.stock_bound[i] = stock_bound(class.size);
            }
            for class in PageClass::all() {
                layout.stock_bound[class.array().0 as usize] = page_stock_bound(class);
            }
        }
        self.decay_ms.store(conf.decay_ms, Ordering::Relaxed);
        self.keep_peak.store(u32::from(conf.peak), Ordering::Relaxed);
        self.page_debug.store(PageDebug::of(conf).0, Ordering::Relaxed);
        self.start_nodes();
        let budget = self.platform.budget();
        let held_back = if self.object_debug().has_quarantine() {
            u64::from(conf.quarantine_kb) << 10
        } else {
            0
        };
        let layout = Tables::for_heap(budget.memory, budget.cpus, held_back);
        let tables = self.platform.reserve(layout.bytes, PAGE_SIZE)?;
        // SAFETY: our own fresh reservation.
        if !unsafe { self.platform.commit(tables, layout.bytes) } {
            // SAFETY: as above, unused.
            unsafe { self.platform.release(tables, layout.bytes) };
            return None;
        }
        let at = |offset: usize| tables.as_ptr().wrapping_add(offset);
        let root = match self.platform.map_root(PAGE_SIZE) {
            Some(root) => root,
            // Readers will not find it by name; everything else works.
            None => {
                let root = self.platform.reserve(PAGE_SIZE, PAGE_SIZE)?;
                // SAFETY: our own fresh reservation.
                unsafe { self.platform.commit(root, PAGE_SIZE) }.then_some(root)?
            }
        };
        let root = root.cast::<RootBlock>().as_ptr();
        // SAFETY: zeroed and ours alone until the magic is written.
        unsafe { self.describe(root, tables.as_ptr(), &layout, conf) };
        // SAFETY: zeroed memory of the sizes asked for.
        unsafe {
            self.sites.start(&self.platform, at(layout.sites), at(layout.index), root);
            self.barn.start(at(layout.barn), layout.sheaf_count);
            self.scratch.start(at(layout.scratch));
            self.quarantine.start(at(layout.quarantine), held_back);
            if books {
                let groups = at(layout.groups).cast::<GroupBlock>();
                self.groups.start(groups, at(layout.names), layout.group_count);
            }
        }
        self.live.store(at(layout.live) as usize, Ordering::Relaxed);
        self.report_room.store(at(layout.report) as usize, Ordering::Relaxed);
        self.pcp_count.store(budget.cpus, Ordering::Relaxed);
        self.pcp.store(at(layout.pcp) as usize, Ordering::Release);
        self.root.store(root as usize, Ordering::Release);
        let kind = self.kind_for(conf);
        let (wiped, bytes) = self.slots.wiped_part();
        if let Some(wiped) = NonNull::new(wiped) {
            // SAFETY: page aligned, part of this instance; where the platform refuses (memory
            // that is not anonymous), a forked child goes on without repair.
            unsafe { self.platform.wipe_on_fork(wiped, bytes) };
        }
        self.slots.start(kind);
        self.start_watch(conf);
        if !self.object_debug().any() {
            self.hot.slab_bound.store(MAX_OBJECT + 1, Ordering::Relaxed);
        }
        // From here on the fast paths may run.
        self.hot.mode.store(super::mode::from(conf.profiling), Ordering::Release);
        self.add_zone(PageCount(FRAME_PAGES))?;
        // SAFETY: a valid block. Release: everything above is there for readers.
        unsafe { (*root).magic.store(root::MAGIC, Ordering::Release) };
        Some(())
    }

    fn kind_for(&self, conf: &Conf) -> Kind {
        match self.platform.rseq_offset() {
            Some(offset) if conf.rseq => Kind::Rseq(offset),
            _ => Kind::Locked,
        }
    }

    /// How CPUs are found, in a started instance.
    pub(super) fn slot_kind(&self) -> Kind {
        self.kind_for(&self.conf())
    }

    /// # Safety
    /// `root` is zeroed and nobody else uses it.
    unsafe fn describe(&self, root: *mut RootBlock, tables: *mut u8, layout: &Tables, conf: &Conf) {
        // SAFETY: the caller's promise.
        let root = unsafe { &mut *root };
        root.version = root::VERSION;
        root.size = size_of::<RootBlock>() as u32;
        root.page_shift = PAGE_SHIFT;
        root.chunk_shift = crate::class::CHUNK_SHIFT;
        root.tag_bits = root::TAG_BITS;
        root.class_count = CLASS_COUNT as u32;
        root.class_size = size_of::<ClassGeometry>() as u32;
        root.zone_size = size_of::<ZoneBlock>() as u32;
        root.site_size = size_of::<Site>() as u32;
        root.site_capacity = layout.site_count;
        root.classes = self.classes.get() as u64;
        let at = |offset: usize| tables as u64 + offset as u64;
        root.zones = at(layout.zones);
        root.sites = at(layout.sites);
        root.peak = at(layout.peak);
        root.groups = at(layout.groups);
        root.group_capacity = layout.group_count;
        root.group_size = size_of::<GroupBlock>() as u32;
        (root.cache, root.cache_len) = self.sites.cache_part();
        root.meta_base = at(0);
        root.meta_len = layout.bytes as u64;
        root.profiling = AtomicU32::new(conf.profiling);
        root.depth = AtomicU32::new(conf.depth);
    }

    /// Adds a zone with room for a run of `pages`. `None`: no address space or no memory.
    pub(super) fn add_zone(&'static self, pages: PageCount) -> Option<&'static ZoneSet> {
        let budget = self.platform.budget();
        let node = self.node();
        let first = !self.heap_sets().any(|set| set.node == node);
        let need = pages.bytes().checked_next_multiple_of(FRAME_SIZE)?;
        let wish = if first { budget.first_zone } else { budget.min_zone };
        let mut data = wish.max(need).min(MAX_ZONE) & !(FRAME_SIZE - 1);
        loop {
            if data < need || data == 0 {
                return None;
            }
            if let Some(found) = self.reserve_zone(data) {
                return self.install_zone(found, Purpose::Heap);
            }
            data = (data / 2).max(if data > need { need } else { 0 }) & !(FRAME_SIZE - 1);
        }
    }

    /// Adds a zone of `bytes` (whole frames) that is not for the heap.
    pub(super) fn add_zone_for(
        &'static self,
        purpose: Purpose,
        bytes: usize,
    ) -> Option<&'static ZoneSet> {
        let (at, meta, pages) = self.reserve_zone(bytes)?;
        // SAFETY: our own fresh reservation.
        if purpose == Purpose::Shared && !unsafe { self.platform.share(at, pages.bytes()) } {
            // SAFETY: as above, unused.
            unsafe { self.platform.release(at, pages.bytes() + self.meta_bytes(pages)) };
            return None;
        }
        self.install_zone((at, meta, pages), purpose)
    }

    /// Makes reserved address space with its metadata a zone of this instance.
    fn install_zone(
        &'static self,
        (at, meta, pages): (NonNull<u8>, *mut u8, PageCount),
        purpose: Purpose,
    ) -> Option<&'static ZoneSet> {
        let root = self.root()?;
        let first = self.zone_slots.load(Ordering::Relaxed) == 0;
        let slot = self.zone_slots.fetch_add(1, Ordering::AcqRel) as usize;
        if slot >= MAX_ZONES {
            self.zone_slots.store(MAX_ZONES as u32, Ordering::Relaxed);
            // SAFETY: the whole reservation, unused.
            unsafe { self.platform.release(at, pages.bytes() + self.meta_bytes(pages)) };
            return None;
        }
        let node = self.node();
        if self.nodes.several() && purpose == Purpose::Heap {
            // SAFETY: a fresh reservation.
            unsafe { self.platform.prefer_node(at, pages.bytes(), node) };
        }
        // SAFETY: the table has MAX_ZONES entries; this one is ours.
        let block = unsafe { (root.zones as *mut ZoneBlock).add(slot) };
        let tables = meta.wrapping_add(SET_BYTES);
        let used: *const AtomicU32 = &raw const root.used_pages;
        // SAFETY: reserved data and committed, zeroed metadata of the right sizes.
        let set = unsafe {
            let slab_tables = tables.wrapping_add(Zone::metadata_bytes(pages.0));
            let slabs = SlabZone::new(at.as_ptr() as usize, pages, slab_tables)
                .with_guards(purpose == Purpose::Heap && self.object_debug().has_red_zones());
            let zone = Zone::new(at, pages, tables, slabs.tables(), block, used);
            let set = meta.cast::<ZoneSet>();
            set.write(ZoneSet { zone, slabs, purpose, node });
            &*set
        };
        if !set.zone.on(&self.platform).describe(0) {
            // The slot stays empty.
            return None;
        }
        // SAFETY: nobody else looks at the entry before the count of zones includes it.
        let entry = unsafe { &mut *block };
        entry.meta_base = meta as u64;
        entry.meta_len = self.meta_bytes(pages) as u64;
        entry.committed = AtomicU64::new(0);
        entry.purpose = purpose as u32;
        entry.node = node;
        set.slabs.describe(entry);
        set.zone.describe(entry);
        if first {
            self.hot.base.store(set.zone.base(), Ordering::Relaxed);
            self.hot.chunk_class.store(set.slabs.chunk_classes() as usize, Ordering::Relaxed);
            let chunks = if self.books() { &self.hot.chunks } else { &self.bare_chunks };
            // Where calls are watched no free takes the fast path.
            if !self.watch().any() && !self.nodes.several() {
                if !self.page_debug().is_slow() {
                    self.pages.start(&set.zone);
                }
                chunks.store(set.slabs.chunks() as usize, Ordering::Release);
            }
        }
        self.zones[slot].store(&raw const *set as usize, Ordering::Release);
        root.zone_count.fetch_max(slot as u32 + 1, Ordering::Release);
        Some(set)
    }

    fn meta_bytes(&self, pages: PageCount) -> usize {
        (SET_BYTES + Zone::metadata_bytes(pages.0) + SlabZone::metadata_bytes(pages.0))
            .next_multiple_of(PAGE_SIZE)
    }

    /// Reserves `data` bytes with their metadata behind them, of which it commits what a zone
    /// needs from the beginning.
    fn reserve_zone(&self, data: usize) -> Option<(NonNull<u8>, *mut u8, PageCount)> {
        let pages = PageCount::for_bytes(data)?;
        let meta_bytes = self.meta_bytes(pages);
        // Large alignments are found inside a zone whose base has them.
        let align = if data >= 4 << 30 { 1 << 30 } else { FRAME_SIZE };
        let at = self.platform.reserve(data.checked_add(meta_bytes)?, align)?;
        let meta = at.as_ptr().wrapping_add(data);
        let slabs = SET_BYTES + Zone::metadata_bytes(pages.0);
        let own = 0..SET_BYTES + Zone::fixed_bytes(pages.0);
        let parts = SlabZone::fixed_parts(pages.0).map(|part| slabs + part.start..slabs + part.end);
        let committed = core::iter::once(own).chain(parts).all(|part| {
            let from = part.start & !(PAGE_SIZE - 1);
            let to = part.end.next_multiple_of(PAGE_SIZE);
            NonNull::new(meta.wrapping_add(from))
                // SAFETY: our own fresh reservation.
                .is_some_and(|at| unsafe { self.platform.commit(at, to - from) })
        });
        if !committed {
            // SAFETY: as above, unused.
            unsafe { self.platform.release(at, data + meta_bytes) };
            return None;
        }
        Some((at, meta, pages))
    }

    /// Gives the calling thread's CPU its array, if it has none yet.
    pub(super) fn ensure_area(&'static self, cpu: CpuId) {
        self.ensure_area_of(&self.slots, cpu, self.geometries());
    }

    /// The same for one of the instance's kinds of arrays.
    pub(super) fn ensure_area_of(
        &'static self,
        slots: &Slots,
        cpu: CpuId,
        classes: &[ClassGeometry],
    ) {
        if slots.has_area(cpu) {
            return;
        }
        // A platform that refused is not asked again each time.
        let refused = self.refused.load(Ordering::Relaxed);
        if refused > 0 {
            self.refused.store(refused - 1, Ordering::Relaxed);
            return;
        }
        let bytes = size_of::<Area>();
        let Some(area) = self.platform.reserve(bytes, align_of::<Area>()) else {
            self.refused.store(RETRY_AFTER, Ordering::Relaxed);
            return;
        };
        // SAFETY: our own fresh reservation, of an area's size and alignment.
        let added = unsafe {
            self.platform.commit(area, bytes) && slots.add(cpu, area.cast().as_ptr(), classes)
        };
        if !added {
            // SAFETY: nobody got to know of it.
            unsafe { self.platform.release(area, bytes) };
        }
    }
}
