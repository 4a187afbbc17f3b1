//! The books of a process: what its root blocks lead to.
//!
//! ```text
//! /proc/PID/maps -> "kmem-root" -> RootBlock -> ClassGeometry[]
//!                                            -> ZoneBlock[]  -> chunk classes -> slabs -> extension words
//!                                            |               -> page allocations -> extension words
//!                                            -> Site[]  (tag -> return addresses, or a static tag's text)
//!                                            -> PeakTable
//!                                            -> GroupBlock[]  (objcg id -> who pays)
//! ```
//!
//! The process goes on while it is read. A slab is counted only when its chunks had the same
//! class before and after its extension vector was copied; what changed too often, or made no
//! sense, is counted in [`Books::torn`].

mod accounting;
mod buddy;
mod caches;
mod census;
mod charges;
mod follow;
mod group;
mod holdings;
mod metadata;
mod peak;
mod pinned;
pub(crate) mod record;
mod root;
mod site;
mod target;
mod zone;

use std::collections::BTreeMap;
use std::ops::Range;

pub use accounting::{Accounting, Tables};
pub use buddy::{Buddy, Buddyinfo, ORDERS};
pub use caches::Cache;
pub use census::TagTotal;
pub use charges::Usage;
pub use group::{Group, Groups};
pub use holdings::Holdings;
pub use metadata::{Metadata, Table};
pub use peak::Peak;
pub use pinned::{Pinned, Pins};
pub use root::Root;
pub use site::{Key, StaticTag};

use kmem::root::{MAPPING_NAME, profiling};

use crate::core_file::CoreFile;
use crate::error::ReadError;
use crate::memory::{Memory, Pages};
use crate::process::{Maps, Process};
use follow::{Followed, follow};
use target::Target;

/// What one tag holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SiteRow {
    /// The tag.
    pub tag: u32,
    /// What it stands for.
    pub key: Key,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// State of the switch in a root block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profiling {
    /// Objects are counted, not tagged.
    Off,
    /// Objects carry the tag of their call site.
    #[default]
    On,
    /// There are no books.
    Never,
}

/// The books under one root block.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// Where the root block is.
    pub root: u64,
    /// The switch.
    pub profiling: Profiling,
    /// Pages handed out when the root block was read.
    pub used_pages: u64,
    /// What lives now: tags that hold something, by tag.
    pub rows: Vec<SiteRow>,
    /// What the tags keep from being given back.
    pub pins: Pins,
    /// Who pays.
    pub groups: Groups,
    /// What each of them holds.
    pub holdings: Holdings,
    /// The size classes.
    pub caches: Vec<Cache>,
    /// The books at the highest use so far, if they were kept.
    pub peak: Option<Peak>,
    /// This root block's part of the equation; `resident` is that of the process.
    pub accounting: Accounting,
    /// What the overhead in it is made of.
    pub metadata: Metadata,
    /// Slabs and page allocations that changed while they were read, or made no sense.
    pub torn: u64,
}

/// All books of a process at one time.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The process.
    pub pid: u32,
    /// Its executable.
    pub exe: String,
    /// Its short name.
    pub comm: String,
    /// What it mapped, to resolve addresses with.
    pub maps: Maps,
    /// One per root block: more than one when two copies of the library are loaded.
    pub books: Vec<Books>,
    /// Root blocks that could not be followed, beside those that could.
    pub faults: Vec<ReadError>,
    /// The equation over all root blocks.
    pub accounting: Accounting,
}

/// What the parts of a reading share.
pub(crate) struct Source<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) maps: &'a Maps,
    pub(crate) pagemap: Option<&'a Pages>,
}

impl Snapshot {
    /// Reads the books of a live process.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone, has no kmem in it, may not be read, or shows a root
    /// block that cannot be followed.
    pub fn take(process: &Process) -> Result<Self, ReadError> {
        Self::read(&Target::Live(process))
    }

    /// Reads the books of a dead process from its core file.
    ///
    /// # Errors
    ///
    /// Fails when there was no kmem in the process, a root block cannot be followed, or memory
    /// that it leads to was not dumped.
    pub fn of_core(core: &CoreFile) -> Result<Self, ReadError> {
        Self::read(&Target::Core(core))
    }

    fn read(target: &Target<'_>) -> Result<Self, ReadError> {
        let each = |source: &Source<'_>, root: &Root| Books::read(source, root);
        let Followed { maps, pages, kept: books, faults } = follow(target, each)?;
        let mut accounting = Accounting::default();
        for one in &books {
            accounting.add(&one.accounting);
        }
        accounting.resident = target.resident()?;
        accounting.tables = Tables::known_by(pages.as_ref());
        target.verify()?;
        let (pid, exe, comm) = (target.pid(), target.exe(), target.comm());
        Ok(Self { pid, exe, comm, maps, books, faults, accounting })
    }

    /// True when these mappings hold a root block.
    #[must_use]
    pub fn is_in(maps: &Maps) -> bool {
        !root_addresses(maps).is_empty()
    }

    /// True when none of the root blocks has books to show.
    #[must_use]
    pub fn never(&self) -> bool {
        self.books.iter().all(|b| b.profiling == Profiling::Never)
    }

    /// Live bytes and objects.
    #[must_use]
    pub fn totals(&self) -> (i64, u64) {
        let rows = self.books.iter().flat_map(|b| &b.rows);
        rows.fold((0, 0), |(bytes, calls), row| (bytes + row.bytes, calls + row.calls))
    }

    /// Every return address that a row or a peak row names, those of chains included.
    #[must_use]
    pub fn addresses(&self) -> Vec<u64> {
        let peaks = self.books.iter().filter_map(|b| b.peak.as_ref());
        let rows = self.books.iter().flat_map(|b| &b.rows);
        let mut addresses: Vec<u64> = rows
            .chain(peaks.flat_map(|p| &p.rows))
            .flat_map(|row| row.key.addresses())
            .copied()
            .collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    }

    /// Slabs and page allocations that could not be counted.
    #[must_use]
    pub fn torn(&self) -> u64 {
        self.books.iter().map(|b| b.torn).sum()
    }
}

impl Books {
    fn read(source: &Source<'_>, root: &Root) -> Result<Self, ReadError> {
        let classes = root.classes(source)?;
        let zones = root.zones(source)?;
        let has_books = root.has_books();
        let mut census = census::Census::new(source, &classes, has_books);
        for zone in &zones {
            census.zone(zone)?;
        }
        let metadata = metadata::of_root(source, root, &zones, census.slab_overhead);
        let accounting = accounting::of_root(source, &metadata, &zones, &census);
        // Groups and sites after the census: what was seen in it has its entry by now.
        let mut groups = Groups::read(source, root)?;
        groups.bill(&census.charges, &classes);
        let holdings = Holdings::new(&census.charges, &groups, census.totals());
        let all = groups.below(0);
        let caches =
            caches::of_classes(&classes, &census.slabs, |class| holdings.objects(&all, class));
        let torn = census.torn;
        let (totals, pins) = census.into_totals();
        let sites = site::read(source, root)?;
        let rows = rows(&totals, &sites);
        let peak = if has_books { peak::read(source, root, &sites)? } else { None };
        Ok(Self {
            root: root.at,
            profiling: root.profiling,
            used_pages: u64::from(root.used_pages),
            rows,
            pins,
            groups,
            holdings,
            caches,
            peak,
            accounting,
            metadata,
            torn,
        })
    }
}

impl Books {
    /// The rows of some groups alone, by tag; see [`Groups::below`].
    #[must_use]
    pub fn rows_of(&self, groups: &Range<usize>) -> Vec<SiteRow> {
        let row = |(tag, total): (u32, TagTotal)| {
            let known = self.rows.binary_search_by_key(&tag, |row| row.tag).ok();
            let key = known.map(|at| self.rows[at].key.clone()).unwrap_or_default();
            let bytes = i64::try_from(total.bytes).unwrap_or(i64::MAX);
            SiteRow { tag, key, bytes, calls: total.calls }
        };
        self.holdings.tags(groups).into_iter().map(row).collect()
    }

    /// The caches with the live objects of some groups alone.
    #[must_use]
    pub fn caches_of(&self, groups: &Range<usize>) -> Vec<Cache> {
        // There is no class 0.
        let classes = (1..).zip(&self.caches);
        let of = |(class, cache): (usize, &Cache)| Cache {
            active: self.holdings.objects(groups, class),
            ..*cache
        };
        classes.map(of).collect()
    }
}

/// Joins totals, indexed by tag, with what the tags stand for.
pub(crate) fn rows(totals: &[TagTotal], sites: &[Key]) -> Vec<SiteRow> {
    let live = totals.iter().enumerate().filter(|(_, t)| t.calls != 0 || t.bytes != 0);
    live.map(|(tag, total)| SiteRow {
        tag: u32::try_from(tag).unwrap_or(u32::MAX),
        key: sites.get(tag).cloned().unwrap_or_default(),
        bytes: i64::try_from(total.bytes).unwrap_or(i64::MAX),
        calls: total.calls,
    })
    .collect()
}

/// Start of every mapping of a root block. The file's first page is mapped once per copy of
/// the library.
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
