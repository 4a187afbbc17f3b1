//! The live rows of a snapshot: named, those that a filter wants, with what they pin.

use std::collections::HashMap;

use crate::books::{Pinned, Snapshot, Table};
use crate::filter::Filter;
use crate::sites::{self, Origin, Site};
use crate::symbols::Symbols;

/// Names the live rows of all books. Rows whose names the filter does not want are dropped
/// before they are merged, those whose size it does not want once their size is known.
pub fn sites(snapshot: &Snapshot, symbols: &mut Symbols<'_>, filter: &Filter) -> Vec<Site> {
    let main = main_module(snapshot);
    let wanted = |origin: &Origin| filter.admits(origin, main);
    let rows = snapshot.books.iter().flat_map(|b| &b.rows);
    let mut sites = sites::resolve_where(rows, symbols, wanted);
    sites.retain(|site| filter.admits_size(site.bytes));

    let mut pinned = vec![Pinned::default(); sites.len()];
    if let [books] = &snapshot.books[..] {
        books.pins.by_row(row_of(&sites, |at, _| Some(at)), &mut pinned);
    } else {
        // The same number is another tag in each of the books, so each is named by itself.
        let by_key: HashMap<_, _> = (0..).zip(&sites).map(|(at, site)| (site.key(), at)).collect();
        for books in &snapshot.books {
            let own = sites::resolve_where(&books.rows, symbols, wanted);
            let place = |_, site: &Site| by_key.get(&site.key()).copied();
            books.pins.by_row(row_of(&own, place), &mut pinned);
        }
    }
    for (site, pinned) in sites.iter_mut().zip(pinned) {
        site.pinned = Some(pinned);
    }
    sites
}

/// Rows of the allocator's own memory, those that the filter wants: together the overhead of the
/// equation. They have no objects and no tags.
#[must_use]
pub fn metadata(snapshot: &Snapshot, filter: &Filter) -> Vec<Site> {
    let row = |table| {
        let bytes: u64 = snapshot.books.iter().map(|books| books.metadata.of(table)).sum();
        Site {
            origin: Origin::Metadata(table),
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
