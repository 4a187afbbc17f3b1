//! The live rows of a snapshot: named, those that a filter wants, with what they pin.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::books::{Books, Pinned, SiteRow, Snapshot, Table};
use crate::filter::Filter;
use crate::sites::{self, Origin, Site};
use crate::symbols::Symbols;

/// What makes two rows one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum By {
    /// The same place.
    #[default]
    Site,
    /// The same place and the same group.
    GroupAndSite,
}

/// What one group holds itself, of the rows that were asked for.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct GroupTotal {
    /// Its path.
    pub group: String,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// Names the live rows of all books. Rows whose names the filter does not want are dropped
/// before they are merged, those whose size it does not want once their size is known.
pub fn sites(snapshot: &Snapshot, symbols: &mut Symbols<'_>, filter: &Filter, by: By) -> Vec<Site> {
    let main = main_module(snapshot);
    let wanted = |origin: &Origin| filter.admits(origin, main);
    let mut sites = Vec::new();
    for (group, rows) in rows(snapshot, filter, by) {
        let named = sites::resolve_where(rows.iter(), symbols, wanted);
        sites.extend(named.into_iter().map(|site| Site { group: group.clone(), ..site }));
    }
    sites.retain(|site| filter.admits_size(site.bytes));
    if filter.group.is_none() && by == By::Site {
        pin(snapshot, symbols, &mut sites, wanted);
    }
    sites
}

/// The path of a group, where groups are told apart, and rows.
type GroupRows<'a> = (Option<Arc<str>>, Cow<'a, [SiteRow]>);

/// The rows of all books that a filter's group wants, those of one group after the other.
fn rows<'a>(snapshot: &'a Snapshot, filter: &Filter, by: By) -> Vec<GroupRows<'a>> {
    let wanted = |books: &Books| match &filter.group {
        Some(path) => books.groups.find(path).map_or(0..0, |at| books.groups.below(at)),
        None => books.groups.below(0),
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
        return rows.into_iter().map(|(path, rows)| (Some(path.into()), rows.into())).collect();
    }
    // One list, in which what is the same place in several books is merged.
    let rows = match (&filter.group, &snapshot.books[..]) {
        (None, [books]) => Cow::Borrowed(&books.rows[..]),
        (None, books) => books.iter().flat_map(|b| &b.rows).cloned().collect(),
        (Some(_), books) => books.iter().flat_map(|b| b.rows_of(&wanted(b))).collect(),
    };
    vec![(None, rows)]
}

/// Adds up the rows of each group; in order of their paths.
#[must_use]
pub fn by_group(sites: &[Site]) -> Vec<GroupTotal> {
    let mut totals: BTreeMap<&str, (i64, u64)> = BTreeMap::new();
    for site in sites {
        if let Some(group) = &site.group {
            let sum = totals.entry(group).or_default();
            *sum = (sum.0.saturating_add(site.bytes), sum.1.saturating_add(site.calls));
        }
    }
    let total =
        |(group, (bytes, calls)): (&str, _)| GroupTotal { group: group.into(), bytes, calls };
    totals.into_iter().map(total).collect()
}

/// Adds what the rows keep from being given back. Known by tag, not by group.
fn pin(
    snapshot: &Snapshot,
    symbols: &mut Symbols<'_>,
    sites: &mut [Site],
    wanted: impl Fn(&Origin) -> bool,
) {
    let mut pinned = vec![Pinned::default(); sites.len()];
    if let [books] = &snapshot.books[..] {
        books.pins.by_row(row_of(sites, |at, _| Some(at)), &mut pinned);
    } else {
        // The same number is another tag in each of the books, so each is named by itself.
        let by_key: HashMap<_, _> = (0..).zip(&*sites).map(|(at, site)| (site.key(), at)).collect();
        for books in &snapshot.books {
            let own = sites::resolve_where(&books.rows, symbols, &wanted);
            let place = |_, site: &Site| by_key.get(&site.key()).copied();
            books.pins.by_row(row_of(&own, place), &mut pinned);
        }
    }
    for (site, pinned) in sites.iter_mut().zip(pinned) {
        site.pinned = Some(pinned);
    }
}

/// Rows of the allocator's own memory, those that the filter wants: together the overhead of the
/// equation. They have no objects and no tags.
#[must_use]
pub fn metadata(snapshot: &Snapshot, filter: &Filter) -> Vec<Site> {
    let row = |table| {
        let bytes: u64 = snapshot.books.iter().map(|books| books.metadata.of(table)).sum();
        Site {
            origin: Origin::Metadata(table),
            group: None,
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX),
            calls: 0,
            tags: Vec::new(),
            chains: Vec::new(),
            pinned: None,
        }
    };
    let wanted = |row: &Site| {
        row.bytes != 0 && filter.admits(&row.origin, "") && filter.admits_size(row.bytes)
    };
    Table::ALL.into_iter().map(row).filter(wanted).collect()
}

/// Name of the main executable as its rows have it.
fn main_module(snapshot: &Snapshot) -> &str {
    let path = snapshot.exe.strip_suffix(" (deleted)").unwrap_or(&snapshot.exe);
    path.rsplit('/').next().unwrap_or(path)
}

/// From a tag to the row that its site is part of.
fn row_of(
    sites: &[Site],
    row: impl Fn(usize, &Site) -> Option<usize>,
) -> impl Fn(u32) -> Option<usize> {
    let tags = sites.iter().flat_map(|site| &site.tags);
    // Tags are numbers of 17 bits.
    let mut rows = vec![None; tags.max().map_or(0, |&last| last as usize + 1)];
    for (at, site) in sites.iter().enumerate() {
        if let Some(row) = row(at, site) {
            site.tags.iter().for_each(|&tag| rows[tag as usize] = Some(row));
        }
    }
    move |tag| rows.get(tag as usize).copied().flatten()
}
