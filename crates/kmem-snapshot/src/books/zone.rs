//! Zones and size classes as a reader sees them: checked records.

use std::mem::offset_of;

use kmem::class::ClassGeometry;
use kmem::root::ZoneBlock;

use super::record::{u16_at, u32_at, u64_at};
use crate::error::ReadError;
use crate::memory::Memory;
use crate::process::Maps;

pub(super) const PAGE: u64 = 4096;
pub(super) const CHUNK: u64 = 64 << 10;
pub(super) const PAGES_PER_CHUNK: u64 = CHUNK / PAGE;
/// Slabs are no larger than this, and zones start at a multiple of it.
pub(super) const MAX_SLAB: u64 = 2 << 20;

/// Credit of a frame that is taken as a whole.
pub(super) const WHOLE_TAKEN: u16 = 0xFFFF;
/// Most frames whose credit is copied: those of 32 TiB.
const MAX_FRAMES: usize = 1 << 24;

/// A size class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    /// Its number in the table.
    pub(super) number: usize,
    pub(super) size: u32,
    pub(super) ext_offset: u32,
    /// Words of the extension vector.
    pub(super) ext_words: u32,
    /// Bytes of the slab that are objects.
    pub(super) limit: u64,
    pub(super) slab_size: u64,
    /// Most objects a CPU keeps.
    pub(super) cap: u16,
    /// Objects moved at a time.
    pub(super) batch: u16,
}

impl Class {
    /// `vector` tells whether slabs have an extension vector: without books its offset means
    /// nothing.
    pub(super) fn parse(number: usize, record: &[u8], vector: bool) -> Result<Self, String> {
        macro_rules! of {
            ($field:ident) => {
                u32_at(record, offset_of!(ClassGeometry, $field))
            };
        }
        let class = Self {
            number,
            size: of!(size),
            ext_offset: of!(ext_offset),
            // A size of 0 is refused below.
            ext_words: ((u64::from(of!(slab_mask)) + 1) >> of!(size).max(1).ilog2()) as u32,
            limit: u64::from(of!(limit)),
            slab_size: u64::from(of!(slab_mask)) + 1,
            cap: u16_at(record, offset_of!(ClassGeometry, cap)),
            batch: u16_at(record, offset_of!(ClassGeometry, batch)),
        };
        let slab = class.slab_size;
        if !slab.is_power_of_two() || !(CHUNK..=MAX_SLAB).contains(&slab) {
            return Err(format!("slab_mask is {:#x}", slab - 1));
        }
        let objects = u64::from(of!(objects));
        if class.size == 0
            || objects == 0
            || u64::from(class.size) * objects != class.limit
            || class.limit > slab
        {
            return Err(format!(
                "{objects} objects of {} bytes, limit {}",
                class.size, class.limit
            ));
        }
        let ext = u64::from(class.ext_offset);
        if vector
            && (ext < class.limit || ext % 4 != 0 || ext + 4 * u64::from(class.ext_words) > slab)
        {
            return Err(format!("extension vector at {ext:#x} of a slab of {slab:#x} bytes"));
        }
        Ok(class)
    }

    pub(super) fn chunks(&self) -> u64 {
        self.slab_size / CHUNK
    }
}

/// A zone whose tables are known to be readable up to `committed`.
#[derive(Debug, Clone)]
pub(super) struct Zone {
    pub(super) base: u64,
    pub(super) committed: u64,
    pub(super) chunk_class: u64,
    pub(super) page_ext: u64,
    pub(super) page_len: u64,
    pub(super) rows: u64,
    pub(super) dirty: u64,
    pub(super) credit: u64,
    /// See [`kmem::root::zone_purpose`].
    pub(super) purpose: u32,
    /// The node its memory comes from.
    pub(super) node: u32,
    pub(super) meta: (u64, u64),
    pages: u64,
}

impl Zone {
    pub(super) fn parse(record: &[u8], maps: &Maps, books: bool) -> Result<Self, String> {
        macro_rules! of {
            ($field:ident) => {
                u64_at(record, offset_of!(ZoneBlock, $field))
            };
        }
        let zone = Self {
            base: of!(base),
            committed: of!(committed),
            chunk_class: of!(chunk_class),
            page_ext: of!(page_ext),
            page_len: of!(page_len),
            rows: of!(rows),
            dirty: of!(dirty),
            credit: of!(credit),
            purpose: u32_at(record, offset_of!(ZoneBlock, purpose)),
            node: u32_at(record, offset_of!(ZoneBlock, node)),
            meta: (of!(meta_base), of!(meta_len)),
            pages: of!(pages),
        };
        if zone.is_empty() {
            return Ok(zone);
        }
        if !zone.base.is_multiple_of(MAX_SLAB) {
            return Err(format!("base {:#x} is not a multiple of 2 MiB", zone.base));
        }
        let fits = zone.pages.checked_mul(PAGE).and_then(|len| zone.base.checked_add(len));
        if fits.is_none_or(|end| end > 1 << 57) {
            return Err(format!(
                "{:#x} pages at {:#x} are no address range",
                zone.pages, zone.base
            ));
        }
        if zone.committed > zone.pages {
            return Err(format!("{:#x} pages committed of {:#x}", zone.committed, zone.pages));
        }
        if zone.committed == 0 {
            return Ok(zone);
        }
        for (name, addr, len) in [
            ("chunk_class", zone.chunk_class, zone.chunks()),
            ("page_ext", zone.page_ext, zone.committed * 4),
            ("page_len", zone.page_len, zone.committed * 4),
            ("rows", zone.rows, zone.committed.div_ceil(64) * 8),
            ("dirty", zone.dirty, zone.committed.div_ceil(64) * 8),
            ("credit", zone.credit, zone.committed.div_ceil(512) * 2),
        ] {
            if name == "page_ext" && !books {
                continue;
            }
            if !maps.is_readable_memory(addr, len) {
                return Err(format!(
                    "{name} at {addr:#x}, {len} bytes, is not in the process's memory"
                ));
            }
        }
        Ok(zone)
    }

    /// The credit of each frame.
    pub(super) fn credit(&self, memory: &Memory) -> Result<Vec<u16>, ReadError> {
        let frames = usize::try_from(self.committed.div_ceil(512)).unwrap_or(MAX_FRAMES);
        let mut bytes = vec![0; 2 * frames.min(MAX_FRAMES)];
        memory.read(self.credit, &mut bytes)?;
        Ok(bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]])).collect())
    }

    pub(super) fn chunks(&self) -> u64 {
        self.committed.div_ceil(PAGES_PER_CHUNK)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pages == 0
    }

    pub(super) fn overlaps(&self, other: &Self) -> bool {
        let end = |z: &Self| z.base + z.pages * PAGE;
        self.base < end(other) && other.base < end(self)
    }
}
