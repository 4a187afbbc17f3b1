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
//! source  access to a process, for all parts of one reading
//! zone    size classes and zones
//! root    root blocks, which lead to them
//! follow  all root blocks of a process, one after the other
//! tables  call sites, the peak, groups
//! groups  the tree of groups, and the memory charged to each
//! mappings  memory outside of the heap
//! pins    the slabs that tags keep from being given back
//! sizes   live objects by tag and by size
//! ages    live objects by tag and by age
//! by_tag  counts of each tag, in bounded memory
//! tally   live objects of some slabs, added up before they join the books
//! census  live objects by tag and by group, the slabs they pin, the size classes
//! caches  the size classes, and the caches that the program named
//! metadata  memory of the allocator's own tables
//! accounting  the equation of a process's memory
//! nodes   live objects by NUMA node
//! objects live objects one by one
//! buddy   free blocks per order; stands apart
//! ```

mod accounting;
mod ages;
mod buddy;
mod by_tag;
mod caches;
mod census;
mod follow;
mod groups;
mod mappings;
mod metadata;
mod nodes;
mod objects;
mod pins;
mod root;
mod sizes;
mod source;
mod tables;
mod tally;
mod zone;

use std::collections::BTreeMap;
use std::ops::Range;

pub use accounting::{Accounting, Tables};
pub use ages::{Ages, OfAge};
pub use buddy::{Buddy, Buddyinfo, ORDERS};
pub use caches::{Cache, NamedCache};
pub use groups::{Groups, Holdings};
pub use mappings::{MappingOwner, MappingRow, Mappings, Parts};
pub use metadata::{Metadata, Table};
pub use nodes::Nodes;
pub use pins::{Pinned, Pins};
pub use root::{Profiling, Root};
pub use sizes::Sizes;
pub use tables::{Group, Key, Peak, SiteRow, StaticTag, TagTotal, Usage};

pub(crate) use follow::root_addresses;
pub(crate) use objects::Object;
pub(crate) use source::Source;

use crate::budget::Budget;
use crate::clock::now_ns;
use crate::core_file::CoreFile;
use crate::error::ReadError;
use crate::image::Image;
use crate::maps::Maps;
use crate::process::Process;
use caches::Named;
use census::Census;
use follow::{Followed, follow, told};
pub(crate) use mappings::Noted;
use objects::Objects;

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
    /// Live objects of each tag by age, where the process notes times.
    pub ages: Ages,
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
        let mut accounting = Accounting::together(books.iter().map(|one| &one.accounting));
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
        let of_tags = census.sizes.memory() + census.ages.memory();
        let met = census.pins.memory() + of_tags + census.charges.memory();
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
            ages: census.ages,
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
