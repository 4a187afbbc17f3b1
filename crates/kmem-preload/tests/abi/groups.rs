//! Groups as C and C++ programs use them: `kmem/group.h`.

use kmem_testing::{not_run, this_test};

use crate::harness::{
    CHECKED_CONFIGURATIONS, Run, SIGSEGV, in_configurations, is_not_kmem, library, must_succeed,
    must_work_in, no_cxx, program, program_with_libraries, program_with_options, released_library,
    thorough,
};

/// Groups without books.
const NO_BOOKS: &str = "mem_profiling:never,groups:always";

#[test]
fn each_function_does_what_it_says_or_says_why_not_and_leaves_errno_alone() {
    must_succeed(&program("group_rules.c"), &[]);
}

#[test]
fn scopes_end_once_by_their_own_token_or_with_their_thread() {
    must_succeed(&program("group_scopes.c"), &[]);
}

#[test]
fn a_thread_that_is_cancelled_while_it_makes_groups_keeps_no_lock() {
    // The library that cargo builds for tests does not let a cancellation pass.
    let Some(library) = released_library() else {
        not_run(&this_test(), "there is no release build of the library");
        return;
    };
    let run = Run::new(program("group_scopes.c")).arg("cancelled").without_preload();
    run.env("LD_PRELOAD", &library).run().assert_quiet_success();
}

#[test]
fn without_books_there_are_no_groups() {
    let run = Run::new(program("group_rules.c")).arg("without books");
    run.env("KMEM_CONF", "mem_profiling:never").run().assert_quiet_success();
}

#[test]
fn groups_without_books_do_what_groups_with_books_do() {
    // A refusal names no call without books, so the program of refusals is not among these.
    let programs = ["group_rules.c", "group_scopes.c", "group_shrinkers.c"];
    let runs = programs.map(|source| Run::new(program(source)));
    let storm = Run::new(program("group_storm.c")).arg("10000");
    for run in runs.into_iter().chain([storm]) {
        run.env("KMEM_CONF", NO_BOOKS).run().assert_success();
    }
}

#[test]
fn every_form_of_allocation_is_charged_to_the_byte_or_refused_without_a_trace() {
    if no_cxx() {
        return;
    }
    let Some(library) = library() else {
        not_run(&this_test(), "KMEM_TEST_LIBRARY names no library to link with");
        return;
    };
    let path = program_with_libraries("group_forms.cc", "group_forms", &[&library]);
    must_succeed(&path, &[]);
    Run::new(&path).env("KMEM_CONF", NO_BOOKS).run().assert_success();
}

#[test]
fn a_group_pays_for_the_stacks_of_threads_and_an_overflow_meets_the_guard_of_the_next() {
    let Some(library) = library() else {
        not_run(&this_test(), "KMEM_TEST_LIBRARY names no library to link with");
        return;
    };
    let path = program_with_libraries("thread_stacks.c", "thread_stacks", &[&library]);
    let run = || Run::new(&path).without_preload();
    must_work_in(CHECKED_CONFIGURATIONS, run);
    let overflow = || run().arg("overflow");
    in_configurations(CHECKED_CONFIGURATIONS, overflow, |outcome| {
        assert_eq!(outcome.signal(), Some(SIGSEGV), "{}", outcome.stderr);
        assert_eq!(outcome.stdout, "guard\n", "{}", outcome.stderr);
    });
}

#[test]
fn shrinkers_may_allocate_delete_their_group_and_wait() {
    must_succeed(&program("group_shrinkers.c"), &[]);
}

#[test]
fn a_function_is_told_of_each_refusal_and_may_allocate_but_not_wait_for_itself() {
    must_succeed(&program("refusals.c"), &[]);
}

#[test]
fn a_refusal_that_is_told_is_not_reported() {
    Run::new(program("refusals.c")).arg("told").run().assert_quiet_success();
    let outcome = Run::new(program("refusals.c")).arg("reported").run();
    outcome.assert_success();
    let line = "kmem: the group /parent is at its max: no 2099200 bytes for refusals+0x";
    assert!(is_not_kmem() || outcome.stderr.starts_with(line), "{}", outcome.stderr);
}

#[test]
fn the_example_of_refusals_prints_what_the_program_is_told() {
    let source = include_str!("../../../../examples/refused.c");
    assert!(include_str!("../../../../docs/groups.md").contains(source), "docs/groups.md has it");
    let example = program_with_options("../../../../examples/refused.c", "refused", &[]);
    let outcome = Run::new(example).run();
    outcome.assert_quiet_success();
    let (asked, rest) = outcome.stdout.split_once(" for refused+0x").unwrap_or_default();
    let right = asked == "tenant: no 2097152 bytes" && rest.ends_with(" of 1048576 bytes\n");
    assert!(is_not_kmem() || right, "{}", outcome.stdout);
}

#[test]
fn a_lambda_is_told_of_a_refusal_before_bad_alloc_is_thrown() {
    if !no_cxx() {
        Run::new(program("refusal_forms.cc")).run().assert_quiet_success();
    }
}

#[test]
fn sums_are_exact_after_threads_moved_groups_were_deleted_and_limits_changed() {
    must_succeed(&program("group_storm.c"), &[if thorough() { "300000" } else { "10000" }]);
}

#[test]
fn a_memory_resource_charges_its_group_to_the_byte_or_throws() {
    if !no_cxx() {
        must_succeed(&program("group_resource.cc"), &[]);
    }
}

#[test]
fn without_the_library_every_function_says_so() {
    let sources = ["group_absent.c", "group_absent.cc"];
    for source in &sources[..if no_cxx() { 1 } else { 2 }] {
        Run::new(program(source)).without_preload().run().assert_success();
    }
    if !no_cxx() {
        let resource = Run::new(program("group_resource.cc")).arg("absent");
        resource.without_preload().run().assert_success();
    }
}
