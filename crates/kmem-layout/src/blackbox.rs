//! The black box: a shared file that can be read after the process has ended in any way.
//!
//! ```text
//! 0            BoxHeader
//! sites        [BoxSite; site_capacity]    by tag; written once, when the site is first used
//! records[n]   BoxRecord, [BoxRow; BOX_ROWS], [BoxMapping; BOX_MAPPINGS], text of /proc/self/maps
//! groups[n]    [BoxGroup; group_capacity] of record n, by id
//! files        [BoxFile; file_capacity], then, on a page, [[u8; BOX_PAGE]; file_capacity]
//! counters     [[Counter; site_capacity]; cpus]   with `cumulative`: calls and bytes since start
//! ```
//!
//! | records  | of                                                                            |
//! |----------|-------------------------------------------------------------------------------|
//! | 0 and 1  | peaks, in turn: one of them is always complete                                |
//! | 2 and 3  | other moments, in turn                                                        |
//! | 4        | the start of a forked child: what it inherited                                |
//!
//! `KMEM_CONF=blackbox:PATH` makes it, `cumulative:1` adds the counters. The file gets its name
//! when its header is written. The process locks its open file description (`F_OFD_SETLK`) as long
//! as it lives. The file is sparse. Everything is little endian, at multiples of 8. Addresses are
//! those of the process that wrote it. A reader trusts nothing here.

use crate::atomic::{AtomicU32, AtomicU64};
use crate::group::GroupBlock;
use crate::site::{MAX_DEPTH, Text};

/// First word of the file: `kmem box` in ASCII.
pub const MAGIC: u64 = u64::from_le_bytes(*b"kmem box");
/// Layout version; a reader refuses any other.
pub const VERSION: u32 = 5;
/// Number of places for records.
pub const BOX_RECORDS: usize = 5;
/// Places of records whose reason is [`reason::PEAK`].
pub const PEAK_RECORDS: [usize; 2] = [0, 1];
/// Places of records with other reasons.
pub const LAST_RECORDS: [usize; 2] = [2, 3];
/// Place of the record whose reason is [`reason::FORK`].
pub const FORK_RECORD: usize = 4;
/// A record of a peak is due when memory exceeds the last one by one in this many parts. It must
/// also exceed that by [`crate::site::PEAK_PAGES`].
pub const PEAK_PART: u64 = 32;
/// The same, where the program maps memory. A peak is lost only when it unmaps memory.
pub const MAPPED_PART: u64 = 8;
/// Most sites in a record.
pub const BOX_ROWS: usize = 1024;
/// Most calls in a record that mapped memory.
pub const BOX_MAPPINGS: usize = 512;
/// Most groups in a record. Holdings of others count for their nearest ancestor that is in it.
pub const BOX_GROUPS: u32 = 4096;
/// Most call sites of refused requests in the header.
pub const BOX_REFUSALS: usize = 4;
/// Bytes for a text or for return addresses in a [`BoxSite`].
pub const BOX_TEXT: usize = MAX_DEPTH as usize * 8;
/// Bytes for the text of `/proc/self/maps` in a record.
pub const BOX_MAPS: usize = 256 << 10;
/// Most mapped files with a first page in the box.
pub const BOX_FILES: usize = 256;
/// Bytes of a first page.
pub const BOX_PAGE: usize = 4096;
/// Bytes for the executable's path.
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
    /// Number of the process.
    pub pid: u32,
    /// Number of entries in `sites`, and in each CPU's `counters`.
    pub site_capacity: u32,
    /// `size_of::<BoxSite>()`.
    pub site_size: u32,
    /// Number of CPUs with counters; 0 without `cumulative`.
    pub cpus: u32,
    /// Start of the process in clock ticks since boot, as in `/proc/PID/stat`; 0: not known.
    pub start_ticks: u64,
    /// Inode of the namespace that `pid` is of, as in `/proc/PID/ns/pid`; 0: not known.
    pub pid_namespace: u64,
    /// Offset of the sites.
    pub sites: u64,
    /// Offsets of the records.
    pub records: [u64; BOX_RECORDS],
    /// Bytes for each record.
    pub record_size: u64,
    /// Offsets of the records' groups.
    pub groups: [u64; BOX_RECORDS],
    /// Offset of the counters.
    pub counters: u64,
    /// Start of the process in nanoseconds since 1970.
    pub started_ns: u64,
    /// *Live.* Tags below this have a [`BoxSite`].
    pub site_count: AtomicU32,
    /// *Live.* Number of records written so far, over all places.
    pub written: AtomicU32,
    /// Length of the path in `exe`, in bytes.
    pub exe_len: u32,
    /// Most groups in a record.
    pub group_capacity: u32,
    /// `size_of::<BoxGroup>()`.
    pub group_size: u32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Path of the executable.
    pub exe: [u8; BOX_EXE],
    /// *Live.* Call sites of the first refused requests. A box whose `size` ends before has none.
    pub refusals: [BoxRefusal; BOX_REFUSALS],
    /// *Live.* The misuse of memory for which the allocator ends the process. A box whose `size`
    /// ends before has none.
    pub misuse: BoxMisuse,
    /// Offset of the files that have code, and of their first pages in the same order. Such a page
    /// has the ELF header, the program headers and mostly the build id. A box whose `size` ends
    /// before has no files.
    pub files: u64,
    /// Most files.
    pub file_capacity: u32,
    /// Reserved, zero.
    pub reserved_too: u32,
}

impl BoxHeader {
    /// Bytes from [`BoxHeader::files`] to the first page.
    #[must_use]
    pub const fn file_entries(capacity: u32) -> usize {
        (capacity as usize * size_of::<BoxFile>()).next_multiple_of(BOX_PAGE)
    }
}

/// A mapped file with code.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoxFile {
    /// Address at which its first page is mapped; 0: the entry is unused. Written last.
    pub start: u64,
    /// Its inode number.
    pub inode: u64,
}

/// Requests of one call site that were refused for one reason.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoxRefusal {
    /// Tag of the site.
    pub tag: u32,
    /// Number of the group that was at its limit; 0: there was no memory.
    pub group: u32,
    /// Number of requests; 0: the entry is unused. Between two records it is the last power of two.
    pub count: u64,
    /// Bytes of the last one.
    pub bytes: u64,
}

/// The call that misused memory, or found that memory was misused.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoxMisuse {
    /// Tag of its chain of callers, which begins in the allocator; 0: there was no misuse.
    pub tag: u32,
    /// 1: this call is the wrong one. 0: an earlier one may be.
    pub is_here: u32,
}

/// The site that a tag stands for.
#[repr(C)]
pub struct BoxSite {
    /// See [`crate::site::site_kind`]; 0: unused. Written last.
    pub kind: AtomicU32,
    /// Number of return addresses in `text`, for a chain.
    pub count: u32,
    /// Return address, for a caller; the innermost one, for a chain.
    pub addr: u64,
    /// Line and lengths of the names in `text`, for a static tag. For a chain the line is
    /// [`crate::site::Site::skip`].
    pub tag: Text,
    /// For a static tag module, file and function, cut to the room; a file's name is cut in front.
    /// For a chain the return addresses.
    pub text: [u8; BOX_TEXT],
}

/// Reasons to write a record: values of [`BoxRecord::reason`].
pub mod reason {
    /// Use was 3 % above the last record, mapped memory of the program included.
    pub const PEAK: u32 = 1;
    /// An allocation failed.
    pub const OUT_OF_MEMORY: u32 = 2;
    /// The program exited normally.
    pub const EXIT: u32 = 3;
    /// Memory was allocated, and the last record was older than its bound.
    pub const TIME: u32 = 4;
    /// A process was forked. The record has what it inherited.
    pub const FORK: u32 = 5;
    /// The program misused memory, and the allocator ends it.
    pub const MISUSE: u32 = 6;
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
    /// Number of rows in use.
    pub rows: u32,
    /// Live bytes of all sites.
    pub bytes: u64,
    /// Live allocations of all sites.
    pub calls: u64,
    /// Bytes of the pages in use.
    pub used: u64,
    /// Length of the mappings' text behind the rows, in bytes.
    pub maps_len: u64,
    /// Number of entries in the table of groups.
    pub groups: u32,
    /// Number of groups in use that have no entry there.
    pub groups_beyond: u32,
    /// Return address of the call that allocated the memory that was misused; 0: none is known.
    pub misused: u64,
    /// Bytes of address space that the program itself had mapped.
    pub mapped: u64,
    /// Bytes of it that were in memory, as far as they were counted.
    pub mapped_resident: u64,
    /// Bytes of it of which it is not known whether they were in memory.
    pub mapped_uncounted: u64,
    /// Number of mappings that have no name because the table of them was full.
    pub mapped_lost: u64,
    /// Number of entries in the table of mappings.
    pub mapping_rows: u32,
    /// Pages of the process in memory; 0: not known.
    pub resident_pages: u32,
    // Followed by `[BoxRow; BOX_ROWS]`, `[BoxMapping; BOX_MAPPINGS]` and `[u8; BOX_MAPS]`.
}

/// One site in a record. The site with most bytes comes first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoxRow {
    /// Tag of the site.
    pub tag: u32,
    /// Reserved, zero.
    pub reserved: u32,
    /// Live bytes.
    pub bytes: u64,
    /// Live allocations.
    pub calls: u64,
}

/// Memory that one call of the program mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoxMapping {
    /// The call, as in [`crate::mapping::MappingRecord::site`].
    pub site: u64,
    /// Bytes of address space.
    pub mapped: u64,
    /// Bytes of it that were in memory, as far as they were counted.
    pub resident: u64,
    /// Number of ranges.
    pub ranges: u32,
    /// Reserved, zero.
    pub reserved: u32,
}

/// A group in a record. Its index is its id.
#[repr(C)]
pub struct BoxGroup {
    /// Copy of its entry in the table of groups, without its shrinkers and its descriptor.
    pub block: GroupBlock,
    /// Its own live allocations.
    pub held: BoxHeld,
}

/// Live allocations of a group by kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BoxHeld {
    /// Number of all allocations.
    pub objects: u64,
    /// Bytes of objects of slabs.
    pub slab: u64,
    /// Bytes of pages of the heap.
    pub pages: u64,
    /// Bytes of areas of vmalloc.
    pub vmalloc: u64,
    /// Bytes of per-CPU objects, one copy of each.
    pub percpu: u64,
    /// Bytes that are charged for their metadata.
    pub metadata: u64,
}

/// Counts of a CPU for a tag since the process started. Sums over CPUs are exact. A free counts on
/// the CPU that makes it, so the difference on one CPU means nothing.
#[repr(C)]
pub struct Counter {
    /// Number of allocations.
    pub calls: AtomicU64,
    /// Bytes allocated.
    pub bytes: AtomicU64,
    /// Number of frees.
    pub frees: AtomicU64,
    /// Bytes freed.
    pub freed: AtomicU64,
}

/// Offset of the table of mappings in a record.
pub const MAPPINGS_AT: usize = size_of::<BoxRecord>() + BOX_ROWS * size_of::<BoxRow>();
/// Offset of the mappings' text in a record.
pub const MAPS_AT: usize = MAPPINGS_AT + BOX_MAPPINGS * size_of::<BoxMapping>();
/// Bytes of a record with its rows and its mappings.
pub const RECORD_SIZE: usize = (MAPS_AT + BOX_MAPS).next_multiple_of(4096);

const _: () = assert!(size_of::<BoxHeader>() <= 4096);
const _: () = assert!(size_of::<BoxSite>() == 288);
const _: () = assert!(size_of::<Counter>() == 32);
const _: () = assert!(size_of::<BoxMapping>() == 32);
// A writer sorts the tags in the room for the mappings before it writes those.
const _: () = assert!(BOX_ROWS * size_of::<u32>() <= BOX_MAPS);
