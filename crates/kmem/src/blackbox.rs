//! The black box: a shared file that can be read after the process has ended, however it ended.
//!
//! ```text
//! 0            BoxHeader
//! sites        [BoxSite; site_capacity]    by tag; written once, when the site is first seen
//! records[0]   BoxRecord, [BoxRow; rows], the text of /proc/self/maps
//! records[1]   the same: written in turn, so that one of them is always whole
//! groups[0]    [BoxGroup; group_capacity] of the first record, by id
//! groups[1]    the same of the second
//! counters     [[Counter; site_capacity]; cpus]   with `cumulative`: calls and bytes since start
//! ```
//!
//! `KMEM_CONF=blackbox:PATH` asks for it, `cumulative:1` for the counters. The file is sparse: what
//! was not written takes no room. Everything is little endian, at multiples of 8, and of the
//! process that wrote it; a reader trusts nothing.

use crate::root::{GroupBlock, MAX_DEPTH};
use crate::sync::{AtomicU32, AtomicU64};

/// First word of the file: `kmem box` in ASCII, stored last.
pub const MAGIC: u64 = u64::from_le_bytes(*b"kmem box");
/// Layout version; a reader refuses any other.
pub const VERSION: u32 = 2;
/// Sites that one record names.
pub const BOX_ROWS: usize = 1024;
/// Groups that one record names. What others hold counts for their nearest ancestor that it names.
pub const BOX_GROUPS: u32 = 4096;
/// Room for a text or for return addresses in a [`BoxSite`].
pub const BOX_TEXT: usize = MAX_DEPTH as usize * 8;
/// Room for `/proc/self/maps` in a record.
pub const BOX_MAPS: usize = 256 << 10;
/// Room for the executable's path.
pub const BOX_EXE: usize = 1024;

/// Start of the file.
#[repr(C)]
pub struct BoxHeader {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// [`VERSION`].
    pub version: u32,
    /// `size_of::<BoxHeader>()`.
    pub size: u32,
    /// The process.
    pub pid: u32,
    /// Entries in `sites`, and in each CPU's `counters`.
    pub site_capacity: u32,
    /// `size_of::<BoxSite>()`.
    pub site_size: u32,
    /// CPUs with counters; 0 without `cumulative`.
    pub cpus: u32,
    /// Offset of the sites.
    pub sites: u64,
    /// Offsets of the two records.
    pub records: [u64; 2],
    /// Room for each record in bytes.
    pub record_size: u64,
    /// Offsets of the two records' groups.
    pub groups: [u64; 2],
    /// Offset of the counters.
    pub counters: u64,
    /// Start of the process in nanoseconds since 1970.
    pub started_ns: u64,
    /// *Live.* Tags below this have a [`BoxSite`].
    pub site_count: AtomicU32,
    /// *Live.* Records written so far: number n is in `records[(n - 1) % 2]`.
    pub written: AtomicU32,
    /// Length of the path in `exe`.
    pub exe_len: u32,
    /// Groups that a record has room for.
    pub group_capacity: u32,
    /// `size_of::<BoxGroup>()`.
    pub group_size: u32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Path of the executable.
    pub exe: [u8; BOX_EXE],
}

/// What a tag stands for.
#[repr(C)]
pub struct BoxSite {
    /// See [`crate::root::site_kind`]; 0: unused. Written last.
    pub kind: AtomicU32,
    /// Return addresses in `text` for a chain.
    pub count: u32,
    /// A return address, for callers and chains.
    pub addr: u64,
    /// For a static tag its [`crate::root::Text`].
    pub tag: crate::root::Text,
    /// For a static tag module, file and function, cut to the room there is (the file's name loses
    /// its beginning); for a chain the return addresses.
    pub text: [u8; BOX_TEXT],
}

/// Why a record was written.
pub mod reason {
    /// Use was 3 % above the last record.
    pub const PEAK: u32 = 1;
    /// An allocation failed.
    pub const OUT_OF_MEMORY: u32 = 2;
    /// The program ended in its own time.
    pub const EXIT: u32 = 3;
}

/// The books at one moment.
#[repr(C)]
pub struct BoxRecord {
    /// Number of the record, from 1; 0 while it is being written. Written last.
    pub number: AtomicU64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// See [`reason`].
    pub reason: u32,
    /// Rows that follow.
    pub rows: u32,
    /// Live bytes of all sites.
    pub bytes: u64,
    /// Live objects of all sites.
    pub calls: u64,
    /// Bytes handed out by the zones.
    pub used: u64,
    /// Bytes of the mappings' text behind the rows' room.
    pub maps_len: u64,
    /// Entries of the groups' table.
    pub groups: u32,
    /// Of the groups in use, how many have no place in it.
    pub groups_beyond: u32,
    /// Reserved, zero.
    pub reserved: u64,
    // Followed by `[BoxRow; BOX_ROWS]` and `[u8; BOX_MAPS]`.
}

/// One site in a record, largest first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoxRow {
    /// The tag.
    pub tag: u32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Live bytes.
    pub bytes: u64,
    /// Live objects.
    pub calls: u64,
}

/// A group in a record, at the place of its id.
#[repr(C)]
pub struct BoxGroup {
    /// Its entry in the table of groups, without its shrinkers and its descriptor.
    pub block: GroupBlock,
    /// What its own live allocations are.
    pub held: BoxHeld,
}

/// Live allocations by kind, in bytes unless said otherwise.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoxHeld {
    /// How many; a count.
    pub objects: u64,
    /// Objects of slabs.
    pub slab: u64,
    /// Pages of the heap.
    pub pages: u64,
    /// Virtually contiguous areas.
    pub vmalloc: u64,
    /// Per-CPU objects.
    pub percpu: u64,
    /// What is charged beside these.
    pub metadata: u64,
}

/// What a CPU counted for a tag since the process started. Sums over CPUs are exact; a free is
/// counted where it happens, so the difference of one CPU means nothing.
#[repr(C)]
pub struct Counter {
    /// Allocations.
    pub calls: AtomicU64,
    /// Bytes allocated.
    pub bytes: AtomicU64,
    /// Frees.
    pub frees: AtomicU64,
    /// Bytes freed.
    pub freed: AtomicU64,
}

/// Bytes of a record with its rows and its mappings.
pub const RECORD_SIZE: usize =
    (size_of::<BoxRecord>() + BOX_ROWS * size_of::<BoxRow>() + BOX_MAPS).next_multiple_of(4096);

const _: () = assert!(size_of::<BoxHeader>() <= 4096);
const _: () = assert!(size_of::<BoxSite>() == 288);
const _: () = assert!(size_of::<Counter>() == 32);
// A writer keeps the order of the rows there before it writes the mappings.
const _: () = assert!(BOX_ROWS * size_of::<crate::units::TagId>() <= BOX_MAPS);
