//! The details of one row: the slabs that it pins, and the groups that pay for it.

use super::Reading;
use crate::books::Pinned;
use crate::sites::{GroupTotal, Site, by_group};

/// Facts about one row of a reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Slabs and page runs that its objects keep from being given back. None where they are not
    /// known.
    pub pinned: Option<Pinned>,
    /// The groups that pay for it, the largest first.
    pub groups: Vec<GroupTotal>,
}

impl Reading {
    /// The details of a row of this reading.
    #[must_use]
    pub fn details(&self, site: &Site) -> Details {
        // Mapped memory is in no slab, and no group pays for it.
        let none = self.snapshot.books.is_empty() || !self.accounted;
        if none || site.mapped.is_some() || site.tags.is_empty() {
            return Details::default();
        }
        let has = |tag: u32| site.tags.contains(&tag);
        let mut rows = Vec::new();
        let mut pinned = [Pinned::default()];
        for books in &self.snapshot.books {
            books.pins.by_row(|tag| has(tag).then_some(0), &mut pinned);
            for at in books.groups.below(0) {
                let path = books.groups.path(at);
                for row in books.rows_of(&(at..at + 1)).into_iter().filter(|row| has(row.tag)) {
                    let group = Some(path.as_str().into());
                    let (bytes, calls) = (row.bytes, row.calls);
                    rows.push(Site { group, bytes, calls, ..Site::new(site.origin.clone()) });
                }
            }
        }
        if let Some(group) = &site.group {
            rows.retain(|row| row.group.as_ref() == Some(group));
        }
        let mut groups = by_group(&rows);
        groups.sort_by_key(|of| std::cmp::Reverse((of.bytes, of.calls)));
        // All groups share the slabs.
        let pinned = site.group.is_none().then_some(pinned[0]);
        Details { pinned, groups }
    }
}
