//! The books of a process: its allocation profile, as its root blocks show it.
//!
//! ```text
//! /proc/PID/maps -> "kmem-root" -> RootBlock
//!     -> ClassGeometry[]
//!     -> ZoneBlock[]   -> chunk classes -> slabs -> extension words
//!     |                -> page allocations -> extension words
//!     -> Site[]        tag -> return addresses, or a static tag's text
//!     -> PeakTable
//!     -> GroupBlock[]  objcg id -> the group that is charged
//! ```
//!
//! The process runs while it is read. A slab is counted only when its chunks had one class before
//! and after its extension vector was copied. [`Books::torn`] counts the slabs that changed too
//! often or made no sense.
//!
//! Layout: [`kmem_layout`]. Files, each of which uses those above it:
//!
//! ```text
//! root    root blocks, size classes, zones
//! tables  call sites, the peak, groups
//! groups  the tree of groups, and the memory charged to each
//! mappings  memory outside of the heap
//! pins    the slabs that tags keep from being given back
//! sizes   live objects by tag and by size
//! census  live objects by tag and by group, the slabs they pin, the size classes
//! caches  the size classes, and the caches that the program named
//! nodes   live objects by NUMA node
//! objects live objects one by one
//! buddy   free blocks per order; stands apart
//! ```

mod buddy;
mod caches;
mod census;
mod groups;
mod mappings;
mod nodes;
mod objects;
mod pins;
mod root;
mod sizes;
mod tables;

use std::collections::BTreeMap;
use std::ops::Range;

pub use buddy::{Buddy, Buddyinfo, ORDERS};
pub use caches::{Cache, NamedCache};
pub use groups::{Groups, Holdings};
pub use mappings::{MappingOwner, MappingRow, Mappings, Parts};
pub use nodes::Nodes;
pub use pins::{Pinned, Pins};
pub use root::{Profiling, Root};
pub use sizes::Sizes;
pub use tables::{Group, Key, Peak, SiteRow, StaticTag, TagTotal, Usage};

pub(crate) use objects::Object;
pub(crate) use root::{Source, root_addresses};

use kmem_layout::root::{MAX_ZONES, ZoneBlock};
use kmem_layout::site::{PeakEntry, PeakTable};
use serde::Serialize;

use crate::budget::Budget;
use crate::clock::now_ns;
use crate::core_file::CoreFile;
use crate::error::ReadError;
use crate::memory::{Image, PageState, Pages};
use crate::process::{Maps, PAGE, Process};
use caches::Named;
use census::Census;
pub(crate) use mappings::Noted;
use objects::Objects;
use root::{Followed, Zone, follow, told};

/// The books under all root blocks of a process, at one time.
///
/// Rows hold tags and addresses, not names. [`Target::read`](crate::Target::read) also names
/// them.
///
/// ```no_run
/// use kmem_snapshot::{Process, Snapshot};
///
/// let snapshot = Snapshot::take(&Process::open(1234)?)?;
/// let (bytes, objects) = snapshot.totals();
/// println!("{}: {bytes} bytes in {objects} objects", snapshot.exe);
/// # Ok::<(), kmem_snapshot::ReadError>(())
/// ```
#[derive(Debug, Default)]
pub struct Snapshot {
    /// Pid of the process.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Short name of the process.
    pub comm: String,
    /// Time at which the reading began, in nanoseconds since 1970; 0 for a black box.
    pub time_ns: u64,
    /// Mappings of the process, to resolve addresses with.
    pub maps: Maps,
    /// One per root block: several when several copies of the library are loaded.
    pub books: Vec<Books>,
    /// Root blocks that could not be followed, beside those that could.
    pub faults: Vec<ReadError>,
    /// Memory outside of the heap; none where the mappings' resident bytes are not known.
    pub mappings: Option<Mappings>,
    /// The equation over all root blocks.
    pub accounting: Accounting,
    /// The budget of the reading, with remarks about what it has no room for.
    pub budget: Budget,
}

/// Memory of the books under one root block with zones, and of those without, in bytes: tables by
/// tag and by size class.
const BOOKS: u64 = 6 << 20;
const BARE: u64 = 64 << 10;

/// The books under one root block.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// Address of the root block.
    pub root: u64,
    /// The profiling switch.
    pub profiling: Profiling,
    /// Pages handed out when the root block was read.
    pub used_pages: u64,
    /// Live objects: the tags that have any, in order of tag.
    pub rows: Vec<SiteRow>,
    /// Static tags of loaded objects that hold nothing, in order of tag.
    pub empty: Vec<SiteRow>,
    /// Slabs that the tags keep from being given back.
    pub pins: Pins,
    /// Live objects of each tag by size.
    pub sizes: Sizes,
    /// The groups, and the memory charged to each.
    pub groups: Groups,
    /// Live objects of each group by tag and by size class.
    pub holdings: Holdings,
    /// Live objects of each NUMA node.
    pub nodes: Nodes,
    /// The size classes.
    pub caches: Vec<Cache>,
    /// The caches that the program named.
    pub(crate) named: Named,
    /// The books at the highest use so far, if the process kept them.
    pub peak: Option<Peak>,
    /// This root block's part of the equation; its `resident` is 0.
    pub accounting: Accounting,
    /// The live objects one by one; empty unless they were asked for.
    pub(crate) objects: Vec<Object>,
    /// Records of the program's mappings, and kmem's own.
    pub(crate) noted: Noted,
    /// The parts of the overhead.
    pub metadata: Metadata,
    /// Count of slabs and page allocations that changed while they were read, or made no sense.
    pub torn: u64,
}

impl Snapshot {
    /// Reads the books of a live process.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`], [`ReadError::Recycled`], [`ReadError::Permission`];
    /// [`ReadError::NotInstrumented`] without a root block; [`ReadError::NotReady`] while the
    /// process starts; [`ReadError::BadBooks`] when no root block can be followed.
    pub fn take(process: &Process) -> Result<Self, ReadError> {
        Self::of(&Image::Live(process), false)
    }

    /// Reads the books of a live process, with its objects one by one.
    ///
    /// # Errors
    ///
    /// The errors of [`Snapshot::take`].
    pub(crate) fn with_objects(process: &Process) -> Result<Self, ReadError> {
        Self::of(&Image::Live(process), true)
    }

    /// Reads the books of a dead process from its core file.
    ///
    /// # Errors
    ///
    /// [`ReadError::CoreNotInstrumented`] without a root block; [`ReadError::BadBooks`] when no
    /// root block can be followed; [`ReadError::NotInCore`] when their memory was not dumped.
    pub fn of_core(core: &CoreFile) -> Result<Self, ReadError> {
        Self::of(&Image::Core(core), false)
    }

    fn of(image: &Image<'_>, objects: bool) -> Result<Self, ReadError> {
        // A process that ends meanwhile loses the path of its executable before its memory's copy
        // is complete.
        let (pid, exe, comm, time_ns) = (image.pid(), image.exe(), image.comm(), now_ns());
        let budget = image.budget();
        let read = |source: &Source<'_>, root: &Root| Books::read(source, root, objects);
        let Followed { maps, pages, kept: books, faults } = follow(image, &budget, read)?;
        let mut accounting = Accounting::default();
        for one in &books {
            accounting.add(&one.accounting);
        }
        let stacks = image.thread_stacks();
        let residents = image.residents();
        let mappings = residents.as_ref().map(|all| {
            Mappings::of(all, books.iter().map(|one| &one.noted), &stacks, pages.as_ref())
        });
        // One reading of the mappings for all terms, so that they fit together.
        accounting.resident = match (image, &residents) {
            (Image::Live(_), Some(all)) => {
                all.iter().map(|one| one.resident).fold(0, u64::saturating_add)
            }
            _ => image.resident()?,
        };
        accounting.parts = mappings.as_ref().map(|of| of.parts);
        accounting.page_tables = image.page_tables();
        accounting.tables = Tables::known_by(pages.as_ref());
        image.verify()?;
        Ok(Self { pid, exe, comm, time_ns, maps, books, faults, mappings, accounting, budget })
    }

    /// Sentences about the root blocks in [`Self::faults`], of bounded count.
    #[must_use]
    pub fn left_out(&self) -> Vec<String> {
        told(&self.faults)
    }

    /// True when these mappings hold a root block.
    #[must_use]
    pub fn is_in(maps: &Maps) -> bool {
        !root_addresses(maps).is_empty()
    }

    /// True when no root block has books to show.
    #[must_use]
    pub fn never(&self) -> bool {
        self.books.iter().all(|b| b.profiling == Profiling::Never)
    }

    /// Live bytes and objects.
    #[must_use]
    pub fn totals(&self) -> (i64, u64) {
        let rows = self.books.iter().flat_map(|b| &b.rows);
        rows.fold((0, 0), |(bytes, calls): (i64, u64), row| {
            (bytes.saturating_add(row.bytes), calls.saturating_add(row.calls))
        })
    }

    /// All return addresses in rows, in rows of the peak and of mapped memory, those of chains
    /// included; sorted, each once.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        let peaks = self.books.iter().filter_map(|b| b.peak.as_ref());
        let rows = self.books.iter().flat_map(|b| &b.rows);
        let mapped = self.mappings.iter().flat_map(|mappings| &mappings.rows);
        let mut addresses: Vec<u64> = rows
            .chain(peaks.flat_map(|p| &p.rows))
            .flat_map(|row| row.key.addresses())
            .copied()
            .chain(self.books.iter().flat_map(|books| books.noted.addresses()))
            .chain(mapped.flat_map(|row| row.key.addresses()).copied())
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Count of slabs and page allocations that could not be counted.
    #[must_use]
    pub fn torn(&self) -> u64 {
        self.books.iter().map(|b| b.torn).sum()
    }

    /// Finds the groups that have this path, one in each copy of the library.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoGroup`] when there is none.
    pub fn groups_at(&self, path: &str) -> Result<Vec<&Group>, ReadError> {
        let of = |books: &'_ Books| books.groups.find(path);
        let found = self.books.iter().filter_map(|b| Some(&b.groups.all()[of(b)?]));
        let found: Vec<&Group> = found.collect();
        if found.is_empty() {
            return Err(ReadError::NoGroup { pid: self.pid, group: path.to_owned() });
        }
        Ok(found)
    }
}

impl Books {
    fn read(source: &Source<'_>, root: &Root, objects: bool) -> Result<Self, ReadError> {
        let classes = root.classes(source)?;
        let zones = root.zones(source)?;
        let has_books = root.has_books();
        // A root block without memory has no books, and costs next to nothing.
        root.draw(source.budget.memory(if zones.is_empty() { BARE } else { BOOKS }))?;
        let mut census = Census::new(source, &classes, root);
        census.objects_met = objects.then(Objects::default);
        let mut nodes = Nodes::default();
        for zone in &zones {
            let before = census.totals.clone();
            census.zone(zone)?;
            nodes.add(zone, &before, &census.totals);
        }
        // Groups and sites are read after the census, so that all that it met has an entry.
        let mut groups = Groups::read(source, root)?;
        groups.bill(&census.charges, &classes);
        let holdings = Holdings::new(&census.charges, &groups, &census.totals);
        let named = Named::read(source, root, &census.charges, &groups)?;
        let all = groups.below(0);
        let caches = census.caches(|class| holdings.objects(&all, class));
        let met = census.pins.memory() + census.sizes.memory() + census.charges.memory();
        let kept = met + holdings.memory();
        root.draw(source.budget.memory(kept))?;
        let (sites, loaded) = tables::sites(source, root)?;
        let rows = tables::rows(&census.totals, &sites);
        let empty = tables::empty(&census.totals, &sites, &loaded);
        root.draw(source.budget.memory(size_of_val(&empty[..]) as u64))?;
        let noted = Noted::read(source, root, &zones, &sites);
        let metadata = Metadata::of(source, root, &zones, &noted.spare, census.slab_overhead);
        let accounting = Accounting::of(source, &metadata, &zones, &census);
        let peak = if has_books { tables::peak(source, root, &sites)? } else { None };
        Ok(Self {
            root: root.at,
            profiling: root.profiling,
            used_pages: u64::from(root.used_pages),
            rows,
            empty,
            pins: census.pins,
            sizes: census.sizes,
            groups,
            holdings,
            nodes,
            caches,
            named,
            peak,
            accounting,
            objects: census.objects_met.map(|met| met.all).unwrap_or_default(),
            noted,
            metadata,
            torn: census.torn,
        })
    }

    /// Indexes of the group at a path and of those below it; empty without such a group.
    pub(crate) fn below(&self, path: &str) -> Range<usize> {
        self.groups.find(path).map_or(0..0, |at| self.groups.below(at))
    }

    /// Live objects of some groups, in order of tag. `groups` are indexes; see [`Groups::below`].
    #[must_use]
    pub fn rows_of(&self, groups: &Range<usize>) -> Vec<SiteRow> {
        self.named(self.holdings.tags(groups))
    }

    /// Live objects of each NUMA node, in order of tag; without a node, those of areas of vmalloc
    /// and per-CPU objects.
    pub(crate) fn rows_by_node(&self) -> impl Iterator<Item = (Option<u32>, Vec<SiteRow>)> {
        let totals = |tags: &BTreeMap<u32, TagTotal>| {
            let tags: Vec<_> = tags.iter().map(|(&tag, &total)| (tag, total)).collect();
            self.named(tags)
        };
        self.nodes.all().map(move |(node, tags)| (node, totals(tags)))
    }

    /// Rows of tags and their live objects.
    fn named(&self, totals: impl IntoIterator<Item = (u32, TagTotal)>) -> Vec<SiteRow> {
        let row = |(tag, total): (u32, TagTotal)| {
            let known = self.rows.binary_search_by_key(&tag, |row| row.tag).ok();
            let key = known.map(|at| self.rows[at].key.clone()).unwrap_or_default();
            let bytes = i64::try_from(total.bytes).unwrap_or(i64::MAX);
            SiteRow { tag, key, bytes, calls: total.calls }
        };
        totals.into_iter().map(row).collect()
    }
}

/// How well the memory of the allocator's tables is known, the best first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Tables {
    /// Counted page by page.
    #[default]
    Counted,
    /// Estimated from the resident size of each mapping.
    Estimated,
    /// Unknown; the tables are in the unaccounted rest.
    Unknown,
}

impl Tables {
    fn known_by(pages: Option<&Pages>) -> Self {
        match pages {
            Some(Pages::Live(_) | Pages::Core(_)) => Self::Counted,
            Some(Pages::Likely(_)) => Self::Estimated,
            None => Self::Unknown,
        }
    }
}

/// The equation of a process's memory, in bytes:
/// `tracked + cached + overhead - untouched - swapped + unaccounted = resident`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Accounting {
    /// Live objects and page allocations.
    pub tracked: u64,
    /// Free objects in slabs, and free pages with old contents.
    pub cached: u64,
    /// Resident metadata, and bytes of slabs that are not objects.
    pub overhead: u64,
    /// How well `overhead` is known.
    pub tables: Tables,
    /// Resident memory, as the kernel counts it; of a core file, the memory in the file.
    pub resident: u64,
    /// Pages in use or kept for reuse that are not in memory, because the program never touched
    /// them. They are part of the terms above. None where the page map cannot be read.
    pub untouched: Option<u64>,
    /// Pages in use or kept for reuse that are in swap, part of the terms above, too. None where
    /// the page map cannot be read.
    pub swapped: Option<u64>,
    /// The parts of `unaccounted` that have a name. None where they are not known.
    pub parts: Option<Parts>,
    /// Bytes of page tables, which the kernel does not count as resident. None where that is not
    /// known.
    pub page_tables: Option<u64>,
}

impl Accounting {
    /// The rest of the equation: mappings of the program, stacks, code, files.
    #[must_use]
    pub fn unaccounted(&self) -> i64 {
        let sum = [self.tracked, self.cached, self.overhead].map(i128::from).iter().sum::<i128>();
        let absent = [self.untouched, self.swapped].map(|of| i128::from(of.unwrap_or(0)));
        let rest = i128::from(self.resident) - sum + absent.iter().sum::<i128>();
        i64::try_from(rest).unwrap_or(if rest < 0 { i64::MIN } else { i64::MAX })
    }

    /// The part of `unaccounted` that has no name: memory that changed while it was read, and what
    /// the terms of the heap miss. None where the parts are not known.
    #[must_use]
    pub fn other(&self) -> Option<i64> {
        let named = i64::try_from(self.parts?.total()).unwrap_or(i64::MAX);
        Some(self.unaccounted().saturating_sub(named))
    }

    /// The sum of the equations of several processes. A page that they share counts in each of
    /// them. A term that one of them does not know is not known.
    pub(crate) fn together<'a>(mut all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = all.next().copied().unwrap_or_default();
        for of in all {
            let both = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
            sum = Self {
                tracked: sum.tracked.saturating_add(of.tracked),
                cached: sum.cached.saturating_add(of.cached),
                overhead: sum.overhead.saturating_add(of.overhead),
                tables: sum.tables.max(of.tables),
                resident: sum.resident.saturating_add(of.resident),
                untouched: both(sum.untouched, of.untouched),
                swapped: both(sum.swapped, of.swapped),
                parts: sum.parts.zip(of.parts).map(|(a, b)| a.plus(b)),
                page_tables: both(sum.page_tables, of.page_tables),
            };
        }
        sum
    }

    /// Adds the part of another root block.
    fn add(&mut self, other: &Self) {
        let sum = |a: Option<u64>, b: Option<u64>| match (a, b) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
        self.tracked += other.tracked;
        self.cached += other.cached;
        self.overhead += other.overhead;
        self.untouched = sum(self.untouched, other.untouched);
        self.swapped = sum(self.swapped, other.swapped);
    }

    /// The part of one root block, without `resident`.
    fn of(source: &Source<'_>, metadata: &Metadata, zones: &[Zone], census: &Census<'_>) -> Self {
        let mut of = Self {
            tracked: census.live,
            cached: census.objects.saturating_sub(census.live_in_slabs),
            overhead: metadata.total(),
            ..Self::default()
        };
        for (zone, &placed) in zones.iter().zip(&census.placed) {
            let rest = Rest::of(source, zone, placed).unwrap_or_default();
            of.cached += rest.kept;
            if let Some((untouched, swapped)) = rest.absent {
                of.untouched = Some(of.untouched.unwrap_or(0) + untouched);
                of.swapped = Some(of.swapped.unwrap_or(0) + swapped);
            }
        }
        of
    }
}

/// Pages of one zone that are not objects in memory, in bytes.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    /// Free pages that may hold old contents, or are in memory as parts of huge pages. Also pages
    /// in use that are neither in slabs nor allocated. CPUs keep them, or they lie behind an area
    /// of `vmalloc`.
    kept: u64,
    /// Pages in use or with old contents that are neither in memory nor in swap, and those in swap.
    /// None where that is not known.
    absent: Option<(u64, u64)>,
}

impl Rest {
    /// Counts the pages of a zone. `placed` is bytes of slabs and of live page allocations; none
    /// where not all were counted. None when its tables cannot be read, or do not fit in the
    /// budget.
    fn of(source: &Source<'_>, zone: &Zone, placed: Option<u64>) -> Option<Self> {
        let mut this = Self { kept: 0, absent: source.pages.map(|_| (0, 0)) };
        let mut handed_out = 0;
        for pages in zone.windows() {
            // Two bitmaps.
            if let Err(over) = source.budget.work((pages.end - pages.start).div_ceil(4)) {
                let what = "free and untouched pages are counted in part, all of them are";
                source.budget.remark(format!("zone at {:#x}: {what} {over}", zone.base));
                return Some(this);
            }
            let free = zone.free_bits(source, &pages).ok()?;
            let dirty = zone.bits(source, zone.dirty, &pages).ok()?;
            let both = free.iter().zip(&dirty).map(|(f, d)| u64::from((f & d).count_ones()));
            this.kept += both.sum::<u64>() * PAGE;
            handed_out += clear_bits(&free, 0..pages.end - pages.start) * PAGE;
            // Pages that count as neither in use nor with old contents.
            let clean: Vec<u8> = free.iter().zip(&dirty).map(|(f, d)| f & !d).collect();
            this.absent = this.absent.and_then(|(untouched, swapped)| {
                let of = Residency::of(source, zone, &pages, &clean)?;
                this.kept += of.clean;
                Some((untouched + of.untouched, swapped + of.swapped))
            });
        }
        this.kept += placed.map_or(0, |placed| handed_out.saturating_sub(placed));
        Some(this)
    }
}

/// Where the pages of a part of a zone are, in bytes.
struct Residency {
    /// Clean pages in memory.
    clean: u64,
    /// Other pages, neither in memory nor in swap.
    untouched: u64,
    /// Other pages, in swap.
    swapped: u64,
}

impl Residency {
    /// That of `pages`. Those whose bits in `clean` are set are free, and never had contents. None
    /// when it is not known.
    fn of(source: &Source<'_>, zone: &Zone, pages: &Range<u64>, clean: &[u8]) -> Option<Self> {
        let known = source.pages?;
        let start = zone.base + pages.start * PAGE;
        let count = pages.end - pages.start;
        // All pages in a state, and those of them that are not clean.
        let count_in = |state| {
            let (mut all, mut others) = (0, 0);
            known.regions(start, count * PAGE, state, |region| {
                let first = region.start.saturating_sub(start) / PAGE;
                let last = (region.end.saturating_sub(start) / PAGE).min(count);
                all += last.saturating_sub(first);
                others += clear_bits(clean, first..last);
            })?;
            Some((all, others))
        };
        let ((all, present), (_, swapped)) =
            (count_in(PageState::Present)?, count_in(PageState::Swapped)?);
        let used = clear_bits(clean, 0..count);
        let untouched = used.saturating_sub(present).saturating_sub(swapped);
        let bytes = |pages: u64| pages * PAGE;
        Some(Self {
            clean: bytes(all.saturating_sub(present)),
            untouched: bytes(untouched),
            swapped: bytes(swapped),
        })
    }
}

/// Count of clear bits among these. Bits beyond the end of the bytes count as clear.
fn clear_bits(bytes: &[u8], bits: Range<u64>) -> u64 {
    let mut clear = 0;
    let mut at = bits.start;
    while at < bits.end {
        let byte = usize::try_from(at / 8).ok().and_then(|at| bytes.get(at)).copied().unwrap_or(0);
        let next = (at / 8 + 1) * 8;
        let mask = 0xff_u8 << (at % 8) & 0xff_u8 >> (next - next.min(bits.end));
        clear += u64::from((!byte & mask).count_ones());
        at = next;
    }
    clear
}

/// A kind of the allocator's own tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Table {
    /// The list of zones, and the state of each zone's pages and slabs.
    Zones,
    /// Bytes of slabs that are not objects: rows, extension vectors, and the rest at the end.
    Slabs,
    /// Call sites by tag.
    Sites,
    /// The books at the highest use.
    Peak,
    /// Groups by id.
    Groups,
    /// The indexes of call sites and of groups' names, sheaves of free objects, arrays of CPUs.
    Other,
}

impl Table {
    /// All kinds, in the order they are shown.
    pub const ALL: [Self; 6] =
        [Self::Zones, Self::Slabs, Self::Sites, Self::Peak, Self::Groups, Self::Other];

    /// Name of the kind in allocinfo text.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zones => "zone_tables",
            Self::Slabs => "slab_tables",
            Self::Sites => "site_tables",
            Self::Peak => "peak_table",
            Self::Groups => "group_tables",
            Self::Other => "other_tables",
        }
    }
}

/// Memory of the allocator's tables under one root block: the parts of the overhead.
///
/// Resident pages are counted, in one pass over the page map. A page belongs to the table that its
/// first byte is in. Without a page map the sizes are estimates; see [`Tables`].
///
/// The instance itself is a variable of the library. It is in the unaccounted rest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Metadata {
    bytes: [u64; Table::ALL.len()],
}

impl Metadata {
    /// Bytes of one kind of table.
    #[must_use]
    pub fn bytes(&self, table: Table) -> u64 {
        self.bytes[table as usize]
    }

    /// Bytes of all kinds: the overhead.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    fn add(&mut self, table: Table, bytes: u64) {
        self.bytes[table as usize] += bytes;
    }

    /// Counts the tables of one root block. `slabs` is bytes of slabs that are not objects.
    /// `spare` is memory of other tables.
    fn of(
        source: &Source<'_>,
        root: &Root,
        zones: &[Zone],
        spare: &[Range<u64>],
        slabs: u64,
    ) -> Self {
        let mut metadata = Self::default();
        metadata.add(Table::Slabs, slabs);
        for zone in zones {
            resident(source, zone.meta, |pages| {
                metadata.add(Table::Zones, pages.end.saturating_sub(pages.start));
            });
        }
        for range in spare {
            resident(source, (range.start, range.end - range.start), |pages| {
                metadata.add(Table::Other, pages.end.saturating_sub(pages.start));
            });
        }
        let tables = places(root);
        resident(source, root.meta, |pages| {
            let mut at = pages.start;
            while at < pages.end {
                let inside = tables.iter().find(|(_, range)| range.contains(&at));
                let next = match inside {
                    Some((_, range)) => range.end.next_multiple_of(PAGE),
                    // Up to the next table, or to the end.
                    None => tables
                        .iter()
                        .map(|(_, range)| range.start.next_multiple_of(PAGE))
                        .filter(|&start| start > at)
                        .min()
                        .unwrap_or(u64::MAX),
                };
                let end = next.clamp(at + 1, pages.end);
                metadata.add(inside.map_or(Table::Other, |(table, _)| *table), end - at);
                at = end;
            }
        });
        metadata
    }
}

/// Address range of each table that a root block names.
fn places(root: &Root) -> [(Table, Range<u64>); 4] {
    let sites = u64::from(root.site_capacity);
    let peak = size_of::<PeakTable>() as u64 + sites * size_of::<PeakEntry>() as u64;
    let groups = u64::from(root.group_capacity) * u64::from(root.group_size);
    let zones = (MAX_ZONES * size_of::<ZoneBlock>()) as u64;
    [
        (Table::Zones, root.zones, zones),
        (Table::Sites, root.sites, sites * u64::from(root.site_size)),
        (Table::Peak, root.peak, peak),
        (Table::Groups, root.groups, groups),
    ]
    .map(|(table, at, len)| {
        // Keeps the ends of hostile ranges from overflowing when they are rounded up.
        let limit = |addr: u64| addr.min(u64::MAX - PAGE);
        (table, limit(at)..limit(at.saturating_add(len)))
    })
}

/// Calls `each` with the resident pages of a range of metadata.
fn resident(source: &Source<'_>, (addr, len): (u64, u64), mut each: impl FnMut(Range<u64>)) {
    let Some(known) = source.pages else {
        return;
    };
    let end = addr.saturating_add(len);
    // A range may be reserved far beyond its use: ask for the mapped parts only.
    for mapping in source.maps.overlapping(addr..end) {
        let (from, to) = (mapping.start.max(addr), mapping.end.min(end));
        if from < to && mapping.readable && mapping.is_memory() {
            let _ = known.regions(from, to - from, PageState::Present, &mut each);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::clear_bits;

    #[test]
    fn clear_bits_of_any_range() {
        let bytes = [0b1010_0110, 0xff, 0, 0b0111_1111];
        let clear = |at: u64| bytes.get(at as usize / 8).is_none_or(|b| b >> (at % 8) & 1 == 0);
        for start in 0..40 {
            for end in start..40 {
                let plain = (start..end).filter(|&at| clear(at)).count() as u64;
                assert_eq!(clear_bits(&bytes, start..end), plain, "{start}..{end}");
            }
        }
    }
}
