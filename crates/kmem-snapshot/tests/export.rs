//! Metrics and profiles of this process, which allocates with kmem.

use std::io::Read as _;

use flate2::read::GzDecoder;
use kmem_core::Kmem;
use kmem_snapshot::export::{Exporter, Progress, Selection};
use kmem_snapshot::output::pprof::Profile;
use prost::Message as _;

#[global_allocator]
static KMEM: Kmem = Kmem::new();

/// Values of `kind` in a profile, by the names of the functions.
fn profile(body: &[u8], kind: &str) -> Vec<(String, i64)> {
    let mut bytes = Vec::new();
    GzDecoder::new(body).read_to_end(&mut bytes).unwrap();
    let of = Profile::decode(&bytes[..]).unwrap();
    let text = |at: i64| of.string_table[at as usize].clone();
    let at = of.sample_type.iter().position(|of| text(of.r#type) == kind).unwrap();
    let function = |location: u64| {
        let line = of.location[location as usize - 1].line.first();
        line.map_or(String::new(), |line| text(of.function[line.function_id as usize - 1].name))
    };
    let name = |of: &kmem_snapshot::output::pprof::Sample| function(of.location_id[0]);
    of.sample.iter().map(|sample| (name(sample), sample.value[at])).collect()
}

#[inline(never)]
fn ballast() -> Vec<u8> {
    vec![1; 3 << 20]
}

#[test]
fn a_profile_over_some_seconds_has_what_was_allocated_between() {
    let mut exporter = Exporter::new(Selection::this_process());
    let before = ballast();
    let Progress::Wait(time, pending) = exporter.begin("/debug/pprof/heap?seconds=7", None) else {
        panic!("it waits");
    };
    assert_eq!(time.as_secs(), 7);
    let after = ballast();
    let answer = exporter.finish(pending);
    assert_eq!((answer.status, answer.content_type), (200, "application/octet-stream"));
    // Bytes and objects of all large rows: the two calls may be one row or two.
    let large = |body: &[u8]| {
        let objects = profile(body, "inuse_objects");
        let rows = profile(body, "inuse_space").into_iter().zip(objects);
        let large =
            rows.map(|(bytes, objects)| (bytes.1, objects.1)).filter(|row| row.0 >= 3 << 20);
        large.fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1))
    };
    assert_eq!(large(&answer.body), (3 << 20, 1));
    let all = exporter.answer("/debug/pprof/heap", None);
    assert_eq!(large(&all.body), (6 << 20, 2));
    drop((before, after));
}

#[test]
fn an_exporter_answers_for_what_it_does_not_have() {
    let mut exporter = Exporter::new(Selection::this_process());
    let mut status = |path| {
        let answer = exporter.answer(path, None);
        (answer.status, String::from_utf8_lossy(&answer.body).into_owned())
    };
    assert_eq!(status("/nosuch").0, 404);
    assert_eq!(status("/debug/pprof/heap?pid=1").0, 404);
    let (code, text) = status("/debug/pprof/allocs");
    assert!(code == 404 && text.contains("cumulative:1"), "{code} {text}");
    assert!(status("/").1.contains("/debug/pprof/heap"));
    let two = Selection { pids: vec![std::process::id(), 1], ..Selection::default() };
    let answer = Exporter::new(two).answer("/debug/pprof/heap", None);
    assert_eq!(answer.status, 400);
    let gone = Selection { pids: vec![0x7fff_fff0], ..Selection::default() };
    let mut exporter = Exporter::new(gone);
    let page = exporter.answer("/metrics", None);
    let text = String::from_utf8(page.body).unwrap();
    assert!(text.contains("kmem_scrape_errors_total{reason=\"absent\"} 1\n"), "{text}");
    assert!(exporter.failures()[0].contains("no process"), "{:?}", exporter.failures());
}
