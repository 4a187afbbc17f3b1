//! A process with books made by hand: real mappings, real reading, and totals known exactly.
//!
//! The test program starts itself again; that second process lays out a root block, zones and
//! tables as the allocator does, prints what they add up to, and waits for its standard input
//! to end. One named fault may be built in.

// Each test program uses its part.
#![allow(dead_code)]

pub(crate) mod groups;
pub(crate) mod sites;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::mem::size_of;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::{Relaxed, Release};

use kmem_snapshot::kmem::class::ClassGeometry;
use kmem_snapshot::kmem::root::{
    EXT_LIVE, MAGIC, MAX_ZONES, OBJCG_SHIFT, PeakEntry, PeakTable, RootBlock, Site, TAG_BITS,
    TAG_FIRST_SITE, VERSION, ZoneBlock, profiling, zone_purpose,
};

pub(crate) const SITES: u32 = 40;
const SITE_CAPACITY: u32 = 1 << TAG_BITS;
pub(crate) const CACHE_LEN: usize = 16 << 10;
const CHUNK: usize = 64 << 10;
const ZONE_PAGES: usize = 16 << 10;
const SIZES: [u32; 4] = [16, 96, 1024, 4096];

/// The started process.
pub(crate) struct Target {
    pub(crate) child: Child,
    /// Live bytes and objects by tag.
    pub(crate) totals: BTreeMap<u32, (i64, u64)>,
    /// Address and length of the metadata, all of it touched.
    pub(crate) overhead: u64,
    pub(crate) cached: u64,
}

impl Target {
    /// Starts this test program again as a target with the fault named.
    pub(crate) fn start(fault: &str) -> Self {
        let exe = std::env::current_exe().unwrap();
        let mut child = Command::new(exe)
            .args(["--exact", "fake_target", "--ignored", "--nocapture"])
            .env("FAKE_FAULT", fault)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut totals = BTreeMap::new();
        let (mut overhead, mut cached) = (0, 0);
        for line in BufReader::new(child.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            let fields: Vec<&str> = line.split(' ').collect();
            match fields[..] {
                ["row", tag, bytes, calls] => {
                    let row = (bytes.parse().unwrap(), calls.parse().unwrap());
                    totals.insert(tag.parse().unwrap(), row);
                }
                ["sums", o, c] => (overhead, cached) = (o.parse().unwrap(), c.parse().unwrap()),
                ["ready"] => break,
                _ => {}
            }
        }
        Self { child, totals, overhead, cached }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of the target, at an address that stays.
fn map(len: usize, fd: i32) -> usize {
    let flags = libc::MAP_PRIVATE | if fd < 0 { libc::MAP_ANONYMOUS } else { 0 };
    // SAFETY: asks for a new mapping anywhere.
    let at = unsafe {
        libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0)
    };
    assert_ne!(at, libc::MAP_FAILED);
    at as usize
}

fn memfd(len: usize) -> i32 {
    // SAFETY: the name is a C string; the other calls take no pointers.
    unsafe {
        let fd = libc::memfd_create(c"kmem-root".as_ptr(), 0);
        assert!(fd >= 0 && libc::ftruncate(fd, len as libc::off_t) == 0);
        fd
    }
}

fn put<T: Copy>(at: usize, value: T) {
    // SAFETY: callers write within mappings that this module made and never unmaps.
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

/// Where the parts are.
struct Layout {
    root: usize,
    zone: usize,
    chunk_class: usize,
    page_ext: usize,
    page_len: usize,
    rows: usize,
    dirty: usize,
    credit: usize,
    peak: usize,
}

/// The body of the target process.
pub(crate) fn target() {
    // The test harness may have begun a line of its own.
    println!();
    // What is touched and what is not is told by pages.
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    let fault = std::env::var("FAKE_FAULT").unwrap_or_default();
    if fault == "none-mapped" {
        return ready_and_wait();
    }
    let mut totals: BTreeMap<u32, (i64, u64)> = BTreeMap::new();
    let mut random = Random(42);
    let root_file = if fault == "truncated" { 0 } else { 4096 };
    let root = map(4096, memfd(root_file));
    if fault == "truncated" {
        return ready_and_wait();
    }
    // One region of metadata for all tables.
    let meta_len = 15 << 20;
    let meta = map(meta_len, -1);
    let mut next = meta;
    let mut carve = |len: usize| {
        let at = next;
        next += len.next_multiple_of(4096);
        assert!(next <= meta + meta_len);
        at
    };
    let classes = carve(5 * size_of::<ClassGeometry>());
    let zones = carve(MAX_ZONES * size_of::<ZoneBlock>());
    let site_table = carve(SITE_CAPACITY as usize * size_of::<Site>());
    let texts = carve(sites::TEXTS_ROOM);
    let cache = carve(CACHE_LEN);
    let peak = carve(size_of::<PeakTable>() + SITE_CAPACITY as usize * size_of::<PeakEntry>());
    let group_table = carve(groups::ROOM);
    let zone_meta = next;
    let mut carve = |len: usize| {
        let at = next;
        next += len.next_multiple_of(4096);
        assert!(next <= meta + meta_len);
        at
    };
    let at = Layout {
        root,
        zone: map((ZONE_PAGES << 12) + (2 << 20), -1).next_multiple_of(2 << 20),
        chunk_class: carve(ZONE_PAGES / 16),
        page_ext: carve(ZONE_PAGES * 4),
        page_len: carve(ZONE_PAGES * 4),
        rows: carve(ZONE_PAGES / 8),
        dirty: carve(ZONE_PAGES / 8),
        credit: carve(ZONE_PAGES.div_ceil(512) * 2),
        peak,
    };
    for page in (meta..next).step_by(4096) {
        put(page, 0_u8);
    }
    for word in (cache..cache + CACHE_LEN).step_by(8) {
        put(word, word as u64);
    }
    for (i, size) in SIZES.iter().enumerate() {
        put(classes + (i + 1) * size_of::<ClassGeometry>(), geometry(*size));
    }
    let mut overhead = (next - meta) as u64;
    let mut cached = 0;
    let count = |totals: &mut BTreeMap<u32, (i64, u64)>, tag: u32, bytes: u32| {
        let row = totals.entry(tag).or_default();
        row.0 += i64::from(bytes);
        row.1 += 1;
    };
    let mut used = vec![false; ZONE_PAGES];
    let committed = ZONE_PAGES - 7;
    let mut chunk = 0;
    while chunk + 2 < committed / 16 {
        let class = random.below(6) as usize;
        if class == 0 || class > SIZES.len() {
            page_allocations(&at, chunk, class == 0, &mut used, &mut random, |tag, bytes| {
                count(&mut totals, tag, bytes);
            });
            chunk += 1;
            continue;
        }
        let g = geometry(SIZES[class - 1]);
        let chunks = (g.slab_mask as usize + 1) / CHUNK;
        if chunk % chunks != 0 {
            chunk += 1;
            continue;
        }
        let slab = at.zone + chunk * CHUNK;
        for i in 0..chunks {
            // The bit above the class is the owner's own.
            put(at.chunk_class + chunk + i, class as u8 | (random.below(2) as u8) << 7);
            used[(chunk + i) * 16..(chunk + i + 1) * 16].fill(true);
        }
        let mut live = 0;
        for object in 0..g.objects {
            let tag = random_tag(&mut random);
            let word = tag | random_objcg(&mut random) << OBJCG_SHIFT;
            let is_live = random.below(3) != 0;
            put(
                slab + g.ext_of(object * g.size) as usize,
                if is_live { word | EXT_LIVE } else { word },
            );
            if is_live {
                count(&mut totals, tag, g.size);
                live += u64::from(g.size);
            }
        }
        cached += u64::from(g.limit) - live;
        overhead += u64::from(g.slab_mask) + 1 - u64::from(g.limit);
        chunk += chunks;
    }
    for page in (0..committed).filter(|&page| !used[page]) {
        set_bit(at.rows, page);
        if page % 3 == 0 {
            set_bit(at.dirty, page);
            cached += 4096;
        }
    }
    let zone = ZoneBlock {
        base: at.zone as u64,
        pages: ZONE_PAGES as u64,
        committed: (committed as u64).into(),
        chunk_class: at.chunk_class as u64,
        page_ext: at.page_ext as u64,
        page_len: at.page_len as u64,
        rows: at.rows as u64,
        dirty: at.dirty as u64,
        credit: at.credit as u64,
        purpose: zone_purpose::HEAP,
        node: 0,
        meta_base: zone_meta as u64,
        meta_len: (meta + meta_len - zone_meta) as u64,
    };
    let block = RootBlock {
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
        classes: classes as u64,
        zones: zones as u64,
        sites: site_table as u64,
        peak: peak as u64,
        meta_base: meta as u64,
        meta_len: (zone_meta - meta) as u64,
        zone_count: 1.into(),
        site_count: SITES.into(),
        profiling: profiling::ON.into(),
        used_pages: (used.iter().filter(|&&u| u).count() as u32).into(),
        texts: 0,
        texts_len: 0.into(),
        cache: cache as u64,
        cache_len: CACHE_LEN as u64,
        depth: 0.into(),
        deep_depth: 0.into(),
        deep_tag: 0.into(),
        group_capacity: 0,
        groups: 0,
        group_count: 0.into(),
        group_size: 0,
    };
    write_peak(&at, &totals);
    // SAFETY: all places lie in mappings of this process that are large enough and aligned.
    let (block, zone) = unsafe {
        (root as *mut RootBlock).write(block);
        (zones as *mut ZoneBlock).write(zone);
        (&mut *(root as *mut RootBlock), &mut *(zones as *mut ZoneBlock))
    };
    sites::write(block, texts, &fault);
    groups::write(block, group_table, &fault);
    break_it(&fault, block, zone, &at, classes);
    if fault == "magic" {
        block.magic.store(7, Release);
    } else if fault != "starting" {
        block.magic.store(MAGIC, Release);
    }
    if fault == "copies" {
        let copy = map(4096, memfd(4096));
        // SAFETY: both are mappings of one page.
        unsafe { std::ptr::copy_nonoverlapping(root as *const u8, copy as *mut u8, 4096) };
    }
    for (tag, (bytes, calls)) in &totals {
        println!("row {tag} {bytes} {calls}");
    }
    println!("sums {overhead} {cached}");
    if fault == "group-churn" {
        groups::churn(group_table);
    }
    if fault == "churn" {
        churn(&at);
    }
    ready_and_wait();
}

/// Reserved tags, sites, and free objects that remember a tag.
fn random_tag(random: &mut Random) -> u32 {
    match random.below(20) {
        0 => 1,
        1 => 2,
        _ => TAG_FIRST_SITE + random.below(u64::from(SITES - TAG_FIRST_SITE)) as u32,
    }
}

/// Mostly of groups that there are.
fn random_objcg(random: &mut Random) -> u32 {
    let most = if random.below(8) == 0 { 1 << 14 } else { groups::COUNT };
    random.below(u64::from(most)) as u32
}

fn set_bit(table: usize, page: usize) {
    // SAFETY: the table has a bit for every page of the zone.
    unsafe { *((table + page / 8) as *mut u8) |= 1 << (page % 8) }
}

/// Fills one chunk with page allocations, or one allocation that begins in it and is longer.
fn page_allocations(
    at: &Layout,
    chunk: usize,
    empty: bool,
    used: &mut [bool],
    random: &mut Random,
    mut count: impl FnMut(u32, u32),
) {
    let mut page = chunk * 16;
    while !empty && page < (chunk + 1) * 16 {
        let len = (1 + random.below(5) as usize).min((chunk + 1) * 16 - page);
        if random.below(4) != 0 {
            let tag = random_tag(random);
            put(at.page_len + page * 4, len as u32);
            // For pages the length decides, whatever the live bit says.
            let word = tag | random_objcg(random) << OBJCG_SHIFT;
            put(at.page_ext + page * 4, word | (EXT_LIVE * random.below(2) as u32));
            used[page..page + len].fill(true);
            count(tag, len as u32 * 4096);
        } else {
            // A free page that remembers its last owner.
            put(at.page_ext + page * 4, random_tag(random));
        }
        page += len;
    }
}

/// Twice what lives now.
fn write_peak(at: &Layout, totals: &BTreeMap<u32, (i64, u64)>) {
    put(at.peak, 4_u64);
    put(at.peak + 8, 12345_u64);
    put(at.peak + 16, u64::from(SITES));
    for (tag, (bytes, calls)) in totals {
        let entry = at.peak + size_of::<PeakTable>() + *tag as usize * size_of::<PeakEntry>();
        put(entry, bytes * 2);
        put(entry + 8, calls * 2);
    }
}

fn break_it(fault: &str, root: &mut RootBlock, zone: &mut ZoneBlock, at: &Layout, classes: usize) {
    let class1 = classes + size_of::<ClassGeometry>();
    match fault {
        "version" => root.version += 1,
        "size" => root.size = 64,
        "larger-size" => root.size += 8,
        "tag_bits" => root.tag_bits = 18,
        "class_count" => root.class_count = u32::MAX,
        "class_size" => root.class_size = 4,
        "classes-outside" => root.classes = 0x10,
        "classes-wrap" => root.classes = u64::MAX - 8,
        "class-mask" => put(class1 + std::mem::offset_of!(ClassGeometry, slab_mask), 12345_u32),
        "class-ext" => {
            put(class1 + std::mem::offset_of!(ClassGeometry, ext_offset), 0xffff_fff0_u32)
        }
        "class-objects" => put(class1 + std::mem::offset_of!(ClassGeometry, objects), u32::MAX),
        "zone_count" => root.zone_count.store(u32::MAX, Relaxed),
        "zone-overlap" => {
            root.zone_count.store(2, Relaxed);
            // SAFETY: the table has room for MAX_ZONES.
            unsafe { std::ptr::copy_nonoverlapping(zone, std::ptr::from_mut(zone).add(1), 1) };
        }
        "zone-wrap" => zone.pages = 1 << 61,
        "zone-base" => zone.base += 4096,
        "committed" => zone.committed.store(1 << 40, Relaxed),
        "page_len-outside" => zone.page_len = at.root as u64,
        "site_count" => root.site_count.store(u32::MAX, Relaxed),
        "site_capacity" => root.site_capacity = u32::MAX,
        "cache-outside" => root.cache = 1 << 60,
        "cache-none" => root.cache = 0,
        "cache-wrap" => root.cache = u64::MAX - 7,
        "cache-length" => root.cache_len = 12,
        "cache-long" => root.cache_len = (1 << 20) + 8,
        "cache-unaligned" => root.cache += 4,
        "cache-read-only" => {
            // SAFETY: the cache is whole pages of its own.
            let result = unsafe {
                libc::mprotect(root.cache as *mut libc::c_void, CACHE_LEN, libc::PROT_READ)
            };
            assert_eq!(result, 0);
        }
        "sites-outside" => root.sites = 1 << 60,
        "peak-outside" => root.peak = 1 << 60,
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

/// Changes classes, words and lengths for ever, as fast as it can.
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
