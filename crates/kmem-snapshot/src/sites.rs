//! Rows for people: books with names, merged where several tags are one place.

mod json;
mod origin;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

pub use origin::Origin;

use crate::books::{Pinned, SiteRow};
use crate::symbols::{Place, Symbols};

/// One row: a place and what it holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The place.
    pub origin: Origin,
    /// Path of the group that pays, where rows of different groups are told apart.
    pub group: Option<Arc<str>>,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
    /// Tags that were merged into the row.
    pub tags: Vec<u32>,
    /// Those of the tags that stand for a call and its callers.
    pub chains: Vec<Chain>,
    /// What its objects keep from being given back; none where nobody counted it.
    pub pinned: Option<Pinned>,
}

impl Site {
    /// Equal for two rows of one place.
    pub(crate) fn key(&self) -> impl Eq + std::hash::Hash + use<> {
        (self.group.clone(), self.origin.key())
    }
}

/// A call and its callers, and what was allocated through them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The tag.
    pub tag: u32,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
    /// The places of the calls, innermost first; never empty.
    pub frames: Vec<Arc<Place>>,
}

/// By what rows are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// Bytes, largest first.
    #[default]
    Size,
    /// Calls, most first.
    Calls,
    /// Function and place, alphabetically.
    Tag,
    /// Bytes kept from being given back, most first.
    Pinned,
}

impl Order {
    /// Compares two rows; the order is total, so that equal books print alike.
    #[must_use]
    pub fn compare(self, a: &Site, b: &Site) -> Ordering {
        let name =
            |s: &Site| (s.origin.function().to_owned(), s.origin.location(), s.group.clone());
        let by_name = || name(a).cmp(&name(b));
        match self {
            Self::Size => b.bytes.cmp(&a.bytes).then(b.calls.cmp(&a.calls)).then_with(by_name),
            Self::Calls => b.calls.cmp(&a.calls).then(b.bytes.cmp(&a.bytes)).then_with(by_name),
            Self::Tag => by_name(),
            Self::Pinned => b.pinned.cmp(&a.pinned).then_with(|| Self::Size.compare(a, b)),
        }
    }
}

/// Names rows and merges those of one place; in the order of their lowest tag.
pub fn resolve<'a>(
    rows: impl IntoIterator<Item = &'a SiteRow>,
    symbols: &mut Symbols<'_>,
) -> Vec<Site> {
    resolve_where(rows, symbols, |_| true)
}

/// The same for the rows whose origin is wanted.
pub fn resolve_where<'a>(
    rows: impl IntoIterator<Item = &'a SiteRow>,
    symbols: &mut Symbols<'_>,
    wanted: impl Fn(&Origin) -> bool,
) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    let mut known = HashMap::new();
    for row in rows {
        let (origin, frames) = Origin::resolve(row, symbols);
        if !wanted(&origin) {
            continue;
        }
        let at = *known.entry(origin.key()).or_insert(sites.len());
        if at == sites.len() {
            sites.push(Site {
                origin,
                group: None,
                bytes: 0,
                calls: 0,
                tags: Vec::new(),
                chains: Vec::new(),
                pinned: None,
            });
        }
        let site = &mut sites[at];
        site.bytes = site.bytes.saturating_add(row.bytes);
        site.calls = site.calls.saturating_add(row.calls);
        site.tags.push(row.tag);
        if !frames.is_empty() {
            let (tag, bytes, calls) = (row.tag, row.bytes, row.calls);
            site.chains.push(Chain { tag, bytes, calls, frames });
        }
    }
    sites
}
