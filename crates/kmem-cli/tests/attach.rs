//! `kmem attach` on processes without the library.

mod program;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kmem_testing::{Coprocess, copy_program, is_not_root, not_run, this_test};
use program::{KMEM, Program, compile, directory, text};

fn attach(pid: u32) -> Output {
    Command::new(KMEM).args(["attach", "-p", &pid.to_string()]).output().unwrap()
}

fn said(pid: u32) -> String {
    let output = attach(pid);
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
    text(&output.stdout)
}

/// Starts `books` without the library, as a file of an odd name in an odd directory.
fn odd(dir: &Path, flags: &[&str]) -> (Coprocess, PathBuf) {
    let odd = dir.join("it's $(an) odd\tplace");
    fs::create_dir(&odd).unwrap();
    let path = odd.join("bo oks");
    copy_program(compile("books", flags, dir), &path);
    let mut command = Command::new(&path);
    command.args(["wait", "$HOME `x` 'y'", "\x1b[31m"]).current_dir(&odd);
    let mut process = Coprocess::start(&mut command);
    process.wait_for("ready");
    (process, odd)
}

#[test]
fn the_command_that_is_printed_starts_the_program_under_kmem() {
    let dir = directory();
    let (process, _) = odd(dir.path(), &[]);
    let page = said(process.pid());
    assert!(page.contains("runs without kmem") && !page.contains('\x1b'), "{page}");
    assert!(page.contains("  resident ") && page.contains(" = heap "), "{page}");
    let line = page.lines().find(|line| line.contains("kmem run -- ")).expect(&page);
    // `set -x` would show it; the program itself waits for a byte of its input.
    let mut shell = Command::new("bash");
    let path = format!("{}:/usr/bin:/bin", Path::new(KMEM).parent().unwrap().display());
    shell.args(["-c", line]).env("PATH", path).stdin(Stdio::null());
    let output = shell.output().unwrap();
    let report = text(&output.stderr);
    assert_eq!(
        (output.status.code(), text(&output.stdout).as_str()),
        (Some(7), "ready\n"),
        "{report}"
    );
    assert!(report.contains("leak"), "{report}");
}

#[test]
fn a_program_that_cannot_be_preloaded_is_told_with_the_reason() {
    let dir = directory();
    let (process, _) = odd(dir.path(), &["-static"]);
    let page = said(process.pid());
    assert!(page.contains("cannot be preloaded") && page.contains("statically linked"), "{page}");
    assert!(!page.contains("kmem run --") && !page.contains("/proc/"), "{page}");
}

#[test]
fn a_title_in_place_of_arguments_is_no_command() {
    if Command::new("perl").arg("-v").output().is_err() {
        not_run(&this_test(), "there is no perl");
        return;
    }
    let mut perl = Command::new("perl");
    let program = "$0 = 'web: worker; reboot'; $| = 1; print \"ready\\n\"; <STDIN>";
    let mut process = Coprocess::start(perl.args(["-e", program]));
    process.wait_for("ready");
    let page = said(process.pid());
    assert!(page.contains("command line is not known") && !page.contains("reboot"), "{page}");
}

#[test]
fn a_process_under_kmem_or_gone_or_of_another_user_is_told() {
    let mut program = Program::start("books", &[], &["wait"], "");
    let page = said(program.pid());
    assert!(page.contains("runs under kmem: `kmem top -p "), "{page}");
    program.end(b'q');
    assert_eq!(attach(program.pid()).status.code(), Some(3));
    if is_not_root("become another user") {
        return;
    }
    let (_copy, kmem) = program::for_another_user().unwrap();
    let mut other = Command::new("setpriv");
    other.args(["--reuid=65534", "--clear-groups", "--"]).arg(kmem);
    let output = other.args(["attach", "-p", &std::process::id().to_string()]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
}
