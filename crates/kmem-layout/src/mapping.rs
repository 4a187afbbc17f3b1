//! The table of mappings that the program made, and the ranges of address space that are kmem's.
//!
//! The kernel knows what is mapped and which pages are in memory. The table adds only names: a
//! reader looks for the record that explains an address. A later record overrides an earlier one,
//! and a record whose range is not mapped explains nothing. A full table loses names only.

use crate::atomic::AtomicU64;
use crate::word::TAG_BITS;

/// Number of records in a table.
pub const RECORDS: usize = 4096;
/// Most records that a reader accepts.
pub const MAX_RECORDS: u32 = 1 << 16;
/// Most ranges of kmem's own that a reader accepts.
pub const MAX_OWN: u32 = 1 << 12;
/// [`MappingRecord::site`] below this is a tag, else a return address.
pub const FIRST_ADDRESS: u64 = 1 << TAG_BITS;

/// Values of [`MappingRecord::seq`] that are no sequence number.
pub mod record_state {
    /// The record is not in use.
    pub const EMPTY: u64 = 0;
    /// A thread changes the record.
    pub const BUSY: u64 = 1;
    /// First sequence number.
    pub const FIRST: u64 = 2;
}

/// The table. Zeroed memory is a valid, empty table.
#[repr(C)]
pub struct MappingTable {
    /// *Live.* Count of sequence numbers that were given out.
    pub count: AtomicU64,
    /// *Live.* Number of mappings that found the table full.
    pub lost: AtomicU64,
    /// *Live.* A 1 bit is a record in use.
    pub used: [AtomicU64; RECORDS / 64],
    /// *Live.* The records.
    pub records: [MappingRecord; RECORDS],
}

/// Memory that the program mapped, and the call that did it.
#[repr(C)]
pub struct MappingRecord {
    /// Sequence number, or a value of [`record_state`]. Written last.
    pub seq: AtomicU64,
    /// First address.
    pub start: AtomicU64,
    /// One past the last address. Addresses need not be those of pages: the first record that
    /// touches a page holds it.
    pub end: AtomicU64,
    /// Below [`FIRST_ADDRESS`] the tag of the call, else its return address.
    pub site: AtomicU64,
}

/// A range of address space that kmem reserved for itself. An entry whose end is not above its
/// start is not in use.
#[repr(C)]
pub struct OwnRange {
    /// First address.
    pub start: AtomicU64,
    /// One past the last address.
    pub end: AtomicU64,
}

impl OwnRange {
    /// An entry that is not in use.
    #[cfg(not(loom))]
    pub const fn unused() -> Self {
        Self { start: AtomicU64::new(0), end: AtomicU64::new(0) }
    }
}

// A model checker's atomics are larger.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<MappingRecord>() == 32);
    assert!(size_of::<OwnRange>() == 16);
    assert!(RECORDS as u32 <= MAX_RECORDS);
};
