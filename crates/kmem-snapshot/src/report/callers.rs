//! Rows about the callers of a call site, below its own row.

use super::short;
use crate::escape::printable;
use crate::sites::{Caller, Site};

/// Callers are shown of a site that holds one in this many parts of a table, or more.
const SITE_PART: i64 = 20;
/// Most callers that are shown of a site, and the part of it that they hold at least.
const MOST: usize = 3;
const PART: i64 = 20;

/// A row about a caller.
pub(super) struct Row {
    /// Live bytes.
    pub(super) bytes: i64,
    /// Live objects.
    pub(super) calls: u64,
    /// Text in the column of functions; safe to print.
    pub(super) name: String,
    /// Place of the call; not yet safe to print.
    pub(super) location: String,
}

/// The rows of a site that has several callers. The last one is for the rest: small callers, and
/// calls whose callers were not told apart. `all` is the bytes of its table.
pub(super) fn rows(site: &Site, all: i64) -> Vec<Row> {
    let callers = site.callers();
    if callers.len() < 2 || site.bytes < all / SITE_PART {
        return Vec::new();
    }
    let is_large = |caller: &&Caller| caller.bytes >= site.bytes / PART;
    let mut rest = (site.bytes, site.calls);
    let mut rows: Vec<Row> = Vec::new();
    for Caller { place, bytes, calls } in callers.iter().filter(is_large).take(MOST) {
        rest = (rest.0.saturating_sub(*bytes), rest.1.saturating_sub(*calls));
        let function = short(place.function.as_deref().unwrap_or("?"));
        let name = format!("  from {}", printable(&function));
        rows.push(Row { bytes: *bytes, calls: *calls, name, location: place.location() });
    }
    if rest.1 != 0 {
        let name = "  from others".to_owned();
        rows.push(Row { bytes: rest.0, calls: rest.1, name, location: String::new() });
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::report::write_table;
    use crate::sites::{Chain, Origin};
    use crate::symbols::Place;

    fn place(function: &str, line: u32) -> Place {
        let source = Some((format!("{function}.c"), line));
        Place { module: "app".into(), function: Some(function.into()), source, ..Place::default() }
    }

    /// A site whose callers hold these bytes, in one object each, behind a function of a library.
    fn site(callers: &[(&str, i64)], alone: i64) -> Site {
        let library = Place { module: "libc.so.6".into(), ..place("qsort", 1) };
        let chain = |&(function, bytes): &(&str, i64)| {
            let frames =
                [place("xmalloc", 1), place("make", 2), library.clone(), place(function, 3)];
            Chain { tag: 9, bytes, calls: 1, frames: frames.map(Arc::new).into() }
        };
        let bytes = callers.iter().map(|caller| caller.1).sum::<i64>() + alone;
        let calls = callers.len() as u64 + u64::from(alone != 0);
        let chains = callers.iter().map(chain).collect();
        Site { bytes, calls, chains, ..Site::new(Origin::Place(place("make", 2))) }
    }

    fn table(sites: &[Site]) -> String {
        let mut out = Vec::new();
        write_table(&mut out, sites, 5).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_callers_of_a_site_are_below_it_the_largest_first() {
        let shown = table(&[site(&[("load", 1024), ("save\x1b", 4096), ("load", 1024)], 512)]);
        let expected = "      SIZE   OBJECTS  FUNCTION         WHERE
   6.5 KiB         4  make             make.c:2
   4.0 KiB         1    from save\\x1b  save\\x1b.c:3
   2.0 KiB         2    from load      load.c:3
     512 B         1    from others
";
        assert_eq!(shown, expected);
    }

    #[test]
    fn few_callers_are_shown_and_the_rest_is_one_row() {
        let callers = [("a", 900), ("b", 800), ("c", 700), ("d", 600), ("e", 1)];
        let rows = rows(&site(&callers, 0), 0);
        let bytes: Vec<i64> = rows.iter().map(|row| row.bytes).collect();
        assert_eq!(bytes, [900, 800, 700, 601]);
    }

    #[test]
    fn a_small_site_and_one_with_one_caller_are_one_row() {
        assert!(rows(&site(&[("a", 900), ("a", 800)], 70), 0).is_empty());
        let small = site(&[("a", 900), ("b", 800)], 0);
        assert!(rows(&small, 1 << 20).is_empty() && !rows(&small, 1700).is_empty());
        let no_callers = Site { bytes: 5, calls: 1, ..Site::new(Origin::NotTagged) };
        assert!(rows(&no_callers, 5).is_empty());
    }
}
