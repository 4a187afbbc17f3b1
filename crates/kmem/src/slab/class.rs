//! Size classes: which object size serves a request, and how its slabs are laid out.
//!
//! 16-byte steps to 128, then eight steps per doubling, so that a request wastes at most
//! 12.5 % inside its object. A slab is a naturally aligned power of two of 64 KiB chunks:
//!
//! ```text
//! | object 0 | object 1 | .. | object n-1 |   rows: u64 x ceil(n/64)   |  ext: u32 x n  |
//! 0                                       limit                        ext_offset
//! ```

/// Largest request served from a slab, in bytes.
pub const MAX_OBJECT: usize = 32 << 10;
/// Size classes, the unused class 0 (page allocations) included.
pub const CLASS_COUNT: usize = 73;
/// log2 of a chunk: the unit in which the class of an address is known.
pub const CHUNK_SHIFT: u32 = 16;

/// A size class by number; 0 means "page allocation".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SizeClass(pub u8);

/// Layout of one size class, shared with readers through the root block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClassGeometry {
    /// ceil(2^64 / size): the high half of `offset * reciprocal` is the object's index, and
    /// the low half is below `reciprocal` exactly when `offset` is a multiple of `size`
    /// (Lemire, Kaser, Kurz: Faster remainder by direct computation, 2019).
    pub reciprocal: u64,
    /// Object size in bytes.
    pub size: u32,
    /// Slab size in bytes minus one.
    pub slab_mask: u32,
    /// Bytes of the slab that are objects: `objects * size`.
    pub limit: u32,
    /// Offset of the extension vector in the slab.
    pub ext_offset: u32,
    /// Objects in a slab.
    pub objects: u32,
    /// Most objects a CPU keeps.
    pub cap: u16,
    /// Objects moved by one refill or flush.
    pub batch: u16,
}

const _: () = assert!(core::mem::size_of::<ClassGeometry>() == 40);
