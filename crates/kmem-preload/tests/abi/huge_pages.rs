//! Transparent huge pages: which parts of the heap get them.

use kmem_testing::{not_run, this_test};

use crate::harness::{Run, program};

/// Returns whether the system backs memory on advice, so that kmem decides.
fn has_advice() -> bool {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let on_advice = std::fs::read_to_string(path).is_ok_and(|text| text.contains("[madvise]"));
    if !on_advice {
        not_run(&this_test(), "the system does not back memory with huge pages on advice");
    }
    on_advice
}

fn check(case: &str, thp: &str, expected: &str) {
    if has_advice() {
        let run = Run::new(program("huge_pages.c")).args(&[case, expected]);
        run.env("KMEM_CONF", format!("thp:{thp}")).run().assert_quiet_success();
    }
}

#[test]
fn a_dense_heap_is_advised() {
    check("dense", "auto", "advised");
}

#[test]
fn a_small_program_is_not_advised() {
    check("small", "auto", "not");
}

#[test]
fn the_option_decides() {
    check("dense", "never", "not");
    check("dense", "always", "advised");
}

#[test]
fn checks_that_use_free_pages_leave_the_heap_without_advice() {
    check("dense", "auto,page_poison:1", "not");
    check("dense", "auto,debug_pagealloc:1", "not");
}

#[test]
fn a_heap_that_became_sparse_gives_memory_back_and_is_not_advised_any_more() {
    check("sparse", "auto", "advised");
}

#[test]
fn a_long_block_takes_memory_only_where_it_is_touched() {
    check("long", "auto", "advised");
}
