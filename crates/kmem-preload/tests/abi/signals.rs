//! Signal handlers that allocate while the interrupted code does, too.

use std::process::Command;

use kmem_snapshot::{By, Query, Target};
use kmem_testing::Coprocess;

use crate::harness::{
    CONFIGURATIONS, Run, is_not_kmem, library, must_work_in, program, program_with_libraries,
    thorough,
};

#[track_caller]
fn storm(case: &str, largest: &str) {
    // Other allocators promise nothing here.
    if is_not_kmem() {
        return;
    }
    let path = program("signal_storm.c");
    let seconds = if thorough() { "20" } else { "0.8" };
    let run = || Run::new(&path).args(&[case, seconds, largest]);
    must_work_in(&CONFIGURATIONS[..3], run);
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

/// The program checks the bytes of the groups, the test those of the tags.
#[test]
fn handler_works_for_the_scopes_that_it_interrupts_unless_it_makes_its_own() {
    if is_not_kmem() {
        return;
    }
    let library = library().expect("there is a library to test");
    let path = program_with_libraries("signal_scopes.c", "signal_scopes", &[&library]);
    let mut command = Command::new(path);
    let mut child = Coprocess::start(command.env_remove("KMEM_CONF").env("EXPECT_KMEM", "1"));
    child.wait_for("ready");
    let query = Query { by: By::GroupAndSite, ..Query::default() };
    let reading = Target::Process(child.pid()).read(&query).expect("its books");
    let rows = |name: &str| {
        let rows = reading.sites.iter().filter(|site| site.origin.function() == name);
        rows.map(|site| (site.group.as_deref(), site.bytes, site.calls)).collect::<Vec<_>>()
    };
    // 1000 bytes have the size class of 1024.
    assert_eq!(rows("of the scope"), [(Some("/interrupted"), 150 * 1024, 150)]);
    assert_eq!(rows("of the handler"), [(Some("/"), 50 * 1024, 50)]);
    assert!(child.wait().success());
}
