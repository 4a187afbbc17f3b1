//! The reader against processes with known books, sound and broken.

mod fake;

use std::collections::BTreeMap;

use fake::Target;
use kmem_snapshot::books::{Key, Profiling, SiteRow, Table};
use kmem_snapshot::{Process, ReadError, Snapshot};

fn by_tag(rows: &[SiteRow]) -> BTreeMap<u32, (i64, u64)> {
    rows.iter().map(|r| (r.tag, (r.bytes, r.calls))).collect()
}

#[test]
fn totals_are_exact() {
    let target = Target::start("");
    let snapshot = target.snapshot().unwrap();
    let books = &snapshot.books[0];
    assert_eq!(by_tag(&books.rows), target.totals);
    assert!(target.totals.len() > 30);
    assert_eq!((books.torn, books.profiling), (0, Profiling::On));
    for row in &books.rows {
        if row.tag < 8 {
            assert_eq!(row.key, Key::None);
        } else if fake::sites::NOWHERE.contains(&row.tag) {
            assert_eq!(row.key, Key::Caller(0x1000 + u64::from(row.tag)));
        }
    }
    let peak = books.peak.as_ref().unwrap();
    assert_eq!((peak.used_pages, peak.torn), (12345, false));
    for (tag, (bytes, calls)) in by_tag(&peak.rows) {
        let (b, c) = target.totals[&tag];
        assert_eq!((bytes, calls), (2 * b, 2 * c));
    }

    let of = snapshot.accounting;
    let tracked: i64 = target.totals.values().map(|t| t.0).sum();
    assert_eq!(of.tracked, tracked as u64);
    assert_eq!(of.cached, target.cached);
    assert_eq!(of.overhead, target.overhead);
    let parts = books.metadata;
    assert_eq!(parts.total(), of.overhead);
    let [zones, slabs, sites, peak, groups, other] = Table::ALL.map(|table| parts.bytes(table));
    // Each table has pages of its own, all touched.
    assert_eq!((sites, peak, groups), (4 << 20, (2 << 20) + 4096, 6 << 20));
    assert_eq!(other + zones + slabs, of.overhead - sites - peak - groups);
    assert!(zones > 128 << 10 && slabs > 64 << 10 && other >= 4096, "{parts:?}");
    balances(&snapshot);
    // The target wrote the extension vectors and no object.
    assert!(of.untouched.unwrap() > 10 << 20);
}

#[test]
fn reading_does_not_touch_the_process() {
    let target = Target::start("");
    let first = target.snapshot().unwrap().accounting;
    for _ in 0..5 {
        let again = target.snapshot().unwrap().accounting;
        assert_eq!((again.overhead, again.untouched), (first.overhead, first.untouched));
    }
}

#[test]
fn broken_books_are_refused_by_name() {
    for (fault, what) in [
        ("magic", "magic is 0x7"),
        ("truncated", "truncated"),
        ("version", "layout version 11"),
        ("size", "size is 64"),
        ("tag_bits", "tag_bits is 18"),
        ("class_count", "class_count is 4294967295"),
        ("class_size", "class_size is 4"),
        ("classes-outside", "classes at 0x10"),
        ("classes-wrap", "classes at 0xffff"),
        ("class-mask", "size class 1: slab_mask is 0x3039"),
        ("class-ext", "size class 1: extension vector"),
        ("class-objects", "size class 1: 4294967295 objects"),
        ("zone_count", "zone_count is 4294967295"),
        ("zone-overlap", "zone 1 overlaps zone 0"),
        ("zone-wrap", "zone 0:"),
        ("zone-base", "not a multiple of 2 MiB"),
        ("committed", "pages committed"),
        ("page_len-outside", "page_len at"),
        ("page_time-outside", "page_time at"),
        ("time_vector", "time_vector is 3, above 2"),
        ("site_count", "site_count is 4294967295"),
        ("site_capacity", "site_capacity is 4294967295"),
        ("sites-outside", "sites at"),
        ("peak-outside", "peak table at"),
        ("profiling", "profiling is 77"),
        ("slab_cache_capacity", "slab_cache_capacity is 4294967295, above 1023"),
        ("slab_caches-outside", "slab_caches at 0x1000000000000000"),
    ] {
        let error = Target::start(fault).snapshot().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, ReadError::BadBooks { .. }), "{fault}: {text}");
        assert!(text.contains(what), "{fault}: {text}");
    }
}

/// Checks that the equation and its parts are exact.
fn balances(snapshot: &Snapshot) {
    let of = &snapshot.accounting;
    let absent = of.untouched.unwrap_or(0) + of.swapped.unwrap_or(0);
    let heap = of.tracked as i64 + of.cached as i64 + of.overhead as i64 - absent as i64;
    assert_eq!(heap + of.unaccounted(), of.resident as i64);
    let parts = of.parts.unwrap();
    assert_eq!(parts.total() as i64 + of.other().unwrap(), of.unaccounted());
    let rows = &snapshot.mappings.as_ref().unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.resident).sum::<u64>(), parts.total());
}

#[test]
fn records_of_mappings_that_make_no_sense_hide_nothing() {
    for (fault, what) in [
        ("mappings-garbage", None),
        ("mappings-outside", Some("callers of mappings are not known")),
        ("mappings-cut", Some("4294967295 records of mappings")),
        ("mappings-short", Some("callers of mappings are not known")),
        ("own-garbage", None),
        ("own-outside", Some("kmem's own mappings are not known")),
        ("own-count", Some("own_capacity is 4294967295")),
        ("own-all", None),
    ] {
        let target = Target::start(fault);
        let snapshot = target.snapshot().unwrap_or_else(|error| panic!("{fault}: {error}"));
        assert_eq!(by_tag(&snapshot.books[0].rows), target.totals, "{fault}");
        balances(&snapshot);
        let faults = &snapshot.mappings.as_ref().unwrap().faults;
        let said = what.is_none_or(|what| faults.iter().any(|fault| fault.contains(what)));
        assert!(said && faults.is_empty() == what.is_none(), "{fault}: {faults:?}");
    }
}

#[test]
fn later_layouts_keep_their_tail_to_themselves() {
    let target = Target::start("larger-size");
    assert_eq!(by_tag(&target.snapshot().unwrap().books[0].rows), target.totals);
}

#[test]
fn a_torn_peak_is_marked_and_costs_bounded_time() {
    let start = std::time::Instant::now();
    let snapshot = Target::start("peak-torn").snapshot().unwrap();
    assert!(snapshot.books[0].peak.as_ref().unwrap().torn);
    assert!(start.elapsed().as_secs() < 60);
    assert!(Target::start("peak-none").snapshot().unwrap().books[0].peak.is_none());
    assert!(Target::start("peak-len").snapshot().unwrap().books[0].peak.is_some());
}

#[test]
fn what_makes_no_sense_is_counted_not_shown() {
    let target = Target::start("unknown-class");
    let snapshot = target.snapshot().unwrap();
    assert!(snapshot.torn() >= 64);
    assert!(Target::start("long-pages").snapshot().is_ok());
}

#[test]
fn caches_that_make_no_sense_have_no_names() {
    let snapshot = Target::start("slab_caches-garbage").snapshot().unwrap();
    assert_eq!(snapshot.named_caches(None).unwrap(), []);
    assert!(!snapshot.caches(None).unwrap().is_empty());
}

#[test]
fn never_has_no_rows_of_slabs() {
    let snapshot = Target::start("never").snapshot().unwrap();
    assert!(snapshot.never());
    assert!(snapshot.books[0].rows.iter().all(|r| r.tag == 1));
}

#[test]
fn a_process_in_full_flight() {
    let target = Target::start("churn");
    for _ in 0..50 {
        let snapshot = target.snapshot().unwrap();
        // The live bytes fit in the zone.
        assert!(snapshot.accounting.tracked <= 64 << 20);
    }
}

#[test]
fn a_process_that_is_starting_is_not_ready() {
    let error = Target::start("starting").snapshot().unwrap_err();
    assert!(matches!(error, ReadError::NotReady { .. }) && error.is_absent(), "{error}");
}

#[test]
fn absent_processes() {
    let target = Target::start("none-mapped");
    let error = target.snapshot().unwrap_err();
    assert!(matches!(error, ReadError::NotInstrumented { .. }), "{error}");
    assert!(error.is_absent());
    let process = Process::open(target.pid()).unwrap();
    drop(target);
    assert!(matches!(Snapshot::take(&process), Err(ReadError::NoProcess { .. })));
    assert!(matches!(Process::open(0x7fff_fff0), Err(ReadError::NoProcess { .. })));
}
