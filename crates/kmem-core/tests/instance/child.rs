//! Tests that run their own file: its test `child` is a program, in a process of its own.

use std::process::{Command, Output};

/// Variable of the environment that names the case of the child.
const CASE: &str = "KMEM_TEST_CASE";

/// Case that the test `child` has to run. `None`: this process is no child.
pub(crate) fn case() -> Option<String> {
    std::env::var(CASE).ok()
}

/// Runs the test `child` of the caller's file for a case, with this `KMEM_CONF`.
pub(crate) fn run_child(child: impl Fn(), conf: &str, case: &str) -> Output {
    let (_crate, test) =
        std::any::type_name_of_val(&child).split_once("::").expect("a function of a crate");
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", test, "--nocapture"])
        .env(CASE, case)
        .env("KMEM_CONF", conf)
        .output()
        .expect("it runs")
}

/// Runs the test `child` as [`run_child`] does, and it must succeed. Returns the lines that kmem
/// printed.
pub(crate) fn said_by_child(child: impl Fn(), conf: &str, case: &str) -> Vec<String> {
    let output = run_child(child, conf, case);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{conf}, {case}: {text}");
    lines(&output)
}

/// Lines that kmem printed.
pub(crate) fn lines(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    text.lines().filter(|line| line.starts_with("kmem: ")).map(str::to_owned).collect()
}
