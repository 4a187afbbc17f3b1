//! A process with books made by hand: real mappings, real reading, and totals known exactly.
//!
//! The test program starts itself again. The second process lays out a root block, zones and tables
//! as the allocator does. It prints their sums, and waits for its standard input to end. A name
//! selects a fault to build in.

// Each test program uses a part of this.
#![allow(dead_code)]

pub(crate) mod groups;
pub(crate) mod sites;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::mem::offset_of;
use std::process::Command;
use std::sync::atomic::Ordering::{Relaxed, Release};

use kmem_layout::geometry::ClassGeometry;
use kmem_layout::mapping::{MAX_OWN, MAX_RECORDS, MappingTable, RECORDS};
use kmem_layout::root::{MAGIC, MAX_ZONES, RootBlock, VERSION, ZoneBlock, profiling, zone_purpose};
use kmem_layout::site::{PeakEntry, PeakTable, Site};
use kmem_layout::word::{EXT_LIVE, OBJCG_SHIFT, TAG_BITS, TAG_FIRST_SITE};
use kmem_snapshot::{Process, ReadError, Snapshot};
use kmem_testing::Coprocess;

pub(crate) const SITES: u32 = 40;
const SITE_CAPACITY: u32 = 1 << TAG_BITS;
pub(crate) const CACHE_LEN: usize = 16 << 10;
const CHUNK: usize = 64 << 10;
const ZONE_PAGES: usize = 16 << 10;
const COMMITTED: usize = ZONE_PAGES - 7;
const META_LEN: usize = 15 << 20;
const SIZES: [u32; 4] = [16, 96, 1024, 4096];

/// Live bytes and objects by tag.
type Totals = BTreeMap<u32, (i64, u64)>;

/// The started process.
pub(crate) struct Target {
    process: Coprocess,
    pub(crate) totals: Totals,
    /// Bytes of metadata, all of it touched, and of slabs that are not objects.
    pub(crate) overhead: u64,
    pub(crate) cached: u64,
}

impl Target {
    /// Starts this test program again as a target with the named fault.
    pub(crate) fn start(fault: &str) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut command = Command::new(exe);
        command.args(["--exact", "fake::target", "--ignored", "--nocapture"]);
        let mut process = Coprocess::start(command.env("FAKE_FAULT", fault));
        let mut totals = Totals::new();
        let (mut overhead, mut cached) = (0, 0);
        for line in process.wait_for("ready") {
            let fields: Vec<&str> = line.split(' ').collect();
            match fields[..] {
                ["row", tag, bytes, calls] => {
                    let row = (bytes.parse().unwrap(), calls.parse().unwrap());
                    totals.insert(tag.parse().unwrap(), row);
                }
                ["sums", o, c] => (overhead, cached) = (o.parse().unwrap(), c.parse().unwrap()),
                _ => {}
            }
        }
        Self { process, totals, overhead, cached }
    }

    /// Number of the process.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Opens the process.
    pub(crate) fn process(&self) -> Process {
        Process::open(self.pid()).unwrap()
    }

    /// Takes a snapshot of the process.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, ReadError> {
        Snapshot::take(&self.process())
    }
}

/// Maps memory of the target process.
fn map(len: usize, fd: i32) -> usize {
    let anonymous = libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let flags = libc::MAP_PRIVATE | if fd < 0 { anonymous } else { 0 };
    // SAFETY: without MAP_FIXED the kernel replaces no mapping.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn memfd(len: usize) -> i32 {
    // SAFETY: `memfd_create` reads a C string; `ftruncate` takes no pointers.
    unsafe {
        let fd = libc::memfd_create(c"kmem-root".as_ptr(), 0);
        assert!(fd >= 0 && libc::ftruncate(fd, len as libc::off_t) == 0);
        fd
    }
}

fn put<T: Copy>(at: usize, value: T) {
    // SAFETY: all addresses in this module lie in mappings that `map` made writable, and that are
    // never unmapped.
    unsafe { (at as *mut T).write_unaligned(value) }
}

fn geometry(size: u32) -> ClassGeometry {
    let slab = if size <= 1024 { CHUNK as u32 } else { 2 * CHUNK as u32 };
    let objects = (slab - 64 - 4 * (slab >> size.ilog2())) * 64 / (size * 64 + 8);
    let limit = objects * size;
    ClassGeometry {
        size,
        slab_mask: slab - 1,
        limit,
        ext_offset: limit + objects.div_ceil(64) * 8,
        objects,
        ..ClassGeometry::NONE
    }
}

struct Random(u64);
impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Addresses of the parts.
struct Layout {
    root: usize,
    meta: usize,
    /// One past the metadata in use.
    meta_end: usize,
    classes: usize,
    zones: usize,
    sites: usize,
    texts: usize,
    cache: usize,
    peak: usize,
    groups: usize,
    /// Metadata of the zone, at the end of all metadata.
    zone_meta: usize,
    zone: usize,
    chunk_class: usize,
    page_ext: usize,
    page_len: usize,
    rows: usize,
    dirty: usize,
    credit: usize,
}

impl Layout {
    /// Maps the zone and one region of metadata, and touches all metadata.
    fn new(root: usize) -> Self {
        let meta = map(META_LEN, -1);
        let mut next = meta;
        let mut carve = |len: usize| {
            let at = next;
            next += len.next_multiple_of(4096);
            assert!(next <= meta + META_LEN);
            at
        };
        let this = Self {
            root,
            meta,
            meta_end: 0,
            classes: carve(5 * size_of::<ClassGeometry>()),
            zones: carve(MAX_ZONES * size_of::<ZoneBlock>()),
            sites: carve(SITE_CAPACITY as usize * size_of::<Site>()),
            texts: carve(sites::TEXTS_ROOM),
            cache: carve(CACHE_LEN),
            peak: carve(size_of::<PeakTable>() + SITE_CAPACITY as usize * size_of::<PeakEntry>()),
            groups: carve(groups::ROOM),
            zone_meta: carve(0),
            zone: map((ZONE_PAGES << 12) + (2 << 20), -1).next_multiple_of(2 << 20),
            chunk_class: carve(ZONE_PAGES / 16),
            page_ext: carve(ZONE_PAGES * 4),
            page_len: carve(ZONE_PAGES * 4),
            rows: carve(ZONE_PAGES / 8),
            dirty: carve(ZONE_PAGES / 8),
            credit: carve(ZONE_PAGES.div_ceil(512) * 2),
        };
        for page in (meta..next).step_by(4096) {
            put(page, 0_u8);
        }
        for word in (this.cache..this.cache + CACHE_LEN).step_by(8) {
            put(word, word as u64);
        }
        for (i, size) in SIZES.iter().enumerate() {
            put(this.classes + (i + 1) * size_of::<ClassGeometry>(), geometry(*size));
        }
        Self { meta_end: next, ..this }
    }

    fn zone_block(&self) -> ZoneBlock {
        ZoneBlock {
            base: self.zone as u64,
            pages: ZONE_PAGES as u64,
            committed: (COMMITTED as u64).into(),
            chunk_class: self.chunk_class as u64,
            page_ext: self.page_ext as u64,
            page_len: self.page_len as u64,
            page_time: 0,
            rows: self.rows as u64,
            dirty: self.dirty as u64,
            credit: self.credit as u64,
            purpose: zone_purpose::HEAP,
            node: 0,
            meta_base: self.zone_meta as u64,
            meta_len: (self.meta + META_LEN - self.zone_meta) as u64,
        }
    }

    /// The root block, without magic, texts and groups.
    fn root_block(&self, used_pages: usize) -> RootBlock {
        RootBlock {
            magic: 0.into(),
            version: VERSION,
            size: size_of::<RootBlock>() as u32,
            page_shift: 12,
            chunk_shift: 16,
            tag_bits: TAG_BITS,
            class_count: SIZES.len() as u32 + 1,
            class_size: size_of::<ClassGeometry>() as u32,
            zone_size: size_of::<ZoneBlock>() as u32,
            site_size: size_of::<Site>() as u32,
            site_capacity: SITE_CAPACITY,
            classes: self.classes as u64,
            zones: self.zones as u64,
            sites: self.sites as u64,
            peak: self.peak as u64,
            meta_base: self.meta as u64,
            meta_len: (self.zone_meta - self.meta) as u64,
            zone_count: 1.into(),
            site_count: SITES.into(),
            profiling: profiling::ON.into(),
            used_pages: (used_pages as u32).into(),
            texts: 0,
            texts_len: 0.into(),
            cache: self.cache as u64,
            cache_len: CACHE_LEN as u64,
            depth: 0.into(),
            deep_depth: 0.into(),
            deep_tag: 0.into(),
            group_capacity: 0,
            groups: 0,
            group_count: 0.into(),
            group_size: 0,
            mappings: 0.into(),
            own: 0,
            own_capacity: 0,
            mapping_capacity: 0.into(),
            slab_caches: 0,
            slab_cache_capacity: 0,
            records_caches: 0,
            request: kmem_layout::group::GroupRequest::none(),
            time_vector: 0,
            newest_time: 0.into(),
            started_ms: 0,
        }
    }
}

/// Content of the zone.
struct Content {
    totals: Totals,
    /// Bytes of slabs that are not objects.
    slab_overhead: u64,
    cached: u64,
    /// By page.
    used: Vec<bool>,
}

impl Content {
    fn count(totals: &mut Totals, tag: u32, bytes: u32) {
        let row = totals.entry(tag).or_default();
        row.0 += i64::from(bytes);
        row.1 += 1;
    }

    /// Fills the zone with random slabs and page allocations.
    fn fill(at: &Layout) -> Self {
        let mut this = Self {
            totals: Totals::new(),
            slab_overhead: 0,
            cached: 0,
            used: vec![false; ZONE_PAGES],
        };
        let mut random = Random(42);
        let mut chunk = 0;
        while chunk + 2 < COMMITTED / 16 {
            let class = random.below(6) as usize;
            if class == 0 || class > SIZES.len() {
                page_allocations(at, chunk, class == 0, &mut this, &mut random);
                chunk += 1;
                continue;
            }
            let geometry = geometry(SIZES[class - 1]);
            let chunks = (geometry.slab_mask as usize + 1) / CHUNK;
            if chunk % chunks != 0 {
                chunk += 1;
                continue;
            }
            this.slab(at, chunk, class, &geometry, &mut random);
            chunk += chunks;
        }
        for page in (0..COMMITTED).filter(|&page| !this.used[page]) {
            set_bit(at.rows, page);
            if page % 3 == 0 {
                set_bit(at.dirty, page);
                this.cached += 4096;
            }
        }
        this
    }

    /// Fills one slab, with two thirds of its objects live.
    fn slab(
        &mut self,
        at: &Layout,
        chunk: usize,
        class: usize,
        geometry: &ClassGeometry,
        random: &mut Random,
    ) {
        for i in chunk..chunk + (geometry.slab_mask as usize + 1) / CHUNK {
            // The bit above the class belongs to the allocator.
            put(at.chunk_class + i, class as u8 | (random.below(2) as u8) << 7);
            self.used[i * 16..(i + 1) * 16].fill(true);
        }
        let slab = at.zone + chunk * CHUNK;
        let mut live = 0;
        for object in 0..geometry.objects {
            let tag = random_tag(random);
            let word = tag | random_objcg(random) << OBJCG_SHIFT;
            let is_live = random.below(3) != 0;
            put(
                slab + geometry.ext_of(object * geometry.size) as usize,
                if is_live { word | EXT_LIVE } else { word },
            );
            if is_live {
                Self::count(&mut self.totals, tag, geometry.size);
                live += u64::from(geometry.size);
            }
        }
        self.cached += u64::from(geometry.limit) - live;
        self.slab_overhead += u64::from(geometry.slab_mask) + 1 - u64::from(geometry.limit);
    }
}

/// The target process. Not a test: the tests start it.
#[test]
#[ignore = "started by the other tests"]
fn target() {
    // The test harness may have begun a line of its own.
    println!();
    // The reader counts touched memory by pages, so huge pages are off.
    // SAFETY: this `prctl` takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    let fault = std::env::var("FAKE_FAULT").unwrap_or_default();
    if fault == "none-mapped" {
        return ready_and_wait();
    }
    let root_file = if fault == "truncated" { 0 } else { 4096 };
    let root = map(4096, memfd(root_file));
    if fault == "truncated" {
        return ready_and_wait();
    }
    let at = Layout::new(root);
    let content = Content::fill(&at);
    write_peak(&at, &content.totals);
    write_blocks(&at, &content, &fault);
    match &*fault {
        "copies" => copy(),
        "planted" => plant(at.root),
        _ => {}
    }
    for (tag, (bytes, calls)) in &content.totals {
        println!("row {tag} {bytes} {calls}");
    }
    let overhead = (at.meta_end - at.meta) as u64 + content.slab_overhead;
    println!("sums {overhead} {}", content.cached);
    if fault == "group-churn" {
        groups::churn(at.groups);
    }
    if fault == "churn" {
        churn(&at);
    }
    ready_and_wait();
}

/// Writes root block, zone block, sites and groups, with a fault.
fn write_blocks(at: &Layout, content: &Content, fault: &str) {
    let used_pages = content.used.iter().filter(|&&used| used).count();
    // SAFETY: both blocks lie in mappings of this process that are large enough, aligned to pages,
    // and referred to by nothing else.
    let (block, zone) = unsafe {
        (at.root as *mut RootBlock).write(at.root_block(used_pages));
        (at.zones as *mut ZoneBlock).write(at.zone_block());
        (&mut *(at.root as *mut RootBlock), &mut *(at.zones as *mut ZoneBlock))
    };
    sites::write(block, at.texts, fault);
    groups::write(block, at.groups, fault);
    break_it(fault, block, zone, at);
    if fault == "magic" {
        block.magic.store(7, Release);
    } else if fault != "starting" {
        block.magic.store(MAGIC, Release);
    }
}

/// Root blocks that are planted in one process.
pub(crate) const PLANTED: usize = 10_000;

/// Plants copies of the root block. Some lead to the zone of the original, some to none.
fn plant(root: usize) {
    for number in 0..PLANTED {
        let copy = map(4096, memfd(4096));
        // SAFETY: both are mappings of one page, and they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(root as *const u8, copy as *mut u8, 4096) };
        if number % 2 == 0 {
            put(copy + offset_of!(RootBlock, zone_count), 0_u32);
        }
    }
}

/// Makes another copy of the library: a root block and a zone with the same contents.
fn copy() {
    let at = Layout::new(map(4096, memfd(4096)));
    let content = Content::fill(&at);
    write_peak(&at, &content.totals);
    write_blocks(&at, &content, "");
}

/// A reserved tag or the tag of a site.
fn random_tag(random: &mut Random) -> u32 {
    match random.below(20) {
        0 => 1,
        1 => 2,
        _ => TAG_FIRST_SITE + random.below(u64::from(SITES - TAG_FIRST_SITE)) as u32,
    }
}

/// An objcg id, mostly of a group that exists.
fn random_objcg(random: &mut Random) -> u32 {
    let most = if random.below(8) == 0 { 1 << 14 } else { groups::COUNT };
    random.below(u64::from(most)) as u32
}

fn set_bit(table: usize, page: usize) {
    // SAFETY: the table has a bit for every page of the zone, so the byte is in its mapping.
    unsafe { *((table + page / 8) as *mut u8) |= 1 << (page % 8) }
}

/// Fills one chunk with page allocations, or leaves it empty.
fn page_allocations(
    at: &Layout,
    chunk: usize,
    empty: bool,
    content: &mut Content,
    random: &mut Random,
) {
    let mut page = chunk * 16;
    while !empty && page < (chunk + 1) * 16 {
        let len = (1 + random.below(5) as usize).min((chunk + 1) * 16 - page);
        if random.below(4) != 0 {
            let tag = random_tag(random);
            put(at.page_len + page * 4, len as u32);
            // The length alone tells that pages are live. Their live bit is random.
            let word = tag | random_objcg(random) << OBJCG_SHIFT;
            put(at.page_ext + page * 4, word | (EXT_LIVE * random.below(2) as u32));
            content.used[page..page + len].fill(true);
            Content::count(&mut content.totals, tag, len as u32 * 4096);
        } else {
            // A free page keeps the tag of its last owner.
            put(at.page_ext + page * 4, random_tag(random));
        }
        page += len;
    }
}

/// Writes a peak of twice the live objects.
fn write_peak(at: &Layout, totals: &Totals) {
    put(at.peak, 4_u64);
    put(at.peak + 8, 12345_u64);
    put(at.peak + 16, u64::from(SITES));
    for (tag, (bytes, calls)) in totals {
        let entry = at.peak + size_of::<PeakTable>() + *tag as usize * size_of::<PeakEntry>();
        put(entry, bytes * 2);
        put(entry + 8, calls * 2);
    }
}

/// Builds the fault into the blocks.
fn break_it(fault: &str, root: &mut RootBlock, zone: &mut ZoneBlock, at: &Layout) {
    let class1 = at.classes + size_of::<ClassGeometry>();
    match fault {
        "version" => root.version += 1,
        "size" => root.size = 64,
        "larger-size" => root.size += 8,
        "tag_bits" => root.tag_bits = 18,
        "class_count" => root.class_count = u32::MAX,
        "class_size" => root.class_size = 4,
        "classes-outside" => root.classes = 0x10,
        "classes-wrap" => root.classes = u64::MAX - 8,
        "class-mask" => put(class1 + offset_of!(ClassGeometry, slab_mask), 12345_u32),
        "class-ext" => put(class1 + offset_of!(ClassGeometry, ext_offset), 0xffff_fff0_u32),
        "class-objects" => put(class1 + offset_of!(ClassGeometry, objects), u32::MAX),
        "zone_count" => root.zone_count.store(u32::MAX, Relaxed),
        "zone-overlap" => {
            root.zone_count.store(2, Relaxed);
            // SAFETY: the table has room for MAX_ZONES blocks, so the second one is in it.
            unsafe { std::ptr::copy_nonoverlapping(zone, std::ptr::from_mut(zone).add(1), 1) };
        }
        "zone-wrap" => zone.pages = 1 << 61,
        "zone-vast" => {
            root.zone_count.store(2, Relaxed);
            // SAFETY: the table has room for MAX_ZONES blocks, so the second one is in it.
            unsafe { std::ptr::from_mut(zone).add(1).write(vast()) };
        }
        "zone-base" => zone.base += 4096,
        "committed" => zone.committed.store(1 << 40, Relaxed),
        "page_len-outside" => zone.page_len = at.root as u64,
        "site_count" => root.site_count.store(u32::MAX, Relaxed),
        "site_capacity" => root.site_capacity = u32::MAX,
        "time_vector" => root.time_vector = 3,
        "page_time-outside" => zone.page_time = at.root as u64,
        "slab_cache_capacity" => root.slab_cache_capacity = u32::MAX,
        "slab_caches-outside" => {
            (root.slab_caches, root.slab_cache_capacity) = (1 << 60, 8);
        }
        "slab_caches-garbage" => {
            (root.slab_caches, root.slab_cache_capacity) = (at.classes as u64, 40);
            root.records_caches = 1;
        }
        "cache-outside" => root.cache = 1 << 60,
        "cache-none" => root.cache = 0,
        "cache-wrap" => root.cache = u64::MAX - 7,
        "cache-length" => root.cache_len = 12,
        "cache-long" => root.cache_len = (1 << 20) + 8,
        "cache-unaligned" => root.cache += 4,
        "cache-read-only" => {
            // SAFETY: the cache consists of whole pages, which no Rust value uses.
            let result = unsafe {
                libc::mprotect(root.cache as *mut libc::c_void, CACHE_LEN, libc::PROT_READ)
            };
            assert_eq!(result, 0);
        }
        "sites-outside" => root.sites = 1 << 60,
        "peak-outside" => root.peak = 1 << 60,
        "mappings-garbage" => {
            root.mappings.store(garbage(size_of::<MappingTable>()), Relaxed);
            root.mapping_capacity.store(RECORDS as u32, Relaxed);
        }
        "mappings-outside" => root.mappings.store(u64::MAX - 4096, Relaxed),
        "mappings-cut" => {
            root.mappings.store(garbage(16 << 10), Relaxed);
            root.mapping_capacity.store(u32::MAX, Relaxed);
        }
        "mappings-short" => {
            let table = garbage(32 << 10);
            let rest = (table + (16 << 10)) as *mut libc::c_void;
            // SAFETY: the second half of a fresh mapping, which no Rust value uses.
            assert_eq!(unsafe { libc::mprotect(rest, 16 << 10, libc::PROT_NONE) }, 0);
            root.mappings.store(table, Relaxed);
            root.mapping_capacity.store(MAX_RECORDS, Relaxed);
        }
        "own-garbage" => (root.own, root.own_capacity) = (garbage(64 << 10), MAX_OWN),
        "own-outside" => (root.own, root.own_capacity) = (0x10, 7),
        "own-count" => (root.own, root.own_capacity) = (garbage(4096), u32::MAX),
        "own-all" => {
            let own = map(4096, -1);
            put(own, (0_u64, u64::MAX));
            (root.own, root.own_capacity) = (own as u64, 1);
        }
        "peak-torn" => put(at.peak, 5_u64),
        "peak-none" => put(at.peak, 0_u64),
        "peak-len" => put(at.peak + 16, u64::MAX),
        "profiling" => root.profiling.store(77, Relaxed),
        "never" => root.profiling.store(profiling::NEVER, Relaxed),
        "unknown-class" => (0..64).for_each(|c| put(at.chunk_class + c, 0x7f_u8)),
        "long-pages" => put(at.page_len + 4 * 200, u32::MAX),
        _ => {}
    }
}

/// Memory with words of any kind: small ones, addresses, and the largest.
fn garbage(len: usize) -> u64 {
    let at = map(len, -1);
    let mut random = Random(7);
    for word in (at..at + len).step_by(8) {
        let any = random.below(u64::MAX);
        put(word, any >> (any % 64));
    }
    at as u64
}

/// A zone of 2^32 pages, whose tables were never touched.
fn vast() -> ZoneBlock {
    let pages = 1 << 32;
    ZoneBlock {
        base: 1 << 50,
        pages,
        committed: pages.into(),
        chunk_class: map(pages as usize / 16, -1) as u64,
        page_ext: map(pages as usize * 4, -1) as u64,
        page_len: map(pages as usize * 4, -1) as u64,
        page_time: 0,
        rows: map(pages as usize / 8, -1) as u64,
        dirty: map(pages as usize / 8, -1) as u64,
        credit: map(pages as usize / 256, -1) as u64,
        purpose: zone_purpose::HEAP,
        node: 0,
        meta_base: 0,
        meta_len: 0,
    }
}

/// Changes classes, words and lengths without end, as fast as possible.
fn churn(at: &Layout) {
    let (chunk_class, zone, page_len) = (at.chunk_class, at.zone, at.page_len);
    std::thread::spawn(move || {
        let mut random = Random(7);
        loop {
            let chunk = random.below(512) as usize;
            put(chunk_class + chunk, random.below(256) as u8);
            put(
                zone + chunk * CHUNK + random.below(16384) as usize * 4,
                random.below(1 << 32) as u32,
            );
            put(page_len + random.below(8192) as usize * 4, random.below(64) as u32);
        }
    });
}

fn ready_and_wait() {
    println!("ready");
    let _ = std::io::stdin().read(&mut [0]);
}
