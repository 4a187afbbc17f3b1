//! Size classes: the object size that serves a request, and the geometry of each class of an
//! instance.
//!
//! Sizes have steps of 16 bytes up to 128 bytes, then eight steps per doubling. So a request above
//! 128 bytes wastes at most 12.5 % of its size. [`kmem_layout::geometry`] lays out the slabs of a
//! class.
//!
//! Requests of no bytes have a class of their own, [`SizeClass::ZERO`]. Its objects cannot be read
//! or written where the platform protects memory.
//!
//! Context: any, signal handlers included.

use core::cell::UnsafeCell;

use kmem_layout::geometry::{CHUNK_SHIFT, ClassGeometry, slab_bytes};

use crate::sync::AtomicU32;
use crate::units::PAGE_SIZE;

mod array;

pub use array::{ARRAY_COUNT, ArrayId, Contents, PageClass, RunClass};

/// Largest request served from a slab, in bytes.
pub const MAX_OBJECT: usize = 32 << 10;
/// Number of size classes, class 0 (page allocations) and [`SizeClass::ZERO`] included.
pub const CLASS_COUNT: usize = 74;

/// A size class by number; 0 means "page allocation".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SizeClass(pub u8);

/// Bytes of the slabs that serve small requests (see [`SizeClass::of_small`]).
pub const SMALL_SLAB: usize = slab_bytes(FINE as u32) as usize;

/// Object size of each class, in bytes.
pub const SIZES: [u32; CLASS_COUNT] = {
    let mut sizes = [0; CLASS_COUNT];
    sizes[SizeClass::ZERO.0 as usize] = 16;
    let (mut class, mut size, mut step) = (1, 0, 16);
    while class < SizeClass::ZERO.0 as usize {
        if size >= 128 && (size as u32).is_power_of_two() {
            step = size / 8;
        }
        size += step;
        sizes[class] = size as u32;
        class += 1;
    }
    sizes
};

/// Sizes up to this, in bytes, are looked up in steps of 16 bytes, larger ones in steps of 128.
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
    table[0] = SizeClass::ZERO.0;
    table
};

impl SizeClass {
    /// The class of requests of no bytes. Its objects lie 16 bytes apart, in pages that cannot be
    /// accessed.
    pub const ZERO: Self = Self(CLASS_COUNT as u8 - 1);

    /// The class that serves a request of up to 1 KiB; `None` for a larger one. `size` is in bytes.
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

    /// The smallest class of at least `size` bytes whose objects all lie at multiples of `align`
    /// bytes (a power of two). `None`: no class has such objects.
    pub fn aligned(size: usize, align: usize) -> Option<Self> {
        let size = size.max(1).checked_next_multiple_of(align)?;
        if size > MAX_OBJECT || align > 1 << CHUNK_SHIFT {
            return None;
        }
        (Self::of(size).0..Self::ZERO.0)
            .find(|&class| (SIZES[class as usize] as usize).is_multiple_of(align))
            .map(Self)
    }

    /// All classes but 0.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..CLASS_COUNT as u8).map(Self)
    }

    /// Bytes that an object takes.
    #[inline]
    pub const fn size(self) -> u32 {
        SIZES[self.0 as usize]
    }

    /// Bytes of an object that can be read and written.
    #[inline]
    pub const fn room(self) -> usize {
        if self.0 == Self::ZERO.0 { 0 } else { self.size() as usize }
    }
}

/// The geometry of every class of an instance. Zeroed memory is a table in which every class is
/// [`ClassGeometry::NONE`].
///
/// # Invariants
/// The cells are written by [`Self::start`] alone, before any slab exists.
pub struct Classes {
    geometries: UnsafeCell<[ClassGeometry; 256]>,
    fast: UnsafeCell<Fast>,
}

/// Parts of the geometries that fast paths read, each in a table of its own, so that an index needs
/// no arithmetic. The index is a byte of a zone's table of chunks. A byte that is no class has no
/// valid offset.
struct Fast {
    reciprocal: [u64; 256],
    /// All ones above the bits of an offset in a slab.
    slab: [usize; 256],
    ext_offset: [usize; 256],
    ext_shift: [u32; 256],
}

// SAFETY: the cells are written before any other thread reads them (invariant).
unsafe impl Sync for Classes {}

/// The place of an address in its slab.
#[derive(Clone, Copy, Debug)]
pub struct Location {
    /// Class of the slab.
    pub class: SizeClass,
    /// Address of the slab.
    pub slab: usize,
    /// Bytes from the slab to the address.
    pub offset: usize,
}

impl Classes {
    /// A table without classes.
    pub const fn new() -> Self {
        Self {
            geometries: UnsafeCell::new([ClassGeometry::NONE; 256]),
            fast: UnsafeCell::new(Fast {
                reciprocal: [0; 256],
                slab: [0; 256],
                ext_offset: [0; 256],
                ext_shift: [0; 256],
            }),
        }
    }

    /// Lays out all classes, each slab with `vectors` vectors of words behind its objects.
    ///
    /// # Safety
    /// No other thread uses the table, and there is no slab.
    pub unsafe fn start(&self, vectors: u32) {
        // INVARIANT: there is no slab yet, by the contract.
        // SAFETY: this thread alone uses the cells, by the contract.
        let (geometries, fast) = unsafe { (&mut *self.geometries.get(), &mut *self.fast.get()) };
        for (class, &size) in SIZES.iter().enumerate().skip(1) {
            let geometry = if class == SizeClass::ZERO.0 as usize {
                ClassGeometry::in_units(size, vectors, PAGE_SIZE as u32)
            } else {
                ClassGeometry::with_vectors(size, vectors)
            };
            geometries[class] = geometry;
            fast.reciprocal[class] = geometry.reciprocal;
            fast.ext_offset[class] = geometry.ext_offset as usize;
            fast.ext_shift[class] = geometry.ext_shift();
        }
        for (mask, geometry) in fast.slab.iter_mut().zip(&*geometries) {
            *mask = !(geometry.slab_mask as usize);
        }
    }

    /// The geometry of a class.
    #[inline(always)]
    pub fn geometry(&self, class: SizeClass) -> &ClassGeometry {
        &self.all()[class.0 as usize]
    }

    /// The geometries by the bytes of a zone's table of chunks. A byte that is no class has
    /// [`ClassGeometry::NONE`].
    #[inline(always)]
    pub fn all(&self) -> &[ClassGeometry; 256] {
        // SAFETY: written before any slab exists, and not after (invariant).
        unsafe { &*self.geometries.get() }
    }

    #[inline(always)]
    fn fast(&self) -> &Fast {
        // SAFETY: written before any slab exists, and not after (invariant).
        unsafe { &*self.fast.get() }
    }

    /// Location of the object that begins at `at`, an address in a chunk of this class. It may also
    /// be a place behind the slab's last object; its extension word is zero. `None`: no object
    /// begins there.
    #[inline(always)]
    pub fn object_at(&self, at: usize, class: SizeClass) -> Option<Location> {
        let fast = self.fast();
        let slab = at & fast.slab[class.0 as usize];
        let offset = at - slab;
        let reciprocal = fast.reciprocal[class.0 as usize];
        let product = offset as u128 * u128::from(reciprocal);
        if product as u64 >= reciprocal { None } else { Some(Location { class, slab, offset }) }
    }

    /// The extension word for a location.
    ///
    /// # Safety
    /// There is a slab of the class at its address, with extension words. The offset lies in it.
    #[inline(always)]
    pub unsafe fn extension(&self, location: Location) -> &AtomicU32 {
        let (words, index) = self.extension_place(location);
        // SAFETY: the vector of a slab with extension words has one for every offset in the slab.
        unsafe { &*words.wrapping_add(index) }
    }

    /// The vector of extension words of the slab of a location, and the index of the location's.
    #[inline(always)]
    pub fn extension_place(
        &self,
        Location { class, slab, offset }: Location,
    ) -> (*const AtomicU32, usize) {
        let fast = self.fast();
        let words = (slab + fast.ext_offset[class.0 as usize]) as *const AtomicU32;
        (words, offset >> fast.ext_shift[class.0 as usize])
    }
}

impl Default for Classes {
    fn default() -> Self {
        Self::new()
    }
}

const _: () = assert!(SIZES[SizeClass::ZERO.0 as usize - 1] as usize == MAX_OBJECT);
const _: () = assert!(slab_bytes(1) as usize == SMALL_SLAB);
const _: () = assert!(SIZES[8] == 128 && SIZES[9] == 144 && SIZES[16] == 256);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn every_size_gets_the_smallest_class_that_holds_it() {
        for size in 0..=MAX_OBJECT {
            let class = SizeClass::of(size);
            let got = class.size() as usize;
            assert!(class.room() >= size);
            assert_eq!(class == SizeClass::ZERO, size == 0);
            assert!(
                class.0 == 1 || size == 0 || (SIZES[class.0 as usize - 1] as usize) < size.max(1)
            );
            if size > 128 {
                assert!((got - size) * 8 <= size, "{size} wastes {}", got - size);
            }
        }
    }

    #[test]
    fn index_is_found_exactly_at_object_starts() {
        for class in SizeClass::all() {
            for vectors in 0..=3 {
                let g = ClassGeometry::with_vectors(class.size(), vectors);
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
    fn aligned_classes_are_aligned() {
        for shift in 0..=15 {
            for size in [0usize, 1, 15, 16, 100, 1000, 5000, 20_000, 32_768] {
                let align = 1 << shift;
                if let Some(class) = SizeClass::aligned(size, align) {
                    let got = class.size() as usize;
                    assert!(got >= size && got.is_multiple_of(align));
                }
            }
        }
        assert!(SizeClass::aligned(1, 4096).is_some());
    }
}
