//! Programs under valgrind's memcheck.

use std::path::Path;

use kmem_testing::is_missing;

use crate::harness::{
    CONFIGURATIONS, Environment, Run, in_configurations, is_not_kmem, library, program,
};

/// Options of valgrind: memcheck serves `malloc` and its family itself, or leaves them to kmem.
const SERVERS: [&[&str]; 2] = [&[], &["--soname-synonyms=somalloc=nouserintercepts"]];

/// Chains of callers, which have keys of another kind.
const DEEP: (&str, Environment) = ("depth", &[("KMEM_CONF", "depth:8")]);

fn no_memcheck() -> bool {
    is_not_kmem() || is_missing("valgrind")
}

/// A program under memcheck, which ends with code 9 after an error.
fn under_memcheck(options: &[&str], program: &Path) -> Run {
    let library = library().expect("a library to test");
    let run = Run::new("valgrind").without_preload().env("LD_PRELOAD", library);
    run.args(&["-q", "--error-exitcode=9"]).args(options).arg(program)
}

/// Only an optimised library reads fields ahead of a branch. The gate runs this with a release.
#[test]
fn memcheck_finds_no_error_in_the_library() {
    if no_memcheck() {
        return;
    }
    let path = program("hello.c");
    for options in SERVERS {
        for configurations in [CONFIGURATIONS, &[DEEP]] {
            in_configurations(
                configurations,
                || under_memcheck(options, &path),
                |outcome| {
                    outcome.assert_quiet_success();
                    assert_eq!(outcome.stdout, "hello\n", "{}", outcome.story());
                },
            );
        }
    }
}

#[test]
fn memcheck_finds_errors_of_the_program() {
    if no_memcheck() {
        return;
    }
    let path = program("double_free.c");
    let outcome = under_memcheck(SERVERS[0], &path).args(&["immediate", "64"]).run();
    assert!(outcome.stderr.contains("Invalid free()"), "{}", outcome.story());
    assert!(outcome.stderr.contains("inside a block of size 64 free'd"), "{}", outcome.story());
}
