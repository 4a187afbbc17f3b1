//! Call stacks as a profile for pprof.

use std::sync::Arc;

use kmem_snapshot::Reading;
use kmem_snapshot::books::StaticTag;
use kmem_snapshot::maps::Maps;
use kmem_snapshot::output::Dhat;
use kmem_snapshot::output::pprof::{Location, Profile, profile};
use kmem_snapshot::sites::{Chain, Origin, Site};
use kmem_snapshot::stacks::{By, Stacks};
use kmem_snapshot::symbols::Place;

const MAPS: &str = "\
55d000000000-55d000001000 r--p 00000000 fe:01 7 /bin/app
55d000001000-55d000002000 r-xp 00001000 fe:01 7 /bin/app
7f0000001000-7f0000002000 r-xp 00001000 fe:01 8 /lib/libx.so
";

fn place(address: u64, function: Option<&str>, line: u32) -> Arc<Place> {
    let function = function.map(str::to_owned);
    let source = function.is_some().then(|| ("/src/a.c".to_owned(), line));
    Arc::new(Place { address, module: "app".into(), function, source, ..Place::default() })
}

/// A chain of two calls, a static tag, and a row without a call, of two groups.
fn reading() -> Reading {
    let frames = [
        place(0x7f00_0000_1234, None, 0),
        place(0x55d0_0000_1010, Some("make"), 3),
        place(0x55d0_0000_1020, Some("main"), 9),
    ];
    let chain = Chain { tag: 8, bytes: 640, calls: 10, frames: frames.to_vec() };
    let tag = StaticTag { file: "t.c".into(), line: 5, function: "open".into(), ..<_>::default() };
    let mut reading = Reading::default();
    reading.sites = vec![
        Site {
            bytes: 700,
            calls: 11,
            tags: vec![8, 9],
            chains: vec![chain],
            group: Some("/a".into()),
            ..Site::new(Origin::Place(Place::clone(&frames[1])))
        },
        Site {
            bytes: 32,
            calls: 1,
            group: Some("/b".into()),
            ..Site::new(Origin::Static(tag.into()))
        },
        Site { bytes: -8, ..Site::new(Origin::NotTagged) },
    ];
    reading.snapshot.exe = "/bin/app".to_owned();
    reading.snapshot.pid = 77;
    reading.snapshot.maps = Maps::parse(MAPS);
    reading.provenance.time_ns = 5;
    reading.provenance.build_ids.insert("/bin/app".to_owned(), "00ff".to_owned());
    reading
}

fn made() -> Profile {
    let reading = reading();
    profile(&reading, &Stacks::of(&reading.sites, By::Address))
}

fn text(of: &Profile, number: i64) -> &str {
    &of.string_table[usize::try_from(number).unwrap()]
}

fn location(of: &Profile, id: u64) -> &Location {
    of.location.iter().find(|location| location.id == id).unwrap()
}

/// The function and the line of a call.
fn line(of: &Profile, location: &Location) -> Option<(String, i64)> {
    let line = location.line.first()?;
    let function = of.function.iter().find(|function| function.id == line.function_id).unwrap();
    Some((text(of, function.name).to_owned(), line.line))
}

#[test]
fn a_sample_has_its_innermost_call_first_and_its_group_as_a_label() {
    let of = made();
    assert_eq!(of.string_table[0], "");
    let ids: Vec<u64> = of.location.iter().map(|location| location.id).collect();
    assert_eq!(ids, (1..=ids.len() as u64).collect::<Vec<_>>());
    let stacks: Vec<_> = of
        .sample
        .iter()
        .map(|sample| {
            let calls = sample.location_id.iter().map(|&id| line(&of, location(&of, id)));
            let labels = sample.label.iter();
            let labels = labels.map(|label| (text(&of, label.key), text(&of, label.str)));
            (calls.collect::<Vec<_>>(), sample.value.clone(), labels.collect::<Vec<_>>())
        })
        .collect();
    let call = |name: &str, line| Some((name.to_owned(), line));
    let expected = [
        (vec![None, call("make", 3), call("main", 9)], vec![10, 640], vec![("group", "/a")]),
        (vec![call("make", 3)], vec![1, 60], vec![("group", "/a")]),
        (vec![call("open", 5)], vec![1, 32], vec![("group", "/b")]),
        (vec![call("not tagged", 0)], vec![0, -8], vec![]),
    ];
    assert_eq!(stacks, expected);
}

#[test]
fn the_largest_number_of_objects_is_written_as_minus_one() {
    let rows = [Site { bytes: -64, calls: u64::MAX, ..Site::new(Origin::NotTagged) }];
    let reading = Reading::default();
    let of = profile(&reading, &Stacks::of(&rows, By::Address));
    assert_eq!(of.sample[0].value, [-1, -64]);
    let dhat = serde_json::to_value(Dhat::of(&reading, &Stacks::of(&rows, By::Address))).unwrap();
    assert_eq!(dhat["pps"][0]["tbk"], -1);
}

#[test]
fn the_values_have_types_and_one_is_the_default() {
    let of = made();
    let types: Vec<_> =
        of.sample_type.iter().map(|kind| (text(&of, kind.r#type), text(&of, kind.unit))).collect();
    assert_eq!(types, [("inuse_objects", "count"), ("inuse_space", "bytes")]);
    assert_eq!(text(&of, of.default_sample_type), "inuse_space");
    let period = of.period_type.unwrap();
    assert_eq!(
        (text(&of, period.r#type), text(&of, period.unit), of.period),
        ("space", "bytes", 1)
    );
    assert_eq!(of.time_nanos, 5);
    assert!(text(&of, of.comment[0]).starts_with("/bin/app (pid 77) on "));
}

#[test]
fn calls_have_addresses_in_mappings_and_static_tags_have_none() {
    let of = made();
    let mappings: Vec<_> = of
        .mapping
        .iter()
        .map(|m| {
            (m.id, m.memory_start, m.file_offset, text(&of, m.filename), text(&of, m.build_id))
        })
        .collect();
    let expected = [
        (1, 0x55d0_0000_1000, 0x1000, "/bin/app", "00ff"),
        (2, 0x7f00_0000_1000, 0x1000, "/lib/libx.so", ""),
    ];
    assert_eq!(mappings, expected);
    // pprof looks for names itself where a file lacks one.
    assert!(of.mapping[0].has_functions && of.mapping[0].has_line_numbers);
    assert!(!of.mapping[1].has_functions && !of.mapping[1].has_filenames);
    let mut places: Vec<_> =
        of.location.iter().map(|location| (location.mapping_id, location.address)).collect();
    places.sort_unstable();
    let expected =
        [(0, 0), (0, 0), (1, 0x55d0_0000_1010), (1, 0x55d0_0000_1020), (2, 0x7f00_0000_1234)];
    assert_eq!(places, expected);
}
