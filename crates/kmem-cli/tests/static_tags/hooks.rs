//! `kmem/hooks.h` in C programs that do not include it themselves.

use std::path::{Path, PathBuf};

use crate::harness::{Program, compile, include, is_missing, library, rows_of, run};

fn hooks() -> String {
    include().join("kmem/hooks.h").to_str().unwrap().to_owned()
}

/// Builds a program with hooks and warnings as errors.
#[track_caller]
fn hooked(dir: &Path, compiler: &str, file: &str, args: &[&str]) -> PathBuf {
    let program = dir.join("hooked");
    let hooks = hooks();
    compile(compiler, &[&["-include", &hooks], args].concat(), &[file], &program);
    program
}

#[test]
fn every_function_of_the_malloc_family_is_booked_at_its_line() {
    let dir = tempfile::tempdir().unwrap();
    for level in ["-O0", "-O2"] {
        let program = hooked(dir.path(), "cc", "hooked.c", &[level, "-fno-builtin"]);
        let said =
            Program::start(&program, &["ask"], "", &["hooked.c"]).agrees_with_the_books(true);
        assert_eq!(said, "");
    }
}

#[test]
fn a_scope_is_billed_rather_than_the_lines_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let program = hooked(dir.path(), "cc", "scoped.c", &[library().to_str().unwrap()]);
    let said = Program::start(&program, &[], "", &["scoped.c"]).agrees_with_the_books(true);
    assert_eq!(said, "");
}

#[test]
fn a_hooked_program_prints_the_same_without_the_library_and_keeps_the_rules_of_errno() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    compile("cc", &["-Wno-alloc-size-larger-than"], &["hooked.c"], &plain);
    let expected = run(&plain, &[], false);
    expected.assert_success();
    let text = expected.stdout;
    assert!(text.lines().filter(|line| line.ends_with(": 1 1")).count() == 5, "{text}");
    let program = hooked(dir.path(), "cc", "hooked.c", &["-Wno-alloc-size-larger-than"]);
    for preload in [false, true] {
        let output = run(&program, &[], preload);
        output.assert_success();
        assert_eq!(output.stdout, text, "preloaded: {preload}");
        assert_eq!(output.stderr, "");
    }
}

#[test]
fn hooks_compile_without_a_warning_in_every_dialect() {
    let dir = tempfile::tempdir().unwrap();
    for compiler in ["gcc", "clang"] {
        if is_missing(compiler) {
            continue;
        }
        for dialect in ["gnu89", "gnu99", "gnu11", "gnu17", "c99", "c11", "c17"] {
            let dialect = format!("-std={dialect}");
            for level in ["-O0", "-O2"] {
                for file in ["hooked.c", "strict.c"] {
                    let program =
                        hooked(dir.path(), compiler, file, &[&dialect, level, "-Wshadow"]);
                    let output = run(&program, &[], true);
                    assert!(output.succeeded(), "{compiler} {dialect} {level} {file}");
                }
            }
        }
        hooked(dir.path(), compiler, "strict.c", &["-std=c90", "-O2"]);
    }
}

#[test]
fn the_command_line_says_which_c_library_a_source_sees() {
    let dir = tempfile::tempdir().unwrap();
    let program = hooked(dir.path(), "cc", "posix.c", &["-D_POSIX_C_SOURCE=200809L"]);
    let output = run(&program, &[], true);
    assert_eq!(output.stdout, "No such file or directory\n");
}

#[test]
fn a_hooked_program_may_have_the_kernels_names_for_itself() {
    let dir = tempfile::tempdir().unwrap();
    let program = hooked(dir.path(), "cc", "own_names.c", &["-rdynamic"]);
    let output = run(&program, &[], true);
    assert_eq!(output.stdout, "1 2\n");
    output.assert_success();
}

#[test]
fn without_books_a_hooked_program_runs_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let program = hooked(dir.path(), "cc", "hooked.c", &[]);
    for conf in ["mem_profiling:0", "mem_profiling:never"] {
        let mut running = Program::start(&program, &["ask"], conf, &["hooked.c"]);
        let _ = running.next();
        if conf == "mem_profiling:0" {
            assert!(rows_of(&running.dump(), &["hooked.c"]).is_empty());
        }
        running.go_on();
        let _ = running.next();
        running.go_on();
        assert_eq!(running.end(), (true, String::new()));
    }
}
