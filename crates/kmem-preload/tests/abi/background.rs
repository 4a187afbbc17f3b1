//! The background thread (`KMEM_CONF=background_thread:1`).

use crate::harness::{Run, program};

fn check(case: &str, conf: &str) {
    let run = Run::new(program("idle.c")).args(&[case]).env("KMEM_CONF", conf);
    run.run().assert_quiet_success();
}

const ON: &str = "background_thread:1";

#[test]
fn a_program_that_makes_no_calls_falls_from_its_peak_each_time() {
    check("again", ON);
    check("again", "background_thread:1,rseq:off");
}

#[test]
fn a_forked_child_has_a_thread_of_its_own() {
    check("in_child", ON);
}

#[test]
fn a_child_of_vfork_starts_no_thread() {
    check("in_vfork_child", ON);
}

#[test]
fn a_thread_that_cannot_be_started_is_said_and_changes_nothing() {
    let run = Run::new(program("idle.c")).args(&["refused"]).env("KMEM_CONF", ON).run();
    run.assert_success();
    let said = "kmem: no background thread: the system refuses to start it\n";
    assert_eq!(run.stderr, said, "{run:?}");
}

#[test]
fn a_program_whose_main_thread_exits_ends_with_its_last_thread() {
    check("main_exits", ON);
}

#[test]
fn a_free_under_a_lock_of_the_c_library_starts_no_thread() {
    check("many_stacks", ON);
}

#[test]
fn without_the_option_there_is_no_thread() {
    check("without_thread", "");
}
