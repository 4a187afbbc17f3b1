//! Random work by several threads, every block carrying a pattern, in every configuration.

use crate::harness::{CONFIGURATIONS, Run, is_not_kmem, must_work_in, program, thorough};

#[track_caller]
fn stress(threads: &str, extra: &[&str]) {
    let path = program("stress.c");
    let seconds = if thorough() { "60" } else { "1.5" };
    let run = || Run::new(&path).args(&[threads, seconds, "1"]).args(extra);
    must_work_in(CONFIGURATIONS, run);
}

#[test]
fn threads_exchange_blocks() {
    stress("4", &[]);
}

#[test]
fn threads_change_processors_all_the_time() {
    stress("4", &["migrate"]);
}

#[test]
fn threads_are_interrupted_all_the_time() {
    stress("12", &["interrupt", "migrate"]);
}

#[test]
fn threads_are_short_lived() {
    stress("4", &["churn"]);
}

#[test]
fn recording_of_the_peak_changes_nothing() {
    if is_not_kmem() {
        return;
    }
    for value in ["peak:0", "peak:1"] {
        Run::new(program("stress.c"))
            .args(&["3", "0.5", "2"])
            .env("KMEM_CONF", value)
            .run()
            .assert_quiet_success();
    }
}
