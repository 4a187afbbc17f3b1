//! Size classes: which object size serves a request, and how its slabs are laid out.
//!
//! 16-byte steps to 128, then eight steps per doubling, so that a request wastes at most
//! 12.5 % inside its object. A slab is a naturally aligned power of two of 64 KiB chunks:
//!
//! ```text
//! | object 0 | object 1 | .. | object n-1 |   rows: u64 x ceil(n/64)   |  ext: u32 x w  |
//! 0                                       limit                        ext_offset
//! ```
//!
//! The extension word of an object is found by a shift, for it is on the fastest path: the slab
//! has one word per 2^k bytes, where 2^k is the largest power of two not above the object size.
//! Two objects never share one; words between objects, and those of the slab's own data, stay
//! zero. (A word per object is what rows have; there the multiplication does not hurt.) Where objects
//! are guarded a vector of *records* of the same form follows.

use crate::units::{FRAME_ORDER, Order};

/// Largest request served from a slab, in bytes.
pub const MAX_OBJECT: usize = 32 << 10;
/// Size classes, the unused class 0 (page allocations) included.
pub const CLASS_COUNT: usize = 73;
/// log2 of a chunk: the unit in which the class of an address is known.
pub const CHUNK_SHIFT: u32 = 16;

/// Arrays of a CPU: those of the size classes, behind them those of page runs, and at the end those
/// of pages of the orders that have one.
pub const ARRAY_COUNT: usize = 128 + PageClass::COUNT;
/// The end of the arrays of page runs.
const RUN_END: usize = ARRAY_COUNT - PageClass::COUNT;
/// Steps per doubling of the lengths of page runs that a CPU keeps.
const RUN_STEPS: u32 = 8;

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

const _: () = assert!(core::mem::size_of::<ClassGeometry>() == 32);

impl ClassGeometry {
    /// No class: every offset is out of its bounds.
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

    /// Lays out the slabs of a class, with or without an extension vector.
    pub const fn new(size: u32, ext: bool) -> Self {
        Self::with_vectors(size, ext as u32)
    }

    /// The same with so many vectors: none, that of extension words, behind it that of records.
    pub const fn with_vectors(size: u32, vectors: u32) -> Self {
        let slab = slab_bytes(size);
        let ext_bytes = vectors * 4 * (slab >> size.ilog2());
        let mut objects = (slab - ext_bytes) / size;
        while objects * size + objects.div_ceil(64) * 8 + 8 + ext_bytes > slab {
            objects -= 1;
        }
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
            slab_mask: slab - 1,
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

    /// Chunks in a slab.
    #[inline]
    pub const fn chunks(&self) -> u32 {
        (self.slab_mask + 1) >> CHUNK_SHIFT
    }

    /// Offset of the rows in the slab.
    #[inline]
    pub const fn rows_offset(&self) -> u32 {
        self.limit.next_multiple_of(8)
    }

    /// Rows in a slab.
    #[inline]
    pub const fn rows(&self) -> u32 {
        self.objects.div_ceil(64)
    }

    /// log2 of the bytes that have an extension word.
    #[inline]
    pub const fn ext_shift(&self) -> u32 {
        self.size.ilog2()
    }

    /// Words of the extension vector.
    #[inline]
    pub const fn ext_words(&self) -> u32 {
        (self.slab_mask + 1) >> self.ext_shift()
    }

    /// Offset in the slab of the extension word for `offset`.
    #[inline]
    pub const fn ext_of(&self, offset: u32) -> u32 {
        self.ext_offset + (offset >> self.ext_shift()) * 4
    }

    /// Offset in the slab of the record for `offset`, where there are two vectors.
    #[inline]
    pub const fn record_of(&self, offset: u32) -> u32 {
        self.ext_of(offset) + self.ext_words() * 4
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

    /// Index of the object that `offset`, below `limit`, lies in.
    #[inline(always)]
    pub const fn index_within(&self, offset: u32) -> u32 {
        ((offset as u128 * self.reciprocal as u128) >> 64) as u32
    }
}

/// Bytes of the slabs that serve small requests (see [`SizeClass::of_small`]).
pub const SMALL_SLAB: usize = slab_bytes(FINE as u32) as usize;

/// Slabs are large enough that the rest behind the last object is small.
const fn slab_bytes(size: u32) -> u32 {
    match size {
        0..=1024 => 64 << 10,
        1025..=4096 => 128 << 10,
        4097..=8192 => 256 << 10,
        _ => 512 << 10,
    }
}

/// Object size of each class.
pub const SIZES: [u32; CLASS_COUNT] = {
    let mut sizes = [0; CLASS_COUNT];
    let (mut class, mut size, mut step) = (1, 0, 16);
    while class < CLASS_COUNT {
        if size >= 128 && (size as u32).is_power_of_two() {
            step = size / 8;
        }
        size += step;
        sizes[class] = size as u32;
        class += 1;
    }
    sizes
};

/// Sizes up to this are looked up in 16-byte steps, larger ones in 128-byte steps.
pub const FINE: usize = 1024;
const COARSE_BASE: usize = FINE / 16 + 1 - FINE / 128;

const TABLE: [u8; COARSE_BASE + MAX_OBJECT / 128 + 1] = {
    let mut table = [0; COARSE_BASE + MAX_OBJECT / 128 + 1];
    let mut i = 0;
    while i < table.len() {
        let size = if i <= FINE / 16 { i * 16 } else { (i - COARSE_BASE) * 128 };
        let mut class = 1;
        while (SIZES[class] as usize) < size {
            class += 1;
        }
        table[i] = class as u8;
        i += 1;
    }
    table
};

impl SizeClass {
    /// The class of a small request, up to 1 KiB; `None` for a larger one.
    #[inline(always)]
    pub const fn of_small(size: usize) -> Option<Self> {
        if size <= FINE { Some(Self(TABLE[(size + 15) >> 4])) } else { None }
    }

    /// The class that serves a request of `size` bytes, at most [`MAX_OBJECT`].
    #[inline]
    pub const fn of(size: usize) -> Self {
        debug_assert!(size <= MAX_OBJECT);
        let index = if size <= FINE { (size + 15) >> 4 } else { COARSE_BASE + ((size + 127) >> 7) };
        Self(TABLE[index])
    }

    /// The smallest class of at least `size` bytes whose objects all lie at multiples of
    /// `align` (a power of two), if a slab can serve that.
    pub fn aligned(size: usize, align: usize) -> Option<Self> {
        let size = size.max(1).checked_next_multiple_of(align)?;
        if size > MAX_OBJECT || align > 1 << CHUNK_SHIFT {
            return None;
        }
        (Self::of(size).0..CLASS_COUNT as u8)
            .find(|&class| (SIZES[class as usize] as usize).is_multiple_of(align))
            .map(Self)
    }

    /// All classes of objects.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..CLASS_COUNT as u8).map(Self)
    }
}

/// Page runs that a CPU keeps for the next request of that length: from one page more than a
/// slab serves, eight steps per doubling, as many as there are arrays.
pub struct RunClass;

impl RunClass {
    /// Length in pages of the runs of an array.
    pub const fn pages(class: SizeClass) -> u32 {
        let n = class.0 as u32 - CLASS_COUNT as u32;
        (RUN_STEPS + 1 + n % RUN_STEPS) << (n / RUN_STEPS)
    }

    /// The array for a request of `pages`: the shortest runs that are long enough.
    pub const fn of(pages: u32) -> Option<SizeClass> {
        if pages <= RUN_STEPS {
            return None;
        }
        let doublings = (pages - 1).ilog2() - RUN_STEPS.ilog2();
        let step = (pages - 1) >> doublings;
        let class = CLASS_COUNT as u32 + doublings * RUN_STEPS + step - RUN_STEPS;
        if class < RUN_END as u32 { Some(SizeClass(class as u8)) } else { None }
    }

    /// All arrays of runs.
    pub fn all() -> impl Iterator<Item = SizeClass> {
        (CLASS_COUNT as u8..RUN_END as u8).map(SizeClass)
    }

    /// Most runs of a class that a CPU keeps.
    pub const fn cap(class: SizeClass) -> u16 {
        let cap = 512 / Self::pages(class);
        if cap > 8 {
            8
        } else if cap < 2 {
            2
        } else {
            cap as u16
        }
    }
}

/// Blocks of pages that a CPU keeps: the orders that have an array, by number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageClass(u8);

impl PageClass {
    /// How many there are: those of orders 0 to 3 (the kernel's `PAGE_ALLOC_COSTLY_ORDER`), and of huge pages.
    pub const COUNT: usize = 5;

    /// The array for blocks of an order.
    pub const fn of(order: u8) -> Option<Self> {
        match order {
            0..=3 => Some(Self(order)),
            9 => Some(Self(4)),
            _ => None,
        }
    }

    /// The order of its blocks.
    pub const fn order(self) -> Order {
        Order(if self.is_huge() { FRAME_ORDER as u8 } else { self.0 })
    }

    /// Whether its blocks are huge pages.
    #[inline(always)]
    pub const fn is_huge(self) -> bool {
        self.0 == 4
    }

    /// The array for blocks of an order, by a table; 0, which is no array, for those that have none.
    #[inline(always)]
    pub const fn array_of(order: u8) -> SizeClass {
        const ARRAYS: [u8; 256] = {
            let mut arrays = [0; 256];
            let mut order = 0;
            while order < 256 {
                if let Some(class) = PageClass::of(order as u8) {
                    arrays[order] = class.array().0;
                }
                order += 1;
            }
            arrays
        };
        SizeClass(ARRAYS[order as usize])
    }

    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Its number, from 0.
    #[inline(always)]
    pub const fn number(self) -> usize {
        self.0 as usize
    }

    /// Its array.
    #[inline(always)]
    pub const fn array(self) -> SizeClass {
        SizeClass(RUN_END as u8 + self.0)
    }

    /// What an array is for, if it is one of these.
    pub const fn of_array(array: SizeClass) -> Option<Self> {
        if (array.0 as usize) < RUN_END { None } else { Some(Self(array.0 - RUN_END as u8)) }
    }

    /// Pages in a block.
    #[inline(always)]
    pub const fn pages(self) -> u32 {
        self.order().pages().0
    }

    /// Most blocks that a CPU keeps: as many as fit, or half a MiB.
    pub const fn cap(self) -> u16 {
        if self.is_huge() { 32 } else { 127 >> self.0 }
    }

    /// Most blocks moved at once: half of these.
    pub const fn most_batch(self) -> u32 {
        if self.is_huge() { 16 } else { 64 >> self.0 }
    }

    /// Least blocks moved at once.
    pub const fn least_batch(self) -> u32 {
        if self.is_huge() { 1 } else { 8 >> self.0 }
    }
}

const _: () = assert!(SIZES[CLASS_COUNT - 1] as usize == MAX_OBJECT);
const _: () = assert!(slab_bytes(1) as usize == SMALL_SLAB);
const _: () = assert!(SIZES[8] == 128 && SIZES[9] == 144 && SIZES[16] == 256);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for size in 0..=MAX_OBJECT {
            let class = SizeClass::of(size);
            let got = SIZES[class.0 as usize] as usize;
            assert!(got >= size);
            assert!(class.0 == 1 || (SIZES[class.0 as usize - 1] as usize) < size.max(1));
            if size > 128 {
                assert!((got - size) * 8 <= size, "{size} wastes {}", got - size);
            }
        }
    }

    #[test]
    fn index_is_found_exactly_at_object_starts() {
        for class in SizeClass::all() {
            for vectors in 0..=2 {
                let g = ClassGeometry::with_vectors(SIZES[class.0 as usize], vectors);
                for offset in 0..=g.slab_mask {
                    let right =
                        (offset % g.size == 0 && offset < g.limit).then_some(offset / g.size);
                    assert_eq!(g.index(offset), right, "class {class:?} offset {offset}");
                    assert_eq!(g.index_within(offset), offset / g.size);
                }
                let end = g.ext_offset + vectors * 4 * g.ext_words();
                assert!(end <= g.slab_mask + 1);
                let words = (0..g.objects).map(|i| g.ext_of(i * g.size));
                assert!(words.is_sorted_by(|a, b| a < b), "objects share an extension word");
                assert!(g.rows_offset() + g.rows() * 8 == g.ext_offset);
                assert!(g.batch >= 1 && g.batch <= g.cap && g.cap as usize <= crate::cpu::MAX_CAP);
            }
        }
    }

    #[test]
    fn every_run_gets_the_shortest_array_that_holds_it() {
        assert_eq!(RunClass::of(8), None);
        let longest = RunClass::pages(SizeClass(RUN_END as u8 - 1));
        for pages in 9..=longest {
            let class = RunClass::of(pages).unwrap();
            assert!(RunClass::pages(class) >= pages);
            assert!(
                class.0 as usize == CLASS_COUNT || RunClass::pages(SizeClass(class.0 - 1)) < pages
            );
        }
        assert_eq!(RunClass::of(longest + 1), None);
    }

    #[test]
    fn aligned_classes_are_aligned() {
        for shift in 0..=15 {
            for size in [0usize, 1, 15, 16, 100, 1000, 5000, 20_000, 32_768] {
                let align = 1 << shift;
                if let Some(class) = SizeClass::aligned(size, align) {
                    let got = SIZES[class.0 as usize] as usize;
                    assert!(got >= size && got.is_multiple_of(align));
                }
            }
        }
        assert!(SizeClass::aligned(1, 4096).is_some());
    }
}
