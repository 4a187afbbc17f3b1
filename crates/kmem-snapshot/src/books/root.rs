//! Root blocks: found among the mappings of a process, checked, and followed.
//!
//! A root block leads to size classes and zones, whose records are checked here, and to the
//! tables in `tables`. The reader trusts nothing: it compares every address, size and count with
//! the mappings and with the bounds of the layout.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use kmem_layout::geometry::{CHUNK_CLASS_MASK, ClassGeometry};
use kmem_layout::group::{GroupBlock, MAX_GROUPS};
use kmem_layout::root::{MAGIC, MAPPING_NAME, MAX_ZONES, RootBlock, VERSION, ZoneBlock, profiling};
use kmem_layout::site::Site;
use kmem_layout::word::TAG_BITS;

use crate::budget::{Budget, OverBudget};
use crate::error::ReadError;
use crate::memory::{Image, Memory, Pages, field};
use crate::process::{Maps, PAGE};

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
/// Work of looking at one root block, in bytes, besides the copies of its tables. Each mapping adds
/// to it, because tables are compared with the mappings.
const ROOT_WORK: u64 = 1 << 20;
const MAPPING_WORK: u64 = 64;
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

/// Access to a process that all parts of one reading share.
pub(crate) struct Source<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) maps: &'a Maps,
    /// None where the reader may not know which pages are resident.
    pub(crate) pages: Option<&'a Pages>,
    pub(crate) budget: &'a Budget,
    /// Address ranges of the zones that were met, by start, with their root block.
    pub(crate) zones: RefCell<BTreeMap<u64, (u64, u64)>>,
}

impl Source<'_> {
    /// Parts of `len` bytes of a table at `addr` that may hold anything but zeroes. Memory that the
    /// process never touched is left out where that is known.
    pub(super) fn touched(&self, addr: u64, len: u64) -> Vec<Range<u64>> {
        // Memory of a memfd may have contents and no page in the process's page table.
        let anonymous =
            |at| self.maps.find(at).is_some_and(|m| m.inode == 0 && m.end >= addr + len);
        let known = self.pages.filter(|_| anonymous(addr));
        known
            .and_then(|pages| pages.touched(addr, len))
            .unwrap_or_else(|| std::iter::once(addr..addr + len).collect())
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
}

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
        })
    }

    fn check_counts(&self) -> Result<(), String> {
        for (name, count, most) in [
            ("class_count", self.class_count, u32::from(CHUNK_CLASS_MASK) + 1),
            ("zone_count", self.zone_count, u32::try_from(MAX_ZONES).unwrap_or(u32::MAX)),
            ("site_capacity", self.site_capacity, 1 << TAG_BITS),
            ("group_capacity", self.group_capacity, MAX_GROUPS),
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
    fn parse(number: usize, record: &[u8], has_books: bool) -> Result<Self, String> {
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
    fn parse(record: &[u8]) -> Self {
        Self {
            base: field!(record, ZoneBlock.base: u64),
            committed: field!(record, ZoneBlock.committed: u64),
            chunk_class: field!(record, ZoneBlock.chunk_class: u64),
            page_ext: field!(record, ZoneBlock.page_ext: u64),
            page_len: field!(record, ZoneBlock.page_len: u64),
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

    fn check(&self, maps: &Maps, has_books: bool) -> Result<(), String> {
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
            ("rows", self.rows, self.committed.div_ceil(64) * 8),
            ("dirty", self.dirty, self.committed.div_ceil(64) * 8),
            ("credit", self.credit, self.committed.div_ceil(PAGEBLOCK_PAGES) * 2),
        ] {
            let is_used = has_books || name != "page_ext";
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

    fn is_empty(&self) -> bool {
        self.pages == 0
    }

    /// Addresses of all pages.
    pub(super) fn range(&self) -> Range<u64> {
        self.base..self.end()
    }

    /// One past the last address.
    fn end(&self) -> u64 {
        self.base + self.pages * PAGE
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.base < other.end() && other.base < self.end()
    }
}

/// Address of every root block. Each copy of the library has one at offset 0 of its own memfd.
pub(crate) fn root_addresses(maps: &Maps) -> Vec<u64> {
    let path = format!("/memfd:{MAPPING_NAME}");
    let mut by_file = BTreeMap::new();
    for mapping in maps.all() {
        if mapping.path == path && mapping.offset == 0 && mapping.readable {
            by_file.entry(mapping.inode).or_insert(mapping.start);
        }
    }
    by_file.into_values().collect()
}

/// All that the root blocks of a process lead to.
pub(super) struct Followed<T> {
    pub(super) maps: Maps,
    pub(super) pages: Option<Pages>,
    /// One value per readable root block; empty only when there are no faults either.
    pub(super) kept: Vec<T>,
    /// Why the other root blocks could not be followed.
    pub(super) faults: Vec<ReadError>,
}

/// Most readings of a process whose mappings change meanwhile.
const MAX_READINGS: usize = 4;

/// Reads all root blocks of a process, and calls `each` to read where each one leads. A bad root
/// block does not hide a good one.
///
/// A process may end, start another program, or map a table behind the mappings that were read. So
/// faults count when the mappings are still the same; else the process is read again.
///
/// # Errors
///
/// - [`ReadError::NotInstrumented`] without a root block.
/// - [`ReadError::NotReady`] for a process that is starting.
/// - The last fault when no root block could be followed.
/// - Errors of access to the process.
pub(super) fn follow<T>(
    image: &Image<'_>,
    budget: &Budget,
    each: impl Fn(&Source<'_>, &Root) -> Result<T, ReadError>,
) -> Result<Followed<T>, ReadError> {
    let mut maps = image.maps()?;
    let mut readings = 0;
    loop {
        let mut followed = follow_in(image, &maps, budget, &each)?;
        if !followed.kept.is_empty() {
            return Ok(followed);
        }
        let Some(fault) = followed.faults.pop() else { return Ok(followed) };
        image.verify()?;
        let before = std::mem::replace(&mut maps, image.maps()?);
        readings += 1;
        if readings == MAX_READINGS || (before == maps && *maps == followed.maps) {
            return Err(fault);
        }
    }
}

/// Reads the root blocks that are in these mappings, and where they lead.
fn follow_in<T>(
    image: &Image<'_>,
    maps: &Maps,
    budget: &Budget,
    each: impl Fn(&Source<'_>, &Root) -> Result<T, ReadError>,
) -> Result<Followed<T>, ReadError> {
    let addresses = root_addresses(maps);
    let Some(&first) = addresses.first() else {
        return Err(image.not_instrumented()?);
    };
    let memory = image.memory();
    let (mut roots, mut kept, mut faults) = (Vec::new(), Vec::new(), Vec::new());
    for at in addresses {
        keep(Root::read(&memory, at), &mut roots, &mut faults)?;
    }
    // Mappings are read after the root blocks, so that they hold zones which have just grown.
    let maps = image.maps()?.into_owned();
    let pages = image.pages(first);
    let (pages_of, zones) = (pages.as_ref(), RefCell::default());
    let source = Source { memory: &memory, maps: &maps, pages: pages_of, budget, zones };
    for root in &roots {
        let work = ROOT_WORK + MAPPING_WORK * maps.all().len() as u64;
        let one = root.draw(budget.work(work)).and_then(|()| each(&source, root));
        keep(one, &mut kept, &mut faults)?;
    }
    Ok(Followed { maps, pages, kept, faults })
}

/// Most faults that are told one by one.
const MAX_FAULTS: usize = 8;

/// A sentence for each of some faults, the last one for all that are not told one by one.
pub(super) fn told(faults: &[ReadError]) -> Vec<String> {
    let (told, more) = faults.split_at(faults.len().min(MAX_FAULTS));
    let mut told: Vec<String> = told.iter().map(ToString::to_string).collect();
    if !more.is_empty() {
        told.push(format!("{} more root blocks cannot be followed", more.len()));
    }
    told
}

/// Sorts a result into the values or the faults. Fails with errors of access to the process.
fn keep<T>(
    result: Result<T, ReadError>,
    kept: &mut Vec<T>,
    faults: &mut Vec<ReadError>,
) -> Result<(), ReadError> {
    match result {
        Ok(value) => kept.push(value),
        Err(
            fault @ (ReadError::BadBooks { .. }
            | ReadError::NotReady { .. }
            | ReadError::TooLarge { .. }
            | ReadError::Memory { .. }
            | ReadError::NotInCore { .. }),
        ) => faults.push(fault),
        Err(other) => return Err(other),
    }
    Ok(())
}
