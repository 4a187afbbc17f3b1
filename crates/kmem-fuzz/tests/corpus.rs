//! Every reader on its corpus, and on damaged copies of it: cut off, and with flipped bits. The
//! corpus has what fuzzing has found, so nothing that was mended comes back.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use kmem_fuzz::{READERS, check, reader};

/// Damaged copies of a file.
const COPIES: usize = 40;

/// Memory is counted for the whole program, so one reader runs at a time.
static ONE: Mutex<()> = Mutex::new(());

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus")
}

/// The files of a reader, by name, with their bytes.
fn files(name: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = fs::read_dir(corpus().join(name)).expect("a corpus");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).expect("a file"))).collect()
}

/// Calls `each` with copies of the bytes: cut off in steps, then with bits flipped in steps.
fn damaged(bytes: &[u8], mut each: impl FnMut(&[u8])) {
    let step = (bytes.len() / (COPIES / 2)).max(1);
    for at in (0..bytes.len()).step_by(step) {
        each(&bytes[..at]);
        let mut copy = bytes.to_vec();
        // Another bit and another byte of the step each time.
        let number = at / step;
        let at = (at + number * 7 % step).min(bytes.len() - 1);
        copy[at] ^= 1 << (number % 8);
        each(&copy);
    }
}

/// Runs a reader on all of its corpus.
#[track_caller]
fn survives(name: &str) {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let reader = reader(name).expect("a reader of this name");
    let files = files(name);
    assert!(!files.is_empty(), "{name}: no corpus");
    // The reader starts what it keeps: a server, a directory, an expanded image.
    (reader.read)(&[], &mut kmem_fuzz::Answer::default());
    for (path, bytes) in files {
        println!("{}", path.display());
        check(reader, &bytes);
        damaged(&bytes, |copy| {
            check(reader, copy);
        });
    }
}

macro_rules! readers {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                survives(stringify!($name));
            }
        )*

        #[test]
        fn every_reader_has_a_test_a_target_and_a_corpus() {
            let tests = [$(stringify!($name)),*];
            let names: Vec<&str> = READERS.iter().map(|reader| reader.name).collect();
            assert_eq!(names, tests);
            let fuzz = corpus().join("..");
            let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
            for name in names {
                assert!(manifest.contains(&format!("\nname = \"{name}\"\n")), "{name}");
                let target = fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs")));
                assert!(target.unwrap().contains(&format!("reader(\"{name}\")")), "{name}");
            }
            let corpora = fs::read_dir(corpus()).unwrap().count();
            assert_eq!(corpora, READERS.len(), "a corpus without a reader");
        }
    };
}

readers! {
    allocinfo blackbox board books core depmod http kernel_log kernel_tables module packed perf_map
    process python recording settings symbols
}
