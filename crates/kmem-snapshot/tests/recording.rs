//! Recordings: written, read back, cut off and damaged.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kmem_snapshot::books::StaticTag;
use kmem_snapshot::recording::{At, Recording};
use kmem_snapshot::sites::{Chain, Mapped, Origin, Site};
use kmem_snapshot::symbols::Place;
use kmem_snapshot::{Query, ReadError, Reading, Recorder, Target};
use proptest::prelude::*;

/// Live bytes and objects of the rows of a moment.
type Counts = Vec<(i64, u64)>;

/// A row of each kind, one after the other.
fn origin(number: usize) -> Origin {
    let place = |name: String| Place {
        module: "app".to_owned(),
        offset: number as u64,
        address: u64::MAX - number as u64,
        function: (!number.is_multiple_of(3)).then(|| format!("{name}\n</script>")),
        source: number.is_multiple_of(2).then(|| (format!("{name}.c"), u32::MAX)),
        ..Place::default()
    };
    match number {
        0 => Origin::NotTagged,
        1 => Origin::OtherSites,
        2 => Origin::Mapped(Mapped::File("/a".to_owned())),
        3 => Origin::Static(Arc::new(StaticTag { line: 7, ..StaticTag::default() })),
        _ => Origin::Place(place(format!("f{number}"))),
    }
}

fn site(number: usize, (bytes, calls): (i64, u64)) -> Site {
    let mut site = Site { bytes, calls, ..Site::new(origin(number)) };
    if matches!(site.origin, Origin::Mapped(_)) {
        site.mapped = Some(calls);
    }
    if let Origin::Place(place) = &site.origin
        && number.is_multiple_of(4)
    {
        let frames = vec![Arc::new(place.clone()), Arc::new(Place::default())];
        site.chains.push(Chain { tag: 0, bytes, calls, frames });
    }
    site
}

fn reading(counts: &Counts) -> Reading {
    let sites = counts.iter().enumerate().map(|(at, &of)| site(at, of));
    let mut reading = Reading::default();
    (reading.mappings, reading.sites) = sites.partition(|site| site.mapped.is_some());
    reading
}

fn record(path: &Path, moments: &[Counts]) {
    let mut recorder = Recorder::create(path, Duration::from_millis(100)).unwrap();
    for counts in moments {
        recorder.reading(&reading(counts)).unwrap();
    }
    recorder.end("exited with 0").unwrap();
}

/// The counts of a moment, by the rows that a user gets.
fn counts(recording: &Recording, number: usize, rows: usize) -> Counts {
    let moment = recording.moment(number).unwrap();
    let mut counts = vec![(0, 0); rows];
    for (name, held) in recording.names().iter().zip(&moment.rows) {
        let at = (0..rows).find(|&at| origin(at) == name.origin).expect("a row of the test");
        assert_eq!(name.is_mapped, at == 2);
        assert_eq!(name.frames.is_empty(), at < 4 || !at.is_multiple_of(4));
        counts[at] = (held.bytes, held.calls);
    }
    counts
}

fn moments() -> impl Strategy<Value = Vec<Counts>> {
    let number = prop_oneof![0_i64..3, 0_i64..100_000, any::<i64>()];
    let held = (number, prop_oneof![Just(0), 0_u64..5, any::<u64>()]);
    prop::collection::vec(prop::collection::vec(held, 0..40), 1..12)
}

#[test]
fn all_moments_read_back_as_they_were() {
    let dir = kmem_testing::directory();
    let path = dir.path().join("rec");
    proptest!(ProptestConfig::with_cases(64), |(moments in moments())| {
        record(&path, &moments);
        let recording = Recording::open(&path).unwrap();
        prop_assert_eq!((recording.end(), recording.damage()), (Some("exited with 0"), None));
        prop_assert_eq!(recording.times().len(), moments.len());
        let mut seen = 0;
        recording.each(|number, moment| {
            assert_eq!(*moment, recording.moment(number).unwrap());
            seen += 1;
        }).unwrap();
        prop_assert_eq!(seen, moments.len());
        for (number, expected) in moments.iter().enumerate() {
            let mut expected = expected.clone();
            expected.resize(40, (0, 0));
            prop_assert_eq!(counts(&recording, number, 40), expected);
        }
    });
}

#[test]
fn a_file_that_is_cut_anywhere_reads_up_to_its_last_whole_moment() {
    let dir = kmem_testing::directory();
    let path = dir.path().join("rec");
    let moments: Vec<Counts> = (0..6).map(|n| vec![(n, 1); 6 + n as usize]).collect();
    record(&path, &moments);
    let whole = fs::read(&path).unwrap();
    let mut most = 0;
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).unwrap();
        match Recording::open(&path) {
            Ok(recording) => {
                let count = recording.times().len();
                assert!(count >= most, "{count} moments of {len} bytes");
                most = count;
                assert_eq!(counts(&recording, count - 1, 11)[5], (count as i64 - 1, 1));
                assert_eq!(recording.end(), None);
            }
            Err(error) => assert_eq!(most, 0, "{error}"),
        }
    }
    assert_eq!(most, moments.len());
}

#[test]
fn a_damaged_file_is_read_or_refused() {
    let dir = kmem_testing::directory();
    let path = dir.path().join("rec");
    record(&path, &[vec![(100, 1); 30], vec![(200, 2); 30], vec![(200, 2); 300]]);
    let whole = fs::read(&path).unwrap();
    let change = (any::<prop::sample::Index>(), any::<u8>());
    let changes = prop::collection::vec(change, 1..6);
    proptest!(ProptestConfig::with_cases(256), |(changes in changes, fix in any::<bool>())| {
        let mut bytes = whole.clone();
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        // With right checksums, hostile messages reach the parser.
        if fix {
            mend(&mut bytes);
        }
        fs::write(&path, &bytes).unwrap();
        for at in [At::First, At::Peak, At::Last, At::After(Duration::MAX)] {
            let target = Target::Recording { path: path.clone(), at };
            let _ = target.read(&Query { mappings: true, ..Query::default() });
        }
        let _ = Target::recognise(&path).and_then(|target| match target {
            Target::Recording { path, .. } => Recording::open(&path)?.each(|_, _| {}),
            _ => Ok(()),
        });
    });
}

#[test]
fn a_moment_with_a_changed_byte_is_not_shown() {
    let dir = kmem_testing::directory();
    let path = dir.path().join("rec");
    let mut recorder = Recorder::create(&path, Duration::from_secs(1)).unwrap();
    recorder.reading(&reading(&vec![(1, 1); 9])).unwrap();
    recorder.reading(&reading(&vec![(2, 1); 9])).unwrap();
    drop(recorder);
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert!(recording.damage().unwrap().contains("a wrong checksum"), "{:?}", recording.damage());
    assert_eq!((recording.times().len(), recording.end()), (1, None));
    assert_eq!(counts(&recording, 0, 9)[5], (1, 1));
}

/// Writes the right checksum into each frame, as far as their lengths lead.
fn mend(bytes: &mut [u8]) {
    let mut at = 16;
    while let Some(head) = bytes.get(at..at + 24) {
        let len = u32::from_le_bytes(*head.first_chunk().unwrap()) as usize;
        let Some(rest) = bytes.get(at + 8..at + 24 + len) else { return };
        let crc = crc32fast::hash(rest);
        bytes[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
        at += 24 + len;
    }
}

#[test]
fn a_small_file_that_unpacks_to_much_is_refused() {
    let dir = kmem_testing::directory();
    let path = dir.path().join("rec");
    record(&path, &[vec![(1, 1)]]);
    let mut bytes = fs::read(&path).unwrap();
    let bomb = zstd::bulk::compress(&vec![0; 64 << 20], 1).unwrap();
    let mut frame = u32::try_from(bomb.len()).unwrap().to_le_bytes().to_vec();
    frame.extend([0; 4]);
    frame.extend([2, 1]);
    frame.extend([0; 14]);
    frame.extend(&bomb);
    bytes.extend(frame);
    mend(&mut bytes);
    fs::write(&path, &bytes).unwrap();
    let recording = Recording::open(&path).unwrap();
    assert!(recording.damage().unwrap().contains("makes no sense"), "{:?}", recording.damage());
    assert_eq!(recording.times().len(), 1);
}

#[test]
fn a_recording_without_a_moment_and_other_files_are_told() {
    let dir = kmem_testing::directory();
    let path = dir.path().join("rec");
    drop(Recorder::create(&path, Duration::from_secs(1)).unwrap());
    let error = Recording::open(&path).unwrap_err();
    assert!(matches!(error, ReadError::NothingRecorded { .. }), "{error}");
    fs::write(&path, b"kmem rec\x02\0\0\0\0\0\0\0").unwrap();
    assert!(Recording::open(&path).unwrap_err().to_string().contains("version 2"));
    fs::write(&path, b"another file of more bytes").unwrap();
    assert!(Recording::open(&path).unwrap_err().to_string().contains("no recording"));
}
