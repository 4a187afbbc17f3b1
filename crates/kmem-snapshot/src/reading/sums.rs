//! Sums of a reading: by module, by group, by size class.

use std::collections::BTreeMap;

use super::{Reading, main_module};
use crate::books::Cache;
use crate::sites::{GroupTotal, Origin, Site, by_group, group_sums};

/// Live bytes and objects of the rows of one module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleTotal {
    /// Base name of the module, or a name in parentheses for rows without one.
    pub module: String,
    /// Bytes: live ones of the heap, and resident ones outside of it.
    pub bytes: i64,
    /// Live objects of the heap.
    pub calls: u64,
}

impl Reading {
    /// Base name of the module of a row, or a name in parentheses where it has none.
    #[must_use]
    pub fn module_of(&self, origin: &Origin) -> String {
        // A list without a process has rows of a kernel, or of a program that it does not name.
        // Several processes may run several programs.
        let is_known = self.pid().is_some() || !self.parts.is_empty();
        let main = Some(main_module(&self.snapshot)).filter(|name| is_known && !name.is_empty());
        let main = main.unwrap_or("(main)");
        let named = origin.module(main).filter(|name| !name.is_empty());
        named.unwrap_or_else(|| without_module(origin))
    }

    /// The modules of rows, in their order.
    #[must_use]
    pub fn modules(&self, sites: &[Site]) -> Vec<String> {
        sites.iter().map(|site| self.module_of(&site.origin)).collect()
    }

    /// Adds up the rows of each module, in order of name.
    #[must_use]
    pub fn by_module(&self) -> Vec<ModuleTotal> {
        let mut totals: BTreeMap<String, ModuleTotal> = BTreeMap::new();
        for site in [&self.sites, &self.metadata, &self.mappings].into_iter().flatten() {
            let sum = totals.entry(self.module_of(&site.origin)).or_default();
            sum.bytes = sum.bytes.saturating_add(site.bytes);
            if site.mapped.is_none() {
                sum.calls = sum.calls.wrapping_add(site.calls);
            }
        }
        totals.into_iter().map(|(module, sum)| ModuleTotal { module, ..sum }).collect()
    }

    /// Adds up the memory of each group that holds any. Empty for a target without groups, and for
    /// rows that a filter chose and that do not name their groups.
    #[must_use]
    pub fn by_group(&self) -> Vec<GroupTotal> {
        if self.filtered || self.sites.iter().any(|site| site.group.is_some()) {
            return by_group(&self.sites);
        }
        if !self.parts.is_empty() {
            return self.groups_of_several();
        }
        let mut rows = Vec::new();
        for books in self.snapshot.books.iter().filter(|_| self.accounted) {
            for at in books.groups.below(0) {
                let (path, own) = (books.groups.path(at), books.rows_of(&(at..at + 1)));
                rows.extend(own.into_iter().map(|row| (path.clone(), row.bytes, row.calls)));
            }
        }
        group_sums(rows)
    }

    /// The size classes that have slabs, the smallest first. Empty for a target without slabs, and
    /// where a filter chose the rows: a class does not know them.
    #[must_use]
    pub fn by_class(&self) -> Vec<Cache> {
        if self.filtered {
            return Vec::new();
        }
        if !self.parts.is_empty() {
            return self.classes_of_several();
        }
        let mut caches = self.snapshot.caches(None).unwrap_or_default();
        caches.retain(|cache| cache.slabs != 0);
        caches
    }
}

/// Name of the rows of no module.
fn without_module(origin: &Origin) -> String {
    match origin {
        Origin::Metadata(_) => "(kmem)".to_owned(),
        Origin::Place(_) | Origin::Static(_) => "(no module)".to_owned(),
        Origin::Mapped(of) => format!("({})", of.name()),
        Origin::NotTagged | Origin::Unknown(_) => "(not tagged)".to_owned(),
        Origin::OtherSites => "(other sites)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::books::{Books, Snapshot, StaticTag};
    use crate::sites::Mapped;
    use crate::symbols::Place;

    fn row(origin: Origin, bytes: i64) -> Site {
        Site { bytes, calls: 1, ..Site::new(origin) }
    }

    fn place(module: &str) -> Origin {
        Origin::Place(Place { module: module.to_owned(), ..Place::default() })
    }

    #[test]
    fn a_module_has_its_calls_its_static_tags_and_its_code() {
        let tag = |module: &str| {
            let module = module.to_owned();
            Origin::Static(Arc::new(StaticTag { module, ..StaticTag::default() }))
        };
        let code = Origin::Mapped(Mapped::Code("/usr/lib/libx.so".to_owned()));
        let reading = Reading {
            snapshot: Snapshot { pid: 7, exe: "/bin/app".to_owned(), ..Snapshot::default() },
            sites: vec![
                row(place("app"), 10),
                row(tag(""), 20),
                row(place("libx.so"), 40),
                row(tag("libx.so"), 80),
                row(Origin::OtherSites, 5),
                row(place(""), 3),
            ],
            mappings: vec![
                Site { mapped: Some(500), ..row(code, 300) },
                Site { mapped: Some(9), ..row(Origin::Mapped(Mapped::Stack), 9) },
            ],
            ..Reading::default()
        };
        let sums = reading.by_module();
        let sums: Vec<_> = sums.iter().map(|of| (&*of.module, of.bytes, of.calls)).collect();
        assert_eq!(
            sums,
            [
                ("(no module)", 3, 1),
                ("(other sites)", 5, 1),
                ("(stack)", 9, 0),
                ("app", 30, 2),
                ("libx.so", 420, 2)
            ]
        );
        // A list that names no process may be that of a kernel.
        let list = Reading { sites: vec![row(tag(""), 1)], ..Reading::default() };
        assert_eq!(list.by_module()[0].module, "(main)");
    }

    #[test]
    fn classes_and_groups_are_not_shown_for_rows_that_a_filter_chose() {
        let cache = |size, slabs| Cache { size, slabs, ..Cache::default() };
        let books =
            Books { caches: vec![cache(64, 2), cache(8, 0), cache(32, 1)], ..Books::default() };
        let snapshot = Snapshot { books: vec![books], ..Snapshot::default() };
        let mut reading = Reading { snapshot, ..Reading::default() };
        let sizes: Vec<u32> = reading.by_class().iter().map(|of| of.size).collect();
        assert_eq!(sizes, [32, 64]);
        reading.filtered = true;
        assert_eq!((reading.by_class(), reading.by_group()), (Vec::new(), Vec::new()));
        // Rows that name their groups are summed up all the same.
        let site = row(place("app"), 10);
        reading.sites = vec![Site { group: Some("/a".into()), ..site }];
        assert_eq!(reading.by_group()[0].bytes, 10);
    }
}
