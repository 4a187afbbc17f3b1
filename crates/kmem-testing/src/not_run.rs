//! The list of tests that could not run, and why.
//!
//! A test that lacks a tool, a right or a kernel feature records that here, and returns early. Each
//! entry is a line on standard error, which cargo hides for tests that pass. If `KMEM_NOT_RUN` is
//! the path of a file, the lines are also in that file. `scripts/not-run.sh` keeps the list for
//! scripts.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

/// Records that a test did not run, and why.
pub fn not_run(test: &str, reason: &str) {
    let line = format!("not run: {test}, because {reason}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("KMEM_NOT_RUN") {
        let file = OpenOptions::new().append(true).create(true).open(&path);
        // In one write, so that lines of tests that run concurrently do not mix.
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("KMEM_NOT_RUN={}: {error}", path.display()));
    }
}

/// Name of the calling test, with the name of its program. libtest gives its name to the thread of
/// a test. Where tests run one after another, the thread is `main`.
pub fn this_test() -> String {
    let program = std::env::current_exe().expect("the path of the test");
    let program = program.file_stem().unwrap_or_default().to_string_lossy();
    // Cargo appends a hash to the name.
    let program = program.rsplit_once('-').map_or(&*program, |(name, _)| name);
    let thread = std::thread::current();
    format!("{program}::{}", thread.name().unwrap_or("main"))
}

/// Returns whether `TOOL --version` cannot be started. If so, records that the calling test did not
/// run. The gate (`CI=true`) must have a C++ compiler and a browser: without one, the calling test
/// fails there.
pub fn is_missing(tool: &str) -> bool {
    let missing = Command::new(tool).arg("--version").output().is_err();
    if missing {
        let required =
            ["c++", "g++", "chromedriver"].contains(&tool) && std::env::var_os("CI").is_some();
        assert!(!required, "there is no {tool}");
        not_run(&this_test(), &format!("there is no {tool}"));
    }
    missing
}

/// Returns whether the test runs as another user than root. If so, records that the calling test
/// did not run. `purpose` says what only root can do, as in "become another user".
pub fn is_not_root(purpose: &str) -> bool {
    let process = std::fs::metadata("/proc/self").expect("/proc is mounted");
    let other = process.uid() != 0;
    if other {
        not_run(&this_test(), &format!("only root can {purpose}"));
    }
    other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "started by the other test"]
    fn child() {
        not_run("NAME", "REASON");
    }

    #[test]
    fn tests_and_scripts_append_the_same_line_to_the_list() {
        let directory = crate::directory();
        let list = directory.path().join("list");
        let mut test = Command::new(std::env::current_exe().expect("the path of the test"));
        test.args(["--exact", "not_run::tests::child", "--ignored"]);
        let mut script = Command::new("bash");
        script.args(["-c", ". \"$0\" && not_run NAME REASON"]);
        script.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/not-run.sh"));
        for command in [&mut test, &mut script] {
            let output = command.env("KMEM_NOT_RUN", &list).output().expect("it starts");
            assert!(output.status.success(), "{output:?}");
        }
        let lines = std::fs::read_to_string(&list).expect("the list");
        assert_eq!(lines, "not run: NAME, because REASON\n".repeat(2));
    }
}
