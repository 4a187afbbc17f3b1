//! The sources of the configuration: `kmem_conf` in the program, `/etc/kmem.conf`, `KMEM_CONF`.
//!
//! A test does not write to `/etc`. It runs the program in a mount namespace of its own, where
//! `/etc` is a directory of the test.

use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_testing::{is_missing, is_not_root, not_run, this_test};

use crate::configuration::{Linked, allow, can_gain_privileges};
use crate::harness::{
    Outcome, Run, SIGABRT, is_not_kmem, library, program, program_linked, program_with_options,
    shared_library,
};

/// A directory that stands for `/etc` and holds `kmem.conf`.
struct Etc {
    directory: tempfile::TempDir,
}

impl Etc {
    /// `None`: another library is under test, or this process may not make mount namespaces.
    /// `unshare` has the options for a namespace.
    fn new(unshare: &str, text: impl AsRef<[u8]>) -> Option<Self> {
        if is_not_kmem() || is_missing("/usr/bin/unshare") {
            return None;
        }
        let directory = tempfile::tempdir_in("/tmp").expect("a temporary directory");
        allow(directory.path(), 0o755);
        let etc = Self { directory };
        etc.write(text);
        let probe = Self::command(unshare, &etc, "test -f /etc/kmem.conf && exec").arg("true");
        if !probe.run().succeeded() {
            not_run(&this_test(), "mount namespaces are forbidden here");
            return None;
        }
        Some(etc)
    }

    fn write(&self, text: impl AsRef<[u8]>) {
        let path = self.path("kmem.conf");
        std::fs::write(&path, text).expect("our directory");
        allow(&path, 0o644);
    }

    /// Path of a file in the directory, by its name outside of the namespace.
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The shell runs `start`, with the program and its arguments, where this is `/etc`.
    fn command(unshare: &str, etc: &Self, start: &str) -> Run {
        let script = format!("mount --bind \"$1\" /etc && shift && {start} \"$@\"");
        let run = Run::new("/usr/bin/unshare").without_preload().env("EXPECT_KMEM", "1");
        let library = library().unwrap_or_else(|| "sh".into());
        let run = run.args(&[unshare, "/bin/sh", "-c", &script]).arg(library);
        run.arg(etc.directory.path())
    }

    /// A program with the library preloaded.
    fn run(&self, program: &Path) -> Run {
        Self::command("-rm", self, "LD_PRELOAD=\"$0\" exec").arg(program)
    }
}

/// A program that defines `kmem_conf`.
fn with_conf(text: &str, output: &str) -> PathBuf {
    let text = format!("-DCONF=\"{text}\"");
    program_with_options("kmem_conf.c", output, &[&text, "-rdynamic"])
}

#[track_caller]
fn said(outcome: &Outcome, expected: &[&str]) {
    outcome.assert_success();
    assert_eq!(outcome.stdout, "hello\n", "{}", outcome.story());
    assert_eq!(outcome.messages(), expected, "{}", outcome.story());
}

const UNKNOWN_FILE: &str = "kmem: /etc/kmem.conf: unknown option \"foo\"";

#[test]
fn each_fault_is_reported_with_its_source() {
    let Some(etc) = Etc::new("-rm", "decay_ms:x\n") else { return };
    let path = with_conf("foo:1,depth:8", "conf_faulty");
    let outcome = etc.run(&path).env("KMEM_CONF", "peak:x").run();
    let expected = [
        "kmem: kmem_conf: unknown option \"foo\"",
        "kmem: KMEM_CONF: bad value in \"peak:x\": peak takes 0, 1",
        "kmem: /etc/kmem.conf: bad value in \"decay_ms:x\": decay_ms takes 0 to 3600000",
    ];
    said(&outcome, &expected);
}

/// Each source names a black box, and the one that wins is made.
#[test]
fn later_sources_win_option_by_option() {
    let Some(etc) = Etc::new("-rm", "") else { return };
    let boxes = tempfile::tempdir_in("/tmp").expect("a temporary directory");
    let path = |name: &str| boxes.path().join(name);
    let option = |name: &str| format!("blackbox:{}", path(name).display());
    let of_program = with_conf(&format!("strict:1,{}", option("program")), "conf_of_program");
    let made = || {
        let found = ["program", "file", "variable"].map(|name| path(name).exists());
        for name in ["program", "file", "variable"] {
            drop(std::fs::remove_file(path(name)));
        }
        found
    };
    said(&etc.run(&of_program).run(), &[]);
    assert_eq!(made(), [true, false, false]);
    etc.write(option("file"));
    said(&etc.run(&of_program).run(), &[]);
    assert_eq!(made(), [false, true, false]);
    said(&etc.run(&of_program).env("KMEM_CONF", option("variable")).run(), &[]);
    assert_eq!(made(), [false, false, true]);
    // The file changes one option. The program's other option holds.
    let outcome = etc.run(&of_program).env("KMEM_CONF", "foo:1").run();
    outcome.assert_signal(SIGABRT);
    made();
    etc.write(format!("strict:0\n{}\n", option("file")));
    let outcome = etc.run(&of_program).env("KMEM_CONF", "foo:1").run();
    said(&outcome, &["kmem: KMEM_CONF: unknown option \"foo\""]);
    assert_eq!(made(), [false, true, false]);
}

#[test]
fn strict_file_refuses_a_bad_option_of_any_source() {
    let Some(etc) = Etc::new("-rm", "strict:1\n") else { return };
    let hello = program("hello.c");
    said(&etc.run(&hello).run(), &[]);
    etc.run(&hello).env("KMEM_CONF", "foo:1").run().assert_signal(SIGABRT);
    etc.write("strict:1,foo:1");
    let outcome = etc.run(&hello).run();
    outcome.assert_signal(SIGABRT);
    assert_eq!(outcome.messages(), [UNKNOWN_FILE], "{}", outcome.story());
    // The user's word is the last.
    said(&etc.run(&hello).env("KMEM_CONF", "strict:0").run(), &[UNKNOWN_FILE]);
}

#[test]
fn file_has_lines_and_comments() {
    let Some(etc) = Etc::new("-rm", "") else { return };
    let hello = program("hello.c");
    for text in
        ["", "\n\n", "# foo:1\n  # foo:1\n", "depth:8 # foo:1\n\t# foo:1", "depth:8,\r\npeak:1\r\n"]
    {
        etc.write(text);
        said(&etc.run(&hello).run(), &[]);
    }
    etc.write("depth:8\n# none\nfoo:1 # one\npeak:x#y\n");
    let value = "kmem: /etc/kmem.conf: bad value in \"peak:x#y\": peak takes 0, 1";
    said(&etc.run(&hello).run(), &[UNKNOWN_FILE, value]);
}

#[test]
fn file_is_bounded_and_may_hold_anything() {
    let Some(etc) = Etc::new("-rm", "") else { return };
    let hello = program("hello.c");
    let long = ["kmem: /etc/kmem.conf: longer than 4096 bytes; ignored"];
    let comment = |bytes: usize| format!("foo:1\n#{}", "x".repeat(bytes - 7));
    etc.write(comment(4096));
    said(&etc.run(&hello).run(), &[UNKNOWN_FILE]);
    etc.write(comment(4097));
    said(&etc.run(&hello).run(), &long);
    let noise: Vec<u8> = (0..=255).cycle().take(4096).collect();
    etc.write(noise);
    let outcome = etc.run(&hello).run();
    assert_eq!(outcome.assert_success().stdout, "hello\n", "{}", outcome.story());
    let path = etc.path("kmem.conf");
    std::fs::remove_file(&path).expect("our file");
    said(&etc.run(&hello).run(), &[]);
    std::os::unix::fs::symlink("/dev/zero", &path).expect("our directory");
    said(&etc.run(&hello).run(), &long);
    std::fs::remove_file(&path).expect("our file");
    std::fs::create_dir(&path).expect("our directory");
    said(&etc.run(&hello).run(), &[]);
    std::fs::remove_dir(&path).expect("our directory");
    assert!(Command::new("mkfifo").arg(&path).status().expect("mkfifo starts").success());
    said(&etc.run(&hello).run(), &[]);
}

#[test]
fn file_is_not_read_in_a_sandbox() {
    let Some(etc) = Etc::new("-rm", "foo:1") else { return };
    let hello = program("hello.c");
    said(&etc.run(&hello).env("KMEM_CONF", "sandbox:1").run(), &[]);
    said(&etc.run(&hello).env("KMEM_CONF", "sandbox:0").run(), &[UNKNOWN_FILE]);
    let path = with_conf("sandbox:1", "conf_sandbox");
    said(&etc.run(&path).run(), &[]);
    said(&etc.run(&path).env("KMEM_CONF", "sandbox:0").run(), &[UNKNOWN_FILE]);
}

/// Needs root to make the program privileged, and `setpriv` to become another user.
#[test]
fn privileged_program_does_not_read_the_file() {
    if is_not_kmem() || is_not_root("make a program privileged") || is_missing("/usr/bin/setpriv") {
        return;
    }
    let Some(etc) = Etc::new("-m", "foo:1") else { return };
    let linked = Linked::new("hello_owned_file");
    if !can_gain_privileges(&linked) {
        return;
    }
    let user = ["/usr/bin/setpriv", "--reuid=65534", "--clear-groups"];
    let run = || Etc::command("-m", &etc, "exec").args(&user).arg(linked.program()).run();
    said(&run(), &[UNKNOWN_FILE]);
    allow(&linked.program(), 0o4755);
    said(&run(), &[]);
}

/// The linker exports `kmem_conf` of a program that is linked to the library.
#[test]
fn linked_program_needs_no_option_of_the_linker() {
    if is_not_kmem() {
        return;
    }
    let kmem = library().expect("there is a library to test");
    let options = ["-DCONF=\"foo:1\""];
    let path = program_linked("kmem_conf.c", "conf_linked", &options, &[&kmem]);
    let outcome = Run::new(&path).without_preload().run();
    said(&outcome, &["kmem: kmem_conf: unknown option \"foo\""]);
}

#[test]
fn text_of_a_program_is_bounded_and_may_be_null() {
    if is_not_kmem() {
        return;
    }
    let run = |conf: &str, output: &str| {
        let conf = format!("-DCONF={conf}");
        let path = program_with_options("kmem_conf.c", output, &[&conf, "-rdynamic"]);
        Run::new(&path).run()
    };
    said(&run("NULL", "conf_null"), &[]);
    said(&run("\"\"", "conf_empty"), &[]);
    let long = format!("\"foo:1,{}\"", ",".repeat(4096));
    said(&run(&long, "conf_long"), &["kmem: kmem_conf: longer than 4096 bytes; ignored"]);
}

/// At the first allocation, the pointer in the program's data is an offset and no address.
#[test]
fn text_of_a_program_that_is_not_relocated_is_left_out() {
    if is_not_kmem() {
        return;
    }
    let kmem = library().expect("there is a library to test");
    let needed = shared_library("early_resolver_library.c");
    let options = ["-DCONF=\"foo:1\"", "-DNEEDS_EARLY_RESOLVER", "-pie", "-fPIE"];
    let libraries = [&*needed, &*kmem];
    let path = program_linked("kmem_conf.c", "conf_early", &options, &libraries);
    said(&Run::new(&path).without_preload().run(), &[]);
}
