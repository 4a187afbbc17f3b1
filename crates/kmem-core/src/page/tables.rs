//! Tables that lie beside the pages of a zone, and are committed as the zone grows.

use core::ops::Range;

use kmem_layout::root::ZoneBlock;

use crate::units::PageCount;

/// Number of tables that are committed as the zone grows: those of the zone, those of its slabs.
pub(super) const TABLES: usize = OWN_TABLES + SLAB_TABLES;
/// Number of those of the zone: rows, dirty bits, and words.
pub(super) const OWN_TABLES: usize = 2 + WORD_TABLES;
/// Number of tables of words per page.
pub(super) const WORD_TABLES: usize = 4;
/// Number of tables of a zone's slabs that are committed as the zone grows.
pub const SLAB_TABLES: usize = 3;

/// A table with a fixed number of bits for each chunk of 16 pages.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its address.
    pub at: usize,
    /// Bits per chunk.
    pub bits: u32,
    /// Pages whose entries are committed from the beginning.
    pub start: u32,
    /// Use of its entries for pages that are not committed.
    pub beyond: Beyond,
}

impl Table {
    /// A table at `at` that never grows: it has no bits per chunk.
    pub const fn empty(at: usize) -> Self {
        Self { at, bits: 0, start: 0, beyond: Beyond::Unused }
    }
}

/// Use of the entries of a table for pages that are not committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beyond {
    /// They may be read: the platform shows them, or they are committed.
    Read,
    /// They are not used, and may be given back.
    Unused,
}

/// The tables of a zone's slabs, which lie behind the zone's own. The layer above implements it.
///
/// # Safety
/// [`Self::fixed_part`] and [`Self::tables`] lie in the metadata that [`Self::new`] is given.
pub unsafe trait SlabTables: Sync + Sized + 'static {
    /// Bytes of metadata for a zone of `pages`.
    fn metadata_bytes(pages: u32) -> usize;

    /// The part of the metadata that must be committed from the beginning, with the tables' entries
    /// of the first [`Table::start`] pages.
    fn fixed_part(pages: u32) -> Range<usize>;

    /// Bytes of the table of classes for a zone of `pages`.
    fn class_bytes(pages: u32) -> usize;

    /// Views zeroed metadata as that of a zone without slabs.
    ///
    /// # Safety
    /// `metadata` is [`Self::metadata_bytes`] of reserved memory, 64-byte aligned and zero once
    /// committed. The [`Self::fixed_part`] is committed. `classes` are [`Self::class_bytes`] of
    /// zeroes that can be read, and written once committed. Only this value uses both, and they are
    /// never freed. `base` is the address of the zone's first page.
    unsafe fn new(base: usize, pages: PageCount, metadata: *mut u8, classes: *mut u8) -> Self;

    /// The tables that must be committed as the zone grows.
    fn tables(&self) -> [Table; SLAB_TABLES];

    /// Writes the addresses of the tables for readers.
    fn describe(&self, block: &mut ZoneBlock);
}
