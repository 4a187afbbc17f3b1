//! The entry of the crate: rows of a target in one call, with notes.

mod fake;
mod fake_box;

use std::time::Duration;

use fake::sites::{CALLER, CALLER_INNER, CHAIN_LIBRARY_ALONE, NOWHERE};
use fake_box::{CALLER as BOX_CALLER, FakeBox, PID};
use kmem_snapshot::blackbox::Moment;
use kmem_snapshot::recording::Recording;
use kmem_snapshot::sites::total;
use kmem_snapshot::{By, Filter, Note, Pattern, Query, ReadError, Reading, Recorder, Target, When};

fn sum(target: &fake::Target) -> (i64, u64) {
    target.totals.values().fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
}

fn of(fake: &FakeBox) -> Target {
    Target::BlackBox { path: fake.path().to_owned(), exe: None, when: When::Newest }
}

#[test]
fn rows_of_a_process_add_up_however_they_are_keyed() {
    let fake = fake::Target::start("");
    let target = Target::Process(fake.pid());
    let reading = target.read(&Query::default()).unwrap();
    assert_eq!(total(&reading.sites), sum(&fake));
    assert!(reading.notes.is_empty() && !reading.filtered, "{:?}", reading.notes);
    assert!(reading.sites.iter().all(|site| site.group.is_none() && site.pinned.is_some()));
    assert!(reading.accounting().is_some() && reading.metadata.is_empty());
    assert_eq!(reading.counts_of(&reading.sites[0].tags), None);

    let query = Query { by: By::GroupAndSite, metadata: true, ..Query::default() };
    let reading = target.read(&query).unwrap();
    assert_eq!(total(&reading.sites), sum(&fake));
    assert!(reading.sites.iter().all(|site| site.group.is_some() && site.pinned.is_none()));
    assert_eq!(total(&reading.metadata).0 as u64, reading.snapshot.accounting.overhead);
}

#[test]
fn filters_choose_rows_and_a_group_must_exist() {
    let fake = fake::Target::start("");
    let target = Target::Process(fake.pid());
    let read = |filter| target.read(&Query { filter, ..Query::default() });
    let function = vec![Pattern::new("make")];
    let reading = read(Filter { function, ..Filter::default() }).unwrap();
    assert_eq!((reading.sites.len(), reading.filtered), (1, true));
    let group = |path: &str| Filter { group: Some(path.to_owned()), ..Filter::default() };
    let reading = read(group("/g1")).unwrap();
    assert!(total(&reading.sites).0 < sum(&fake).0);
    let error = read(group("/nosuch")).unwrap_err().error;
    assert!(matches!(error, ReadError::NoGroup { .. }), "{error}");
}

#[test]
fn notes_tell_of_copies_and_damage() {
    let fake = fake::Target::start("copies");
    let reading = Target::Process(fake.pid()).read(&Query::default()).unwrap();
    let [Note::Copies { roots, .. }] = &reading.notes[..] else { panic!("{:?}", reading.notes) };
    assert_eq!(roots.len(), 2);
    assert_eq!(total(&reading.sites).0, 2 * sum(&fake).0);
    let fake = fake::Target::start("unknown-class");
    let (snapshot, notes) = Target::Process(fake.pid()).snapshot().unwrap();
    assert_eq!(notes, [Note::Torn(snapshot.torn())]);
}

#[test]
fn call_sites_are_listed_one_by_one_largest_first() {
    let fake = fake::Target::start("");
    let (sites, _) = Target::Process(fake.pid()).call_sites().unwrap();
    assert!(sites.is_sorted_by_key(|site| std::cmp::Reverse(site.bytes)));
    let mut tags: Vec<u32> = sites.iter().map(|site| site.tag).collect();
    tags.sort_unstable();
    // A chain that ends in library code is the site of that code.
    let expected: Vec<u32> = NOWHERE.chain([CALLER, CALLER_INNER, CHAIN_LIBRARY_ALONE]).collect();
    assert_eq!(tags, expected);
    for site in sites {
        assert_eq!((site.bytes, site.calls), fake.totals[&site.tag]);
    }
}

#[test]
fn a_black_box_has_a_moment_and_counters() {
    let fake = FakeBox::new(64, 1);
    fake.put_record(1, &[(BOX_CALLER, 70, 7)], (100, 10));
    fake.put_counter(0, BOX_CALLER, [5, 500, 2, 200]);
    let reading = of(&fake).read(&Query::default()).unwrap();
    assert_eq!((total(&reading.sites), reading.accounting()), ((100, 10), None));
    assert_eq!(reading.moment.as_ref().unwrap().named_bytes, 70);
    assert!(matches!(reading.notes[0], Note::Moment { pid: PID, .. }), "{:?}", reading.notes);
    assert_eq!(reading.notes[1], Note::Named { bytes: 70, of: 100, sites: 1 });

    let reading = of(&fake).read(&Query { cumulative: true, ..Query::default() }).unwrap();
    assert_eq!(total(&reading.sites), (300, 3));
    let counts = reading.counts_of(&reading.sites[0].tags).unwrap();
    assert_eq!((counts.allocated_bytes, counts.frees), (500, 2));
    assert!(reading.moment.is_none());
    assert!(matches!(reading.notes[0], Note::Counters { pid: PID, .. }), "{:?}", reading.notes);
}

#[test]
fn a_failure_keeps_the_notes_that_were_made_before_it() {
    let fake = FakeBox::new(64, 1);
    fake.file.set_len(fake.record(0) as u64 + 100).unwrap();
    let failure = of(&fake).read(&Query::default()).unwrap_err();
    assert!(matches!(failure.error, ReadError::NothingRecorded { .. }), "{failure}");
    let damage = |note: &Note| matches!(note, Note::Damage { what, .. } if what.contains("record"));
    assert_eq!(failure.notes.iter().filter(|note| damage(note)).count(), 5, "{:?}", failure.notes);

    let fake = fake::Target::start("never");
    let failure = Target::Process(fake.pid()).read(&Query::default()).unwrap_err();
    assert!(matches!(failure.error, ReadError::ProfilingNever { .. }), "{failure}");
    let counters = Query { cumulative: true, ..Query::default() };
    let failure = Target::Process(fake.pid()).read(&counters).unwrap_err();
    assert!(matches!(failure.error, ReadError::BadSetting(_)), "{failure}");
}

#[test]
fn the_record_of_a_black_box_that_is_newer_than_the_begin_of_a_reading_is_recorded() {
    let fake = fake::Target::start("");
    let (process, snapshot) = (fake.process(), fake.snapshot().unwrap());
    let of_box = |time_ns| {
        let mut reading = Reading::default();
        reading.moment = Some(Moment { time_ns, ..Moment::default() });
        reading.provenance.time_ns = time_ns;
        reading
    };
    let dir = kmem_testing::directory();
    let path = dir.path().join("rec");
    let mut recorder = Recorder::create(&path, Duration::from_secs(1)).unwrap();
    // Names are read after the books: the process may write a record meanwhile.
    let (before, meanwhile) = (of_box(snapshot.time_ns - 1), of_box(snapshot.time_ns + 1));
    recorder.snapshot(&process, &snapshot).unwrap();
    recorder.reading(&before).unwrap();
    assert_eq!(recorder.moments(), 1);
    recorder.reading(&meanwhile).unwrap();
    assert_eq!(recorder.moments(), 2);
    recorder.end("ended by SIGSEGV").unwrap();
    let times: Vec<u64> = Recording::open(&path).unwrap().times().collect();
    assert_eq!(times, [snapshot.time_ns, snapshot.time_ns + 1]);
}
