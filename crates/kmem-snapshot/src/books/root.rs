//! Root blocks: copied and checked.
//!
//! A root block leads to size classes and zones, and to the tables in `tables`. The reader trusts
//! nothing: it compares every address, size and count with the mappings and with the bounds of the
//! layout.

use kmem_layout::geometry::{CHUNK_CLASS_MASK, ClassGeometry};
use kmem_layout::group::{GroupBlock, MAX_GROUPS};
use kmem_layout::root::{MAGIC, MAX_ZONES, RootBlock, VERSION, ZoneBlock, profiling};
use kmem_layout::site::Site;
use kmem_layout::word::TAG_BITS;

use super::source::Source;
use super::zone::{Class, Zone};
use crate::budget::OverBudget;
use crate::error::ReadError;
use crate::memory::{Memory, field};

/// Largest record accepted, in bytes. Records of a later layout may be longer than today's; the
/// reader skips the rest of each.
const MAX_RECORD: u32 = 4096;

/// State of the profiling switch in a root block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profiling {
    /// Objects are counted and not tagged.
    Off,
    /// Objects carry the tag of their call site.
    #[default]
    On,
    /// The process keeps no books, and cannot be switched.
    Never,
}

impl Profiling {
    fn from_word(word: u32) -> Option<Self> {
        match word {
            profiling::OFF => Some(Self::Off),
            profiling::ON => Some(Self::On),
            profiling::NEVER => Some(Self::Never),
            _ => None,
        }
    }
}

/// A root block, copied and checked.
#[derive(Debug, Clone)]
pub struct Root {
    /// Address of the root block.
    pub at: u64,
    /// The profiling switch.
    pub profiling: Profiling,
    /// Pages handed out by all zones.
    pub used_pages: u32,
    /// Metadata outside of any zone: address, and length in bytes.
    pub meta: (u64, u64),
    /// Callers told apart at every site; 0 and 1 both mean one.
    pub depth: u32,
    /// Callers told apart at the site `deep_tag`.
    pub deep_depth: u32,
    /// Tag of the site whose callers are told apart to `deep_depth`; 0 for none.
    pub deep_tag: u32,
    /// The cache of call sites: address, and length in bytes.
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
    pub(super) mappings: u64,
    pub(super) mapping_capacity: u32,
    pub(super) own: u64,
    pub(super) own_capacity: u32,
    /// Addresses of the named caches: where they are, and the room for them.
    pub(super) slab_caches: (u64, u32),
    /// True if records have the caches of their objects.
    pub(super) records_caches: bool,
    /// Number of the vector of times, or 0; the newest time; the start in milliseconds of
    /// `CLOCK_MONOTONIC`.
    pub(super) times: (u32, u32, u64),
}

/// Most vectors of words behind those of extension words: records, and times.
const MAX_VECTORS: u32 = 2;

/// The error for a field of the root block at `root`.
pub(super) fn bad(root: u64, what: impl Into<String>) -> ReadError {
    ReadError::BadBooks { root, what: what.into() }
}

impl Root {
    /// Copies and checks the root block at `at`.
    ///
    /// # Errors
    ///
    /// [`ReadError::NotReady`] before the process has written it; [`ReadError::BadBooks`] names the
    /// first wrong field; errors of access to the process.
    pub fn read(memory: &Memory, at: u64) -> Result<Self, ReadError> {
        let mut bytes = [0; size_of::<RootBlock>()];
        memory.read(at, &mut bytes).map_err(|e| match e {
            ReadError::Memory { .. } => bad(at, "truncated: shorter than a root block"),
            other => other,
        })?;
        if field!(&bytes, RootBlock.magic: u64) == 0 {
            return Err(ReadError::NotReady { root: at });
        }
        check_header(&bytes).map_err(|what| bad(at, what))?;
        let root = Self::parse(at, &bytes)?;
        root.check_counts().map_err(|what| bad(at, what))?;
        Ok(root)
    }

    fn parse(at: u64, bytes: &[u8]) -> Result<Self, ReadError> {
        let word = field!(bytes, RootBlock.profiling: u32);
        let profiling = Profiling::from_word(word)
            .ok_or_else(|| bad(at, format!("profiling is {word}, expected 0, 1 or 2")))?;
        Ok(Self {
            at,
            profiling,
            used_pages: field!(bytes, RootBlock.used_pages: u32),
            meta: (field!(bytes, RootBlock.meta_base: u64), field!(bytes, RootBlock.meta_len: u64)),
            depth: field!(bytes, RootBlock.depth: u32),
            deep_depth: field!(bytes, RootBlock.deep_depth: u32),
            deep_tag: field!(bytes, RootBlock.deep_tag: u32),
            cache: (field!(bytes, RootBlock.cache: u64), field!(bytes, RootBlock.cache_len: u64)),
            peak: field!(bytes, RootBlock.peak: u64),
            site_capacity: field!(bytes, RootBlock.site_capacity: u32),
            site_size: field!(bytes, RootBlock.site_size: u32),
            sites: field!(bytes, RootBlock.sites: u64),
            texts: field!(bytes, RootBlock.texts: u64),
            class_count: field!(bytes, RootBlock.class_count: u32),
            class_size: field!(bytes, RootBlock.class_size: u32),
            classes: field!(bytes, RootBlock.classes: u64),
            zone_count: field!(bytes, RootBlock.zone_count: u32),
            zone_size: field!(bytes, RootBlock.zone_size: u32),
            zones: field!(bytes, RootBlock.zones: u64),
            groups: field!(bytes, RootBlock.groups: u64),
            group_capacity: field!(bytes, RootBlock.group_capacity: u32),
            group_size: field!(bytes, RootBlock.group_size: u32),
            mappings: field!(bytes, RootBlock.mappings: u64),
            mapping_capacity: field!(bytes, RootBlock.mapping_capacity: u32),
            own: field!(bytes, RootBlock.own: u64),
            own_capacity: field!(bytes, RootBlock.own_capacity: u32),
            slab_caches: (
                field!(bytes, RootBlock.slab_caches: u64),
                field!(bytes, RootBlock.slab_cache_capacity: u32),
            ),
            records_caches: field!(bytes, RootBlock.records_caches: u32) != 0,
            times: (
                field!(bytes, RootBlock.time_vector: u32),
                field!(bytes, RootBlock.newest_time: u32),
                field!(bytes, RootBlock.started_ms: u64),
            ),
        })
    }

    fn check_counts(&self) -> Result<(), String> {
        for (name, count, most) in [
            ("class_count", self.class_count, u32::from(CHUNK_CLASS_MASK) + 1),
            ("zone_count", self.zone_count, u32::try_from(MAX_ZONES).unwrap_or(u32::MAX)),
            ("site_capacity", self.site_capacity, 1 << TAG_BITS),
            ("group_capacity", self.group_capacity, MAX_GROUPS),
            ("time_vector", self.times.0, MAX_VECTORS),
        ] {
            if count > most {
                return Err(format!("{name} is {count}, above {most}"));
            }
        }
        if self.group_capacity != 0 {
            check_size("group_size", self.group_size, size_of::<GroupBlock>())?;
        }
        Ok(())
    }

    /// True when allocations have times.
    pub(super) fn has_times(&self) -> bool {
        self.has_books() && self.times.0 != 0
    }

    /// True when objects have extension words.
    pub(super) fn has_books(&self) -> bool {
        self.profiling != Profiling::Never
    }

    /// Fails with the error of the root block when a draw has failed.
    pub(super) fn draw(&self, drawn: Result<(), OverBudget>) -> Result<(), ReadError> {
        drawn.map_err(|over| ReadError::TooLarge { root: self.at, over })
    }

    /// Copies `count` records of `size` bytes each; [`Root::read`] bounds both.
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
        // The largest table: 2^17 sites of 4 KiB. Today a site has 32 bytes.
        self.draw(source.budget.copy(len))?;
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        source.memory.read(addr, &mut bytes)?;
        Ok(bytes)
    }

    /// Copies and checks the size classes, by number. There is no class 0.
    pub(super) fn classes(&self, source: &Source<'_>) -> Result<Vec<Option<Class>>, ReadError> {
        let bytes =
            self.records(source, "classes", self.classes, self.class_count, self.class_size)?;
        let mut classes = vec![None];
        for (number, record) in bytes.chunks_exact(self.class_size as usize).enumerate().skip(1) {
            let mut class = Class::parse(number, record, self.has_books())
                .map_err(|what| bad(self.at, format!("size class {number}: {what}")))?;
            let before: Option<Class> = classes[number - 1];
            class.is_of_no_bytes = before.is_some_and(|before| before.size > class.size);
            classes.push(Some(class));
        }
        Ok(classes)
    }

    /// Copies and checks the zones.
    pub(super) fn zones(&self, source: &Source<'_>) -> Result<Vec<Zone>, ReadError> {
        let bytes = self.records(source, "zones", self.zones, self.zone_count, self.zone_size)?;
        let mut zones: Vec<Zone> = Vec::new();
        for (number, record) in bytes.chunks_exact(self.zone_size as usize).enumerate() {
            let zone = Zone::parse(record);
            zone.check(source.maps, self.has_books())
                .map_err(|what| bad(self.at, format!("zone {number}: {what}")))?;
            // The process has reserved the entry and not filled it in yet.
            if zone.is_empty() {
                continue;
            }
            if let Some(other) = zones.iter().position(|z| z.overlaps(&zone)) {
                return Err(bad(self.at, format!("zone {number} overlaps zone {other}")));
            }
            zones.push(zone);
        }
        // Two root blocks that lead to the same memory are copies of one. Their sum would be wrong.
        let mut met = source.zones.borrow_mut();
        for zone in &zones {
            if let Some((_, &(end, root))) = met.range(..zone.end()).next_back()
                && end > zone.base
            {
                let what =
                    format!("its zone at {:#x} is one of the root block at {root:#x}", zone.base);
                return Err(bad(self.at, what));
            }
        }
        met.extend(zones.iter().map(|zone| (zone.base, (zone.end(), self.at))));
        Ok(zones)
    }
}

/// Checks magic, version, and all sizes that are fixed.
fn check_header(bytes: &[u8]) -> Result<(), String> {
    let magic = field!(bytes, RootBlock.magic: u64);
    if magic == MAGIC.swap_bytes() {
        return Err("of the other byte order".to_owned());
    }
    if magic != MAGIC {
        return Err(format!("magic is {magic:#x}, not \"kmemroot\""));
    }
    let version = field!(bytes, RootBlock.version: u32);
    if version != VERSION {
        return Err(format!("layout version {version}; this kmem reads version {VERSION}"));
    }
    for (name, size, least) in [
        ("size", field!(bytes, RootBlock.size: u32), size_of::<RootBlock>()),
        ("class_size", field!(bytes, RootBlock.class_size: u32), size_of::<ClassGeometry>()),
        ("zone_size", field!(bytes, RootBlock.zone_size: u32), size_of::<ZoneBlock>()),
        ("site_size", field!(bytes, RootBlock.site_size: u32), size_of::<Site>()),
    ] {
        check_size(name, size, least)?;
    }
    for (name, value, expected) in [
        ("page_shift", field!(bytes, RootBlock.page_shift: u32), 12),
        ("chunk_shift", field!(bytes, RootBlock.chunk_shift: u32), 16),
        ("tag_bits", field!(bytes, RootBlock.tag_bits: u32), TAG_BITS),
    ] {
        if value != expected {
            return Err(format!("{name} is {value}, expected {expected}"));
        }
    }
    Ok(())
}

/// Checks the size of a record, `least` bytes in this version of the layout.
fn check_size(name: &str, size: u32, least: usize) -> Result<(), String> {
    if (size as usize) < least || size > MAX_RECORD || !size.is_multiple_of(4) {
        return Err(format!("{name} is {size}, expected {least}"));
    }
    Ok(())
}
