//! The environment variable `KMEM_CONF`: whatever it holds, the program runs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_testing::{copy_program, is_missing, is_not_root, not_run, this_test};

use crate::harness::{Outcome, Run, is_not_kmem, library, program, program_with_libraries};

#[track_caller]
fn hello(value: impl AsRef<OsStr>) -> Outcome {
    let outcome = Run::new(program("hello.c")).env("KMEM_CONF", value).run();
    outcome.assert_success();
    assert_eq!(outcome.stdout, "hello\n", "{}", outcome.story());
    outcome
}

#[track_caller]
fn warned_once(value: &str, expected: &str) {
    if is_not_kmem() {
        return;
    }
    let outcome = hello(value);
    let messages = outcome.messages();
    assert!(
        messages.len() == 1 && messages[0].contains(expected),
        "wanted once: {expected}\n{}",
        outcome.story()
    );
}

#[test]
fn empty_settings_mean_the_defaults() {
    for value in ["", " ", ",", ",,,", ":::", " , "] {
        let outcome = hello(value);
        assert!(outcome.messages().len() <= 1, "{}", outcome.story());
    }
    for value in ["", " ", ","] {
        hello(value).assert_quiet_success();
    }
}

#[test]
fn known_options_are_taken_silently() {
    for value in [
        "rseq:off",
        "rseq:on",
        "mem_profiling:0",
        "mem_profiling:1",
        "mem_profiling:never",
        "peak:0",
        "peak:1",
        "decay_ms:0",
        "decay_ms:1000",
        "decay_ms:100000",
        "rseq:off,mem_profiling:1,decay_ms:10",
        "strict:1,rseq:off",
        "group-by:thread-name",
        "group-by:nothing",
        "redzone:1,check_caches:on,shuffle:1",
        "quarantine_kb:0",
        "quarantine_kb:1048576",
    ] {
        hello(value).assert_quiet_success();
    }
}

#[test]
fn unknown_option_is_named_once() {
    warned_once("foo:1", "kmem: KMEM_CONF: unknown option \"foo\"");
    warned_once("rseqq:off", "kmem: KMEM_CONF: unknown option \"rseqq\"; did you mean \"rseq\"?");
    warned_once("foo:1,rseq:off", "kmem: KMEM_CONF: unknown option \"foo\"");
    warned_once("foo", "kmem: KMEM_CONF: ");
}

#[test]
fn unknown_option_is_refused_when_strict() {
    if is_not_kmem() {
        return;
    }
    let outcome = Run::new(program("hello.c")).env("KMEM_CONF", "strict:1,foo:1").run();
    assert!(!outcome.succeeded() && !outcome.stdout.contains("hello"), "{}", outcome.story());
    assert!(outcome.messages().iter().any(|line| line.contains("\"foo\"")), "{}", outcome.story());
}

#[test]
fn bad_value_is_reported_and_the_default_kept() {
    for value in [
        "rseq:",
        "rseq:maybe",
        "mem_profiling:2",
        "mem_profiling:-1",
        "peak:x",
        "peak:",
        "group-by:",
        "group-by:name",
        "decay_ms:",
        "decay_ms:-1",
        "decay_ms:0x",
        "decay_ms:1e9",
        "decay_ms:18446744073709551616",
        "decay_ms:99999999999999999999999999",
        "decay_ms:9999999G",
        "decay_ms:10 apples",
        "decay_ms:NaN",
        "redzone:2",
        "check_caches:",
        "check_interfaces:2",
        "quarantine_kb:",
        "quarantine_kb:1M",
        "quarantine_kb:1048577",
    ] {
        warned_once(value, "kmem: KMEM_CONF: bad value");
    }
}

#[test]
fn last_of_two_settings_wins() {
    hello("decay_ms:5,decay_ms:7").assert_quiet_success();
    hello("rseq:on,rseq:off").assert_quiet_success();
}

#[test]
fn hostile_text_is_harmless() {
    let noise: Vec<u8> = (1..=255).collect();
    hello(OsStr::from_bytes(&noise));
    let outcome = hello("%n%s%n%s:%n%d%x");
    assert!(!outcome.stderr.contains('\0'), "{}", outcome.story());
    // The kernel's limit for one string is 128 KiB.
    for text in
        ["a".repeat(120_000), "a:b,".repeat(30_000), ":".repeat(120_000), ",".repeat(120_000)]
    {
        let outcome = hello(&text);
        assert!(outcome.stderr.len() < 1_000_000, "{} bytes of messages", outcome.stderr.len());
        assert!(outcome.elapsed.as_secs() < 30, "{}", outcome.story());
    }
}

#[test]
fn unprintable_bytes_do_not_reach_the_terminal() {
    if is_not_kmem() {
        return;
    }
    let outcome = hello(OsStr::from_bytes(b"\x1b[31mred\x07:1"));
    assert!(
        !outcome.stderr.contains('\x1b') && !outcome.stderr.contains('\x07'),
        "{}",
        outcome.story()
    );
}

#[test]
fn warnings_are_dropped_when_stderr_is_closed_or_full() {
    let path = program("hello.c");
    for prelude in ["exec 2>&-", "exec 2>/dev/full"] {
        Run::after_shell(prelude, &path)
            .env("KMEM_CONF", "foo:1,decay_ms:x")
            .run()
            .assert_success();
    }
}

#[test]
fn report_goes_to_the_named_file() {
    if is_not_kmem() {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    for target in
        [directory.path().join("report"), directory.path().join("no such directory/report")]
    {
        let mut value = std::ffi::OsString::from("report:");
        value.push(&target);
        hello(value);
    }
}

#[test]
fn environment_may_vanish_in_a_constructor() {
    Run::new(program("no_environment.c")).env("KMEM_CONF", "rseq:off").run().assert_quiet_success();
}

/// A program that is linked to the library, in a directory that every user may read.
pub(crate) struct Linked {
    directory: tempfile::TempDir,
}

impl Linked {
    /// Links it. The program holds the path of the directory, so each test has an `output`.
    pub(crate) fn new(output: &str) -> Self {
        let directory = tempfile::tempdir_in("/tmp").expect("a temporary directory");
        allow(directory.path(), 0o755);
        let copy = directory.path().join("libkmem.so");
        std::fs::copy(library().expect("there is a library to test"), &copy)
            .expect("the library can be copied");
        allow(&copy, 0o755);
        let built = program_with_libraries("hello.c", output, &[&copy]);
        let linked = Self { directory };
        linked.add(&built, "hello");
        linked
    }

    /// Copies a program into the directory.
    fn add(&self, program: &Path, name: &str) -> PathBuf {
        let copy = self.directory.path().join(name);
        copy_program(program, &copy);
        allow(&copy, 0o755);
        copy
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.directory.path().join("hello")
    }

    /// Runs the program as a user without rights, with an option that does not exist.
    fn run(&self) -> Outcome {
        as_user(&self.program()).env("KMEM_CONF", "foo:1").run()
    }
}

pub(crate) fn allow(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("our file");
}

/// Runs a program as a user without rights.
fn as_user(program: &Path) -> Run {
    let user = ["--reuid=65534", "--clear-groups"];
    Run::new("/usr/bin/setpriv").without_preload().args(&user).arg(program)
}

/// Returns whether a set-user-ID program gets the rights of its owner. Records it if not.
pub(crate) fn can_gain_privileges(linked: &Linked) -> bool {
    let id = linked.add(Path::new("/usr/bin/id"), "id");
    allow(&id, 0o4755);
    let gains = as_user(&id).arg("-u").run().stdout == "0\n";
    if !gains {
        cannot_gain_privileges();
    }
    gains
}

fn cannot_gain_privileges() {
    not_run(&this_test(), "programs cannot gain privileges here");
}

/// Needs root to make the program privileged, and `setpriv` to become another user. The file system
/// and the process must allow programs to gain privileges.
#[test]
fn privileged_program_ignores_the_environment() {
    if is_not_kmem() || is_not_root("make a program privileged") || is_missing("/usr/bin/setpriv") {
        return;
    }
    let linked = Linked::new("hello_owned");
    if !can_gain_privileges(&linked) {
        return;
    }
    let ordinary = linked.run();
    assert_eq!(ordinary.assert_success().messages().len(), 1, "{}", ordinary.story());
    allow(&linked.program(), 0o4755);
    linked.run().assert_quiet_success();
}

/// The user and group numbers of such a program are those of its user.
#[test]
fn program_with_file_capabilities_ignores_the_environment() {
    let tools = ["/usr/bin/setpriv", "setcap"];
    if is_not_kmem() || is_not_root("give a file capabilities") || tools.into_iter().any(is_missing)
    {
        return;
    }
    let linked = Linked::new("hello_capable");
    let give = |path: &Path| {
        let output = Command::new("setcap").arg("cap_net_raw=ep").arg(path).output();
        output.expect("setcap starts").status.success()
    };
    let cat = linked.add(Path::new("/bin/cat"), "cat");
    let gains = give(&cat) && {
        let status = as_user(&cat).arg("/proc/self/status").run().stdout;
        status.lines().any(|line| line == "CapEff:\t0000000000002000")
    };
    if !gains {
        return cannot_gain_privileges();
    }
    let ordinary = linked.run();
    assert_eq!(ordinary.assert_success().messages().len(), 1, "{}", ordinary.story());
    assert!(give(&linked.program()));
    linked.run().assert_quiet_success();
}
