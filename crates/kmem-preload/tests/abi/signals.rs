//! Signal handlers that allocate while the interrupted code does, too.

use crate::harness::{CONFIGURATIONS, Run, in_configurations, is_not_kmem, program, thorough};

#[track_caller]
fn storm(case: &str, largest: &str) {
    // Other allocators promise nothing here.
    if is_not_kmem() {
        return;
    }
    let path = program("signal_storm.c");
    let seconds = if thorough() { "20" } else { "0.8" };
    let run = || Run::new(&path).args(&[case, seconds, largest]);
    in_configurations(&CONFIGURATIONS[..3], run, |outcome| {
        outcome.assert_quiet_success();
    });
}

#[test]
fn handler_of_a_fast_timer_uses_small_blocks() {
    storm("timer", "200");
}

#[test]
fn handler_of_a_fast_timer_uses_blocks_of_all_sizes() {
    storm("timer", "5000");
    storm("timer", "200000");
}

#[test]
fn handlers_in_several_threads_use_small_blocks() {
    storm("threads", "200");
}

#[test]
fn handlers_in_several_threads_use_blocks_of_all_sizes() {
    storm("threads", "5000");
    storm("threads", "200000");
}
