//! Size classes and zones: copied from their records, and checked.

use std::ops::Range;

use kmem_layout::geometry::ClassGeometry;
use kmem_layout::root::ZoneBlock;

use super::source::Source;
use crate::error::ReadError;
use crate::maps::{Maps, PAGE};
use crate::memory::field;

/// Bytes of a chunk, the unit in which a zone knows size classes.
pub(super) const CHUNK: u64 = 64 << 10;
pub(super) const PAGES_PER_CHUNK: u64 = CHUNK / PAGE;
/// Pages of a pageblock (2 MiB), the unit of credit.
pub(super) const PAGEBLOCK_PAGES: u64 = 512;
/// Pages of a window, in which the tables of a zone are read.
pub(super) const WINDOW_PAGES: u64 = 1 << 18;
/// Largest slab in bytes. Zones start at a multiple of it.
const MAX_SLAB: u64 = 2 << 20;
/// Credit of a pageblock that is allocated as a whole; its bits in `rows` mean nothing.
pub(super) const WHOLE_TAKEN: u16 = 0xFFFF;

/// A size class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    /// Number in the table of classes.
    pub(super) number: usize,
    /// Bytes of an object.
    pub(super) size: u32,
    /// True if its objects serve requests of no bytes: the last class, behind larger ones.
    pub(super) is_of_no_bytes: bool,
    /// Offset of the extension vector in the slab, in bytes.
    pub(super) ext_offset: u32,
    /// Words of the extension vector.
    pub(super) ext_words: u32,
    /// Bytes of the slab that are objects.
    pub(super) limit: u64,
    pub(super) slab_size: u64,
    /// Most objects that a CPU keeps.
    pub(super) cap: u16,
    /// Objects moved by one refill or flush.
    pub(super) batch: u16,
}

impl Class {
    /// Parses and checks a record. Without an extension vector (`has_books` is false) the offset
    /// of the vector has no meaning and is not checked.
    pub(super) fn parse(number: usize, record: &[u8], has_books: bool) -> Result<Self, String> {
        let slab_size = u64::from(field!(record, ClassGeometry.slab_mask: u32)) + 1;
        let size = field!(record, ClassGeometry.size: u32);
        let class = Self {
            number,
            size,
            is_of_no_bytes: false,
            ext_offset: field!(record, ClassGeometry.ext_offset: u32),
            // A size of 0 is refused below.
            ext_words: (slab_size >> size.max(1).ilog2()) as u32,
            limit: u64::from(field!(record, ClassGeometry.limit: u32)),
            slab_size,
            cap: field!(record, ClassGeometry.cap: u16),
            batch: field!(record, ClassGeometry.batch: u16),
        };
        if !slab_size.is_power_of_two() || !(CHUNK..=MAX_SLAB).contains(&slab_size) {
            return Err(format!("slab_mask is {:#x}", slab_size - 1));
        }
        let objects = u64::from(field!(record, ClassGeometry.objects: u32));
        let is_whole = u64::from(size) * objects == class.limit && class.limit <= slab_size;
        if size == 0 || objects == 0 || !is_whole {
            return Err(format!("{objects} objects of {size} bytes, limit {}", class.limit));
        }
        let ext = u64::from(class.ext_offset);
        let end = ext + 4 * u64::from(class.ext_words);
        if has_books && (ext < class.limit || ext % 4 != 0 || end > slab_size) {
            return Err(format!("extension vector at {ext:#x} of a slab of {slab_size:#x} bytes"));
        }
        Ok(class)
    }

    pub(super) fn chunks(&self) -> u64 {
        self.slab_size / CHUNK
    }
}

/// A zone. Its tables are readable up to `committed` once [`Zone::check`] has passed.
#[derive(Debug, Clone)]
pub(super) struct Zone {
    /// Address of the first page.
    pub(super) base: u64,
    /// Pages from `base` that the process may use.
    pub(super) committed: u64,
    pub(super) chunk_class: u64,
    pub(super) page_ext: u64,
    pub(super) page_len: u64,
    /// 0: page allocations have no times.
    pub(super) page_time: u64,
    pub(super) rows: u64,
    pub(super) dirty: u64,
    pub(super) credit: u64,
    /// See [`kmem_layout::root::zone_purpose`].
    pub(super) purpose: u32,
    /// NUMA node of its memory.
    pub(super) node: u32,
    /// Metadata of the zone: address, and length in bytes.
    pub(super) meta: (u64, u64),
    pages: u64,
}

impl Zone {
    pub(super) fn parse(record: &[u8]) -> Self {
        Self {
            base: field!(record, ZoneBlock.base: u64),
            committed: field!(record, ZoneBlock.committed: u64),
            chunk_class: field!(record, ZoneBlock.chunk_class: u64),
            page_ext: field!(record, ZoneBlock.page_ext: u64),
            page_len: field!(record, ZoneBlock.page_len: u64),
            page_time: field!(record, ZoneBlock.page_time: u64),
            rows: field!(record, ZoneBlock.rows: u64),
            dirty: field!(record, ZoneBlock.dirty: u64),
            credit: field!(record, ZoneBlock.credit: u64),
            purpose: field!(record, ZoneBlock.purpose: u32),
            node: field!(record, ZoneBlock.node: u32),
            meta: (
                field!(record, ZoneBlock.meta_base: u64),
                field!(record, ZoneBlock.meta_len: u64),
            ),
            pages: field!(record, ZoneBlock.pages: u64),
        }
    }

    pub(super) fn check(&self, maps: &Maps, has_books: bool) -> Result<(), String> {
        if self.is_empty() {
            return Ok(());
        }
        if !self.base.is_multiple_of(MAX_SLAB) {
            return Err(format!("base {:#x} is not a multiple of 2 MiB", self.base));
        }
        let end = self.pages.checked_mul(PAGE).and_then(|len| self.base.checked_add(len));
        if end.is_none_or(|end| end > 1 << 57) {
            return Err(format!(
                "{:#x} pages at {:#x} are no address range",
                self.pages, self.base
            ));
        }
        if self.committed > self.pages {
            return Err(format!("{:#x} pages committed of {:#x}", self.committed, self.pages));
        }
        if self.committed == 0 {
            return Ok(());
        }
        for (name, addr, len) in [
            ("chunk_class", self.chunk_class, self.chunks()),
            ("page_ext", self.page_ext, self.committed * 4),
            ("page_len", self.page_len, self.committed * 4),
            ("page_time", self.page_time, self.committed * 4),
            ("rows", self.rows, self.committed.div_ceil(64) * 8),
            ("dirty", self.dirty, self.committed.div_ceil(64) * 8),
            ("credit", self.credit, self.committed.div_ceil(PAGEBLOCK_PAGES) * 2),
        ] {
            let is_used = match name {
                "page_ext" => has_books,
                "page_time" => addr != 0,
                _ => true,
            };
            if is_used && !maps.is_readable_memory(addr, len) {
                return Err(format!(
                    "{name} at {addr:#x}, {len} bytes, is not in the process's memory"
                ));
            }
        }
        Ok(())
    }

    /// Copies the credit of the pageblocks that hold the pages `first..last`. `first` starts a
    /// pageblock.
    pub(super) fn credit(
        &self,
        source: &Source<'_>,
        pages: &Range<u64>,
    ) -> Result<Vec<u16>, ReadError> {
        let first = pages.start / PAGEBLOCK_PAGES;
        let count = pages.end.div_ceil(PAGEBLOCK_PAGES) - first;
        let mut bytes = vec![0; 2 * usize::try_from(count).unwrap_or(0)];
        source.memory.read(self.credit + 2 * first, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|two| u16::from_le_bytes(*two)).collect())
    }

    /// Copies the bits of these pages from a table with one bit for each page. The first page is a
    /// multiple of 64.
    pub(super) fn bits(
        &self,
        source: &Source<'_>,
        table: u64,
        pages: &Range<u64>,
    ) -> Result<Vec<u8>, ReadError> {
        let len = usize::try_from((pages.end - pages.start).div_ceil(64) * 8).unwrap_or(0);
        let mut bytes = vec![0; len];
        source.memory.read(table + pages.start / 8, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies the bits of the free pages among these. The bits of pageblocks that are allocated as
    /// a whole are cleared. The first page starts a pageblock.
    pub(super) fn free_bits(
        &self,
        source: &Source<'_>,
        pages: &Range<u64>,
    ) -> Result<Vec<u8>, ReadError> {
        let mut free = self.bits(source, self.rows, pages)?;
        let credit = self.credit(source, pages)?;
        for (block, credit) in free.chunks_mut(PAGEBLOCK_PAGES as usize / 8).zip(credit) {
            if credit == WHOLE_TAKEN {
                block.fill(0);
            }
        }
        Ok(free)
    }

    /// The pages that the process may use, in windows of bounded size: 1 GiB of address space.
    pub(super) fn windows(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let committed = self.committed;
        let starts = (0..committed).step_by(WINDOW_PAGES as usize);
        starts.map(move |first| first..(first + WINDOW_PAGES).min(committed))
    }

    pub(super) fn chunks(&self) -> u64 {
        self.committed.div_ceil(PAGES_PER_CHUNK)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Addresses of all pages.
    pub(super) fn range(&self) -> Range<u64> {
        self.base..self.end()
    }

    /// One past the last address.
    pub(super) fn end(&self) -> u64 {
        self.base + self.pages * PAGE
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.base < other.end() && other.base < self.end()
    }
}
