//! Files that are no cores, and cores that are damaged.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use super::dying::{Dying, kmem, text};

/// Exit code and messages of `kmem dump`. No input may make it crash, hang or print half a table.
fn dump(core: &Path) -> (i32, String) {
    let start = Instant::now();
    let output = kmem(&["dump", "--no-mmap", "--core"], core);
    assert!(start.elapsed() < Duration::from_secs(120));
    let errors = text(&output.stderr);
    let code = output.status.code().unwrap_or_else(|| panic!("{} {errors}", output.status));
    assert!(matches!(code, 0 | 2 | 3 | 4), "{code}: {errors}");
    assert_eq!(code == 0, !output.stdout.is_empty(), "{errors}");
    (code, errors)
}

#[test]
fn other_files_are_called_by_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    for (bytes, what) in [
        (&b""[..], "empty file"),
        (b"\x1f\x8b\x08\0rest", "compressed by gzip"),
        (b"\x28\xb5\x2f\xfd", "compressed by zstd"),
        (b"kmem box and so on", "--blackbox"),
        (b"hello", "not an ELF core file"),
        (b"\x7fELF", "truncated: the ELF header"),
        (&[0; 5000], "not an ELF core file"),
    ] {
        fs::write(&path, bytes).unwrap();
        let (code, errors) = dump(&path);
        assert_eq!(code, 2, "{errors}");
        assert!(errors.contains(what), "{errors}");
        assert!(errors.contains("/file: "), "{errors}");
    }
    let (code, errors) = dump(Path::new(env!("CARGO_BIN_EXE_kmem")));
    assert_eq!(code, 2);
    assert!(errors.contains("an executable or shared library, not a core file"), "{errors}");
    let (code, errors) = dump(dir.path());
    assert_eq!(code, 2);
    assert!(errors.contains("not a regular file"), "{errors}");
}

/// A core that tests patch in one place and then restore.
struct Patient {
    file: File,
    path: std::path::PathBuf,
}

impl Patient {
    fn u64_at(&self, at: u64) -> u64 {
        let mut word = [0; 8];
        self.file.read_exact_at(&mut word, at).unwrap();
        u64::from_le_bytes(word)
    }

    /// Dumps the core with these bytes at `at`.
    fn with(&self, at: u64, bytes: &[u8]) -> (i32, String) {
        let mut before = vec![0; bytes.len()];
        self.file.read_exact_at(&mut before, at).unwrap();
        self.file.write_all_at(bytes, at).unwrap();
        let result = dump(&self.path);
        self.file.write_all_at(&before, at).unwrap();
        result
    }

    /// Offsets of the program headers of a type.
    fn headers(&self, kind: u32) -> Vec<u64> {
        let count = self.u64_at(56) & 0xffff;
        let all = (0..count).map(|i| self.u64_at(32) + i * 56);
        all.filter(|&at| self.u64_at(at) & 0xffff_ffff == u64::from(kind)).collect()
    }
}

#[test]
fn damaged_cores_are_refused_by_what_is_wrong() {
    let live = Dying::start("segv", true);
    let Some(path) = live.kill() else { return };
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let core = Patient { file, path };
    assert_eq!(dump(&core.path).0, 0);
    let loads = core.headers(1);
    let note = core.headers(4)[0];

    let refused = |at: u64, bytes: &[u8], what: &str| {
        let (code, errors) = core.with(at, bytes);
        assert_eq!(code, 2, "{what}: {errors}");
        assert!(errors.contains(what), "{what}: {errors}");
    };
    refused(18, &183_u16.to_le_bytes(), "core of another architecture: AArch64");
    refused(4, &[1], "core of another architecture: x32");
    refused(5, &[2], "big-endian");
    refused(54, &8_u16.to_le_bytes(), "program headers of 8 bytes");
    refused(56, &0_u16.to_le_bytes(), "0 program headers");
    refused(56, &0xffff_u16.to_le_bytes(), "0 program headers");
    refused(32, &(1_u64 << 60).to_le_bytes(), "truncated: the program headers");
    refused(32, &u64::MAX.to_le_bytes(), "beyond any file");
    refused(note + 8, &(1_u64 << 60).to_le_bytes(), "truncated: notes");
    refused(note + 32, &(1_u64 << 60).to_le_bytes(), "truncated: notes");
    refused(note, &6_u32.to_le_bytes(), "no NT_FILE note");
    refused(
        loads[3] + 16,
        &core.u64_at(loads[2] + 16).to_le_bytes(),
        "two PT_LOAD segments overlap",
    );
    refused(loads[3] + 40, &(u64::MAX / 2).to_le_bytes(), "two PT_LOAD segments overlap");
    refused(loads[3] + 40, &u64::MAX.to_le_bytes(), "program header ");
    refused(loads[3] + 8, &u64::MAX.to_le_bytes(), "program header ");
    refused(loads[3] + 32, &(1_u64 << 50).to_le_bytes(), "bytes in the file and");

    // NT_FILE: type and name precede the count.
    let (start, len) = (core.u64_at(note + 8), core.u64_at(note + 32));
    let mut notes = vec![0; len as usize];
    core.file.read_exact_at(&mut notes, start).unwrap();
    let at = notes.windows(4).position(|w| w == 0x4649_4c45_u32.to_le_bytes()).unwrap();
    let count = start + at as u64 + 12;
    refused(count, &u64::MAX.to_le_bytes(), "18446744073709551615 mapped files");
    refused(count, &(1_u64 << 40).to_le_bytes(), "mapped files");
    refused(count + 8, &u64::MAX.to_le_bytes(), "pages of 18446744073709551615");
    refused(count + 24, &[0; 8], "is mapped at");

    // Memory beyond the end of the file is absent and does not read as zero.
    let mut cut = 0;
    for &load in &loads {
        let (code, errors) = core.with(load + 8, &(1_u64 << 60).to_le_bytes());
        assert!(code == 0 || errors.contains("not in the core"), "{errors}");
        if code != 0 {
            assert!(errors.contains("the core was cut off"), "{errors}");
            cut += 1;
        }
    }
    assert!(cut >= 2, "the root block and the tables are in some segments");

    // Any value of any byte of the headers and notes.
    for at in (0..4096).step_by(37).chain((start..start + len).step_by(61)) {
        core.with(at, &[(core.u64_at(at) as u8) ^ 0xff]);
    }
    assert_eq!(dump(&core.path).0, 0);
}

#[test]
fn notes_over_a_hole_cost_neither_memory_nor_time() {
    let live = Dying::start("segv", true);
    let Some(path) = live.kill() else { return };
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let core = Patient { file, path };
    // A copy of the program headers, with more notes behind the true ones, and a hole.
    let (table, count) = (core.u64_at(32), (core.u64_at(56) & 0xffff) as u16);
    let mut headers = vec![0; usize::from(count) * 56];
    core.file.read_exact_at(&mut headers, table).unwrap();
    let hole = core.file.metadata().unwrap().len().next_multiple_of(4096);
    let notes = 200 << 20;
    for _ in 0..400 {
        headers.extend([4_u32, 0].iter().flat_map(|w| w.to_le_bytes()));
        headers.extend([hole, 0, 0, notes, 0, 4].iter().flat_map(|w: &u64| w.to_le_bytes()));
    }
    core.file.write_all_at(&headers, hole + notes).unwrap();
    core.file.write_all_at(&(hole + notes).to_le_bytes(), 32).unwrap();
    core.file.write_all_at(&(count + 400).to_le_bytes(), 56).unwrap();
    let limited = "ulimit -v 2000000; ulimit -t 10; exec \"$0\" dump --no-mmap --core \"$1\"";
    let args = ["-c", limited, super::program::KMEM];
    let output = std::process::Command::new("sh").args(args).arg(&core.path).output().unwrap();
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert_eq!(text(&output.stdout), live.dump);
    assert!(errors.contains("bytes of notes at offset"), "{errors}");
    assert!(errors.contains("more parts of the reading are left out"), "{errors}");
}

#[test]
fn truncated_cores_are_never_read_as_zeroes() {
    let live = Dying::start("abort", true);
    let Some(path) = live.kill() else { return };
    let file = File::options().write(true).open(&path).unwrap();
    let whole = file.metadata().unwrap().len();
    let mut len = whole - 1;
    let mut refused = 0;
    while len >= 4 {
        file.set_len(len).unwrap();
        let (code, errors) = dump(&path);
        assert!(errors.contains("cut off") || errors.contains("truncated"), "{len}: {errors}");
        if code == 0 {
            // The lost memory is not part of the books, or the command says that it is left out.
            let dump = text(&kmem(&["dump", "--no-mmap", "--core"], &path).stdout);
            assert!(dump == live.dump || errors.contains("are left out"), "{errors}");
        } else {
            assert_eq!(code, 2, "{errors}");
            refused += 1;
        }
        len = len * 2 / 3;
    }
    assert!(refused > 10);
    file.set_len(0).unwrap();
    assert!(dump(&path).1.contains("empty file"));
}
