//! Programs in C and C++ that the documents show: they compile without a warning, and succeed.

use std::fs;
use std::time::Duration;

use kmem_testing::page::{Shown, programs};
use kmem_testing::{Compiler, directory, not_run, this_test};

use crate::harness::{Run, library, link_options, no_cxx};

#[test]
fn programs_of_the_documents_compile_without_a_warning_and_succeed() {
    let Some(library) = library() else {
        return not_run(&this_test(), "KMEM_TEST_LIBRARY names no library to link with");
    };
    let (directory, mut count) = (directory(), 0);
    for Shown { place, language, text } in programs(&["c", "cpp"]) {
        let is_cxx = language == "cpp";
        if is_cxx && no_cxx() {
            continue;
        }
        let suffix = if is_cxx { "cc" } else { "c" };
        let source = directory.path().join(format!("{place}.{suffix}"));
        fs::write(&source, text).expect("a writable file");
        let compiler = if is_cxx { Compiler::cxx().arg("-std=c++17") } else { Compiler::c() };
        let compiler = compiler.strict().include().args(["-g", "-pthread"]).arg(&source);
        // A host of modules links another library.
        if place.contains("modules") {
            compiler.arg("-c").compile(source.with_extension("o"));
            continue;
        }
        let options = link_options(&[&library]);
        let program = compiler.args(options).compile(source.with_extension("out"));
        let run = Run::new(&program).without_preload();
        run.within(Duration::from_secs(60)).run().assert_success();
        count += 1;
    }
    assert!(count >= 10, "{count} programs");
}
