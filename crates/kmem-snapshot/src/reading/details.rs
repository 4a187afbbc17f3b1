//! The details of one row: the slabs that it pins, the sizes and the ages of its objects, and the
//! groups that pay for it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Reading;
use crate::books::{Ages, OfAge, Pinned};
use crate::sites::{GroupTotal, Site, by_group};

/// Facts about one row of a reading.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    /// Slabs and page runs that its objects keep from being given back. None where they are not
    /// known.
    pub pinned: Option<Pinned>,
    /// Objects by size, those with most bytes first. Empty where they are not known.
    pub sizes: Vec<OfSize>,
    /// Objects by age, the youngest first. Empty where ages are not known.
    pub ages: Vec<OfAge>,
    /// The groups that pay for it, the largest first.
    pub groups: Vec<GroupTotal>,
}

impl Details {
    /// Puts the largest sizes and groups first.
    pub(super) fn sorted(mut self) -> Self {
        self.sizes.sort_by_key(|of| Reverse((of.bytes(), of.size)));
        self.groups.sort_by_key(|of| Reverse((of.bytes, of.calls)));
        self
    }
}

/// Live objects of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfSize {
    /// Bytes of an object, as the allocator rounds it.
    pub size: u64,
    /// Number of objects.
    pub calls: u64,
}

impl OfSize {
    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.size.saturating_mul(self.calls)
    }
}

impl Reading {
    /// The objects of a row by age, the youngest first. Empty where the ages of all of them are not
    /// known. The books know ages by call site alone. So rows that are parts of one have none, as
    /// those of one group or of one node.
    #[must_use]
    pub fn ages(&self, site: &Site) -> Vec<OfAge> {
        let ages = if self.parts.is_empty() {
            let books = self.snapshot.books.iter();
            Ages::together(books.flat_map(|of| of.ages.of(&site.tags)))
        } else {
            let key = site.key();
            let of = |part: &Self| Some(part.ages(part.sites.iter().find(|own| own.key() == key)?));
            Ages::together(self.parts.iter().filter_map(of).flatten())
        };
        let bytes = ages.iter().fold(0, |sum: u64, of| sum.saturating_add(of.bytes));
        let calls = ages.iter().map(|of| of.calls).sum::<u64>();
        let is_whole = u64::try_from(site.bytes) == Ok(bytes) && site.calls == calls;
        if is_whole { ages } else { Vec::new() }
    }

    /// The details of a row of this reading.
    #[must_use]
    pub fn details(&self, site: &Site) -> Details {
        if !self.parts.is_empty() {
            return self.details_of_several(site);
        }
        // Mapped memory is in no slab, and no group pays for it.
        let none = self.snapshot.books.is_empty() || !self.accounted;
        if none || site.mapped.is_some() || site.tags.is_empty() {
            return Details::default();
        }
        let has = |tag: u32| site.tags.contains(&tag);
        let mut rows = Vec::new();
        let mut pinned = [Pinned::default()];
        let mut by_size = BTreeMap::<u64, u64>::new();
        for books in &self.snapshot.books {
            books.pins.by_row(|tag| has(tag).then_some(0), &mut pinned);
            for (size, calls) in books.sizes.of(has) {
                *by_size.entry(size).or_default() += calls;
            }
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
        let (groups, ages) = (by_group(&rows), self.ages(site));
        let mut details = Details { groups, ages, ..Details::default() };
        // All groups share the slabs, and sizes are those of all groups.
        if site.group.is_none() {
            details.pinned = Some(pinned[0]);
            if self.snapshot.books.iter().all(|books| books.sizes.is_exact()) {
                let sizes = by_size.into_iter().map(|(size, calls)| OfSize { size, calls });
                details.sizes = sizes.collect();
            }
        }
        details.sorted()
    }
}
