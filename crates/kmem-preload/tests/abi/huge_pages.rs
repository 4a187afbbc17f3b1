//! Transparent huge pages: which parts of the heap get them.

use kmem_testing::{not_run, this_test};

use crate::harness::{Outcome, Run, library, program_with_libraries};

/// The mode of huge pages that the system is in, such as `madvise`; empty if it has none.
fn mode() -> String {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let modes = std::fs::read_to_string(path).unwrap_or_default();
    let chosen = modes.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or_else(String::new, |(mode, _)| mode.to_owned())
}

/// Returns whether the system backs memory on advice, so that kmem decides.
fn has_advice() -> bool {
    let on_advice = mode() == "madvise";
    if !on_advice {
        not_run(&this_test(), "the system does not back memory with huge pages on advice");
    }
    on_advice
}

fn run(case: &str, thp: &str, expected: &str) -> Outcome {
    let library = library().expect("there is a library to test");
    let program = program_with_libraries("huge_pages.c", "huge_pages", &[&library]);
    let outcome =
        Run::new(program).args(&[case, expected]).env("KMEM_CONF", format!("thp:{thp}")).run();
    outcome.assert_quiet_success();
    outcome
}

fn check(case: &str, thp: &str, expected: &str) {
    if has_advice() {
        run(case, thp, expected);
    }
}

/// [`check`] of memory that is backed or not, on a system that has huge pages to give.
fn check_backed(case: &str, thp: &str) {
    if run(case, thp, "advised").stdout.contains("none") {
        not_run(&this_test(), "the system has no free huge page");
    }
}

/// Returns whether the system backs memory that asks for it, or all.
fn backs_memory() -> bool {
    let backs = ["madvise", "always"].contains(&&*mode());
    if !backs {
        not_run(&this_test(), "the system does not back memory with huge pages");
    }
    backs
}

#[test]
fn a_dense_heap_is_backed_by_huge_pages() {
    if backs_memory() {
        check_backed("backed", "auto");
        check_backed("backed", "always");
    }
}

#[test]
fn blocks_of_the_size_of_a_huge_page_are_backed_by_one() {
    if backs_memory() {
        check_backed("blocks", "auto");
        check_backed("blocks", "always");
    }
}

#[test]
fn long_buffers_with_holes_take_the_pages_that_are_touched_and_no_huge_ones() {
    if has_advice() {
        check_backed("buffers", "auto");
        check_backed("buffers", "never");
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
