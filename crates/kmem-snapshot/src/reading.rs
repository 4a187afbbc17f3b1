//! The entry of the crate: rows of a target, filtered, in one call.
//!
//! A [`Target`] is a live process, the core file of a dead one, a black box, the kernel, or rows
//! that a file lists. [`Target::read`] opens it, copies its books, names the rows that a [`Query`]
//! wants, and returns them as a [`Reading`] with notes for the user.

mod details;
mod earlier;
mod follow;
mod nameless;
mod provenance;
mod several;
mod sums;
mod symbolize;
mod target;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub use details::{Details, OfSize};
pub use follow::Recorder;
pub(crate) use nameless::note_of_process;
pub use provenance::Provenance;
pub use several::ProcessTotal;
pub use sums::ModuleTotal;
pub use symbolize::Symbolized;
pub use target::{CallSite, Target, ToldApart, When};
use target::{Opened, noted};
pub(crate) use target::{note_books, over_budget};

use crate::blackbox::{Counts, Moment};
use crate::books::{Accounting, Books, Mappings, Pinned, SiteRow, Snapshot, Table};
use crate::error::ReadError;
use crate::listed::List;
use crate::notes::Note;
use crate::program::base_name;
use crate::sites::{Filter, Origin, Site, large_arenas, resolve_mappings, resolve_where, total};
use crate::symbols::{Kept, Symbols};

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
    /// True to read static tags of loaded objects that hold nothing, too. There are none by group
    /// or by node, and a black box does not have them.
    pub empty: bool,
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
    /// Time, machine and files that the rows come from.
    pub provenance: Provenance,
    /// False for a black box, which holds a part of the equation, and for a list.
    accounted: bool,
    /// Live bytes and objects of a list, which has no books.
    totals: Option<(i64, u64)>,
    /// Allocations and frees by tag.
    counts: Option<BTreeMap<u32, Counts>>,
    /// The readings of several processes, of which this one is the sum.
    parts: Vec<Self>,
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

impl Target {
    /// Reads the rows that the query wants.
    ///
    /// # Errors
    ///
    /// - The target cannot be opened or read, or it has no kmem in it.
    /// - [`ReadError::BadBooks`], [`ReadError::BadFile`]: it makes no sense.
    /// - [`ReadError::ProfilingNever`], [`ReadError::NothingRecorded`]: it keeps no books.
    /// - [`ReadError::NoGroup`]: it has no group of the filter's path.
    /// - [`ReadError::BadSetting`]: the query wants what the target does not have, such as groups
    ///   of a black box or counters of a process.
    /// - [`ReadError::NoAllocinfo`]: the kernel has no books, or does not show them.
    pub fn read(&self, query: &Query) -> Result<Reading, ReadFailure> {
        self.read_again(query, &mut Kept::default())
    }

    /// Reads the rows that the query wants, with the names that an earlier reading of the target
    /// kept. Keeps those of this one.
    ///
    /// # Errors
    ///
    /// The errors of [`Target::read`].
    pub fn read_again(&self, query: &Query, kept: &mut Kept) -> Result<Reading, ReadFailure> {
        if let Self::Processes(selection) = self {
            self.check(query)?;
            return several::read(selection, query, kept);
        }
        let (reading, notes) = noted(|notes| self.rows(query, kept, notes))?;
        Ok(Reading { notes, ..reading })
    }

    fn rows(
        &self,
        query: &Query,
        kept: &mut Kept,
        notes: &mut Vec<Note>,
    ) -> Result<Reading, ReadError> {
        self.check(query)?;
        if let Some(list) = self.list(notes) {
            return Ok(self.rows_of_list(list?, query));
        }
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
        let modules = opened.modules(&snapshot, self.exe(), kept);
        let filter = &query.filter;
        if let Some(path) = &filter.group {
            snapshot.groups_at(path)?;
            if by == By::NodeAndSite {
                let what = "the memory of a group is not known by node: choose one of --group and \
                            --by node";
                return Err(ReadError::BadSetting(what.to_owned()));
            }
        }
        notes.extend(modules.mismatches().iter().cloned().map(Note::Mismatch));
        let mut symbols = kept.symbols(&modules);
        let mut sites = named(&snapshot, &mut symbols, query, by);
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
                    if !filter.is_on() {
                        notes.extend(large_arenas(sites.iter().chain(&mappings)));
                    }
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
        let files = kept.learn(&symbols, &snapshot.maps);
        let rows = sites.iter().chain(&mappings);
        notes.extend(nameless::note_of_process(rows, &snapshot.maps, &files));
        let provenance =
            Provenance::of(self, &opened, &snapshot, moment.as_ref()).with_files(&files);
        let notes = Vec::new();
        Ok(Reading {
            snapshot,
            sites,
            metadata,
            mappings,
            notes,
            filtered,
            moment,
            provenance,
            accounted,
            totals: None,
            counts,
            parts: Vec::new(),
        })
    }
}

impl Target {
    /// Refuses what the target cannot answer, by its name.
    fn check(&self, query: &Query) -> Result<(), ReadError> {
        let is_box = matches!(self, Self::BlackBox { .. });
        if matches!(self, Self::Processes(_)) && query.cumulative {
            return Err(self.has_no("counters: --cumulative needs a black box"));
        }
        if query.filter.group.is_some() && (self.is_list() || is_box) {
            return Err(self.has_no("groups: --group needs a process or its core file"));
        }
        if !self.is_list() {
            return Ok(());
        }
        let what = match query.by {
            By::GroupAndSite => {
                "groups: rows by group need a process (-p) or its core file (--core)"
            }
            By::NodeAndSite => "nodes: rows by node need a process (-p) or its core file (--core)",
            By::Site if query.cumulative => "counters: --cumulative needs a black box",
            By::Site => return Ok(()),
        };
        Err(self.has_no(what))
    }

    /// The rows of a list that the query wants.
    fn rows_of_list(&self, list: List, query: &Query) -> Reading {
        let provenance = Provenance::of_list(self, &list);
        let exe = if list.exe.is_empty() { self.name() } else { list.exe };
        let comm = exe.rsplit('/').next().unwrap_or(&exe).to_owned();
        let accounted = list.accounting.is_some();
        let accounting = list.accounting.unwrap_or_default();
        let snapshot = Snapshot { pid: list.pid, exe, comm, accounting, ..Snapshot::default() };
        let filter = &query.filter;
        let main = main_module(&snapshot);
        let chosen = |mut sites: Vec<Site>, empty: bool| {
            sites.retain(|site| {
                (empty || site.bytes != 0 || site.calls != 0)
                    && filter.admits(&site.origin, main)
                    && filter.admits_size(site.bytes)
            });
            sites
        };
        let totals = total(&list.heap.sites);
        let of = |sites: Vec<Site>, wanted| if wanted { chosen(sites, false) } else { Vec::new() };
        Reading {
            sites: chosen(list.heap.sites, query.empty),
            metadata: of(list.metadata.sites, query.metadata),
            mappings: of(list.mappings.sites, query.mappings),
            filtered: filter.is_on(),
            accounted,
            totals: Some(totals),
            provenance,
            snapshot,
            ..Reading::default()
        }
    }
}

impl Reading {
    /// A reading of rows that were chosen one object at a time, in the modules of these build ids.
    pub(crate) fn of_rows(
        snapshot: Snapshot,
        sites: Vec<Site>,
        build_ids: &BTreeMap<String, String>,
    ) -> Self {
        let provenance = Provenance::now().with_files(build_ids);
        Self { snapshot, sites, provenance, ..Self::default() }
    }

    /// Live bytes and objects of all rows, without a filter.
    #[must_use]
    pub fn totals(&self) -> (i64, u64) {
        self.totals.unwrap_or_else(|| self.snapshot.totals())
    }

    /// Pid of the process; none for a list that names none.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        Some(self.snapshot.pid).filter(|&pid| pid != 0)
    }

    /// Name of the target: the executable and the pid of a process, the path of a list, the number
    /// of several processes.
    #[must_use]
    pub fn name(&self) -> String {
        self.named(&self.snapshot.exe)
    }

    /// Name of the target, with the short name of a process.
    #[must_use]
    pub fn short_name(&self) -> String {
        self.named(&self.snapshot.comm)
    }

    fn named(&self, name: &str) -> String {
        match self.snapshot.pid {
            _ if !self.parts.is_empty() => self.name_of_several(name),
            0 if self.totals.is_some() => name.to_owned(),
            pid => format!("{name} (pid {pid})"),
        }
    }

    /// The equation; none for a black box.
    #[must_use]
    pub fn accounting(&self) -> Option<&Accounting> {
        self.accounted.then_some(&self.snapshot.accounting)
    }

    /// Resident bytes that calls of the program mapped; none where the reading has no rows of
    /// mapped memory.
    #[must_use]
    pub fn mapped(&self) -> Option<u64> {
        if self.mappings.is_empty() {
            return None;
        }
        if !self.parts.is_empty() {
            return self.parts.iter().map(Self::mapped).sum();
        }
        let in_box = self.moment.as_ref().map(|moment| moment.mapped_resident);
        in_box.or_else(|| self.snapshot.mappings.as_ref().map(Mappings::of_calls))
    }

    /// All rows: of the heap, of the allocator's own memory, and outside of the heap.
    #[must_use]
    pub fn all(&self) -> Vec<Site> {
        [&self.sites[..], &self.metadata, &self.mappings].concat()
    }

    /// True when the query asked for allocations and frees since the start.
    #[must_use]
    pub fn has_counts(&self) -> bool {
        self.counts.is_some()
    }

    /// Allocations and frees since the start, of these tags together; none unless the query asked
    /// for them.
    #[must_use]
    pub fn counts_of(&self, tags: &[u32]) -> Option<Counts> {
        let counts = self.counts.as_ref()?;
        let mut sum = Counts::default();
        tags.iter().filter_map(|tag| counts.get(tag)).for_each(|of| sum.add(of));
        Some(sum)
    }
}

/// Names the live rows of all books. Rows with unwanted names are dropped before they are merged,
/// rows of unwanted size once their size is known.
fn named(snapshot: &Snapshot, symbols: &mut Symbols<'_>, query: &Query, by: By) -> Vec<Site> {
    let main = main_module(snapshot);
    let filter = &query.filter;
    let mut sites = Vec::new();
    for (Owner { group, node }, mut rows) in live_rows(snapshot, filter, by) {
        let lists = query.empty && filter.group.is_none() && by == By::Site;
        let mut empty = snapshot.books.iter().flat_map(|books| &books.empty).peekable();
        // Rows without such tags, as of a black box, stay in their own order.
        if lists && empty.peek().is_some() {
            rows.to_mut().extend(empty.cloned());
            rows.to_mut().sort_by_key(|row| row.tag);
        }
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
    base_name(&snapshot.exe)
}
