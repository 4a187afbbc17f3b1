//! Hash tables as C and C++ programs use them: `kmem/rhashtable.h`.

use crate::harness::{Run, is_not_kmem, must_succeed, no_cxx, program, program_with_libraries};

#[test]
fn tables_do_what_the_header_says_while_threads_change_read_and_walk_them() {
    if is_not_kmem() {
        return;
    }
    must_succeed(&program("rhashtable.c"), &[]);
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
