//! The root block, by which a reader outside the process finds the books.
//!
//! A private mapping of a memfd called [`MAPPING_NAME`] has one [`RootBlock`] at its start. Where
//! there can be no memfd, as under a limit for files, the mapping is one of [`ZERO_FILE`] at
//! [`ZERO_OFFSET`]. So `/proc/PID/maps` (or a core file's NT_FILE note) shows its address. It has
//! the addresses of everything else: zones, size classes, sites, the peak table. The fields marked
//! *live* change while the process runs; all others are written before `magic`.
//!
//! A reader trusts nothing here: it checks every address and count against the process's own
//! mappings before it uses them.

use crate::atomic::{AtomicU32, AtomicU64};
use crate::group::GroupRequest;

/// First word of a root block: `kmemroot` in ASCII, stored last, with release order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"kmemroot");
/// Layout version; a reader refuses any other.
pub const VERSION: u32 = 10;
/// Name of the memfd behind the root block, as `/memfd:<name> (deleted)` in `/proc/PID/maps`.
pub const MAPPING_NAME: &str = "kmem-root";
/// The device whose private mappings are zeroes, and have its name. The C string for `open`.
pub const ZERO_FILE: &core::ffi::CStr = c"/dev/zero";
/// Offset of the mapping of [`ZERO_FILE`] with a root block, `kmem` in ASCII; others have another.
pub const ZERO_OFFSET: u64 = 0x6b6d_656d << 16;

/// Returns whether a mapping of a file at an offset begins with a root block, by their names.
/// `path` has no ` (deleted)` at its end.
#[must_use]
pub fn is_root(path: &str, offset: u64) -> bool {
    match path.strip_prefix("/memfd:") {
        Some(name) => name == MAPPING_NAME && offset == 0,
        None => path.as_bytes() == ZERO_FILE.to_bytes() && offset == ZERO_OFFSET,
    }
}

/// Most zones of an instance.
pub const MAX_ZONES: usize = 256;

/// Values of [`RootBlock::profiling`].
pub mod profiling {
    /// Objects get the tag [`crate::word::TAG_UNTAGGED`].
    pub const OFF: u32 = 0;
    /// Objects get the tag of their call site.
    pub const ON: u32 = 1;
    /// There are no extension words, and the switch has no effect.
    pub const NEVER: u32 = 2;
}

/// The root block. All addresses are those of the process that it describes.
#[repr(C, align(64))]
pub struct RootBlock {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: u32,
    /// `size_of::<RootBlock>()`.
    pub size: u32,
    /// log2 of a page, in bytes (12).
    pub page_shift: u32,
    /// log2 of a chunk, the unit of [`ZoneBlock::chunk_class`], in bytes (16).
    pub chunk_shift: u32,
    /// [`crate::word::TAG_BITS`].
    pub tag_bits: u32,
    /// Number of entries at `classes`. Entry 0 is unused: class 0 is that of page allocations.
    pub class_count: u32,
    /// `size_of::<ClassGeometry>()`.
    pub class_size: u32,
    /// `size_of::<ZoneBlock>()`.
    pub zone_size: u32,
    /// `size_of::<Site>()`.
    pub site_size: u32,
    /// Room at `sites`, in entries.
    pub site_capacity: u32,
    /// Address of `[ClassGeometry; class_count]`, by size. The last class may have smaller objects
    /// than the one before: it serves requests of no bytes, and they cannot be read or written.
    pub classes: u64,
    /// Address of `[ZoneBlock; MAX_ZONES]`.
    pub zones: u64,
    /// Address of `[Site; site_capacity]`, indexed by tag.
    pub sites: u64,
    /// Address of a [`crate::site::PeakTable`].
    pub peak: u64,
    /// Metadata outside any zone: start address.
    pub meta_base: u64,
    /// Metadata outside any zone: length in bytes.
    pub meta_len: u64,
    /// *Live.* Number of zones in use. Zones are added, never removed.
    pub zone_count: AtomicU32,
    /// *Live.* Number of sites in use: tags below this may be looked up.
    pub site_count: AtomicU32,
    /// *Live, writable from outside.* The switch; see [`profiling`].
    pub profiling: AtomicU32,
    /// *Live.* Pages handed out by all zones (slabs and page allocations).
    pub used_pages: AtomicU32,
    /// Address of the memory that [`crate::site::Site::data`] points into; 0: there is none.
    pub texts: u64,
    /// *Live.* Bytes at `texts` that may be read.
    pub texts_len: AtomicU64,
    /// Address of the caches of call sites: `[u64; cache_len / 8]`. A reader outside that changed
    /// one of the words below fills them with zeroes. Then the next call from every site reads the
    /// words.
    pub cache: u64,
    /// Length of the caches in bytes.
    pub cache_len: u64,
    /// *Live, writable from outside.* Number of return addresses by which sites are told apart; 0
    /// means 1. At most [`crate::site::MAX_DEPTH`].
    pub depth: AtomicU32,
    /// *Live, writable from outside.* Depth for the one site `deep_tag`, as in `depth`.
    pub deep_depth: AtomicU32,
    /// *Live, writable from outside.* A tag of kind [`crate::site::site_kind::CALLER`] or
    /// [`crate::site::site_kind::CHAIN`] whose calls are told apart by `deep_depth` return
    /// addresses, not counting those of wrappers; 0: none.
    pub deep_tag: AtomicU32,
    /// Room at `groups`, in entries.
    pub group_capacity: u32,
    /// Address of `[GroupBlock; group_capacity]`, indexed by objcg id; entry 0 is the root.
    pub groups: u64,
    /// *Live.* Ids of groups that were ever in use are below this.
    pub group_count: AtomicU32,
    /// `size_of::<GroupBlock>()`.
    pub group_size: u32,
    /// *Live.* Address of a [`crate::mapping::MappingTable`]; 0: there is none.
    pub mappings: AtomicU64,
    /// Address of `[OwnRange; own_capacity]`: all that kmem mapped; 0: it is not known.
    pub own: u64,
    /// Room at `own`, in entries.
    pub own_capacity: u32,
    /// Number of records in the table at `mappings`.
    pub mapping_capacity: AtomicU32,
    /// Address of `[u64; slab_cache_capacity]`, the addresses of [`crate::cache::CacheBlock`]s; an
    /// entry is 0 while no cache has its number.
    pub slab_caches: u64,
    /// Room at `slab_caches`, in entries.
    pub slab_cache_capacity: u32,
    /// 1 if records have the caches of their objects.
    pub records_caches: u32,
    /// *Live, writable from outside.* A group to make or to delete.
    pub request: GroupRequest,
    /// Number of the vector behind a slab's objects that has their times, see [`crate::time`]; 0:
    /// there are no times.
    pub time_vector: u32,
    /// *Live.* The newest time.
    pub newest_time: AtomicU32,
    /// Milliseconds of `CLOCK_MONOTONIC` at the start, from which times count.
    pub started_ms: u64,
}

/// One zone: a range of pages under one set of tables.
#[repr(C)]
pub struct ZoneBlock {
    /// Address of the zone's first page; a multiple of 2 MiB.
    pub base: u64,
    /// Pages of address space that the zone spans; 0: the entry is not filled in yet, skip it.
    pub pages: u64,
    /// *Live.* Pages from `base` on that are readable and writable. Tables are valid up to here.
    pub committed: AtomicU64,
    /// Address of `[u8; pages / 16]`: the size class of each 64 KiB chunk, 0 for pages.
    pub chunk_class: u64,
    /// Address of `[u32; pages]`: extension word of each page allocation, at its first page. 0: its
    /// pages have none.
    pub page_ext: u64,
    /// Address of `[u32; pages]`: length word of each page allocation, at its first page;
    /// see [`crate::length`].
    pub page_len: u64,
    /// Address of `[u64; pages / 64]`: a 1 bit is a free page; but see `credit`.
    pub rows: u64,
    /// Address of `[u64; pages / 64]`: a 1 bit is a page that may hold old contents.
    pub dirty: u64,
    /// Address of the zone's metadata.
    pub meta_base: u64,
    /// Length of the zone's metadata, in bytes; most of it is never touched.
    pub meta_len: u64,
    /// Address of `[u16; pages / 512]`: the credit of each 2 MiB pageblock. 0xFFFF: it is taken as
    /// a whole, and its bits in `rows` mean nothing.
    pub credit: u64,
    /// Kind of its allocations; see [`zone_purpose`].
    pub purpose: u32,
    /// Number of the node that its memory comes from.
    pub node: u32,
    /// Address of `[u32; pages]`: time of each page allocation, at its first page, see
    /// [`crate::time`]. 0: its pages have none.
    pub page_time: u64,
}

/// Values of [`ZoneBlock::purpose`].
pub mod zone_purpose {
    /// Objects and pages.
    pub const HEAP: u32 = 0;
    /// Handles of per-CPU objects, with one copy each.
    pub const PERCPU: u32 = 1;
    /// Areas of vmalloc.
    pub const VMALLOC: u32 = 2;
    /// Pages that can be mapped a second time.
    pub const SHARED: u32 = 3;
}

// A model checker's atomics are larger.
#[cfg(not(loom))]
const _: () = assert!(size_of::<RootBlock>() <= 4096);
