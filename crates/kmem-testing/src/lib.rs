//! Harness of the tests of all crates. It finds the library, compiles test programs, runs them
//! under the library, and lists tests that cannot run on a machine. The tests in `tests/` are
//! guards over the sources of the workspace.
//!
//! | module | what it is for |
//! |---|---|
//! | [`library`] | where `libkmem.so` is: built by this cargo run, released, or named |
//! | [`compiler`] | programs and libraries compiled from C and C++ |
//! | [`program`] | a program run to its end with a deadline, and assertions on its outcome |
//! | [`coprocess`] | a child that answers on its standard output while it runs |
//! | [`misuse`] | the catalogue of memory misuse, and the endings of its runs |
//! | [`topology`] | machines with several NUMA nodes, simulated for programs |
//! | [`not_run`](mod@not_run) | the list of tests that could not run, and why |
//! | [`page`] | tables of the documentation, compared with the code; its programs |
//! | [`tree`] | the files of the workspace |
//!
//! | environment variable | meaning |
//! |---|---|
//! | `KMEM_TEST_LIBRARY` | the library to test |
//! | `KMEM_TEST_CC` | the C compiler for the machine that the tests run on |
//! | `KMEM_NOT_RUN` | the file that gets the list of tests that could not run |
//! | `KMEM_THOROUGH=1` | run the long versions of tests |
//! | `KMEM_BLESS=1` | write the text that the code gives into pages and golden files |

pub mod compiler;
pub mod coprocess;
pub mod library;
pub mod misuse;
pub mod not_run;
pub mod page;
pub mod program;
pub mod topology;
pub mod tree;

pub use compiler::{Compiler, compile_once, include};
pub use coprocess::Coprocess;
pub use not_run::{is_missing, is_not_root, not_run, this_test};
pub use program::{Environment, Outcome, Run, SIGABRT, SIGBUS, SIGSEGV, copy_program, thorough};

use tempfile::TempDir;

/// A directory below cargo's directory for tests, on a disk. It is removed when the value is
/// dropped.
pub fn directory() -> TempDir {
    tempfile::tempdir_in(target_tmpdir()).expect("a temporary directory")
}

/// The directory that cargo names `CARGO_TARGET_TMPDIR` while it compiles a test. Cargo compiles a
/// library without that variable, so the path of the test gives it: `TARGET/debug/deps/x`.
pub(crate) fn target_tmpdir() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let target = test.ancestors().nth(3).expect("the test is in the target directory");
    let directory = target.join("tmp");
    std::fs::create_dir_all(&directory).expect("a directory for the tests");
    directory
}
