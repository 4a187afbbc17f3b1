//! The root block: checked, then followed.

use std::mem::{offset_of, size_of};

use kmem::class::ClassGeometry;
use kmem::memcg::MAX_GROUPS;
use kmem::root::{
    CHUNK_CLASS_MASK, GroupBlock, MAGIC, MAX_ZONES, RootBlock, Site, TAG_BITS, VERSION, ZoneBlock,
};

use super::record::{u32_at, u64_at};
use super::zone::{Class, Zone};
use super::{Profiling, Source};
use crate::error::ReadError;
use crate::memory::Memory;

/// Largest record accepted: bigger ones than ours are of a later layout, and their tail is
/// ignored; beyond this they are nonsense.
const MAX_RECORD: u32 = 4096;

/// A root block as it was read.
#[derive(Debug, Clone)]
pub struct Root {
    /// Its address.
    pub at: u64,
    /// The switch.
    pub profiling: Profiling,
    /// Pages handed out.
    pub used_pages: u32,
    /// Metadata outside any zone: address and length.
    pub meta: (u64, u64),
    /// Callers that are told apart at every site.
    pub depth: u32,
    /// The same for the site `deep_tag`.
    pub deep_depth: u32,
    /// The site whose callers are told apart to `deep_depth`; 0: none.
    pub deep_tag: u32,
    /// The cache of call sites: address and length.
    pub cache: (u64, u64),
    pub(super) peak: u64,
    pub(super) site_capacity: u32,
    pub(super) site_size: u32,
    pub(super) sites: u64,
    pub(super) texts: u64,
    class_count: u32,
    class_size: u32,
    classes: u64,
    zone_count: u32,
    zone_size: u32,
    pub(super) zones: u64,
    pub(crate) groups: u64,
    pub(crate) group_capacity: u32,
    pub(crate) group_size: u32,
}

/// The error for a field of the root block at `root`.
pub(super) fn bad(root: u64, what: impl Into<String>) -> ReadError {
    ReadError::BadBooks { root, what: what.into() }
}

impl Root {
    /// Reads and checks the root block at `at`.
    ///
    /// # Errors
    ///
    /// [`ReadError::BadBooks`] names the first field that is wrong.
    pub fn read(memory: &Memory, at: u64) -> Result<Self, ReadError> {
        let mut bytes = [0; size_of::<RootBlock>()];
        memory.read(at, &mut bytes).map_err(|e| match e {
            ReadError::Memory { .. } => bad(at, "truncated: shorter than a root block"),
            other => other,
        })?;
        let word = |offset| u32_at(&bytes, offset);
        let long = |offset| u64_at(&bytes, offset);
        macro_rules! u32_of {
            ($field:ident) => {
                word(offset_of!(RootBlock, $field))
            };
        }
        macro_rules! u64_of {
            ($field:ident) => {
                long(offset_of!(RootBlock, $field))
            };
        }

        let magic = u64_of!(magic);
        if magic == 0 {
            return Err(bad(at, "not ready: the process is still starting (magic is 0)"));
        }
        if magic == MAGIC.swap_bytes() {
            return Err(bad(at, "of the other byte order"));
        }
        if magic != MAGIC {
            return Err(bad(at, format!("magic is {magic:#x}, not \"kmemroot\"")));
        }
        let version = u32_of!(version);
        if version != VERSION {
            return Err(bad(
                at,
                format!("layout version {version}; this kmem reads version {VERSION}"),
            ));
        }
        let at_least = |name: &str, size: u32, least: usize| {
            if (size as usize) < least || size > MAX_RECORD || !size.is_multiple_of(4) {
                Err(bad(at, format!("{name} is {size}, expected {least}")))
            } else {
                Ok(())
            }
        };
        at_least("size", u32_of!(size), size_of::<RootBlock>())?;
        at_least("class_size", u32_of!(class_size), size_of::<ClassGeometry>())?;
        at_least("zone_size", u32_of!(zone_size), size_of::<ZoneBlock>())?;
        at_least("site_size", u32_of!(site_size), size_of::<Site>())?;
        for (name, value, expected) in [
            ("page_shift", u32_of!(page_shift), 12),
            ("chunk_shift", u32_of!(chunk_shift), 16),
            ("tag_bits", u32_of!(tag_bits), TAG_BITS),
        ] {
            if value != expected {
                return Err(bad(at, format!("{name} is {value}, expected {expected}")));
            }
        }
        let root = Self {
            at,
            profiling: Profiling::from_word(u32_of!(profiling)).ok_or_else(|| {
                bad(at, format!("profiling is {}, expected 0, 1 or 2", u32_of!(profiling)))
            })?,
            used_pages: u32_of!(used_pages),
            meta: (u64_of!(meta_base), u64_of!(meta_len)),
            depth: u32_of!(depth),
            deep_depth: u32_of!(deep_depth),
            deep_tag: u32_of!(deep_tag),
            cache: (u64_of!(cache), u64_of!(cache_len)),
            peak: u64_of!(peak),
            site_capacity: u32_of!(site_capacity),
            site_size: u32_of!(site_size),
            sites: u64_of!(sites),
            texts: u64_of!(texts),
            class_count: u32_of!(class_count),
            class_size: u32_of!(class_size),
            classes: u64_of!(classes),
            zone_count: u32_of!(zone_count),
            zone_size: u32_of!(zone_size),
            zones: u64_of!(zones),
            groups: u64_of!(groups),
            group_capacity: u32_of!(group_capacity),
            group_size: u32_of!(group_size),
        };
        for (name, count, most) in [
            ("class_count", root.class_count, u32::from(CHUNK_CLASS_MASK) + 1),
            ("zone_count", root.zone_count, u32::try_from(MAX_ZONES).unwrap_or(u32::MAX)),
            ("site_capacity", root.site_capacity, 1 << TAG_BITS),
            ("group_capacity", root.group_capacity, MAX_GROUPS),
        ] {
            if count > most {
                return Err(bad(at, format!("{name} is {count}, above {most}")));
            }
        }
        if root.group_capacity != 0 {
            at_least("group_size", root.group_size, size_of::<GroupBlock>())?;
        }
        Ok(root)
    }

    /// Whether objects have extension words.
    pub(super) fn has_books(&self) -> bool {
        self.profiling != Profiling::Never
    }

    /// Copies `count` records of `size` bytes; both are bounded by [`Root::read`].
    pub(super) fn records(
        &self,
        source: &Source<'_>,
        name: &str,
        addr: u64,
        count: u32,
        size: u32,
    ) -> Result<Vec<u8>, ReadError> {
        let len = u64::from(count) * u64::from(size);
        if len == 0 {
            return Ok(Vec::new());
        }
        if !source.maps.is_readable_memory(addr, len) {
            return Err(bad(
                self.at,
                format!("{name} at {addr:#x}, {len} bytes, are not in the process's memory"),
            ));
        }
        // At most 2^17 sites of 4 KiB; sites of today are 32 bytes.
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        source.memory.read(addr, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn classes(&self, source: &Source<'_>) -> Result<Vec<Option<Class>>, ReadError> {
        let bytes =
            self.records(source, "classes", self.classes, self.class_count, self.class_size)?;
        let mut classes = vec![None];
        for (number, record) in bytes.chunks_exact(self.class_size as usize).enumerate().skip(1) {
            let class = Class::parse(number, record, self.has_books())
                .map_err(|what| bad(self.at, format!("size class {number}: {what}")))?;
            classes.push(Some(class));
        }
        Ok(classes)
    }

    pub(super) fn zones(&self, source: &Source<'_>) -> Result<Vec<Zone>, ReadError> {
        let bytes = self.records(source, "zones", self.zones, self.zone_count, self.zone_size)?;
        let mut zones: Vec<Zone> = Vec::new();
        for (number, record) in bytes.chunks_exact(self.zone_size as usize).enumerate() {
            let zone = Zone::parse(record, source.maps, self.has_books())
                .map_err(|what| bad(self.at, format!("zone {number}: {what}")))?;
            // An entry that was taken and is not filled in yet.
            if zone.is_empty() {
                continue;
            }
            if let Some(other) = zones.iter().position(|z| z.overlaps(&zone)) {
                return Err(bad(self.at, format!("zone {number} overlaps zone {other}")));
            }
            zones.push(zone);
        }
        Ok(zones)
    }
}
