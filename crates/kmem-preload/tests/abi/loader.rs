//! The life of a process before main and after it, and libraries that come and go.

use std::path::Path;

use kmem_testing::{Compiler, compile_once, is_missing};

use crate::harness::{
    CONFIGURATIONS, Run, in_configurations, is_not_kmem, library, must_work, must_work_in, no_cxx,
    program, program_with_libraries, shared_library,
};

#[test]
fn constructors_allocate() {
    let needed = shared_library("early_library.c");
    let path = program_with_libraries("early.c", "early", &[&needed]);
    must_work_in(CONFIGURATIONS, || Run::new(&path));
}

#[test]
fn resolvers_of_indirect_functions_allocate() {
    must_work("early_resolver.c", &[]);
}

#[test]
fn destructors_of_threads_and_of_the_process_allocate() {
    if no_cxx() {
        return;
    }
    let path = program("thread_ends.cc");
    in_configurations(
        CONFIGURATIONS,
        || Run::new(&path),
        |outcome| {
            outcome.assert_quiet_success();
            assert_eq!(outcome.stdout, "torn down\n", "{}", outcome.story());
        },
    );
}

#[track_caller]
fn plugin(flag: &str, case: &str) {
    let (host, plugin) = (program("load_plugin.c"), shared_library("plugin.c"));
    must_work_in(CONFIGURATIONS, || Run::new(&host).arg(&plugin).args(&[flag, case]));
}

#[test]
fn loaded_library_trades_blocks() {
    plugin("plain", "made_inside_freed_outside");
    plugin("plain", "made_outside_freed_inside");
    plugin("plain", "resized_across");
    plugin("plain", "made_by_libc");
}

#[test]
fn deeply_bound_library_makes_what_the_program_frees() {
    plugin("deepbind", "made_inside_freed_outside");
}

#[test]
fn deeply_bound_library_frees_what_the_program_makes() {
    plugin("deepbind", "made_outside_freed_inside");
}

#[test]
fn deeply_bound_library_and_program_resize_each_others_blocks() {
    plugin("deepbind", "resized_across");
    plugin("deepbind", "made_by_libc");
}

#[test]
fn library_is_loaded_and_closed_again_and_again() {
    plugin("plain", "loaded_again_and_again");
    plugin("deepbind", "loaded_again_and_again");
}

#[test]
fn allocator_itself_is_loaded_at_run_time() {
    if is_not_kmem() {
        return;
    }
    let (path, library) =
        (program("load_allocator.c"), library().expect("there is a library to test"));
    must_work_in(CONFIGURATIONS, || Run::new(&path).without_preload().arg(&library));
}

#[test]
fn program_is_linked_with_the_allocator() {
    if is_not_kmem() || no_cxx() {
        return;
    }
    let library = library().expect("there is a library to test");
    let linked = program_with_libraries("containers.cc", "containers_linked", &[&library]);
    Run::new(&linked).without_preload().run().assert_quiet_success();
    let checks = program_with_libraries("double_free.c", "double_free_linked", &[&library]);
    Run::new(&checks)
        .without_preload()
        .args(&["immediate", "64"])
        .run()
        .assert_refused(&["double free"], &["64-byte"]);
}

#[test]
fn linked_and_preloaded_copies_get_along() {
    if is_not_kmem() || no_cxx() {
        return;
    }
    let library = library().expect("there is a library to test");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let copy = directory.path().join("libcopy.so");
    std::fs::copy(&library, &copy).expect("the library can be copied");
    let linked = program_with_libraries("containers.cc", "containers_linked", &[&library]);
    for preloaded in [library.as_path(), copy.as_path()] {
        Run::new(&linked)
            .without_preload()
            .env("LD_PRELOAD", preloaded)
            .run()
            .assert_quiet_success();
    }
}

#[test]
fn common_programs_start_and_end() {
    for (command, arguments) in [
        ("/bin/ls", &["-l", "/"][..]),
        ("/bin/true", &[]),
        ("/bin/sh", &["-c", "x=$(ls / | wc -l); test $x -gt 3"]),
        ("/usr/bin/env", &[]),
        ("/usr/bin/perl", &["-e", "my @a = map { 'x' x $_ } 1..2000; print scalar(@a)"]),
        (
            "/usr/bin/python3",
            &["-c", "import json, threading; print(json.dumps({'a': [1] * 1000}))"],
        ),
    ] {
        if !is_missing(command) {
            must_work_in(CONFIGURATIONS, || Run::new(command).args(arguments));
        }
    }
}

/// The loader of musl refuses the library, which needs glibc. The program does not start, so it
/// does not run with half of an allocator either.
#[test]
fn a_program_for_musl_does_not_start_with_the_library_and_says_why() {
    if is_missing("musl-gcc") || is_not_kmem() {
        return;
    }
    let path = compile_once("hello-musl", |path| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hello.c");
        Compiler::new("musl-gcc").arg(source).compile(path);
    });
    let alone = Run::new(&path).without_preload().run();
    alone.assert_quiet_success();
    assert_eq!(alone.stdout, "hello\n");
    let outcome = Run::new(&path).run();
    assert_eq!((outcome.code(), &*outcome.stdout), (Some(127), ""), "{}", outcome.story());
    let why = "Error loading shared library ld-linux-x86-64.so.2: No such file or directory";
    assert!(outcome.stderr.contains(why), "{}", outcome.story());
    assert!(outcome.stderr.contains("libkmem.so"), "{}", outcome.story());
}
