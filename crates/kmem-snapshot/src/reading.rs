//! The entry of the crate: rows of a target, filtered, in one call.
//!
//! A [`Target`] is a live process, the core file of a dead one, or a black box. [`Target::read`]
//! opens it, copies its books, names the rows that a [`Query`] wants, and returns them as a
//! [`Reading`] with notes for the user.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::blackbox::{BlackBox, Counts, Moment};
use crate::books::{Accounting, Books, Buddyinfo, Pinned, Profiling, SiteRow, Snapshot, Table};
use crate::core_file::CoreFile;
use crate::error::ReadError;
use crate::notes::Note;
use crate::process::Process;
use crate::sites::{Filter, Origin, Site, resolve_mappings, resolve_where};
use crate::symbols::{Modules, Place, Symbols};

/// A process to read, alive or dead.
///
/// ```no_run
/// use kmem_snapshot::{Filter, Pattern, Query, Target};
///
/// let core = Target::Core { path: "core.1234".into(), exe: None };
/// let filter = Filter { function: vec![Pattern::new("load_*")], ..Filter::default() };
/// let reading = core.read(&Query { filter, ..Query::default() })?;
/// for note in &reading.notes {
///     eprintln!("{note}");
/// }
/// println!("{} rows", reading.sites.len());
/// # Ok::<(), kmem_snapshot::ReadFailure>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A live process, by pid.
    Process(u32),
    /// A dead process, by its core file.
    Core {
        /// The core file.
        path: PathBuf,
        /// The executable, when it is no longer where it was.
        exe: Option<PathBuf>,
    },
    /// A process, alive or dead, by its black box.
    BlackBox {
        /// The black box.
        path: PathBuf,
        /// The executable, when it is no longer where it was.
        exe: Option<PathBuf>,
        /// Which of its records to read.
        when: When,
    },
}

/// Record of a black box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// The one that was written last.
    #[default]
    Newest,
    /// The one with most live bytes and memory mapped by the program.
    Peak,
}

/// Keys that tell rows apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// The place.
    #[default]
    Site,
    /// The group and the place.
    GroupAndSite,
    /// The NUMA node of the memory and the place.
    NodeAndSite,
}

/// Choice of rows.
#[derive(Debug, Clone, Default)]
pub struct Query {
    /// Conditions on rows.
    pub filter: Filter,
    /// Keys of rows. A black box knows its rows by place alone.
    pub by: By,
    /// True to read allocations and frees since the start, which only a black box has.
    pub cumulative: bool,
    /// True to read the allocator's own memory, too.
    pub metadata: bool,
    /// True to read memory outside of the heap, too: mappings of the program, stacks, code, files.
    /// A group and a node have none of it.
    pub mappings: bool,
}

/// Rows of a target at one time.
#[derive(Debug, Default)]
pub struct Reading {
    /// The books that the rows come from.
    pub snapshot: Snapshot,
    /// Rows that the filter admits, in order of their lowest tag. With groups the group's path
    /// comes first in the order, and with nodes the node.
    pub sites: Vec<Site>,
    /// The allocator's own memory by kind of table, where the query asks for it. Together these
    /// rows are the overhead of the equation; they have no objects and no tags.
    pub metadata: Vec<Site>,
    /// Memory outside of the heap, where the query asks for it; see [`Site::mapped`]. Together with
    /// [`Accounting::other`] these rows are the `unaccounted` of the equation. A black box has only
    /// rows of what the program mapped.
    pub mappings: Vec<Site>,
    /// Facts that a user must know to read the rows.
    pub notes: Vec<Note>,
    /// True when the query has a filter.
    pub filtered: bool,
    /// The moment that a black box shows.
    pub moment: Option<Moment>,
    /// False for a black box, which holds a part of the equation.
    accounted: bool,
    /// Allocations and frees by tag.
    counts: Option<BTreeMap<u32, Counts>>,
}

/// A failed reading: the error, and the notes made before it.
#[derive(Debug)]
pub struct ReadFailure {
    /// The error.
    pub error: ReadError,
    /// Facts found before the error.
    pub notes: Vec<Note>,
}

impl From<ReadError> for ReadFailure {
    fn from(error: ReadError) -> Self {
        Self { error, notes: Vec::new() }
    }
}

impl fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ReadFailure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// A call site of one root block, not merged with others of its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSite {
    /// Address of the root block.
    pub root: u64,
    /// Tag of the site.
    pub tag: u32,
    /// Return addresses, innermost first: of the wrappers that it goes through, if there are any,
    /// and of the call.
    pub addresses: Arc<[u64]>,
    /// Place of the call.
    pub place: Place,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// Live objects of one call site, by its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ToldApart {
    /// Chains of callers that hold an object.
    pub chains: usize,
    /// Objects that they hold.
    pub objects: u64,
    /// Objects without a chain: from before callers were told apart, or where none can be found.
    pub alone: u64,
}

impl Snapshot {
    /// The callers of the call site with these return addresses, in the books of one root block.
    #[must_use]
    pub fn told_apart(&self, root: u64, addresses: &[u64]) -> ToldApart {
        let mut sum = ToldApart::default();
        let rows = self.books.iter().filter(|books| books.root == root).flat_map(|b| &b.rows);
        let mut known = BTreeSet::new();
        for row in rows.filter(|row| row.key.addresses().starts_with(addresses)) {
            if row.key.addresses().len() == addresses.len() {
                sum.alone = sum.alone.saturating_add(row.calls);
            } else if row.calls != 0 {
                sum.objects = sum.objects.saturating_add(row.calls);
                known.insert(row.tag);
            }
        }
        sum.chains = known.len();
        sum
    }
}

impl Target {
    /// True for a live process, whose books change.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Process(_))
    }

    /// Reads the rows that the query wants.
    ///
    /// # Errors
    ///
    /// - The target cannot be opened or read, or it has no kmem in it.
    /// - [`ReadError::BadBooks`], [`ReadError::BadFile`]: it makes no sense.
    /// - [`ReadError::ProfilingNever`], [`ReadError::NothingRecorded`]: it keeps no books.
    /// - [`ReadError::NoGroup`]: it has no group of the filter's path.
    /// - [`ReadError::BadSetting`]: the query wants counters, and it is no black box.
    pub fn read(&self, query: &Query) -> Result<Reading, ReadFailure> {
        let (reading, notes) = noted(|notes| self.rows(query, notes))?;
        Ok(Reading { notes, ..reading })
    }

    /// Copies the books, without names.
    ///
    /// # Errors
    ///
    /// The errors of [`Target::read`].
    pub fn snapshot(&self) -> Result<(Snapshot, Vec<Note>), ReadFailure> {
        noted(|notes| {
            let snapshot = self.open(notes)?.1;
            notes.extend(over_budget(&snapshot));
            Ok(snapshot)
        })
    }

    /// Reads and names the call sites whose callers can be told apart, largest first.
    ///
    /// # Errors
    ///
    /// The errors of [`Target::read`].
    pub fn call_sites(&self) -> Result<(Vec<CallSite>, Vec<Note>), ReadFailure> {
        noted(|notes| {
            let (opened, snapshot) = self.open(notes)?;
            let modules = opened.modules(&snapshot, self.exe());
            let mut symbols = Symbols::new(&modules);
            let rows = snapshot.books.iter().flat_map(|b| b.rows.iter().map(|row| (b.root, row)));
            let mut sites: Vec<CallSite> = rows
                .filter_map(|(root, row)| {
                    let (addresses, place) = Origin::call_site(row, &mut symbols)?;
                    let (tag, bytes, calls) = (row.tag, row.bytes, row.calls);
                    Some(CallSite { root, tag, addresses, place, bytes, calls })
                })
                .collect();
            sites.sort_by_key(|site| (std::cmp::Reverse(site.bytes), site.root, site.tag));
            notes.extend(over_budget(&snapshot));
            Ok(sites)
        })
    }

    /// Reads the free blocks of pages per order, with or without books.
    ///
    /// # Errors
    ///
    /// The errors of [`Buddyinfo::take`] or [`Buddyinfo::of_core`];
    /// [`ReadError::NothingRecorded`] for a black box.
    pub fn buddyinfo(&self) -> Result<Buddyinfo, ReadError> {
        match self {
            Self::Process(pid) => Buddyinfo::take(&Process::open(*pid)?),
            Self::Core { path, .. } => Buddyinfo::of_core(&CoreFile::open(path)?),
            Self::BlackBox { path, .. } => Err(ReadError::NothingRecorded {
                path: path.to_string_lossy().into_owned(),
                what: "a black box has no memory".to_owned(),
            }),
        }
    }

    fn exe(&self) -> Option<&Path> {
        match self {
            Self::Process(_) => None,
            Self::Core { exe, .. } | Self::BlackBox { exe, .. } => exe.as_deref(),
        }
    }

    /// Opens the target and copies its books.
    fn open(&self, notes: &mut Vec<Note>) -> Result<(Opened, Snapshot), ReadError> {
        match self {
            Self::Process(pid) => {
                let process = Process::open(*pid)?;
                let snapshot = Snapshot::take(&process)?;
                note_books(&snapshot, Note::Torn, notes)?;
                Ok((Opened::Process(process), snapshot))
            }
            Self::Core { path, .. } => {
                let core = CoreFile::open(path)?;
                if core.missing() != 0 {
                    let (path, missing) = (path.display().to_string(), core.missing());
                    notes.push(Note::CutOff { path, missing });
                }
                let snapshot = Snapshot::of_core(&core)?;
                let command = if core.command().is_empty() { core.comm() } else { core.command() };
                let (pid, command, signal) = (core.pid(), command.to_owned(), core.signal());
                notes.push(Note::CoreOf { pid, command, signal });
                if !core.knows_resident() {
                    notes.push(Note::NoResidency { path: path.display().to_string() });
                }
                note_books(&snapshot, Note::Absent, notes)?;
                Ok((Opened::Core(core), snapshot))
            }
            Self::BlackBox { path, when, .. } => {
                let mut black_box = open_black_box(path, notes)?;
                if *when == When::Peak {
                    black_box = black_box.turned_to_peak();
                }
                let snapshot = black_box.snapshot()?;
                let of = black_box.moment().cloned().unwrap_or_default();
                let (pid, exe) = (black_box.pid(), black_box.exe().to_owned());
                notes.push(Note::Moment { pid, exe, of });
                Ok((Opened::BlackBox(black_box), snapshot))
            }
        }
    }

    /// Opens the black box and copies its counters.
    fn open_counters(
        &self,
        notes: &mut Vec<Note>,
    ) -> Result<(Opened, Snapshot, BTreeMap<u32, Counts>), ReadError> {
        let Self::BlackBox { path, .. } = self else {
            return Err(ReadError::BadSetting("only a black box has counters".to_owned()));
        };
        let black_box = open_black_box(path, notes)?;
        let (snapshot, counts) = black_box.counters()?;
        let (pid, exe) = (black_box.pid(), black_box.exe().to_owned());
        notes.push(Note::Counters { pid, exe, started_ns: black_box.started_ns() });
        Ok((Opened::BlackBox(black_box), snapshot, counts))
    }

    fn rows(&self, query: &Query, notes: &mut Vec<Note>) -> Result<Reading, ReadError> {
        let (opened, snapshot, counts) = if query.cumulative {
            let (opened, snapshot, counts) = self.open_counters(notes)?;
            (opened, snapshot, Some(counts))
        } else {
            let (opened, snapshot) = self.open(notes)?;
            (opened, snapshot, None)
        };
        let (moment, by) = match &opened {
            Opened::BlackBox(of) if counts.is_none() => (of.moment().cloned(), By::Site),
            Opened::BlackBox(_) => (None, By::Site),
            Opened::Process(_) | Opened::Core(_) => (None, query.by),
        };
        if let Some(of) = &moment {
            let (bytes, sites) = (of.named_bytes, of.rows);
            notes.push(Note::Named { bytes, of: of.bytes, sites });
        }
        let modules = opened.modules(&snapshot, self.exe());
        let filter = &query.filter;
        if let Some(path) = &filter.group {
            snapshot.groups_at(path)?;
            if by == By::NodeAndSite {
                let what = "the memory of a group is not known by node";
                return Err(ReadError::BadSetting(what.to_owned()));
            }
        }
        notes.extend(modules.mismatches().iter().cloned().map(Note::Mismatch));
        let mut symbols = Symbols::new(&modules);
        let mut sites = named(&snapshot, &mut symbols, filter, by);
        let accounted = !matches!(opened, Opened::BlackBox(_));
        if accounted && filter.group.is_none() && by == By::Site {
            pin(&snapshot, &mut symbols, &mut sites, filter);
        }
        let mut mappings = Vec::new();
        if query.mappings && filter.group.is_none() && by == By::Site {
            match &snapshot.mappings {
                Some(of) => {
                    let main = main_module(&snapshot);
                    let wanted = |origin: &Origin| filter.admits(origin, main);
                    mappings = resolve_mappings(&of.rows, &mut symbols, wanted);
                    mappings.retain(|site| filter.admits_size(site.bytes));
                    notes.extend(of.faults.iter().cloned().map(Note::LeftOut));
                    if matches!(&opened, Opened::Core(core) if !core.names_stack()) {
                        notes.push(Note::NoStacks);
                    }
                    if of.lost != 0 {
                        notes.push(Note::MappingsLost(of.lost));
                    }
                    if let Some(moment) = &moment {
                        notes.push(Note::NoMappingsInBox);
                        if moment.mapped_uncounted != 0 {
                            notes.push(Note::MappingsUncounted(moment.mapped_uncounted));
                        }
                    }
                }
                None if accounted => notes.push(Note::NoMappings),
                None => notes.push(Note::NoMappingsInBox),
            }
        }
        notes.extend(over_budget(&snapshot));
        let metadata = if query.metadata { metadata(&snapshot, filter) } else { Vec::new() };
        let filtered = filter.is_on();
        let notes = Vec::new();
        Ok(Reading {
            snapshot,
            sites,
            metadata,
            mappings,
            notes,
            filtered,
            moment,
            accounted,
            counts,
        })
    }
}

impl Reading {
    /// The equation; none for a black box.
    #[must_use]
    pub fn accounting(&self) -> Option<&Accounting> {
        self.accounted.then_some(&self.snapshot.accounting)
    }

    /// Allocations and frees at a row since the start; none unless the query asked for them.
    #[must_use]
    pub fn counts_of(&self, site: &Site) -> Option<Counts> {
        let counts = self.counts.as_ref()?;
        let mut sum = Counts::default();
        site.tags.iter().filter_map(|tag| counts.get(tag)).for_each(|of| sum.add(of));
        Some(sum)
    }
}

/// An open target.
enum Opened {
    Process(Process),
    Core(CoreFile),
    BlackBox(BlackBox),
}

impl Opened {
    fn modules(&self, snapshot: &Snapshot, exe: Option<&Path>) -> Modules {
        let (maps, addresses) = (&snapshot.maps, snapshot.addresses());
        match self {
            Self::Process(process) => Modules::open(process, maps, &addresses, &snapshot.budget),
            Self::Core(core) => Modules::of_core(core, &addresses, exe),
            Self::BlackBox(of) => {
                Modules::of_maps(maps, &addresses, of.exe(), exe, &snapshot.budget)
            }
        }
    }
}

/// Runs `read`, and joins its result with the notes that it made.
fn noted<T>(
    read: impl FnOnce(&mut Vec<Note>) -> Result<T, ReadError>,
) -> Result<(T, Vec<Note>), ReadFailure> {
    let mut notes = Vec::new();
    match read(&mut notes) {
        Ok(value) => Ok((value, notes)),
        Err(error) => Err(ReadFailure { error, notes }),
    }
}

/// Notes about the parts that the budget of the reading has no room for.
fn over_budget(snapshot: &Snapshot) -> impl Iterator<Item = Note> + use<> {
    snapshot.budget.remarks().into_iter().map(Note::OverBudget)
}

fn open_black_box(path: &Path, notes: &mut Vec<Note>) -> Result<BlackBox, ReadError> {
    let black_box = BlackBox::open(path)?;
    let damage =
        |what: &String| Note::Damage { path: path.display().to_string(), what: what.clone() };
    notes.extend(black_box.remarks().iter().map(damage));
    Ok(black_box)
}

/// Checks that there are books, and notes the faults in them. `torn` makes the note on slabs and
/// page allocations that could not be counted.
fn note_books(
    snapshot: &Snapshot,
    torn: impl Fn(u64) -> Note,
    notes: &mut Vec<Note>,
) -> Result<(), ReadError> {
    if snapshot.never() {
        return Err(ReadError::ProfilingNever { pid: snapshot.pid });
    }
    let books = &snapshot.books;
    notes.extend(snapshot.left_out().into_iter().map(Note::LeftOut));
    if books.len() > 1 {
        let roots = books.iter().map(|b| b.root).collect();
        notes.push(Note::Copies { pid: snapshot.pid, roots });
    }
    if books.iter().any(|b| b.profiling == Profiling::Off) {
        notes.push(Note::ProfilingOff);
    }
    if !books.iter().all(|b| b.pins.is_exact()) {
        notes.push(Note::PinsInexact);
    }
    let groups_torn: u64 = books.iter().map(|b| b.groups.torn).sum();
    if groups_torn != 0 {
        notes.push(Note::GroupsTorn(groups_torn));
    }
    if !books.iter().all(|b| b.holdings.is_exact()) {
        notes.push(Note::HoldingsInexact);
    }
    if snapshot.torn() != 0 {
        notes.push(torn(snapshot.torn()));
    }
    Ok(())
}

/// Names the live rows of all books. Rows with unwanted names are dropped before they are merged,
/// rows of unwanted size once their size is known.
fn named(snapshot: &Snapshot, symbols: &mut Symbols<'_>, filter: &Filter, by: By) -> Vec<Site> {
    let main = main_module(snapshot);
    let mut sites = Vec::new();
    for (Owner { group, node }, rows) in live_rows(snapshot, filter, by) {
        let named = resolve_where(rows.iter(), symbols, |origin| filter.admits(origin, main));
        sites.extend(named.into_iter().map(|site| Site { group: group.clone(), node, ..site }));
    }
    sites.retain(|site| filter.admits_size(site.bytes));
    sites
}

/// The path of the group or the node that rows have in common, where these are told apart.
#[derive(Debug, Default)]
struct Owner {
    group: Option<Arc<str>>,
    node: Option<u32>,
}

/// Rows, with their group or node.
type OwnedRows<'a> = (Owner, Cow<'a, [SiteRow]>);

/// Live rows of the filter's group, or of all, in all books. With `By::GroupAndSite`, one list for
/// each group, with `By::NodeAndSite` one for each node.
fn live_rows<'a>(snapshot: &'a Snapshot, filter: &Filter, by: By) -> Vec<OwnedRows<'a>> {
    let wanted = |books: &Books| -> Range<usize> {
        filter.group.as_ref().map_or_else(|| books.groups.below(0), |path| books.below(path))
    };
    if by == By::GroupAndSite {
        let mut rows: BTreeMap<String, Vec<SiteRow>> = BTreeMap::new();
        for books in &snapshot.books {
            for at in wanted(books) {
                let own = books.rows_of(&(at..at + 1));
                if !own.is_empty() {
                    rows.entry(books.groups.path(at)).or_default().extend(own);
                }
            }
        }
        let owner = |path: String| Owner { group: Some(path.into()), node: None };
        return rows.into_iter().map(|(path, rows)| (owner(path), rows.into())).collect();
    }
    if by == By::NodeAndSite {
        let mut rows: BTreeMap<Option<u32>, Vec<SiteRow>> = BTreeMap::new();
        for (node, own) in snapshot.books.iter().flat_map(Books::rows_by_node) {
            rows.entry(node).or_default().extend(own);
        }
        let owner = |node| Owner { group: None, node };
        return rows.into_iter().map(|(node, rows)| (owner(node), rows.into())).collect();
    }
    // One list, so that one place in several books becomes one row.
    let rows = match (&filter.group, &snapshot.books[..]) {
        (None, [books]) => Cow::Borrowed(&books.rows[..]),
        (None, books) => books.iter().flat_map(|b| &b.rows).cloned().collect(),
        (Some(_), books) => books.iter().flat_map(|b| b.rows_of(&wanted(b))).collect(),
    };
    vec![(Owner::default(), rows)]
}

/// Adds to rows the memory that they pin. Slabs are known by tag, not by group.
fn pin(snapshot: &Snapshot, symbols: &mut Symbols<'_>, sites: &mut [Site], filter: &Filter) {
    let mut pinned = vec![Pinned::default(); sites.len()];
    if let [books] = &snapshot.books[..] {
        books.pins.by_row(row_of(sites, |at, _| Some(at)), &mut pinned);
    } else {
        // A tag has another meaning in each of the books, so each of them is named alone.
        let main = main_module(snapshot);
        let by_key: HashMap<_, _> = (0..).zip(&*sites).map(|(at, site)| (site.key(), at)).collect();
        for books in &snapshot.books {
            let wanted = |origin: &Origin| filter.admits(origin, main);
            let own = resolve_where(&books.rows, symbols, wanted);
            let place = |_, site: &Site| by_key.get(&site.key()).copied();
            books.pins.by_row(row_of(&own, place), &mut pinned);
        }
    }
    for (site, pinned) in sites.iter_mut().zip(pinned) {
        site.pinned = Some(pinned);
    }
}

/// Maps a tag to the index of the row that its site is part of.
fn row_of(
    sites: &[Site],
    row: impl Fn(usize, &Site) -> Option<usize>,
) -> impl Fn(u32) -> Option<usize> {
    let tags = sites.iter().flat_map(|site| &site.tags);
    // A tag has 17 bits.
    let mut rows = vec![None; tags.max().map_or(0, |&last| last as usize + 1)];
    for (at, site) in sites.iter().enumerate() {
        if let Some(row) = row(at, site) {
            site.tags.iter().for_each(|&tag| rows[tag as usize] = Some(row));
        }
    }
    move |tag| rows.get(tag as usize).copied().flatten()
}

/// Rows of the allocator's own memory that the filter admits.
fn metadata(snapshot: &Snapshot, filter: &Filter) -> Vec<Site> {
    let row = |table| {
        let bytes: u64 = snapshot.books.iter().map(|books| books.metadata.bytes(table)).sum();
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        Site { bytes, ..Site::new(Origin::Metadata(table)) }
    };
    let wanted = |row: &Site| {
        row.bytes != 0 && filter.admits(&row.origin, "") && filter.admits_size(row.bytes)
    };
    Table::ALL.into_iter().map(row).filter(wanted).collect()
}

/// Module name of the main executable, as its rows have it.
fn main_module(snapshot: &Snapshot) -> &str {
    let path = snapshot.exe.strip_suffix(" (deleted)").unwrap_or(&snapshot.exe);
    path.rsplit('/').next().unwrap_or(path)
}
