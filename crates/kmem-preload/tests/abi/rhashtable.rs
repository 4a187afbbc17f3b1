//! Hash tables as C and C++ programs use them: `kmem/rhashtable.h`.

use crate::harness::{
    CHECKED_CONFIGURATIONS, Run, in_configurations, is_reference_run, no_cxx, program,
    program_with_libraries,
};

#[test]
fn tables_do_what_the_header_says_while_threads_change_read_and_walk_them() {
    if is_reference_run() {
        return;
    }
    let path = program("rhashtable.c");
    in_configurations(
        CHECKED_CONFIGURATIONS,
        || Run::new(&path),
        |outcome| {
            outcome.assert_success();
        },
    );
}

#[test]
fn without_the_library_every_function_says_so() {
    let mut programs = vec![program("rhashtable_absent.c")];
    if !no_cxx() {
        programs.push(program_with_libraries("rhashtable_absent.cc", "rhashtable_absent_cc", &[]));
    }
    for path in programs {
        Run::new(path).without_preload().run().assert_success();
    }
}
