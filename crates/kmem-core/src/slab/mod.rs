//! Slabs: naturally aligned groups of chunks cut into objects of one class.
//!
//! ```text
//! chunk_class[chunk]   class of the slab the chunk belongs to, 0: pages
//! state[chunk]         of a slab's first chunk: held << 31 | class << 24 | stamp << 16 | credit
//! sets.lane(class)     slabs with credit (hints)
//! slab                 objects, rows (1 bit: free object), extension vector, records; see `class`
//! ```
//!
//! Credit works as in a zone: it is at most the number of free bits, is taken before bits and given
//! after bits. A slab whose credit equals its objects is wholly free; one compare-and-swap of its
//! state to 0 retires it. A claim compares the class in the state: it fails if the slab was retired
//! and a slab of another class made in its place. The stamp is the generation of the last claim,
//! see [`purge`]. A thread that holds a slab keeps it from being retired, see [`hold`].
//!
//! | state                 | meaning                                             |
//! |-----------------------|-----------------------------------------------------|
//! | 0                     | not a slab, or not its first chunk                  |
//! | class, credit         | in use                                              |
//! | class, `STALE`        | in a forked child: rows not yet rebuilt             |
//! | class, `MENDING`      | in a forked child: rows being rebuilt               |
//!
//! Context: any. Lock-free, except in a forked child: there a thread waits for a slab that another
//! thread mends.

use crate::page::{Beyond, Run, SLAB_TABLES, SlabTables, Table, Zone};
use crate::row::Row;
use crate::row::summary::{self, Summary};
use crate::sync::{AtomicU8, AtomicU32, Ordering, spin};
use crate::units::{CHUNK_ORDER, CHUNK_SIZE, Item, PAGE_SHIFT, PageCount, Pfn};
use kmem_layout::geometry::{CHUNK_CLASS_MASK, CHUNK_SHIFT};
use kmem_layout::root::ZoneBlock;
use kmem_layout::word::EXT_LIVE;

pub mod bytes;
mod claim;
pub mod guard;
pub mod hold;
pub mod purge;
pub mod quarantine;
pub mod sheaf;
#[cfg(not(loom))]
pub mod slabs;
#[cfg(not(loom))]
mod validate;

use crate::class::{CLASS_COUNT, SizeClass};
use kmem_layout::geometry::ClassGeometry;
#[cfg(not(loom))]
pub use validate::{ObjectCount, SlabFault};

/// Number of sets of slabs with credit: one for each class.
const LANES: u32 = CLASS_COUNT as u32;
/// Bit of a `chunk_class` byte: the slab is `STALE`. The fast path fails on such a byte.
pub const CHUNK_STALE: u8 = !CHUNK_CLASS_MASK;
/// Mask of the credit in a state.
const CREDIT: u32 = 0xFFFF;
/// Bit of a state: a thread holds the slab.
const HELD: u32 = 1 << 31;
/// In place of the credit: the rows must be rebuilt.
const STALE: u32 = 0xFFFF;
/// In place of the credit: a thread rebuilds the rows.
const MENDING: u32 = 0xFFFE;

/// Writes zeroes to all bytes of an object that can be written.
///
/// # Safety
/// `at` is memory of the size of an object of that class, aligned to 16 bytes. The caller alone
/// uses it, and its contents are not needed.
#[inline(always)]
pub unsafe fn zero_object(at: *mut u8, class: SizeClass) {
    // SAFETY: that many bytes, by the contract.
    unsafe { bytes::fill(at, class.room(), 0) };
}

/// The slabs of one zone.
///
/// # Invariants
/// The pointers lead to arrays with one element per chunk, in memory that is never freed. A chunk
/// whose state has a class and credit is the first of a slab of that class.
pub struct SlabZone {
    base: usize,
    chunk_class: *const AtomicU8,
    state: *const AtomicU32,
    sets: Summary,
    /// Address of the lowest level of the sets.
    leaves: usize,
    chunks: u32,
    /// Generation of the decay. A claim stamps its slab with the lowest eight bits.
    generation: AtomicU32,
    /// Chunk at which the last purge ended.
    looked: AtomicU32,
    /// 1 once pages of a slab were made inaccessible.
    hides: AtomicU32,
}

// SAFETY: all shared state is atomic, behind pointers that stay valid, by the invariant.
unsafe impl Send for SlabZone {}
// SAFETY: all shared state is atomic.
unsafe impl Sync for SlabZone {}

/// The metadata that slabs have beside their objects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Format {
    /// An extension word per object, which says whether the object is live.
    pub extension: bool,
    /// Without those: a word per object, which is used only while a group pays for the object.
    pub charges: bool,
    /// Objects end with a guard.
    pub guards: bool,
}

impl Format {
    /// Returns whether slabs have room for a word per object.
    #[inline]
    pub const fn has_words(&self) -> bool {
        self.extension || self.charges
    }
}

/// The slabs of one class of an instance.
#[derive(Clone, Copy, Debug)]
pub struct Kind<'a> {
    /// The class.
    pub class: SizeClass,
    /// Its geometry.
    pub geometry: &'a ClassGeometry,
    /// The metadata that its slabs have beside objects.
    pub format: Format,
}

impl<'a> Kind<'a> {
    /// The slabs of a class in an instance whose slabs have this format. Nothing is written to
    /// objects of no bytes, so they have no guards.
    #[inline]
    pub fn new(class: SizeClass, geometry: &'a ClassGeometry, format: Format) -> Self {
        let guards = format.guards && class != SizeClass::ZERO;
        Self { class, geometry, format: Format { guards, ..format } }
    }

    /// Length of a slab.
    pub const fn pages(&self) -> PageCount {
        PageCount(self.geometry.chunks() << CHUNK_ORDER)
    }
}

/// Contents of pages that become a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contents {
    /// They read as zero.
    Zero,
    /// They may hold old contents.
    Old,
}

/// Address of an object that was given back although it was free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubleFree(pub usize);

/// A retired slab: it became wholly free, and its pages can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// Its pages.
    pub run: Run,
    /// Its class.
    pub class: SizeClass,
}

/// Place of an address in its slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the start of an object.
    Object {
        /// Address of its extension word.
        ext: usize,
    },
    /// Inside an object.
    Inside {
        /// Address of the object.
        object: usize,
        /// Bytes from the object's start.
        offset: u32,
    },
    /// Behind the last object, in the slab's metadata.
    Tail,
}

// SAFETY: `metadata_bytes`, `fixed_part`, `new` and `tables` lay the parts out in the same way.
unsafe impl SlabTables for SlabZone {
    fn metadata_bytes(pages: u32) -> usize {
        let chunks = pages >> CHUNK_ORDER;
        let sets = summary::words_for(chunks, LANES) * 8;
        sets + (chunks as usize * 4).next_multiple_of(64)
    }

    /// The upper levels of the sets, and the first states.
    fn fixed_part(pages: u32) -> core::ops::Range<usize> {
        let chunks = pages >> CHUNK_ORDER;
        let states = (Zone::start_pages(pages) >> CHUNK_ORDER) as usize * 4;
        summary::leaf_bytes(chunks, LANES)..summary::words_for(chunks, LANES) * 8 + states
    }

    fn class_bytes(pages: u32) -> usize {
        (pages >> CHUNK_ORDER) as usize
    }

    unsafe fn new(base: usize, pages: PageCount, metadata: *mut u8, classes: *mut u8) -> Self {
        let chunks = pages.0 >> CHUNK_ORDER;
        let state = metadata.wrapping_add(summary::words_for(chunks, LANES) * 8);
        // SAFETY: the metadata begins with the words of the sets, zero once committed, by the
        // contract.
        let sets = unsafe { Summary::new(metadata.cast(), chunks, LANES) };
        // INVARIANT: the arrays lie in metadata of `metadata_bytes`, or are the classes. Both are
        // never freed; the states are zero.
        Self {
            base,
            chunk_class: classes.cast(),
            state: state.cast(),
            sets,
            leaves: metadata as usize,
            chunks,
            generation: AtomicU32::new(0),
            looked: AtomicU32::new(0),
            hides: AtomicU32::new(0),
        }
    }

    fn tables(&self) -> [Table; SLAB_TABLES] {
        let classes = self.chunk_class as usize;
        let start = Zone::start_pages(self.chunks << CHUNK_ORDER);
        [
            Table { bits: LANES, ..Table::empty(self.leaves) },
            Table { bits: 32, start, ..Table::empty(self.state as usize) },
            // The fast path of `free` looks up any address of a zone.
            Table { at: classes, bits: 8, start: 0, beyond: Beyond::Read },
        ]
    }

    fn describe(&self, block: &mut ZoneBlock) {
        block.chunk_class = self.chunk_class as u64;
    }
}

impl SlabZone {
    /// Array of class bytes, one for each of [`Self::chunks`].
    pub fn chunk_classes(&self) -> *const AtomicU8 {
        self.chunk_class
    }

    /// Number of chunks of the zone.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Class byte of a chunk of the zone.
    fn chunk_class(&self, chunk: u32) -> &AtomicU8 {
        debug_assert!(chunk < self.chunks);
        // SAFETY: the array has an element for each chunk, by the invariant.
        unsafe { &*self.chunk_class.add(chunk as usize) }
    }

    /// State of a chunk of the zone.
    fn state(&self, chunk: u32) -> &AtomicU32 {
        debug_assert!(chunk < self.chunks);
        // SAFETY: the array has an element for each chunk, by the invariant.
        unsafe { &*self.state.add(chunk as usize) }
    }

    /// Class of the slab that a page lies in, 0 for a page in no slab; and whether the slab is
    /// stale.
    ///
    /// # Safety
    /// The page lies in this zone.
    pub unsafe fn class_of(&self, pfn: Pfn) -> (SizeClass, bool) {
        let byte = self.chunk_class(pfn.0 >> CHUNK_ORDER).load(Ordering::Acquire);
        (SizeClass(byte & CHUNK_CLASS_MASK), byte & CHUNK_STALE != 0)
    }

    /// Address of a chunk.
    fn slab_address(&self, chunk: u32) -> usize {
        self.base + chunk as usize * CHUNK_SIZE
    }

    /// Rows of a slab.
    ///
    /// # Safety
    /// `slab` is the address of a slab of this geometry.
    unsafe fn rows<'a>(&'a self, slab: usize, geometry: &ClassGeometry) -> &'a [Row] {
        let at = (slab + geometry.rows_offset() as usize) as *const Row;
        // SAFETY: a slab of this geometry has its rows there, by the contract; they are atomics.
        unsafe { core::slice::from_raw_parts(at, geometry.rows() as usize) }
    }

    /// Extension words of a slab: one for each 2^k bytes, see [`ClassGeometry::ext_of`].
    ///
    /// # Safety
    /// `slab` is the address of a slab of this geometry, made with extension words.
    pub unsafe fn extension<'a>(
        &'a self,
        slab: usize,
        geometry: &ClassGeometry,
    ) -> &'a [AtomicU32] {
        let at = (slab + geometry.ext_offset as usize) as *const AtomicU32;
        // SAFETY: a slab of this geometry with extension words has its vector there, by the
        // contract; they are atomics.
        unsafe { core::slice::from_raw_parts(at, geometry.ext_words() as usize) }
    }

    /// Place of an address in its slab, which is of this geometry.
    pub fn place(address: usize, geometry: &ClassGeometry) -> Place {
        let offset = address as u32 & geometry.slab_mask;
        let slab = address - offset as usize;
        if offset >= geometry.limit {
            return Place::Tail;
        }
        let index = geometry.index_within(offset);
        let object = slab + (index * geometry.size) as usize;
        if object == address {
            Place::Object { ext: slab + geometry.ext_of(offset) as usize }
        } else {
            Place::Inside { object, offset: (address - object) as u32 }
        }
    }

    /// Gives free objects of a class back to their slabs. Calls `retired` with each slab that
    /// became wholly free.
    ///
    /// # Errors
    /// The first object that was free already; all others are given back.
    ///
    /// # Safety
    /// Each item is an object of this kind and of this zone, and the caller alone uses it.
    pub unsafe fn give(
        &self,
        kind: Kind<'_>,
        items: &[Item],
        mut retired: impl FnMut(Retired),
    ) -> Result<(), DoubleFree> {
        let geometry = kind.geometry;
        let mut result = Ok(());
        let slab_of = |item: &Item| item.address() & !(geometry.slab_mask as usize);
        let mut rest = items;
        while let Some(first) = rest.first() {
            let slab = slab_of(first);
            let chunk = ((slab - self.base) / CHUNK_SIZE) as u32;
            // SAFETY: an object of this kind lies in the slab, by the contract.
            let rows = unsafe { self.rows(slab, geometry) };
            let mut given = 0;
            // Go on with all items in the same slab, and give bits of one row together.
            let (mut row, mut mask) = (0, 0u64);
            let mut give = |row: usize, mask: u64| {
                let twice = rows[row].give(mask);
                if twice != 0 && result.is_ok() {
                    let index = row * 64 + twice.trailing_zeros() as usize;
                    result = Err(DoubleFree(slab + index * geometry.size as usize));
                }
                given += (mask & !twice).count_ones();
            };
            while let Some((item, others)) = rest.split_first()
                && slab_of(item) == slab
            {
                let index = geometry.index_within((item.address() - slab) as u32) as usize;
                let bit = 1 << (index % 64);
                if index / 64 != row || mask & bit != 0 {
                    if mask != 0 {
                        give(row, mask);
                    }
                    (row, mask) = (index / 64, 0);
                }
                mask |= bit;
                rest = others;
            }
            give(row, mask);
            if let Some(done) = self.give_credit(chunk, kind, given) {
                retired(done);
            }
        }
        result
    }

    /// Adds credit for bits that the caller gave before. If that made the slab wholly free, retires
    /// it and returns it.
    fn give_credit(&self, chunk: u32, kind: Kind<'_>, given: u32) -> Option<Retired> {
        let Kind { class, geometry, .. } = kind;
        if given == 0 {
            return None;
        }
        let state = self.state(chunk);
        let old = state.fetch_add(given, Ordering::SeqCst);
        let now = old + given;
        if (class_in(now), credit_in(now)) == (class, geometry.objects)
            && now & HELD == 0
            && state.compare_exchange(now, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            return Some(self.retire(chunk, kind));
        }
        if credit_in(old) == 0 {
            self.sets.insert(u32::from(class.0), chunk);
        }
        None
    }

    /// Ends a slab that the caller alone has: it has set the state of the wholly free slab to 0.
    fn retire(&self, chunk: u32, kind: Kind<'_>) -> Retired {
        self.sets.remove(u32::from(kind.class.0), chunk);
        for i in 0..kind.geometry.chunks() {
            self.chunk_class(chunk + i).store(0, Ordering::Release);
        }
        Retired {
            run: Run { start: Pfn(chunk << CHUNK_ORDER), pages: kind.pages() },
            class: kind.class,
        }
    }

    /// State with this class, this credit, and the stamp of the current generation.
    fn stamped(&self, class: SizeClass, credit: u32) -> u32 {
        let generation = self.generation.load(Ordering::Relaxed);
        u32::from(class.0) << 24 | (generation & 0xFF) << 16 | credit
    }

    /// In a forked child: marks every slab as stale and offers it to claims. Afterwards
    /// [`Self::pages_used`] returns the use of each chunk, for the zone's own repair.
    ///
    /// # Safety
    /// No other thread uses the slabs. `committed` pages of the zone are committed, and `classes`
    /// are those of its slabs.
    pub unsafe fn distrust(&self, committed: PageCount, classes: &[ClassGeometry]) {
        // SAFETY: no other thread uses the sets, by the contract.
        unsafe { self.sets.clear(committed.0 >> CHUNK_ORDER) };
        let mut chunk = 0;
        let end = committed.0 >> CHUNK_ORDER;
        while chunk < end {
            let byte = self.chunk_class(chunk).load(Ordering::Relaxed) & CHUNK_CLASS_MASK;
            let geometry = &classes[byte as usize];
            let whole = geometry.chunks().max(1);
            let aligned = self.slab_address(chunk) & geometry.slab_mask as usize == 0;
            if byte == 0 || !aligned || chunk + whole > end {
                // Part of a slab that was being made or retired at the fork: its pages stay in use.
                self.state(chunk).store(0, Ordering::Relaxed);
                chunk += 1;
                continue;
            }
            for i in 0..whole {
                self.chunk_class(chunk + i).store(byte | CHUNK_STALE, Ordering::Relaxed);
                self.state(chunk + i).store(0, Ordering::Relaxed);
            }
            self.state(chunk).store(u32::from(byte) << 24 | STALE, Ordering::Relaxed);
            self.sets.insert(u32::from(byte), chunk);
            chunk += whole;
        }
    }

    /// Notes that pages of a slab are about to become inaccessible.
    pub fn note_hidden(&self) {
        self.hides.store(1, Ordering::Relaxed);
    }

    /// Returns whether pages of slabs were ever made inaccessible.
    pub fn hides(&self) -> bool {
        self.hides.load(Ordering::Relaxed) != 0
    }

    /// First pages of the slabs of a class whose slabs have one chunk. `committed` pages of the
    /// zone are committed.
    pub fn slabs_of(
        &self,
        class: SizeClass,
        committed: PageCount,
    ) -> impl Iterator<Item = Pfn> + '_ {
        (0..committed.0 >> CHUNK_ORDER)
            .filter(move |&chunk| {
                self.chunk_class(chunk).load(Ordering::Relaxed) & CHUNK_CLASS_MASK == class.0
            })
            .map(|chunk| Pfn(chunk << CHUNK_ORDER))
    }

    /// Pages that slabs use from `pfn`, the first page of a chunk, on: all of the chunk, or none.
    ///
    /// # Safety
    /// The page lies in this zone.
    pub unsafe fn pages_used(&self, pfn: Pfn) -> PageCount {
        let class = self.chunk_class(pfn.0 >> CHUNK_ORDER).load(Ordering::Relaxed);
        PageCount(if class == 0 { 0 } else { 1 << CHUNK_ORDER })
    }

    /// Mends the slab that `address` lies in.
    ///
    /// # Safety
    /// The slab is one of this zone, and of this kind.
    pub unsafe fn mend_at(&self, address: usize, kind: Kind<'_>) {
        let slab = address & !(kind.geometry.slab_mask as usize);
        // SAFETY: the same contract.
        unsafe { self.mend(((slab - self.base) / CHUNK_SIZE) as u32, kind) };
    }

    /// Mends a slab: rebuilds its rows from its extension words if it is stale. A slab without
    /// these keeps its rows, and objects that other threads held at the fork are lost. If another
    /// thread mends the slab, waits for it.
    ///
    /// # Safety
    /// `chunk` is the first of a slab of this kind.
    unsafe fn mend(&self, chunk: u32, Kind { geometry, format, .. }: Kind<'_>) {
        let state = self.state(chunk);
        let seen = state.load(Ordering::Acquire);
        let class = seen & !CREDIT;
        match seen & CREDIT {
            STALE => {}
            MENDING => {
                while state.load(Ordering::Acquire) & CREDIT == MENDING {
                    spin();
                }
                return;
            }
            _ => return,
        }
        if state
            .compare_exchange(seen, class | MENDING, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            return;
        }
        let slab = self.slab_address(chunk);
        if format.guards {
            // At the fork another thread may have been making the slab.
            // SAFETY: a slab of this geometry, by the contract. No other thread writes to its
            // guards: only the thread that mends it comes here.
            unsafe { guard::set_all(slab, geometry) };
        }
        // SAFETY: a slab of this geometry, by the contract.
        let rows = unsafe { self.rows(slab, geometry) };
        let mut credit = 0;
        for (i, row) in rows.iter().enumerate() {
            let first = i * 64;
            let here = (geometry.objects as usize - first).min(64);
            let bits = if format.extension {
                // SAFETY: a slab of this geometry, which has extension words by its format.
                let words = unsafe { self.extension(slab, geometry) };
                let word = |i: usize| {
                    let offset = (first + i) * geometry.size as usize;
                    words[offset >> geometry.ext_shift()].load(Ordering::Relaxed)
                };
                (0..here).filter(|&i| word(i) & EXT_LIVE == 0).fold(0u64, |bits, i| bits | 1 << i)
            } else {
                row.load() & crate::row::span(0, here as u32)
            };
            row.0.store(bits, Ordering::Relaxed);
            credit += bits.count_ones();
        }
        state.store(class | credit, Ordering::Release);
        for i in 0..geometry.chunks() {
            self.chunk_class(chunk + i).fetch_and(CHUNK_CLASS_MASK, Ordering::Release);
        }
    }

    /// Calls `each` with the address and class of every slab in the first `committed` pages.
    ///
    /// # Safety
    /// The zone has that many pages.
    pub unsafe fn each_slab(
        &self,
        committed: PageCount,
        classes: &[ClassGeometry],
        mut each: impl FnMut(usize, SizeClass),
    ) {
        let mut chunk = 0;
        while chunk < committed.0 >> CHUNK_ORDER {
            let class = self.chunk_class(chunk).load(Ordering::Acquire) & CHUNK_CLASS_MASK;
            let geometry = &classes[class as usize];
            if class != 0 && self.slab_address(chunk) & geometry.slab_mask as usize == 0 {
                each(self.slab_address(chunk), SizeClass(class));
            }
            chunk += 1;
        }
    }
}

/// Class in a state.
const fn class_in(state: u32) -> SizeClass {
    SizeClass((state >> 24) as u8 & CHUNK_CLASS_MASK)
}

const _: () = assert!(CHUNK_CLASS_MASK as u32 == (HELD - 1) >> 24);

/// Stamp in a state.
const fn stamp_in(state: u32) -> u32 {
    state >> 16 & 0xFF
}

/// Credit in a state.
const fn credit_in(state: u32) -> u32 {
    state & CREDIT
}

#[cfg(all(test, loom))]
mod model;

const _: () = assert!(PAGE_SHIFT + CHUNK_ORDER == CHUNK_SHIFT);
