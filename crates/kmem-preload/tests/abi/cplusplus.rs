//! operator new and operator delete, and the C++ run-time library on top of them.

use crate::harness::must_work;

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
    must_work("own_malloc.cc", &[]);
}

#[test]
fn mismatched_pairs_never_crash_by_default() {
    must_work("mismatched_pairs.cc", &[]);
}

#[test]
fn exceptions_threads_and_containers() {
    must_work("containers.cc", &[]);
}
