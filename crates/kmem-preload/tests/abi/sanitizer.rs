//! Programs with LeakSanitizer, which knows the memory of its own `malloc` only.

use std::path::PathBuf;

use kmem_testing::{Compiler, directory, not_run, this_test};

use crate::harness::{
    CONFIGURATIONS, Run, in_configurations, is_not_kmem, program, program_with_options,
};

/// Beginning of the line that kmem prints.
const LINE: &str = "kmem: LeakSanitizer finds no leaks, because malloc is that of kmem; ";

/// A program that loses a block, built with a sanitizer. `None`: the compiler cannot.
fn leaky(output: &str, options: &[&str]) -> Option<PathBuf> {
    if is_not_kmem() {
        return None;
    }
    let directory = directory();
    let source = directory.path().join("empty.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("a file for the source");
    let compiler = Compiler::c().args(options).arg(&source);
    if !compiler.can_compile(directory.path().join("empty")) {
        not_run(&this_test(), &format!("the compiler has no {}", options.join(" ")));
        return None;
    }
    Some(program_with_options("leak.c", output, options))
}

#[test]
fn program_with_leak_sanitizer_is_told_once_that_it_finds_nothing() {
    let Some(path) = leaky("leak_sanitizer", &["-fsanitize=leak"]) else { return };
    in_configurations(
        CONFIGURATIONS,
        || Run::new(&path),
        |outcome| {
            outcome.assert_success();
            assert_eq!(outcome.stdout, "lost\n", "{}", outcome.story());
            let lines: Vec<_> = outcome.stderr.lines().collect();
            assert!(matches!(lines[..], [line] if line.starts_with(LINE)), "{}", outcome.story());
        },
    );
}

#[test]
fn program_with_address_sanitizer_is_told_too() {
    let Some(path) = leaky("address_sanitizer", &["-fsanitize=address"]) else { return };
    let outcome = Run::new(&path).env("ASAN_OPTIONS", "verify_asan_link_order=0").run();
    assert!(outcome.assert_success().messages()[0].starts_with(LINE), "{}", outcome.story());
    assert_eq!(outcome.messages().len(), 1, "{}", outcome.story());
}

/// A `malloc` in the program itself wins over that of a preloaded library.
#[test]
fn sanitizer_with_its_own_malloc_finds_leaks() {
    let options = ["-fsanitize=address", "-static-libasan"];
    let Some(path) = leaky("address_sanitizer_static", &options) else { return };
    let outcome = Run::new(&path).run();
    assert!(outcome.stderr.contains("LeakSanitizer: detected memory leaks"), "{}", outcome.story());
    assert!(outcome.messages().is_empty(), "{}", outcome.story());
}

#[test]
fn program_without_a_sanitizer_is_told_nothing() {
    Run::new(program("leak.c")).run().assert_quiet_success();
}
