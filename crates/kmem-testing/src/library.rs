//! Path of `libkmem.so`.
//!
//! `KMEM_TEST_LIBRARY` names the library to test. The default is the one that cargo built with the
//! tests, which contains more of Rust's standard library than a release does. With a library of
//! another name than `libkmem.so`, or the word `none`, programs run on another malloc. That checks
//! the programs themselves.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::{not_run, this_test};

/// File name of the library.
pub const LIBRARY: &str = "libkmem.so";

/// Value of `KMEM_TEST_LIBRARY`.
pub fn named() -> Option<OsString> {
    std::env::var_os("KMEM_TEST_LIBRARY")
}

/// Path of a library that this cargo run built: beside the test, or in the directory above. Cargo
/// copies libraries upwards only for packages that it was asked for. Where both files exist, the
/// one beside the test is therefore the newer one.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let beside = test.parent().expect("the test is in a directory");
    let above = beside.parent().expect("which is in the target directory");
    let found =
        [beside, above].map(|directory| directory.join(name)).into_iter().find(|p| p.exists());
    found.unwrap_or_else(|| panic!("{name} is neither in {} nor above", beside.display()))
}

/// The library to preload; `None` when the programs are to run on the C library's malloc.
pub fn under_test() -> Option<PathBuf> {
    match named() {
        Some(name) => (name != "none").then(|| PathBuf::from(name)),
        None => Some(built(LIBRARY)),
    }
}

/// Returns whether the programs run on another malloc than kmem. A test can then assert only what
/// all allocators share.
pub fn is_reference_run() -> bool {
    under_test().is_none_or(|path| path.file_name() != Some(OsStr::new(LIBRARY)))
}

/// Returns whether the programs run on another malloc than kmem, for a test that is about kmem. If
/// so, records that the calling test did not run.
pub fn is_not_kmem() -> bool {
    let other = is_reference_run();
    if other {
        not_run(&this_test(), "KMEM_TEST_LIBRARY names another malloc than kmem");
    }
    other
}

/// A library as a release has it: the library under test if `KMEM_TEST_LIBRARY` is set. Otherwise
/// it is the one that a release build left in the target directory, if any.
pub fn released() -> Option<PathBuf> {
    if named().is_some() {
        return under_test();
    }
    let test = std::env::current_exe().ok()?;
    let target = test.ancestors().nth(3)?;
    ["release/libkmem.so", "release/deps/libkmem.so"]
        .map(|path| target.join(path))
        .into_iter()
        .find(|path| path.exists())
}
