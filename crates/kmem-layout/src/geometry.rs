//! Geometry of the slabs of one size class. A slab is a naturally aligned power of two of 64 KiB
//! chunks:
//!
//! ```text
//! | object 0 | object 1 | .. | object n-1 |   rows: u64 x ceil(n/64)   |  ext: u32 x w  |
//! 0                                       limit                        ext_offset
//! ```
//!
//! A shift finds the extension word of an object, for that is on the fastest path. The slab has one
//! word per 2^k bytes, where 2^k is the largest power of two not above the object size. So no two
//! objects share a word; words in which no object begins stay zero. Rows have a bit per object: the
//! multiplication that finds it is not on that path. If objects are guarded, a vector of *records*
//! of the same shape follows.

/// log2 of the bytes of a chunk, the unit in which the class of an address is known.
pub const CHUNK_SHIFT: u32 = 16;
/// Mask of the class in a byte of [`crate::root::ZoneBlock::chunk_class`]. Readers ignore the bit
/// above.
pub const CHUNK_CLASS_MASK: u8 = 0x7f;

/// Layout of the slabs of one size class. Readers find it by the root block.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ClassGeometry {
    /// ceil(2^64 / size). The high half of `offset * reciprocal` is the object's index. The low
    /// half is below `reciprocal` exactly if `offset` is a multiple of `size` (Lemire, Kaser, Kurz:
    /// Faster remainder by direct computation, 2019).
    pub reciprocal: u64,
    /// Object size in bytes.
    pub size: u32,
    /// Slab size in bytes minus one.
    pub slab_mask: u32,
    /// Bytes of objects in a slab: `objects * size`.
    pub limit: u32,
    /// Offset of the extension vector in the slab, in bytes.
    pub ext_offset: u32,
    /// Number of objects in a slab.
    pub objects: u32,
    /// Most objects that a CPU keeps.
    pub cap: u16,
    /// Number of objects that one refill or flush moves.
    pub batch: u16,
}

const _: () = assert!(core::mem::size_of::<ClassGeometry>() == 32);

impl ClassGeometry {
    /// Geometry of no class: no offset is in an object.
    pub const NONE: Self = Self {
        reciprocal: 0,
        size: 0,
        slab_mask: 0,
        limit: 0,
        ext_offset: 0,
        objects: 0,
        cap: 0,
        batch: 0,
    };

    /// Lays out slabs of objects of `size` bytes, with or without an extension vector.
    pub const fn new(size: u32, ext: bool) -> Self {
        Self::with_vectors(size, ext as u32)
    }

    /// Lays out slabs of objects of `size` bytes with 0 to 3 vectors. The first has extension
    /// words. Records and times come behind it, where objects have them.
    pub const fn with_vectors(size: u32, vectors: u32) -> Self {
        let slab = slab_bytes(size);
        let ext_bytes = vectors * 4 * (slab >> size.ilog2());
        let mut objects = (slab - ext_bytes) / size;
        while objects * size + objects.div_ceil(64) * 8 + 8 + ext_bytes > slab {
            objects -= 1;
        }
        Self::of_objects(size, objects)
    }

    /// [`Self::with_vectors`] with objects in whole units of `unit` bytes, a multiple of `size`: no
    /// metadata shares a unit with them.
    pub const fn in_units(size: u32, vectors: u32, unit: u32) -> Self {
        Self::of_objects(size, Self::with_vectors(size, vectors).limit / unit * (unit / size))
    }

    const fn of_objects(size: u32, objects: u32) -> Self {
        let limit = objects * size;
        let kept = (32 << 10) / size;
        let cap = if kept > 127 {
            127
        } else if kept < 4 {
            4
        } else {
            kept
        };
        Self {
            reciprocal: (u64::MAX / size as u64).wrapping_add(1),
            size,
            slab_mask: slab_bytes(size) - 1,
            limit,
            ext_offset: limit.next_multiple_of(8) + objects.div_ceil(64) * 8,
            objects,
            cap: cap as u16,
            batch: cap.div_ceil(2) as u16,
        }
    }

    /// Bytes of a slab.
    #[inline(always)]
    pub const fn slab_bytes(&self) -> usize {
        self.slab_mask as usize + 1
    }

    /// Number of chunks in a slab.
    #[inline]
    pub const fn chunks(&self) -> u32 {
        (self.slab_mask + 1) >> CHUNK_SHIFT
    }

    /// Offset of the rows in the slab, in bytes.
    #[inline]
    pub const fn rows_offset(&self) -> u32 {
        self.limit.next_multiple_of(8)
    }

    /// Number of rows in a slab.
    #[inline]
    pub const fn rows(&self) -> u32 {
        self.objects.div_ceil(64)
    }

    /// log2 of the bytes per extension word.
    #[inline]
    pub const fn ext_shift(&self) -> u32 {
        self.size.ilog2()
    }

    /// Number of words of the extension vector.
    #[inline]
    pub const fn ext_words(&self) -> u32 {
        (self.slab_mask + 1) >> self.ext_shift()
    }

    /// Offset in the slab of the extension word for `offset`.
    #[inline]
    pub const fn ext_of(&self, offset: u32) -> u32 {
        self.ext_offset + (offset >> self.ext_shift()) * 4
    }

    /// Offset in the slab of the word for `offset` in a vector; 0 is that of extension words.
    #[inline]
    pub const fn word_of(&self, offset: u32, vector: u32) -> u32 {
        self.ext_of(offset) + self.ext_words() * 4 * vector
    }

    /// Index of the object at `offset` in its slab; `None` unless one begins there.
    #[inline(always)]
    pub const fn index(&self, offset: u32) -> Option<u32> {
        let product = offset as u128 * self.reciprocal as u128;
        if (product as u64) < self.reciprocal && offset < self.limit {
            Some((product >> 64) as u32)
        } else {
            None
        }
    }

    /// Index of the object that `offset`, which is below `limit`, lies in.
    #[inline(always)]
    pub const fn index_within(&self, offset: u32) -> u32 {
        ((offset as u128 * self.reciprocal as u128) >> 64) as u32
    }
}

/// Bytes of a slab of objects of `size` bytes: enough that little is wasted behind the last object.
#[must_use]
pub const fn slab_bytes(size: u32) -> u32 {
    match size {
        0..=1024 => 64 << 10,
        1025..=4096 => 128 << 10,
        4097..=8192 => 256 << 10,
        _ => 512 << 10,
    }
}
