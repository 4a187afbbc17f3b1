//! Slabs: naturally aligned groups of chunks cut into objects of one class.
//!
//! ```text
//! chunk_class[chunk]   class of the slab the chunk belongs to, 0: pages
//! state[chunk]         of a slab's first chunk: class << 24 | stamp << 16 | credit
//! sets.lane(class)     slabs with credit (hints)
//! slab                 objects, rows (1 bit: free object), extension vector, records; see `class`
//! ```
//!
//! Credit works as in a zone: at most the number of free bits; taken before bits, given after
//! bits. A slab whose credit equals its objects is wholly free; one compare-and-swap of its
//! state to 0 takes it out of use. The class in the state word keeps a claim on a slab that
//! was retired and made anew for another class from succeeding. The stamp is the generation of the
//! last claim, see [`purge`].
//!
//! | state                 | meaning                                             |
//! |-----------------------|-----------------------------------------------------|
//! | 0                     | not a slab (or not its first chunk)                 |
//! | class, credit         | in use                                              |
//! | class, [`STALE`]      | in a forked child: rows not yet rebuilt             |
//! | class, [`MENDING`]    | in a forked child: rows being rebuilt               |
//!
//! Context: any. Lock-free, but for the wait on a slab another thread of a forked child mends.

use crate::page::{SLAB_TABLES, Table};
use crate::root::{CHUNK_CLASS_MASK, EXT_LIVE, ZoneBlock};
use crate::row::Row;
use crate::row::summary::{self, Summary};
use crate::sync::{AtomicU8, AtomicU32, Ordering, spin};
use crate::units::{CHUNK_ORDER, CHUNK_SIZE, Item, PAGE_SHIFT, PageCount, Pfn};

mod claim;
pub mod guard;
pub mod purge;
pub mod quarantine;
pub mod sheaf;

use crate::class::{self, CLASS_COUNT, ClassGeometry, SizeClass};

/// Sets of slabs with credit lie this many words apart.
const LANES: u32 = CLASS_COUNT as u32;
/// Bit of a `chunk_class` byte: the slab is [`STALE`]; makes the fast path take the slow one.
pub const CHUNK_STALE: u8 = !CHUNK_CLASS_MASK;
const CREDIT: u32 = 0xFFFF;
const STALE: u32 = 0xFFFF;
const MENDING: u32 = 0xFFFE;

/// The slabs of one zone.
///
/// # Invariants
/// The pointers lead to arrays with one element per chunk, in memory that is never freed.
pub struct SlabZone {
    base: usize,
    chunk_class: *const AtomicU8,
    state: *const AtomicU32,
    sets: Summary,
    leaves: usize,
    chunks: u32,
    /// Objects end with a guard.
    guards: bool,
    /// Of the decay; the lowest eight bits are what a claim stamps a slab with.
    generation: AtomicU32,
    /// The chunk that was looked at last by a purge.
    looked: AtomicU32,
}

// SAFETY: all shared state is atomic, reached through pointers that stay valid.
unsafe impl Send for SlabZone {}
// SAFETY: as above.
unsafe impl Sync for SlabZone {}

/// An object that was returned although it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubleFree(pub usize);

/// A slab that became wholly free and was taken out of use: its pages can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    /// First page.
    pub start: Pfn,
    /// Length.
    pub pages: PageCount,
}

/// What is known of the object an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At the start of an object.
    Object {
        /// Address of its extension word.
        ext: usize,
    },
    /// Inside an object, `offset` bytes behind its start.
    Inside {
        /// Address of the object.
        object: usize,
        /// Distance from it.
        offset: u32,
    },
    /// Behind the last object, in the slab's own data.
    Tail,
}

impl SlabZone {
    /// Bytes of metadata for a zone of `pages`.
    pub const fn metadata_bytes(pages: u32) -> usize {
        let chunks = pages >> CHUNK_ORDER;
        let sets = summary::words_for(chunks, LANES) * 8;
        sets + chunks as usize * 4 + (chunks as usize).next_multiple_of(64)
    }

    /// Of these, the parts that must be committed from the beginning: the upper levels of the
    /// sets, and the class of every chunk, for any address may be asked for.
    pub const fn fixed_parts(pages: u32) -> [core::ops::Range<usize>; 2] {
        let chunks = pages >> CHUNK_ORDER;
        let sets = summary::words_for(chunks, LANES) * 8;
        let classes = sets + chunks as usize * 4;
        [summary::leaf_bytes(chunks, LANES)..sets, classes..classes + chunks as usize]
    }

    /// The tables that must be committed as the zone grows.
    pub fn tables(&self) -> [Table; SLAB_TABLES] {
        [Table { at: self.leaves, bits: LANES }, Table { at: self.state as usize, bits: 32 }]
    }

    /// Views zeroed metadata as a zone without slabs.
    ///
    /// # Safety
    /// `metadata` has [`Self::metadata_bytes`], 64-byte aligned, for this alone, for good;
    /// `base` is the address of the zone's first page.
    pub unsafe fn new(base: usize, pages: PageCount, metadata: *mut u8) -> Self {
        let chunks = pages.0 >> CHUNK_ORDER;
        let state = metadata.wrapping_add(summary::words_for(chunks, LANES) * 8);
        let chunk_class = state.wrapping_add(chunks as usize * 4);
        // SAFETY: memory of that size, zero once committed, by the caller's promise.
        let sets = unsafe { Summary::new(metadata.cast(), chunks, LANES) };
        let (chunk_class, leaves) = (chunk_class.cast(), metadata as usize);
        Self {
            base,
            chunk_class,
            state: state.cast(),
            sets,
            leaves,
            chunks,
            guards: false,
            generation: AtomicU32::new(0),
            looked: AtomicU32::new(0),
        }
    }

    /// The same with objects that end with a guard, or without.
    pub fn with_guards(self, guards: bool) -> Self {
        Self { guards, ..self }
    }

    /// Writes the address of the class table for readers.
    pub fn describe(&self, block: &mut ZoneBlock) {
        block.chunk_class = self.chunk_class as u64;
    }

    /// The class bytes, one per chunk.
    pub fn chunk_classes(&self) -> *const AtomicU8 {
        self.chunk_class
    }

    /// Chunks of the zone.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    fn chunk_class(&self, chunk: u32) -> &AtomicU8 {
        debug_assert!(chunk < self.chunks);
        // SAFETY: in range.
        unsafe { &*self.chunk_class.add(chunk as usize) }
    }

    fn state(&self, chunk: u32) -> &AtomicU32 {
        debug_assert!(chunk < self.chunks);
        // SAFETY: in range.
        unsafe { &*self.state.add(chunk as usize) }
    }

    /// Class of the slab a page lies in, class 0 for a page that is in none; and whether the
    /// slab waits to be mended.
    pub fn class_of(&self, pfn: Pfn) -> (SizeClass, bool) {
        let byte = self.chunk_class(pfn.0 >> CHUNK_ORDER).load(Ordering::Acquire);
        (SizeClass(byte & CHUNK_CLASS_MASK), byte & CHUNK_STALE != 0)
    }

    fn slab_address(&self, chunk: u32) -> usize {
        self.base + chunk as usize * CHUNK_SIZE
    }

    fn rows<'a>(&'a self, slab: usize, geometry: &ClassGeometry) -> &'a [Row] {
        let at = (slab + geometry.rows_offset() as usize) as *const Row;
        // SAFETY: every slab of this geometry has its rows there; they are atomics.
        unsafe { core::slice::from_raw_parts(at, geometry.rows() as usize) }
    }

    fn ext<'a>(&'a self, slab: usize, geometry: &ClassGeometry) -> &'a [AtomicU32] {
        let at = (slab + geometry.ext_offset as usize) as *const AtomicU32;
        // SAFETY: every slab of this geometry has its vector there; called with books only.
        unsafe { core::slice::from_raw_parts(at, geometry.ext_words() as usize) }
    }

    /// Where in its slab an address of this class lies.
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

    /// Makes pages into a slab and takes its first objects into the last part of `out`, highest
    /// first; how many.
    ///
    /// # Safety
    /// `start` is the first of `geometry.chunks()` chunks that were just claimed, naturally
    /// aligned by address, all zero if `zero`.
    pub unsafe fn create(
        &self,
        class: SizeClass,
        geometry: &ClassGeometry,
        start: Pfn,
        zero: bool,
        books: bool,
        out: &mut [Item],
    ) -> usize {
        let chunk = start.0 >> CHUNK_ORDER;
        let slab = self.slab_address(chunk);
        if books && !zero {
            let ext = self.ext(slab, geometry);
            // SAFETY: pages just claimed: nobody else knows this vector yet.
            unsafe { ext.as_ptr().cast_mut().write_bytes(0, ext.len()) };
        }
        if self.guards {
            // SAFETY: as above.
            unsafe { guard::set_all(slab, geometry) };
        }
        let taken = geometry.objects.min(out.len() as u32);
        let mut left = geometry.objects;
        let mut first = taken;
        for row in self.rows(slab, geometry) {
            let here = left.min(64);
            let used = first.min(here);
            let bits = if used == 64 { 0 } else { crate::row::span(0, here) & (u64::MAX << used) };
            row.0.store(bits, Ordering::Relaxed);
            left -= here;
            first -= used;
        }
        for (i, slot) in out.iter_mut().rev().take(taken as usize).enumerate() {
            *slot = Item::at(slab + i * geometry.size as usize);
        }
        for i in 0..geometry.chunks() {
            self.chunk_class(chunk + i).store(class.0, Ordering::Release);
        }
        let credit = geometry.objects - taken;
        // Release: rows and extension are ready for whoever takes credit.
        self.state(chunk).store(self.stamped(class, credit), Ordering::Release);
        if credit > 0 {
            self.sets.insert(u32::from(class.0), chunk);
        }
        taken as usize
    }

    /// Gives free objects of a class back to their slabs; `retired` is told of slabs that
    /// became wholly free.
    ///
    /// # Errors
    /// The first object that was free already; all others are given back.
    ///
    /// # Safety
    /// Each object is of this class and zone, and in nobody else's hands.
    pub unsafe fn give(
        &self,
        class: SizeClass,
        geometry: &ClassGeometry,
        items: &[Item],
        mut retired: impl FnMut(Retired),
    ) -> Result<(), DoubleFree> {
        let mut result = Ok(());
        let slab_of = |item: &Item| item.address() & !(geometry.slab_mask as usize);
        let mut rest = items;
        while let Some(first) = rest.first() {
            let slab = slab_of(first);
            let chunk = ((slab - self.base) / CHUNK_SIZE) as u32;
            let rows = self.rows(slab, geometry);
            let mut given = 0;
            // All that follow in the same slab; bits of one row are given together.
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
            if let Some(done) = self.give_credit(chunk, class, geometry, given) {
                retired(done);
            }
        }
        result
    }

    /// Adds credit for bits already given; the slab, if that made it wholly free.
    fn give_credit(
        &self,
        chunk: u32,
        class: SizeClass,
        geometry: &ClassGeometry,
        given: u32,
    ) -> Option<Retired> {
        if given == 0 {
            return None;
        }
        let state = self.state(chunk);
        let old = state.fetch_add(given, Ordering::SeqCst);
        let now = old + given;
        if (class_in(now), credit_in(now)) == (class, geometry.objects)
            && state.compare_exchange(now, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok()
        {
            self.sets.remove(u32::from(class.0), chunk);
            for i in 0..geometry.chunks() {
                self.chunk_class(chunk + i).store(0, Ordering::Release);
            }
            return Some(Retired {
                start: Pfn(chunk << CHUNK_ORDER),
                pages: PageCount(geometry.chunks() << CHUNK_ORDER),
            });
        }
        if credit_in(old) == 0 {
            self.sets.insert(u32::from(class.0), chunk);
        }
        None
    }

    /// A state with the stamp of this generation.
    fn stamped(&self, class: SizeClass, credit: u32) -> u32 {
        let generation = self.generation.load(Ordering::Relaxed);
        u32::from(class.0) << 24 | (generation & 0xFF) << 16 | credit
    }

    /// In a forked child: marks every slab as stale and offers it to claims. Returns, for the
    /// zone's own repair, what each chunk is used for.
    ///
    /// # Safety
    /// No other thread uses the slabs.
    pub unsafe fn distrust(&self, committed: PageCount, classes: &[ClassGeometry]) {
        // SAFETY: the caller's promise.
        unsafe { self.sets.clear(committed.0 >> CHUNK_ORDER) };
        let mut chunk = 0;
        let end = committed.0 >> CHUNK_ORDER;
        while chunk < end {
            let byte = self.chunk_class(chunk).load(Ordering::Relaxed) & CHUNK_CLASS_MASK;
            let geometry = &classes[byte as usize];
            let whole = geometry.chunks().max(1);
            let aligned = self.slab_address(chunk) & geometry.slab_mask as usize == 0;
            if byte == 0 || !aligned || chunk + whole > end {
                // Half of a slab that was being made or retired: its pages stay in use.
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

    /// Pages in use by slabs from the given first page of a chunk on.
    pub fn pages_used(&self, pfn: Pfn) -> PageCount {
        let class = self.chunk_class(pfn.0 >> CHUNK_ORDER).load(Ordering::Relaxed);
        PageCount(if class == 0 { 0 } else { 1 << CHUNK_ORDER })
    }

    /// Mends the slab that `address` lies in.
    pub fn mend_at(&self, address: usize, geometry: &ClassGeometry, books: bool) {
        let slab = address & !(geometry.slab_mask as usize);
        self.mend(((slab - self.base) / CHUNK_SIZE) as u32, geometry, books);
    }

    /// Rebuilds the rows of a stale slab from its extension vector; without books, objects
    /// that were in another thread's hands stay in use for good. Waits if another thread is
    /// at it.
    fn mend(&self, chunk: u32, geometry: &ClassGeometry, books: bool) {
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
        if self.guards {
            // The slab may have been in the making when the child was forked.
            // SAFETY: who has objects of a stale slab waits for it to be mended before they look.
            unsafe { guard::set_all(slab, geometry) };
        }
        let mut credit = 0;
        for (i, row) in self.rows(slab, geometry).iter().enumerate() {
            let first = i * 64;
            let here = (geometry.objects as usize - first).min(64);
            let bits = if books {
                let ext = self.ext(slab, geometry);
                let word = |i: usize| {
                    let offset = (first + i) * geometry.size as usize;
                    ext[offset >> geometry.ext_shift()].load(Ordering::Relaxed)
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

    /// Calls `each` with every slab's address and class, up to the committed pages.
    pub fn each_slab(
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

    /// The extension words of a slab.
    pub fn extension<'a>(&'a self, slab: usize, geometry: &ClassGeometry) -> &'a [AtomicU32] {
        self.ext(slab, geometry)
    }
}

/// The class in a state.
const fn class_in(state: u32) -> SizeClass {
    SizeClass((state >> 24) as u8)
}

/// The stamp in a state.
const fn stamp_in(state: u32) -> u32 {
    state >> 16 & 0xFF
}

/// The credit in a state.
const fn credit_in(state: u32) -> u32 {
    state & CREDIT
}

#[cfg(all(test, loom))]
mod model;

const _: () = assert!(PAGE_SHIFT + CHUNK_ORDER == class::CHUNK_SHIFT);
