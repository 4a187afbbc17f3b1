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
    /// The objects of a row by age, the youngest first. Empty where ages are not known, and for a
    /// row of one group: ages are those of all groups.
    #[must_use]
    pub fn ages(&self, site: &Site) -> Vec<OfAge> {
        if !self.parts.is_empty() {
            let key = site.key();
            let own = |part: &Self| {
                let own = part.sites.iter().find(|own| own.key() == key);
                own.map_or_else(Vec::new, |own| part.ages(own))
            };
            return Ages::together(self.parts.iter().flat_map(own));
        }
        let books = &self.snapshot.books;
        let of_whole = site.group.is_none() && site.mapped.is_none();
        if !of_whole || !books.iter().all(|books| books.ages.are_exact()) {
            return Vec::new();
        }
        Ages::together(books.iter().flat_map(|of| of.ages.of(|tag| site.tags.contains(&tag))))
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
        let mut details = Details { groups: by_group(&rows), ..Details::default() };
        // All groups share the slabs, and sizes are those of all groups.
        if site.group.is_none() {
            details.pinned = Some(pinned[0]);
            details.ages = self.ages(site);
            if self.snapshot.books.iter().all(|books| books.sizes.is_exact()) {
                let sizes = by_size.into_iter().map(|(size, calls)| OfSize { size, calls });
                details.sizes = sizes.collect();
            }
        }
        details.sorted()
    }
}
