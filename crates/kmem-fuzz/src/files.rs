//! Files that a process or a kernel left: rows, records, cores.

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use kmem_snapshot::output::{Choice, Format, write};
use kmem_snapshot::page::Page;
use kmem_snapshot::reading::By;
use kmem_snapshot::recording::{At, Recording};
use kmem_snapshot::{Query, Reading, Target, When, report};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::Answer;

/// Calls `read` with the path of a file that has these bytes.
pub(crate) fn with_file<T>(bytes: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let file = in_memory();
    file.write_all_at(bytes, 0).expect("a written file");
    read(&path_of(&file))
}

/// An empty file without a name.
pub(crate) fn in_memory() -> File {
    let file: OwnedFd = memfd_create("input", MemfdFlags::CLOEXEC).expect("a file in memory");
    file.into()
}

/// A path that leads to an open file.
pub(crate) fn path_of(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Reads allocinfo text or JSON, as a file of either.
pub(crate) fn allocinfo(bytes: &[u8], answer: &mut Answer) {
    with_file(bytes, |path| {
        if let Err(error) = Target::recognise(path) {
            answer.fail(error);
        }
        rows(&Target::List(path.to_owned()), answer, &[Query::default()]);
    });
}

/// Reads the last list of a kernel's log.
pub(crate) fn kernel_log(bytes: &[u8], answer: &mut Answer) {
    with_file(bytes, |path| {
        let target = Target::KernelLog { path: path.to_owned(), list: None };
        rows(&target, answer, &[Query::default()]);
    });
}

/// Reads the newest record of a black box, the one at the peak, and the counters.
pub(crate) fn recorded(path: &Path, answer: &mut Answer) {
    let newest = Target::BlackBox { path: path.to_owned(), exe: None, when: When::Newest };
    let peak = Target::BlackBox { path: path.to_owned(), exe: None, when: When::Peak };
    rows(&newest, answer, &[all(), Query { cumulative: true, ..Query::default() }]);
    rows(&peak, answer, &[Query::default()]);
}

/// Reads a recording as it is, and with right checksums.
pub(crate) fn recording(bytes: &[u8], answer: &mut Answer) {
    played(bytes, answer);
    let mut mended = bytes.to_vec();
    let mut rest = mended.get_mut(16..).unwrap_or_default();
    while let Some((head, tail)) = rest.split_first_chunk_mut::<24>() {
        let word = |at: usize| u32::from_le_bytes(*head[at..].first_chunk().expect("a word"));
        let len = (word(0) as usize).min(tail.len());
        let (payload, tail) = tail.split_at_mut(len);
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&head[8..]);
        checksum.update(payload);
        head[4..8].copy_from_slice(&checksum.finalize().to_le_bytes());
        rest = tail;
    }
    if mended != bytes {
        played(&mended, answer);
    }
}

/// Reads a moment of each kind, and all of it as a page.
fn played(bytes: &[u8], answer: &mut Answer) {
    with_file(bytes, |path| {
        for at in [At::Last, At::Peak] {
            let target = Target::Recording { path: path.to_owned(), at };
            rows(&target, answer, &[all()]);
        }
        match Recording::open(path).and_then(|recording| Page::of_recording(&recording)) {
            // A browser shows it, so it may have any character.
            Ok(page) => page.write(&mut std::io::sink()).expect("a page in memory"),
            Err(error) => answer.fail(error),
        }
    });
}

/// Reads a core file.
pub(crate) fn core(bytes: &[u8], answer: &mut Answer) {
    with_file(bytes, |path| dead(path, answer));
}

/// Reads a core file in all ways.
pub(crate) fn dead(path: &Path, answer: &mut Answer) {
    let target = Target::Core { path: path.to_owned(), exe: None };
    let by_group = Query { by: By::GroupAndSite, ..Query::default() };
    rows(&target, answer, &[all(), by_group]);
    match target.buddyinfo() {
        Ok(of) => answer.say(format!("{of:?}")),
        Err(error) => answer.fail(error),
    }
}

/// A query for all rows that there are.
fn all() -> Query {
    Query { empty: true, metadata: true, mappings: true, ..Query::default() }
}

/// Reads the rows of a target, and shows them in every format for a terminal.
fn rows(target: &Target, answer: &mut Answer, queries: &[Query]) {
    for query in queries {
        match target.read(query) {
            Ok(reading) => show(&reading, answer),
            Err(failure) => answer.failure(failure),
        }
    }
}

fn show(reading: &Reading, answer: &mut Answer) {
    reading.notes.iter().for_each(|note| answer.say(note));
    answer.say(reading.name());
    let out = &mut answer.shown;
    for format in Format::ALL {
        if format.is_binary() {
            write(&mut Vec::new(), format, reading, &Choice::default()).expect("room in memory");
        } else {
            write(out, format, reading, &Choice::default()).expect("room in memory");
        }
    }
    report::write_mapping_table(out, &reading.mappings, 10).expect("room in memory");
    if let Ok(caches) = reading.snapshot.caches(None) {
        report::write_slabinfo(out, &caches).expect("room in memory");
    }
    if let Ok(caches) = reading.snapshot.named_caches(Some("/")) {
        report::write_named_caches(out, &caches).expect("room in memory");
    }
    for books in &reading.snapshot.books {
        report::write_groups(out, &books.groups).expect("room in memory");
    }
    if let Some(of) = reading.accounting() {
        report::write_accounting(out, of).expect("room in memory");
    }
}
