//! Static tags and chains of callers: read from a process, named, merged, and broken.

mod fake;

use fake::Target;
use fake::sites::*;
use kmem_snapshot::allocinfo::write_row;
use kmem_snapshot::books::Key;
use kmem_snapshot::sites::{self, Origin, Site};
use kmem_snapshot::symbols::{Modules, Symbols};
use kmem_snapshot::{ReadError, Snapshot};

fn key(snapshot: &Snapshot, tag: u32) -> &Key {
    &snapshot.books[0].rows.iter().find(|row| row.tag == tag).unwrap().key
}

fn resolve(target: &Target) -> Vec<Site> {
    let snapshot = target.snapshot().unwrap();
    let modules =
        Modules::open(&target.process(), &snapshot.maps, &snapshot.addresses(), &snapshot.budget);
    sites::resolve(&snapshot.books[0].rows, &mut Symbols::new(&modules))
}

fn site(sites: &[Site], tag: u32) -> &Site {
    sites.iter().find(|s| s.tags.contains(&tag)).unwrap()
}

fn sum(target: &Target, tags: &[u32]) -> (i64, u64) {
    tags.iter().fold((0, 0), |(bytes, calls), tag| {
        let of = target.totals[tag];
        (bytes + of.0, calls + of.1)
    })
}

#[test]
fn keys_are_what_the_process_says() {
    let snapshot = Target::start("").snapshot().unwrap();
    let Key::Static(tag) = key(&snapshot, STATIC) else { panic!("{snapshot:?}") };
    assert_eq!((&*tag.module, &*tag.file, tag.line, &*tag.function), ("", "src/main.c", 7, "make"));
    // The text outlives its module.
    let Key::Static(tag) = key(&snapshot, STATIC_MODULE) else { panic!("{snapshot:?}") };
    assert_eq!(
        (&*tag.module, &*tag.file, tag.line, &*tag.function),
        ("libplug.so", "plug.c", 12, "plug_open")
    );
    assert_eq!(key(&snapshot, CHAIN_NOWHERE).addresses(), [0x2001, 0x3001]);
    assert_eq!(key(&snapshot, CHAIN_DEEP).addresses().len(), 32);
    // Rows of the peak have the same keys.
    let peak = snapshot.books[0].peak.as_ref().unwrap();
    let row = peak.rows.iter().find(|row| row.tag == CHAIN_DEEP).unwrap();
    assert_eq!(&row.key, key(&snapshot, CHAIN_DEEP));
    let addresses = snapshot.addresses();
    for row in &snapshot.books[0].rows {
        assert!(row.key.addresses().iter().all(|a| addresses.contains(a)));
    }
    assert!(addresses.contains(&0x3001));
}

#[test]
fn chains_resolve_to_their_first_frame_outside_library_code() {
    let target = Target::start("");
    let sites = resolve(&target);
    let of = |tag| site(&sites, tag).origin.function();
    assert!(of(CHAIN).ends_with("::app_inner"), "{}", of(CHAIN));
    assert!(of(CHAIN_LIBRARY).ends_with("::app_middle"), "{}", of(CHAIN_LIBRARY));
    // All frames are library code: the innermost one names the row.
    assert!(of(CHAIN_LIBRARY_ALONE).starts_with("alloc::vec::"), "{}", of(CHAIN_LIBRARY_ALONE));
    assert_eq!(site(&sites, CHAIN_NOWHERE).origin.location(), "0x2000");
}

#[test]
fn chains_and_callers_of_one_place_are_one_row() {
    let target = Target::start("");
    let sites = resolve(&target);
    let inner = site(&sites, CHAIN);
    let tags = [CALLER_INNER, CHAIN, CHAIN_OTHER, CHAIN_DEEP];
    assert_eq!(inner.tags, tags);
    assert_eq!((inner.bytes, inner.calls), sum(&target, &tags));
    let chains: Vec<_> = inner.chains.iter().map(|c| (c.tag, c.bytes, c.calls)).collect();
    let expected: Vec<_> =
        tags[1..].iter().map(|tag| (*tag, target.totals[tag].0, target.totals[tag].1)).collect();
    assert_eq!(chains, expected);
    let names: Vec<_> = inner.chains[1]
        .frames
        .iter()
        .map(|frame| frame.function.as_deref().unwrap().rsplit("::").next().unwrap())
        .collect();
    assert_eq!(names, ["app_inner", "app_other", "app_outer"]);
    let total: i64 = sites.iter().map(|s| s.bytes).sum();
    assert_eq!(total, target.totals.values().map(|t| t.0).sum::<i64>());
}

#[test]
fn static_tags_need_no_symbols_and_cannot_forge_lines() {
    let target = Target::start("");
    let sites = resolve(&target);
    let line = |tag| {
        let site = site(&sites, tag);
        let mut out = Vec::new();
        write_row(&mut out, 1, 1, &site.origin.tag()).unwrap();
        String::from_utf8(out).unwrap()
    };
    assert!(line(STATIC).ends_with(" src/main.c:7 func:make \n"));
    assert!(line(STATIC_MODULE).ends_with(" plug.c:12 [libplug.so] func:plug_open \n"));
    let hostile = line(STATIC_HOSTILE);
    assert!(
        hostile.ends_with(" evil\\033[2J\\040;a\\012.c:1 func:f\u{fffd}(\\015) \n"),
        "{hostile}"
    );
    assert_eq!(site(&sites, STATIC).tags, [STATIC, STATIC_AGAIN]);
}

#[test]
fn sites_that_make_no_sense_are_unknown_tags_and_hide_nothing() {
    for (fault, tag) in [
        ("text-length", STATIC),
        ("text-cut", STATIC),
        ("text-cut", CHAIN),
        ("text-outside", STATIC),
        ("text-wrap", STATIC),
        ("chain-outside", CHAIN),
        ("chain-count", CHAIN),
        ("chain-empty", CHAIN),
        ("chain-zero", CHAIN_DEEP),
        ("site-kind", STATIC),
        ("texts-none", CHAIN),
    ] {
        let target = Target::start(fault);
        let sites = resolve(&target);
        let row = site(&sites, tag);
        assert_eq!(row.origin, Origin::Unknown(tag), "{fault}");
        assert_eq!((row.bytes, row.calls), target.totals[&tag], "{fault}");
        // Other rows are intact.
        assert!(site(&sites, CALLER).origin.function().ends_with("::app_other"), "{fault}");
    }
}

#[test]
fn texts_that_are_not_there_are_refused_by_name() {
    for (fault, what) in [
        ("texts-outside", "texts at 0x1000000000000000, 4096 bytes, are not in"),
        ("texts-long", "texts_len is 18446744073709551615"),
    ] {
        let error = Target::start(fault).snapshot().unwrap_err();
        assert!(matches!(error, ReadError::BadBooks { .. }), "{fault}: {error}");
        assert!(error.to_string().contains(what), "{fault}: {error}");
    }
}

#[test]
fn what_lies_within_the_mapping_is_used() {
    let snapshot = Target::start("texts-past-end").snapshot().unwrap();
    assert!(matches!(key(&snapshot, STATIC), Key::Static(_)));
    assert!(matches!(key(&snapshot, CHAIN), Key::Chain { .. }));
}

#[test]
fn texts_that_overlap_cost_no_more_memory_than_they_are_long() {
    let snapshot = Target::start("texts-overlap").snapshot().unwrap();
    let named = snapshot.books[0].rows.iter().filter(|r| matches!(r.key, Key::Static(_)));
    assert_eq!(named.count(), 1);
}
