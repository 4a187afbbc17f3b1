//! The page zone: runs of pages of any length, from one page to the whole zone; and the zones of
//! an instance.
//!
//! ```text
//! zone    | pageblock 0 (2 MiB)               | pageblock 1 | ..    | committed | reserved
//! rows    | row 0 (64 pages) .. row 7         | ..                    1 bit: free page
//! credits | credit of pageblocks 0, 1, 2, 3 | ..                      see `credit`
//! dirty   | like rows                                                 1 bit: may have old contents
//! ext     | u32 per page: extension word of the run that starts there
//! len     | u32 per page: length of the run that starts there, 0 while it is free
//! time    | u32 per page: when the run that starts there was allocated, if that is kept
//! bounds  | u32 per page: where in its pages the block of the run lies, if that is kept
//! ```
//!
//! **Credit.** A pageblock's credit is at most the number of its free bits. A thread that wants
//! pages takes credit first, then bits; a thread that returns pages gives bits first, then credit.
//! So credit 512 proves all 512 pages free, and one compare-and-swap to `HUGE` takes the pageblock
//! as a whole, check included. While it is `HUGE` its bits stay set and belong to the taker.
//!
//! A CPU may hold all the credit of a pageblock, its [`Reserve`]. The pageblock then looks full to
//! other CPUs.
//!
//! Hints (see `fit` and [`crate::row::summary`]) lead to the lowest pageblock first, so partly used
//! pageblocks fill up and free ones stay whole.
//!
//! | file       | what it does                                                        |
//! |------------|---------------------------------------------------------------------|
//! | `zones`    | the zones of an instance: claims across them, new ones              |
//! | `node`     | NUMA nodes                                                          |
//! | `claim`    | takes runs; `bulk` many blocks at once; `give` takes them back      |
//! | `credit`   | the number of pages of a pageblock that may be claimed              |
//! | `fit`      | the longest run in each pageblock, and a tree to search by it       |
//! | `grow`     | commits more of the zone's address space                            |
//! | `huge`     | which pageblocks the platform may back with huge pages              |
//! | `space`    | address space that is left, which a program with a limit gets back  |
//! | `span`     | spans of pages across rows and pageblocks                           |
//! | `purge`    | gives unused memory back to the platform                            |
//! | `contents` | which pages may hold old contents; zeroing                          |
//! | `check`    | checks of free pages: bad pages, poison, protection                 |
//! | `pcp`      | a CPU's share of the page layer                                     |
//! | `fork`     | repair in a forked child; `validate` recounts                       |
//!
//! Lock order: there are no locks, but turns of growth (`space`). A thread that stops anywhere, or
//! a child forked at that moment, costs at most the pages that the thread was moving. While a
//! thread is stopped between a free and the numbers of [`fit`], searches may also miss pages of
//! that pageblock.
//!
//! Context: any; may call the platform.

use core::ptr::NonNull;

use kmem_layout::length;
use kmem_layout::root::ZoneBlock;

use crate::os::Platform;
use crate::row::maxima::{self, Maxima};
use crate::row::summary::{self, Summary};
use crate::row::{Row, span};
use crate::sync::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::units::{
    PAGE_SHIFT, PAGE_SIZE, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, PAGEBLOCK_SIZE, PageCount, Pageblock,
    Pfn,
};

mod bulk;
#[cfg(not(loom))]
mod check;
mod claim;
mod contents;
mod credit;
mod fit;
mod fork;
mod give;
mod grow;
mod huge;
#[cfg(not(loom))]
mod node;
mod pcp;
mod purge;
mod space;
mod span;
mod tables;
mod validate;
#[cfg(not(loom))]
mod zones;

pub use bulk::Reserve;
#[cfg(not(loom))]
pub use check::{Bad, BadPage, PageChecks};
pub use fork::FreeWords;
#[cfg(not(loom))]
pub use node::Placement;
pub use pcp::{Pcp, Way};
pub use purge::{Keep, LOOK_EVERY, Look, Purged};
pub use tables::{Beyond, SLAB_TABLES, SlabTables, Table};
use tables::{OWN_TABLES, TABLES, WORD_TABLES};
pub use validate::ZoneFault;
#[cfg(not(loom))]
pub use zones::{FirstZones, PageFormat, Purpose, ZoneSet, Zones};

/// Lanes of the hint sets of pageblocks.
mod lane {
    pub(super) const FREE: u32 = 0;
    pub(super) const PURGE: u32 = 1;
    pub(super) const COUNT: u32 = 2;
}

/// One zone.
///
/// # Invariants
/// The pointers lead to arrays with an entry for each page, row or pageblock of the zone, in
/// memory that is never freed; `ext`, `time` and `bounds` may be null. Only the parts that
/// describe committed pages are non-zero.
pub struct Zone {
    base: usize,
    pages: PageCount,
    rows: *const Row,
    credits: *const AtomicU64,
    dirty: *const AtomicU64,
    /// Null if pages have no extension words.
    ext: *const AtomicU32,
    len: *const AtomicU32,
    /// Null if pages have no times.
    time: *const AtomicU32,
    /// Null if blocks fill their pages.
    bounds: *const AtomicU32,
    /// Low half of the decay generation of the last return to each pageblock.
    stamp: *const AtomicU16,
    /// Pageblocks that may have huge pages: a bit for each, in words of 64.
    huge: *const AtomicU64,
    pageblocks: Summary,
    /// The longest runs of partly used pageblocks.
    fits: Maxima,
    block: *const ZoneBlock,
    used: *const AtomicU32,
    decay: purge::Decay,
    backing: huge::Backing,
    tables: [Table; TABLES],
    /// Pages for which the tables are committed.
    described: AtomicU32,
    /// Address space that is left to grow into.
    space: space::Space,
    /// Page where the next search for a span of pages begins.
    next_span: AtomicU32,
    /// 1 if pages that were never used are inaccessible.
    hides: AtomicU32,
}

// SAFETY: all shared state is atomic, reached through pointers that stay valid (invariant).
unsafe impl Send for Zone {}
// SAFETY: all shared state is atomic, reached through pointers that stay valid (invariant).
unsafe impl Sync for Zone {}

/// A run of pages of one zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First page.
    pub start: Pfn,
    /// Length.
    pub pages: PageCount,
}

impl Run {
    /// The page behind the last one.
    #[inline]
    pub fn end(self) -> Pfn {
        self.start + self.pages
    }

    /// The parts of the run, row by row: the row's first page, and a mask of the row.
    fn rows(self) -> impl Iterator<Item = (Pfn, u64)> {
        let (mut at, end) = (self.start.0, self.end().0);
        core::iter::from_fn(move || {
            let len = (64 - at % 64).min(end - at);
            let mask = (len > 0).then(|| span(at % 64, len))?;
            let row = Pfn(at / 64 * 64);
            at += len;
            Some((row, mask))
        })
    }
}

/// A page that was returned although it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubleFree(pub Pfn);

/// Extension word and length of the run that starts at a page.
#[derive(Clone, Copy)]
pub struct PageWords<'a> {
    /// Holder of the run. Keeps the tag of the last holder while the page is free. `None`: pages of
    /// the zone have no extension words.
    pub ext: Option<&'a AtomicU32>,
    /// Length word of the run that begins at the page, see [`kmem_layout::length`]; 0 if none does.
    pub len: &'a AtomicU32,
    /// When the run was allocated, see [`kmem_layout::time`]. `None`: that is not kept.
    pub time: Option<&'a AtomicU32>,
    /// The [`Bounds`] of the run's block; of a guard, see [`Self::freed_by`]. `None`: blocks fill
    /// their pages.
    pub bounds: Option<&'a AtomicU32>,
}

/// Place of a block in the pages of its run, and a number of its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes in front of it, in the first page.
    pub front: u16,
    /// Bytes behind it, in the last page.
    pub behind: u16,
    /// True if what is around it must not be used.
    pub is_fenced: bool,
    /// A number below 128 that the owner chooses.
    pub owner: u8,
}

impl Bounds {
    /// Those of a block that fills its pages.
    pub const NONE: Self = Self { front: 0, behind: 0, is_fenced: false, owner: 0 };
    /// Bits of each number of bytes, which is less than a page.
    const BITS: u32 = PAGE_SHIFT;

    /// Bytes of a block in a run of that length.
    pub fn room(self, pages: PageCount) -> usize {
        pages.bytes().saturating_sub(usize::from(self.front) + usize::from(self.behind))
    }

    /// As a word: `is_fenced:1 | owner:7 | front:12 | behind:12`.
    fn word(self) -> u32 {
        let owner = u32::from(self.owner) | u32::from(self.is_fenced) << 7;
        owner << (2 * Self::BITS) | u32::from(self.front) << Self::BITS | u32::from(self.behind)
    }

    fn of(word: u32) -> Self {
        let bytes = |word| (word & (PAGE_SIZE as u32 - 1)) as u16;
        let owner = (word >> (2 * Self::BITS)) as u8;
        let (front, behind) = (bytes(word >> Self::BITS), bytes(word));
        Self { front, behind, is_fenced: owner >> 7 != 0, owner: owner & 0x7F }
    }
}

const _: () = assert!(2 * Bounds::BITS + u8::BITS <= u32::BITS);

impl PageWords<'_> {
    /// The extension word; 0 if there is none.
    #[inline]
    pub fn word(&self) -> u32 {
        self.ext.map_or(0, |ext| ext.load(Ordering::Relaxed))
    }

    /// Writes the extension word, if there is one.
    #[inline]
    pub fn set_word(&self, word: u32) {
        if let Some(ext) = self.ext {
            ext.store(word, Ordering::Relaxed);
        }
    }

    /// Place of the block in its pages.
    #[inline]
    pub fn bounds(&self) -> Bounds {
        Bounds::of(self.bounds.map_or(0, |bounds| bounds.load(Ordering::Relaxed)))
    }

    /// Writes the place of the block in its pages, if that is kept.
    #[inline]
    pub fn set_bounds(&self, to: Bounds) {
        if let Some(bounds) = self.bounds {
            bounds.store(to.word(), Ordering::Relaxed);
        }
    }

    /// Of the guard of an area: the tag of the call that freed the area last; 0 if none did.
    pub fn freed_by(&self) -> u32 {
        self.bounds.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Notes the tag of the call that frees an area, whose guard this is.
    pub fn note_freed_by(&self, tag: u32) {
        if let Some(word) = self.bounds {
            word.store(tag, Ordering::Relaxed);
        }
    }

    /// Length of the run that begins at the page; 0 if none does.
    #[inline]
    pub fn length(&self) -> PageCount {
        PageCount(length::pages(self.len.load(Ordering::Acquire)))
    }
}

/// Offsets of the arrays of a zone, in the order in which they lie in memory.
struct Carve {
    at: usize,
}

impl Carve {
    /// Offset of the next array, on a cache line of its own.
    const fn take(&mut self, bytes: usize) -> usize {
        let at = self.at;
        self.at = (at + bytes + 63) & !63;
        at
    }
}

impl Zone {
    /// Bytes of metadata for a zone of `pages`.
    pub const fn metadata_bytes(pages: u32) -> usize {
        let rows = (pages as usize / 8).next_multiple_of(64);
        Self::fixed_bytes(pages) - Self::start_pages(pages) as usize / 8 + 2 * rows
    }

    /// Bytes of each table of words of `pages`: extension words, lengths, times, and bounds.
    pub const fn word_bytes(pages: u32) -> usize {
        pages as usize * 4
    }

    /// Bytes at the start of the metadata that must be committed from the beginning: up to the rows
    /// of [`Self::start_pages`].
    pub const fn fixed_bytes(pages: u32) -> usize {
        let pageblocks = pages >> PAGEBLOCK_ORDER;
        let mut carve = Carve { at: 0 };
        carve.take(pageblocks.div_ceil(4) as usize * 8); // credits
        carve.take(pageblocks.next_multiple_of(4) as usize * 2); // stamp
        carve.take(pageblocks.div_ceil(64) as usize * 8); // huge
        carve.take(maxima::words_for(pageblocks, fit::lane::COUNT) * 8);
        carve.take(summary::words_for(pageblocks, lane::COUNT) * 8);
        carve.at + Self::start_pages(pages) as usize / 8
    }

    /// Makes a zone of the `pages` at `base`, none of them committed yet.
    ///
    /// # Safety
    /// - `base` is the 2 MiB-aligned start of `pages` (a multiple of 512) reserved pages.
    /// - `metadata` is [`Self::metadata_bytes`] of reserved memory that is zero once committed. The
    ///   first [`Self::fixed_bytes`] are committed.
    /// - `words` are the tables of extension words, of lengths, of times and of bounds. Each is
    ///   [`Self::word_bytes`] of reserved memory, zero once committed. All but that of lengths are
    ///   null for a zone without such words.
    /// - `slab_tables` are reserved, and zero once committed.
    /// - `block` and `used` are valid.
    /// - Only this zone uses any of it, and it is never freed.
    pub unsafe fn new(
        base: NonNull<u8>,
        pages: PageCount,
        metadata: *mut u8,
        words: [*mut u8; WORD_TABLES],
        slab_tables: [Table; SLAB_TABLES],
        block: *const ZoneBlock,
        used: *const AtomicU32,
    ) -> Self {
        let base = base.as_ptr() as usize;
        debug_assert!(base.is_multiple_of(PAGEBLOCK_SIZE));
        debug_assert!(pages.0.is_multiple_of(PAGEBLOCK_PAGES));
        let (page_count, pageblocks) = (pages, pages.pageblocks());
        let mut carve = Carve { at: 0 };
        let mut take = |bytes| metadata.wrapping_add(carve.take(bytes));
        let credits = take(pageblocks.div_ceil(4) as usize * 8).cast();
        let stamp = take(pageblocks.next_multiple_of(4) as usize * 2).cast();
        let huge = take(pageblocks.div_ceil(64) as usize * 8).cast();
        let fits = take(maxima::words_for(pageblocks, fit::lane::COUNT) * 8).cast();
        let sets = take(summary::words_for(pageblocks, lane::COUNT) * 8).cast();
        let rows: *const Row = take(pages.0 as usize / 8).cast();
        let dirty: *const AtomicU64 = take(pages.0 as usize / 8).cast();
        let [ext, len, time, bounds]: [*const AtomicU32; WORD_TABLES] =
            words.map(|table| table.cast_const().cast());
        // SAFETY: the words of the trees lie in the `fixed_bytes`, which are committed and zero.
        let fits = unsafe { Maxima::new(fits, pageblocks, fit::lane::COUNT) };
        // SAFETY: the words of the sets lie in the `fixed_bytes`, which are committed and zero.
        let pageblocks = unsafe { Summary::new(sets, pageblocks, lane::COUNT) };
        let own = |at, bits| Table { bits, ..Table::empty(at) };
        let words = |at: *const AtomicU32| own(at as usize, if at.is_null() { 0 } else { 16 * 32 });
        let mut tables = [Table::empty(0); TABLES];
        tables[..OWN_TABLES].copy_from_slice(&[
            Table { start: Self::start_pages(pages.0), ..own(rows as usize, 16) },
            own(dirty as usize, 16),
            words(ext),
            words(len),
            words(time),
            words(bounds),
        ]);
        tables[OWN_TABLES..].copy_from_slice(&slab_tables);
        // INVARIANT: the arrays were carved out of metadata of the right size, which is never
        // freed, by the contract.
        Self {
            base,
            pages,
            rows,
            credits,
            dirty,
            ext,
            len,
            time,
            bounds,
            stamp,
            huge,
            pageblocks,
            fits,
            block,
            used,
            decay: purge::Decay::new(),
            backing: huge::Backing::new(),
            tables,
            described: AtomicU32::new(0),
            space: space::Space::new(page_count),
            next_span: AtomicU32::new(0),
            hides: AtomicU32::new(0),
        }
    }

    /// Writes the addresses of the tables for readers.
    pub fn describe(&self, block: &mut ZoneBlock) {
        block.base = self.base as u64;
        block.pages = u64::from(self.pages.0);
        block.page_ext = self.ext as u64;
        block.page_len = self.len as u64;
        block.page_time = self.time as u64;
        block.rows = self.rows as u64;
        block.dirty = self.dirty as u64;
        block.credit = self.credits as u64;
    }

    /// Address of the zone's first page.
    #[inline]
    pub fn base(&self) -> usize {
        self.base
    }

    /// Length of the zone's address space.
    #[inline]
    pub fn pages(&self) -> PageCount {
        self.pages
    }

    /// The page at an address, if it lies in this zone.
    #[inline]
    pub fn pfn(&self, at: usize) -> Option<Pfn> {
        let pfn = at.wrapping_sub(self.base) >> PAGE_SHIFT;
        (pfn < self.pages.0 as usize).then_some(Pfn(pfn as u32))
    }

    /// Address of a page.
    #[inline]
    pub fn address(&self, pfn: Pfn) -> usize {
        self.base + pfn.0 as usize * PAGE_SIZE
    }

    /// Pages that are readable and writable so far, from the first one on.
    #[inline]
    pub fn committed(&self) -> PageCount {
        // SAFETY: `block` is valid for the zone's life.
        PageCount(unsafe { (*self.block).committed.load(Ordering::Acquire) } as u32)
    }

    /// The pageblock behind the last committed one.
    pub(super) fn end(&self) -> Pageblock {
        Pageblock(self.committed().pageblocks())
    }

    /// The words of a page; `None` unless it is committed.
    #[inline]
    pub fn words(&self, pfn: Pfn) -> Option<PageWords<'_>> {
        // SAFETY: the page is committed: the test has just passed.
        (pfn.index() < self.committed()).then(|| unsafe { self.words_of(pfn) })
    }

    /// The words of a page that is known to be committed.
    ///
    /// # Safety
    /// The page is committed: it lies below [`Self::committed`], as all pages of claimed runs do.
    #[inline]
    pub unsafe fn words_of(&self, pfn: Pfn) -> PageWords<'_> {
        debug_assert!(pfn.index() < self.pages);
        let page = pfn.0 as usize;
        // SAFETY: by the contract, the tables that are not null have committed entries for the
        // page. That of lengths is one of them.
        unsafe {
            let ext = if self.ext.is_null() { None } else { Some(&*self.ext.add(page)) };
            let time = if self.time.is_null() { None } else { Some(&*self.time.add(page)) };
            let bounds = if self.bounds.is_null() { None } else { Some(&*self.bounds.add(page)) };
            PageWords { ext, len: &*self.len.add(page), time, bounds }
        }
    }

    fn row(&self, pfn: Pfn) -> &Row {
        debug_assert!(pfn.index() < self.pages);
        // SAFETY: `rows` has a row for each 64 pages of the zone, by its invariant.
        unsafe { &*self.rows.add(pfn.0 as usize / 64) }
    }

    /// The eight rows of a pageblock, each with its first page.
    fn rows_of(&self, pageblock: Pageblock) -> impl Iterator<Item = (Pfn, &Row)> {
        (0..8).map(move |i| {
            let first = pageblock.first() + PageCount::of_rows(i);
            (first, self.row(first))
        })
    }

    /// Restarts a pageblock's decay.
    fn stamp(&self, pageblock: Pageblock) {
        self.stamp_of(pageblock).store(self.decay.generation() as u16, Ordering::Relaxed);
    }

    /// Generations since a pageblock's decay restarted, modulo 2^16. Memory that went back 11
    /// minutes ago may look young for once, and goes a generation later.
    fn age(&self, pageblock: Pageblock) -> u32 {
        let stamp = self.stamp_of(pageblock).load(Ordering::Relaxed);
        (self.decay.generation() as u16).wrapping_sub(stamp).into()
    }

    fn stamp_of(&self, pageblock: Pageblock) -> &AtomicU16 {
        debug_assert!(pageblock.0 < self.pages.pageblocks());
        // SAFETY: `stamp` has an entry for each pageblock of the zone, by its invariant.
        unsafe { &*self.stamp.add(pageblock.0 as usize) }
    }

    /// Returns whether pages lie in the committed part of the zone, as all claimed runs do.
    fn holds(&self, start: Pfn, pages: PageCount) -> bool {
        u64::from(start.0) + u64::from(pages.0) <= u64::from(self.committed().0)
    }

    fn count_taken(&self, pages: PageCount) {
        // SAFETY: `used` is valid for the zone's life.
        unsafe { (*self.used).fetch_add(pages.0, Ordering::Relaxed) };
    }

    fn count_given(&self, pages: PageCount) {
        // SAFETY: `used` is valid for the zone's life.
        unsafe { (*self.used).fetch_sub(pages.0, Ordering::Relaxed) };
    }

    /// End of a run that its user sees end at `end`. If the pageblock of its last page is taken as
    /// a whole, the run owns that pageblock to its end.
    pub fn whole_end(&self, end: Pfn) -> Pfn {
        if end.0.is_multiple_of(PAGEBLOCK_PAGES) || !self.is_whole(end.pageblock()) {
            return end;
        }
        end.pageblock().end()
    }
}

/// A zone together with the platform under it.
#[derive(Clone, Copy)]
pub struct On<'a, P> {
    /// The zone.
    pub zone: &'a Zone,
    /// Its platform.
    pub platform: &'a P,
}

impl Zone {
    /// The zone with its platform, for operations that may call it.
    pub fn on<'a, P: Platform>(&'a self, platform: &'a P) -> On<'a, P> {
        On { zone: self, platform }
    }
}

#[cfg(all(test, loom))]
mod model;
