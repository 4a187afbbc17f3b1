//! The live rows of a snapshot: named, and those that a filter wants.

use crate::books::Snapshot;
use crate::filter::Filter;
use crate::sites::{self, Site};
use crate::symbols::Symbols;

/// Names the live rows of all books. Rows whose names the filter does not want are dropped
/// before they are merged, those whose size it does not want once their size is known.
pub fn sites(snapshot: &Snapshot, symbols: &mut Symbols<'_>, filter: &Filter) -> Vec<Site> {
    let rows = snapshot.books.iter().flat_map(|b| &b.rows);
    let mut sites = sites::resolve_where(rows, symbols, |origin| filter.admits(origin));
    sites.retain(|site| filter.admits_size(site.bytes));
    sites
}
