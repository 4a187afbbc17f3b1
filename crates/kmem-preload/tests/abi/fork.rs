//! fork, vfork and spawn from programs whose other threads allocate.

use crate::harness::{
    CONFIGURATIONS, LIGHT_CONFIGURATIONS, Run, is_not_kmem, must_work, must_work_in, program,
    thorough,
};

#[test]
fn children_of_a_busy_program_can_allocate() {
    let path = program("fork_storm.c");
    let (forks, seconds) = if thorough() { ("5000", "60") } else { ("2000", "4") };
    let run = || Run::new(&path).args(&[forks, "2", "8", seconds]);
    must_work_in(&CONFIGURATIONS[..3], run);
}

#[test]
fn child_has_access_to_pages_that_its_parent_was_making_inaccessible() {
    let path = program("fork_no_bytes.c");
    let forks = if thorough() { "5000" } else { "40" };
    must_work_in(&CONFIGURATIONS[..3], || Run::new(&path).args(&[forks, "3"]));
}

#[test]
fn child_uses_what_it_inherited() {
    for largest in ["100", "1000", "20000"] {
        must_work("fork_inherited.c", &[largest, "40"]);
    }
}

#[test]
fn child_uses_large_blocks_it_inherited() {
    for largest in ["60000", "400000"] {
        must_work("fork_inherited.c", &[largest, "5"]);
    }
}

#[test]
fn many_children_of_a_less_busy_program_can_allocate() {
    let path = program("fork_storm.c");
    let forks = if thorough() { "20000" } else { "1500" };
    Run::new(&path).args(&[forks, "2", "1", "60"]).run().assert_quiet_success();
}

#[test]
fn fork_does_not_deadlock_with_stream_locks() {
    let path = program("fork_and_stdio.c");
    let seconds = if thorough() { "20" } else { "1.5" };
    must_work_in(&CONFIGURATIONS[..3], || Run::new(&path).arg(seconds));
}

#[test]
fn fork_in_a_signal_handler() {
    // Other allocators promise nothing here.
    if is_not_kmem() {
        return;
    }
    must_work("fork_in_handler.c", &[if thorough() { "3000" } else { "200" }]);
}

#[test]
fn fork_handlers_allocate() {
    must_work("fork_handlers.c", &[if thorough() { "3000" } else { "200" }]);
}

#[test]
fn children_that_share_memory_allocate_before_they_exec() {
    let path = program("vfork_and_spawn.c");
    let children = if thorough() { "1000" } else { "60" };
    must_work_in(LIGHT_CONFIGURATIONS, || Run::new(&path).arg(children));
}
