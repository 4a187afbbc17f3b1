//! operator new and operator delete, and the C++ run-time library on top of them.

use kmem_testing::Run;

use crate::harness::{MIXED_CONFIGURATIONS, must_work, must_work_in, no_cxx, program};

#[test]
fn every_form_of_new_and_delete() {
    must_work("new_and_delete.cc", &[]);
}

#[test]
fn failing_new_calls_the_handler_until_it_gives_up() {
    must_work("new_failing.cc", &[]);
}

/// A program may define some forms. By the standard the other forms call them.
#[test]
fn forms_of_new_and_delete_go_through_the_forms_that_the_program_replaces() {
    must_work("own_operators.cc", &[]);
    must_work("own_array_operators.cc", &[]);
}

#[test]
fn memory_of_a_program_with_its_own_malloc_goes_back_to_it() {
    works_in_mixed_configurations("own_malloc.cc");
}

#[test]
fn mismatched_pairs_never_crash_by_default() {
    works_in_mixed_configurations("mismatched_pairs.cc");
}

/// Runs a program that frees memory of one interface by another.
#[track_caller]
fn works_in_mixed_configurations(source: &str) {
    if !no_cxx() {
        let path = program(source);
        must_work_in(MIXED_CONFIGURATIONS, || Run::new(&path));
    }
}

#[test]
fn exceptions_threads_and_containers() {
    must_work("containers.cc", &[]);
}
