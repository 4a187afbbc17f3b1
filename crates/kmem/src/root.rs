//! The root block: what a reader outside the process needs to find the books.
//!
//! A private mapping of a memfd called [`MAPPING_NAME`] holds one [`RootBlock`] at its
//! start, so `/proc/PID/maps` (or a core file's NT_FILE note) shows where it is. From there
//! everything is reached by address: zones, size classes, sites, the peak table. The fields
//! marked *live* change while the process runs; all others are written before `magic`.
//!
//! Nothing here is trusted by a reader: every address and count is checked against the
//! process's own mappings before it is used.

use crate::sync::{AtomicU8, AtomicU32, AtomicU64};

/// First word of a root block: `kmemroot` in ASCII, stored last, with release order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"kmemroot");
/// Layout version; a reader refuses any other.
pub const VERSION: u32 = 4;
/// Name of the memfd behind the root block, as `/memfd:<name> (deleted)` in `/proc/PID/maps`.
pub const MAPPING_NAME: &str = "kmem-root";
/// Most zones a root block can name.
pub const MAX_ZONES: usize = 256;

/// Values of [`RootBlock::profiling`].
pub mod profiling {
    /// Objects get the tag [`super::TAG_UNTAGGED`].
    pub const OFF: u32 = 0;
    /// Objects get the tag of their call site.
    pub const ON: u32 = 1;
    /// No object extension exists and none can be switched on.
    pub const NEVER: u32 = 2;
}

/// Width of the tag in an object-extension word, its lowest field.
pub const TAG_BITS: u32 = 17;
/// Mask of the tag in an object-extension word.
pub const TAG_MASK: u32 = (1 << TAG_BITS) - 1;
/// Set in the extension word of a live object. A free object keeps the tag of its last
/// owner without this bit, so that a double free can name it; zero is "never allocated".
pub const EXT_LIVE: u32 = 1 << TAG_BITS;
/// Lowest bit of the group's objcg id in an extension word: `tag:17 | live:1 | objcg:14`.
pub const OBJCG_SHIFT: u32 = TAG_BITS + 1;
/// The class in a byte of [`ZoneBlock::chunk_class`]; the bit above is the owner's own.
pub const CHUNK_CLASS_MASK: u8 = 0x7f;
/// No tag.
pub const TAG_NONE: u32 = 0;
/// Allocated while profiling was switched off.
pub const TAG_UNTAGGED: u32 = 1;
/// Allocated from a call site that found the site table full.
pub const TAG_OTHER: u32 = 2;
/// First tag that stands for a call site; smaller ones are reserved.
pub const TAG_FIRST_SITE: u32 = 8;

/// The root block. All addresses are of the process it describes.
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
    /// [`TAG_BITS`].
    pub tag_bits: u32,
    /// Number of entries at `classes`; entry 0 stands for page allocations and is unused.
    pub class_count: u32,
    /// `size_of::<ClassGeometry>()`.
    pub class_size: u32,
    /// `size_of::<ZoneBlock>()`.
    pub zone_size: u32,
    /// `size_of::<Site>()`.
    pub site_size: u32,
    /// Room at `sites`, in entries.
    pub site_capacity: u32,
    /// Address of `[ClassGeometry; class_count]`.
    pub classes: u64,
    /// Address of `[ZoneBlock; MAX_ZONES]`.
    pub zones: u64,
    /// Address of `[Site; site_capacity]`, indexed by tag.
    pub sites: u64,
    /// Address of [`PeakTable`].
    pub peak: u64,
    /// Metadata outside any zone: start address.
    pub meta_base: u64,
    /// Metadata outside any zone: length in bytes.
    pub meta_len: u64,
    /// *Live.* Zones in use; zones are only ever added.
    pub zone_count: AtomicU32,
    /// *Live.* Sites in use: tags below this may be looked up.
    pub site_count: AtomicU32,
    /// *Live, writable from outside.* The switch: see [`profiling`].
    pub profiling: AtomicU32,
    /// *Live.* Pages handed out by all zones (slabs and page allocations).
    pub used_pages: AtomicU32,
    /// Address of the memory that [`Site::data`] points into; 0: there is none.
    pub texts: u64,
    /// *Live.* Bytes at `texts` that may be read.
    pub texts_len: AtomicU64,
    /// Address of the cache of call sites: `[u64; cache_len / 8]`. Somebody outside who changed
    /// one of the words below fills it with zeroes, which makes the next call from every site
    /// look at them.
    pub cache: u64,
    /// Length of the cache in bytes.
    pub cache_len: u64,
    /// *Live, writable from outside.* Callers that are told apart: return addresses per site,
    /// 0 and 1 are one. At most [`MAX_DEPTH`].
    pub depth: AtomicU32,
    /// *Live, writable from outside.* The same for the one site `deep_tag`.
    pub deep_depth: AtomicU32,
    /// *Live, writable from outside.* A tag of kind [`site_kind::CALLER`] whose callers are told
    /// apart to `deep_depth`; 0: none.
    pub deep_tag: AtomicU32,
    /// Room at `groups`, in entries.
    pub group_capacity: u32,
    /// Address of `[GroupBlock; group_capacity]`, indexed by objcg id; entry 0 is the root.
    pub groups: u64,
    /// *Live.* Groups whose ids are below this were in use at some time.
    pub group_count: AtomicU32,
    /// `size_of::<GroupBlock>()`.
    pub group_size: u32,
}

/// Most return addresses of a site.
pub const MAX_DEPTH: u32 = 32;

/// Longest name of a group, in bytes.
#[cfg(not(loom))]
pub const MAX_GROUP_NAME: usize = 255;
/// Every byte is an atomic that a model checker keeps account of.
#[cfg(loom)]
pub const MAX_GROUP_NAME: usize = 1;
/// Most groups on the way from a group to the root, both included.
pub const MAX_GROUP_DEPTH: u32 = 32;
/// Value of a group's limits where there is none.
pub const NO_LIMIT: u64 = u64::MAX;
/// What the metadata of an object, or of a page, is charged as, in bytes: its extension word.
pub const CHARGED_METADATA: u64 = 4;

/// Values of [`GroupBlock::state`] in its lowest bits; the rest is the generation of the id.
pub mod group_state {
    /// Nobody's.
    pub const FREE: u32 = 0;
    /// In use.
    pub const LIVE: u32 = 1;
    /// Deleted; something is still charged to it, in effect to its nearest living ancestor.
    pub const DYING: u32 = 2;
    /// Bits of a state.
    pub const BITS: u32 = 2;
    /// All of them.
    pub const MASK: u32 = (1 << BITS) - 1;
}

/// Events of a group, by index into [`GroupBlock::events`]; named as in cgroup v2's `memory.events`.
pub mod group_event {
    /// Its shrinkers had to be called although it holds less than its `low`.
    pub const LOW: usize = 0;
    /// It was above its `high`, and its shrinkers were called.
    pub const HIGH: usize = 1;
    /// It was about to go above its `max`.
    pub const MAX: usize = 2;
    /// A request was refused, or went above `max` because it could not be.
    pub const OOM: usize = 3;
    /// How many.
    pub const COUNT: usize = 4;
    /// Their names.
    pub const NAMES: [&str; COUNT] = ["low", "high", "max", "oom"];
}

/// A group of allocations.
#[repr(C, align(64))]
pub struct GroupBlock {
    /// *Live.* `generation << 2 | state`, see [`group_state`].
    pub state: AtomicU32,
    /// The id of its parent.
    pub parent: AtomicU32,
    /// *Live.* Bytes charged to it and to those below it; what CPUs have in stock included. Not kept
    /// for the root.
    pub charged: AtomicU64,
    /// *Live.* Bytes charged by its own objects, stocks and reservations. Zero proves that no word
    /// anywhere names its id.
    pub own: AtomicU64,
    /// *Live.* Of these, what is reserved without being allocated.
    pub reserved: AtomicU64,
    /// *Live.* The highest `charged` since it was last reset.
    pub peak: AtomicU64,
    /// *Live, writable from outside.* Most bytes that may be charged, or [`NO_LIMIT`].
    pub max: AtomicU64,
    /// *Live, writable from outside.* Above this its shrinkers are called, or [`NO_LIMIT`].
    pub high: AtomicU64,
    /// *Live, writable from outside.* Up to this its shrinkers are spared when an ancestor is above its
    /// limit.
    pub low: AtomicU64,
    /// *Live.* See [`group_event`].
    pub events: [AtomicU64; group_event::COUNT],
    /// *Live.* Handles, scopes and calls that need the entry to stay.
    pub pins: AtomicU32,
    /// *Live.* Groups whose parent this is, the deleted ones that are not gone included.
    pub children: AtomicU32,
    /// *Live.* 1 since a request went above `max` because it could not be refused, until it is reset.
    pub over: AtomicU32,
    /// File descriptor plus 1 of an eventfd to tell of events, 0 for none.
    pub eventfd: AtomicU32,
    /// *Live.* Of the children, those that are not deleted.
    pub living: AtomicU32,
    /// Reserved, zero.
    pub reserved_word: AtomicU32,
    /// Address of the first of its shrinkers.
    pub shrinkers: AtomicU64,
    /// Bytes of its name.
    pub name_len: AtomicU8,
    /// Its name; that of the root is empty.
    pub name: [AtomicU8; MAX_GROUP_NAME],
}

/// One zone: a range of pages under one set of tables.
#[repr(C)]
pub struct ZoneBlock {
    /// Address of the zone's first page; a multiple of 2 MiB.
    pub base: u64,
    /// Pages of address space the zone spans; 0: the entry is not filled in yet, skip it.
    pub pages: u64,
    /// *Live.* Pages from `base` that are readable and writable; tables are valid up to here.
    pub committed: AtomicU64,
    /// Address of `[u8; pages / 16]`: the size class of each 64 KiB chunk, 0 for pages.
    pub chunk_class: u64,
    /// Address of `[u32; pages]`: extension word of each page allocation, at its first page.
    pub page_ext: u64,
    /// Address of `[u32; pages]`: length in pages of each page allocation, at its first page.
    pub page_len: u64,
    /// Address of `[u64; pages / 64]`: a 1 bit is a free page, see `credit`.
    pub rows: u64,
    /// Address of `[u64; pages / 64]`: a 1 bit is a page that may hold old contents.
    pub dirty: u64,
    /// Start of the zone's metadata.
    pub meta_base: u64,
    /// Length of the zone's metadata, in bytes; most of it is never touched.
    pub meta_len: u64,
    /// Address of `[u16; pages / 512]`: the credit of each 2 MiB frame; 0xFFFF is one that is taken
    /// as a whole, whose bits in `rows` mean nothing.
    pub credit: u64,
    /// What its allocations are: see [`zone_purpose`].
    pub purpose: u32,
    /// The node its memory comes from.
    pub node: u32,
}

/// Values of [`ZoneBlock::purpose`].
pub mod zone_purpose {
    /// Objects and pages.
    pub const HEAP: u32 = 0;
    /// Per-CPU objects: handles of one copy each.
    pub const PERCPU: u32 = 1;
    /// Virtually contiguous areas.
    pub const VMALLOC: u32 = 2;
    /// Pages that can be mapped again.
    pub const SHARED: u32 = 3;
}

/// What a tag stands for.
#[repr(C)]
pub struct Site {
    /// A return address for [`site_kind::CALLER`] and [`site_kind::CHAIN`], the address of the
    /// static tag for [`site_kind::STATIC`]; 0 while the entry is unused, or when the object
    /// with the static tag was unloaded.
    pub addr: AtomicU64,
    /// See [`site_kind`]; 0 while the entry is unused. Written last.
    pub kind: AtomicU32,
    /// Return addresses at `data` for [`site_kind::CHAIN`]; else 0.
    pub count: AtomicU32,
    /// Address of a [`Text`] for [`site_kind::STATIC`], of `[u64; count]` for
    /// [`site_kind::CHAIN`]; else 0.
    pub data: AtomicU64,
    /// Reserved, zero.
    pub reserved: AtomicU64,
}

/// What a static tag says of itself; copied, so that it outlives the object it was in. Followed
/// by the bytes of module, file and function, in this order, without separators.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Line in the file.
    pub line: u32,
    /// Length of the module's name; 0 for the main program.
    pub module_len: u16,
    /// Length of the file's name.
    pub file_len: u16,
    /// Length of the function's name, or of the scope's.
    pub function_len: u16,
    /// Reserved, zero.
    pub reserved: [u16; 3],
}

/// Values of [`Site::kind`].
pub mod site_kind {
    /// The return address of a call of an allocation function.
    pub const CALLER: u32 = 1;
    /// A tag compiled into the program, or a scope.
    pub const STATIC: u32 = 2;
    /// A call and its callers: return addresses, innermost first.
    pub const CHAIN: u32 = 3;
}

/// The books as they stood at the highest use so far (within 5 %), kept when asked for
/// (`KMEM_CONF=peak:1`). A seqlock: `seq` is odd while an update is under way.
#[repr(C)]
pub struct PeakTable {
    /// *Live.* Sequence number; even and non-zero when the table is whole.
    pub seq: AtomicU64,
    /// *Live.* `used_pages` when the table was made.
    pub used_pages: AtomicU64,
    /// *Live.* Entries that follow, indexed by tag: the site count at that time.
    pub len: AtomicU64,
    /// Reserved, zero.
    pub reserved: u64,
    // Followed by `[PeakEntry; site_capacity]`.
}

/// One row of the peak table.
#[repr(C)]
pub struct PeakEntry {
    /// Live bytes.
    pub bytes: AtomicU64,
    /// Live objects.
    pub calls: AtomicU64,
}

// A model checker's atomics are larger.
#[cfg(not(loom))]
const _: () = {
    assert!(core::mem::size_of::<Site>() == 32);
    assert!(core::mem::size_of::<Text>() == 16);
    assert!(core::mem::size_of::<PeakEntry>() == 16);
    assert!(core::mem::size_of::<RootBlock>() <= 4096);
    assert!(core::mem::size_of::<GroupBlock>() == 384);
};
