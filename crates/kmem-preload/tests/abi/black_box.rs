//! The file of a black box: who may have it, and what lies at its path already.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use kmem_layout::blackbox::{BoxHeader, MAGIC};
use kmem_testing::{Coprocess, is_not_root, not_run, this_test};

use crate::harness::{Outcome, Run, SIGBUS, is_not_kmem, library, program, thorough};

const IN_USE: &str = "the file belongs to a process that is still there (use %p)";

/// A directory, and the path of a box in it.
struct Place {
    directory: tempfile::TempDir,
    path: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("box");
        Self { directory, path }
    }

    fn conf(&self) -> String {
        format!("blackbox:{}", self.path.display())
    }

    /// Runs a program that ends at once.
    #[track_caller]
    fn run(&self) -> Outcome {
        let outcome = Run::new(program("hello.c")).env("KMEM_CONF", self.conf()).run();
        outcome.assert_success();
        outcome
    }

    /// Starts a program that lives until its input is closed, by the words in front of it.
    fn start(&self, words: &[&str]) -> Coprocess {
        self.start_program("/bin/cat", words, "")
    }

    /// Starts a shell with a box, behind the words of another command.
    fn shell(&self, words: &[&str], options: &str) -> Coprocess {
        self.start_program("/bin/bash", words, options)
    }

    fn start_program(&self, program: &str, words: &[&str], options: &str) -> Coprocess {
        let mut command = Command::new("/usr/bin/env");
        let preload = format!("LD_PRELOAD={}", library().expect("a library to test").display());
        let conf = format!("KMEM_CONF={}{options}", self.conf());
        command.args(words).args(["/usr/bin/env", &preload, &conf, program]);
        Coprocess::start(command.stderr(Stdio::piped()))
    }

    /// Asserts that a program takes the path for its box.
    #[track_caller]
    fn is_taken(&self) {
        self.run().assert_quiet_success();
        self.has_box();
    }

    #[track_caller]
    fn has_box(&self) {
        let first = fs::read(&self.path).expect("there is a box");
        assert_eq!(&first[..8], &MAGIC.to_le_bytes());
        let status = fs::symlink_metadata(&self.path).expect("there is a box");
        assert!(status.is_file() && status.mode() & 0o777 == 0o600, "{status:?}");
        let names = fs::read_dir(self.directory.path()).expect("our directory");
        let names = names.map(|entry| entry.expect("an entry").file_name());
        let beside: Vec<_> = names.filter(|name| name.as_encoded_bytes()[0] == b'.').collect();
        assert!(beside.is_empty(), "{beside:?}");
    }
}

/// Waits until a program has allocated, and so has made its box or not.
fn wait(child: &mut Coprocess) {
    child.write(b"here\n");
    child.wait_for("here");
}

/// Messages of a program, which must end well.
#[track_caller]
fn end(mut child: Coprocess) -> String {
    let said = child.stderr();
    let status = child.wait();
    assert!(status.success(), "{status}: {said}");
    said
}

#[test]
fn one_of_two_programs_that_start_together_has_the_box_and_readers_see_it_whole() {
    if is_not_kmem() {
        return;
    }
    let place = Place::new();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !done.load(Ordering::Relaxed) {
                if let Ok(mut file) = File::open(&place.path) {
                    let mut header = [0; size_of::<BoxHeader>()];
                    file.read_exact(&mut header).expect("a whole header");
                    assert_eq!(header[..8], MAGIC.to_le_bytes(), "a box that is not ready");
                    seen += 1;
                }
            }
            seen
        });
        for round in 0..if thorough() { 300 } else { 40 } {
            // In every other round, they find the box of the round before.
            if round % 2 == 0 {
                let _ = fs::remove_file(&place.path);
            }
            let mut pair = [place.start(&[]), place.start(&[])];
            pair.iter_mut().for_each(wait);
            place.has_box();
            let said = pair.map(end);
            let refused = said.iter().filter(|said| said.contains(IN_USE)).count();
            assert_eq!(refused, 1, "{said:?}");
        }
        done.store(true, Ordering::Relaxed);
        assert!(reader.join().expect("each box was whole") > 0);
    });
}

#[test]
fn process_with_the_same_number_in_another_container_is_not_the_owner() {
    if is_not_kmem() || is_not_root("make a namespace of process numbers") {
        return;
    }
    let contained = ["unshare", "--pid", "--fork"];
    if !Command::new("unshare")
        .args(&contained[1..])
        .arg("true")
        .status()
        .is_ok_and(|s| s.success())
    {
        return not_run(&this_test(), "no namespaces can be made here");
    }
    let place = Place::new();
    let mut owner = place.start(&contained);
    wait(&mut owner);
    place.has_box();
    let before = fs::metadata(&place.path).expect("the box").ino();
    // Each is process 1 of its container.
    let mut stranger = place.start(&contained);
    wait(&mut stranger);
    assert!(end(stranger).contains(IN_USE));
    assert_eq!(fs::metadata(&place.path).expect("the box").ino(), before);
    assert_eq!(end(owner), "");
    // The owner has ended, wherever that was.
    let mut next = place.start(&contained);
    wait(&mut next);
    assert_eq!(end(next), "");
    assert_ne!(fs::metadata(&place.path).expect("the box").ino(), before);
}

#[test]
fn later_process_with_the_number_of_the_owner_is_not_the_owner() {
    if is_not_kmem() {
        return;
    }
    let place = Place::new();
    place.is_taken();
    let file = OpenOptions::new().write(true).open(&place.path).expect("our box");
    let pid = std::mem::offset_of!(BoxHeader, pid) as u64;
    file.write_all_at(&std::process::id().to_le_bytes(), pid).expect("our box");
    place.is_taken();
}

#[test]
fn program_that_another_becomes_takes_its_box() {
    if is_not_kmem() {
        return;
    }
    let place = Place::new();
    let run = Run::new("/bin/sh").arg("-c").arg("exec /bin/true");
    run.env("KMEM_CONF", place.conf()).run().assert_quiet_success();
    place.has_box();
}

#[test]
fn box_is_free_when_its_owner_was_killed_even_if_a_child_lives_on() {
    if is_not_kmem() {
        return;
    }
    let place = Place::new();
    let mut command = Command::new("/bin/bash");
    command.args(["-c", "(read -r line) <&0 & echo ready; wait"]);
    command.env("LD_PRELOAD", library().expect("a library to test"));
    let mut owner = Coprocess::start(command.env("KMEM_CONF", place.conf()));
    owner.wait_for("ready");
    assert!(place.run().stderr.contains(IN_USE));
    owner.kill();
    place.is_taken();
}

#[test]
fn unfinished_and_shortened_boxes_are_replaced() {
    if is_not_kmem() {
        return;
    }
    let place = Place::new();
    place.is_taken();
    let whole = fs::read(&place.path).expect("our box");
    let put = |bytes: &[u8]| {
        fs::remove_file(&place.path).expect("our box");
        fs::write(&place.path, bytes).expect("our box");
    };
    for len in (0..=20).step_by(4).chain([9, 15, 63, 64, 100, 5000]).filter(|&n| n == 0 || n >= 8) {
        put(&whole[..len]);
        place.is_taken();
    }
    // The system went down before the contents were on the disk.
    put(&vec![0; whole.len()]);
    place.is_taken();
    // A file of zeroes that has not the length of a box is no box.
    put(&vec![0; whole.len() - 4096]);
    assert!(place.run().stderr.contains("there is a file of another kind already"));
    assert_eq!(fs::metadata(&place.path).expect("the file").len(), whole.len() as u64 - 4096);
}

#[test]
fn planted_file_is_left_alone_and_the_program_runs_without_a_box() {
    if is_not_kmem() {
        return;
    }
    type Plant = (&'static str, fn(&Path));
    let empty = |path: &Path| drop(File::create(path).expect("our directory"));
    let plants: [Plant; 7] = [
        ("a symbolic link", |path| {
            fs::write(path.with_extension("to"), "").expect("our directory");
            symlink(path.with_extension("to"), path).expect("our directory");
        }),
        ("a symbolic link", |path| {
            symlink(path.with_extension("nothing"), path).expect("our directory");
        }),
        ("with several names", |path| {
            fs::write(path, "").expect("our directory");
            fs::hard_link(path, path.with_extension("other")).expect("our directory");
        }),
        ("that other users may write to", |path| {
            fs::write(path, "").expect("our directory");
            fs::set_permissions(path, Permissions::from_mode(0o666)).expect("our file");
        }),
        ("of another kind", |path| fs::write(path, "notes").expect("our directory")),
        ("of another kind", |path| {
            let made = Command::new("mkfifo").arg(path).status();
            assert!(made.expect("mkfifo starts").success());
        }),
        ("which cannot be opened", |path| fs::create_dir(path).expect("our directory")),
    ];
    for (why, plant) in plants {
        let place = Place::new();
        plant(&place.path);
        refused(&place, why);
    }
    if is_not_root("give a file to another user") {
        return;
    }
    let place = Place::new();
    empty(&place.path);
    chown(&place.path, Some(65534), None).expect("root may");
    refused(&place, "of another user");
}

/// Asserts that a program reports why it has no box, and leaves the file at its path.
#[track_caller]
fn refused(place: &Place, why: &str) {
    let status = |path: &Path| {
        let status = fs::symlink_metadata(path).expect("the planted file");
        (status.ino(), status.mode(), status.len(), status.mtime_nsec())
    };
    let before = status(&place.path);
    let outcome = place.run();
    let messages = outcome.messages();
    let fits = messages.len() == 1
        && messages[0].starts_with("kmem: no black box: ")
        && messages[0].contains(why);
    assert!(fits, "{why}\n{}", outcome.story());
    assert_eq!(status(&place.path), before, "{why}");
    let linked = place.path.with_extension("to");
    assert_eq!(fs::metadata(linked).map_or(0, |linked| linked.len()), 0);
}

const CANNOT: &str = "kmem: the black box cannot be written: it was cut off, or the disk is full\n";

/// Lets a shell take so much memory that it writes a record, and waits until it has.
#[track_caller]
fn grow(shell: &mut Coprocess) {
    shell.write(b"for i in {1..4}; do printf -v x$i %1000000s ''; done; echo grown\n");
    shell.wait_for("grown");
}

#[test]
fn program_survives_a_box_that_is_cut_off() {
    if is_not_kmem() {
        return;
    }
    for options in ["", ",cumulative:1"] {
        for len in [0, 100, 4096, 5_000_000] {
            let place = Place::new();
            let mut shell = place.shell(&[], options);
            grow(&mut shell);
            let file = OpenOptions::new().write(true).open(&place.path).expect("our box");
            file.set_len(len).expect("our box");
            grow(&mut shell);
            assert_eq!(end(shell), CANNOT, "{len}{options}");
            assert_eq!(file.metadata().expect("our box").len(), len);
            place.is_taken();
        }
    }
}

#[test]
fn forked_child_goes_on_with_a_call_that_is_being_counted() {
    if is_not_kmem() {
        return;
    }
    let place = Place::new();
    let run = Run::new(program("fork_in_handler.c")).arg("1000").arg("resume");
    run.env("KMEM_CONF", format!("{},cumulative:1", place.conf())).run().assert_quiet_success();
}

/// Runs a program with an older action for SIGBUS. It cuts its box off while calls are counted, and
/// later has a bus error elsewhere.
#[track_caller]
fn bus_error(mode: &str) -> Outcome {
    let place = Place::new();
    let library = library().expect("a library to test");
    let run = Run::new(program("bus_error.c")).without_preload();
    let run = run.arg(&library).arg(&place.path).arg(mode);
    let outcome = run.env("KMEM_CONF", format!("{},cumulative:1", place.conf())).run();
    assert_eq!(outcome.messages(), [CANNOT.trim_end()], "{}", outcome.story());
    assert!(outcome.stdout.starts_with("survived\n"), "{}", outcome.story());
    outcome
}

#[test]
fn handler_of_the_program_gets_bus_errors_that_are_not_of_the_box() {
    if is_not_kmem() {
        return;
    }
    for mode in ["handler", "handler-with-info"] {
        bus_error(mode).assert_success();
    }
    let outcome = bus_error("handler-once");
    outcome.assert_signal(SIGBUS);
    assert_eq!(outcome.stdout, "survived\nonce\n");
}

#[test]
fn bus_error_that_is_not_of_the_box_ends_a_program_without_a_handler() {
    if is_not_kmem() {
        return;
    }
    for mode in ["default", "sent", "ignored"] {
        bus_error(mode).assert_signal(SIGBUS);
    }
}

#[test]
fn program_survives_a_disk_that_is_full() {
    if is_not_kmem() || is_not_root("mount a small disk") {
        return;
    }
    let place = Place::new();
    let disk = place.directory.path().to_str().expect("a name in ASCII");
    let mount = format!("mount -t tmpfs -o size=$0 none {disk} && exec \"$@\"");
    let mut words = ["unshare", "--mount", "sh", "-c", &mount, "32k"];
    if !Command::new(words[0]).args(&words[1..]).arg("true").status().is_ok_and(|s| s.success()) {
        return not_run(&this_test(), "no disk can be mounted here");
    }
    for options in ["", ",cumulative:1"] {
        for size in ["4k", "32k"] {
            words[5] = size;
            let mut shell = place.shell(&words, options);
            grow(&mut shell);
            grow(&mut shell);
            assert_eq!(end(shell), CANNOT, "{size}{options}");
        }
    }
}

#[test]
fn box_takes_disk_only_for_its_contents() {
    if is_not_kmem() {
        return;
    }
    let place = Place::new();
    let mut shell = place.shell(&[], "");
    grow(&mut shell);
    let box_of = || fs::metadata(&place.path).expect("our box");
    let taken = box_of().blocks() * 512;
    println!("{taken} bytes of disk, {} bytes long", box_of().len());
    assert!(taken <= 256 << 10 && box_of().len() > 8 << 20, "{taken}");
    assert_eq!(end(shell), "");
}
