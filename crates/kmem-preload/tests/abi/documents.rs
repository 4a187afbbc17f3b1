//! Programs in C and C++ that the documents show: they compile without a warning, and succeed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kmem_testing::{Compiler, directory, not_run, this_test};

use crate::harness::{Run, library, no_cxx};

/// A program of a document: the text of a fenced block with a `main`.
struct Shown {
    /// The document, with the line at which the block begins.
    place: String,
    is_cxx: bool,
    text: String,
}

/// All documents that may show programs.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = vec![root.join("README.md")];
    let mut directories = vec![root.join("docs")];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found
}

fn programs_of(document: &Path) -> Vec<Shown> {
    let text = fs::read_to_string(document).expect("a readable document");
    let name = document.file_name().expect("a name").to_string_lossy();
    let (mut found, mut block) = (Vec::new(), None::<Shown>);
    for (number, line) in text.lines().enumerate() {
        match (&mut block, line) {
            (None, "```c" | "```cpp") => {
                let place = format!("{name}-{}", number + 1);
                block = Some(Shown { place, is_cxx: line == "```cpp", text: String::new() });
            }
            (Some(_), "```") => found.extend(block.take()),
            (Some(shown), _) => shown.text += &format!("{line}\n"),
            _ => {}
        }
    }
    found.retain(|shown: &Shown| shown.text.contains("main("));
    found
}

#[test]
fn programs_of_the_documents_compile_without_a_warning_and_succeed() {
    let Some(library) = library() else {
        return not_run(&this_test(), "KMEM_TEST_LIBRARY names no library to link with");
    };
    let (directory, mut count) = (directory(), 0);
    let shown = documents().iter().flat_map(|path| programs_of(path)).collect::<Vec<_>>();
    for Shown { place, is_cxx, text } in &shown {
        if *is_cxx && no_cxx() {
            continue;
        }
        let suffix = if *is_cxx { "cc" } else { "c" };
        let source = directory.path().join(format!("{place}.{suffix}"));
        fs::write(&source, text).expect("a writable file");
        let compiler = if *is_cxx { Compiler::cxx().arg("-std=c++17") } else { Compiler::c() };
        let compiler = compiler.strict().include().args(["-g", "-pthread"]).arg(&source);
        // A host of modules links another library.
        if place.contains("modules") {
            compiler.arg("-c").compile(source.with_extension("o"));
            continue;
        }
        let parent = library.parent().expect("a library is in a directory");
        let program = compiler
            .arg("-Wl,--no-as-needed")
            .arg(&library)
            .arg(format!("-Wl,-rpath,{}", parent.display()))
            .compile(source.with_extension("out"));
        let run = Run::new(&program).without_preload();
        run.within(Duration::from_secs(60)).run().assert_success();
        count += 1;
    }
    assert!(count >= 10, "{count} programs in {:?}", documents());
}
