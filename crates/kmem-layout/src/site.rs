//! Sites, which tags stand for; and the table of the peak, by tag.

use crate::atomic::{AtomicU32, AtomicU64};

/// Most return addresses of a site.
pub const MAX_DEPTH: u32 = 32;

/// The site that a tag stands for.
#[repr(C)]
pub struct Site {
    /// A return address for [`site_kind::CALLER`] and [`site_kind::CHAIN`], the address of the
    /// static tag for [`site_kind::STATIC`], a hash for [`site_kind::LINE`]. 0: the entry is
    /// unused, or the object with the static tag was unloaded.
    pub addr: AtomicU64,
    /// See [`site_kind`]; 0 while the entry is unused. Written last.
    pub kind: AtomicU32,
    /// Number of return addresses at `data` for [`site_kind::CHAIN`]; else 0.
    pub count: AtomicU32,
    /// Address of a [`Text`] for [`site_kind::STATIC`] and [`site_kind::LINE`], of `[u64; count]`
    /// for [`site_kind::CHAIN`]; else 0.
    pub data: AtomicU64,
    /// Number of return addresses at the start that are in allocation wrappers: see
    /// [`crate::wrapper`]. For [`site_kind::CALLER`] 1 if its callers are told apart.
    pub wrappers: AtomicU32,
    /// Number of return addresses up to the last of those that the user chose to skip. The callers
    /// behind them hold the memory, whatever names they have. For [`site_kind::CALLER`] a number of
    /// the allocator.
    pub skip: AtomicU32,
}

/// A copy of a static tag, which outlives the object that the tag was in; or the names of a line of
/// an interpreter. The module of a line is the object with the call, empty for the interpreter's.
/// The bytes of module, file and function follow, in this order, without separators.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Line in the file.
    pub line: u32,
    /// Length of the module's name in bytes; 0 for the main program.
    pub module_len: u16,
    /// Length of the file's name in bytes.
    pub file_len: u16,
    /// Length of the function's or the scope's name in bytes.
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
    /// A line of an interpreter.
    pub const LINE: u32 = 4;
}

/// Least number of pages by which a peak exceeds the last one that was written.
pub const PEAK_PAGES: u64 = 64;

/// The books at the highest use so far (within 5 % or 256 KiB), kept with `KMEM_CONF=peak:1`. A
/// seqlock: `seq` is odd while a thread writes the table.
#[repr(C)]
pub struct PeakTable {
    /// *Live.* Sequence number; even and not zero if the table is complete.
    pub seq: AtomicU64,
    /// *Live.* Pages in use when the table was written.
    pub used_pages: AtomicU64,
    /// *Live.* Number of entries that follow, indexed by tag: the count of sites at that time.
    pub len: AtomicU64,
    /// *Live.* Most pages in use so far: at least those when the table was written.
    pub highest_pages: AtomicU64,
    /// *Live.* Time of that, in milliseconds since the process started the allocator.
    pub highest_ms: AtomicU64,
    /// *Live.* Time at which the table was written, likewise.
    pub written_ms: AtomicU64,
    // Followed by `[PeakEntry; site_capacity]`.
}

/// One row of the peak table.
#[repr(C)]
pub struct PeakEntry {
    /// Live bytes.
    pub bytes: AtomicU64,
    /// Live allocations.
    pub calls: AtomicU64,
}

// A model checker's atomics are larger.
#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Site>() == 32);
    assert!(size_of::<Text>() == 16);
    assert!(size_of::<PeakEntry>() == 16);
};
