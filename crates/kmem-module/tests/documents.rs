//! Programs in Rust that the documents show: they compile, and run to their end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kmem_testing::directory;
use kmem_testing::page::programs;

/// The newest library that cargo has built of a crate.
fn built(crate_name: &str, directory: &Path) -> PathBuf {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("one"));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with(&format!("lib{crate_name}-")) && name.ends_with(".rlib")
    };
    let found = entries.map(|entry| entry.path()).filter(is_it);
    let time = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    found.max_by_key(time).unwrap_or_else(|| panic!("cargo has built no {crate_name}"))
}

#[test]
fn programs_of_the_documents_compile_and_run() {
    let test = std::env::current_exe().expect("the path of the test");
    let libraries = test.parent().expect("the test is in a directory");
    let mut page = String::new();
    // The kernel of a page is a program of its own, which an emulator boots. A program with
    // DataFusion is run by the tests of that crate.
    let mut shown = programs(&["rust"]);
    let elsewhere = ["no_main", "use kmem_datafusion"];
    shown.retain(|shown| !elsewhere.iter().any(|mark| shown.text.contains(mark)));
    assert!(shown.len() >= 5, "{shown:?}");
    for shown in shown {
        // Its module is that of another block.
        let rule = if shown.text.contains("hello.ko") { ",no_run" } else { "" };
        page += &format!("# {}\n\n```rust{rule}\n{}```\n\n", shown.place, shown.text);
    }
    let directory = directory();
    let path = directory.path().join("documents.md");
    fs::write(&path, page).expect("a writable file");
    let mut rustdoc = Command::new(std::env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into()));
    rustdoc.args(["--test", "--edition", "2024"]).arg(&path).current_dir(directory.path());
    rustdoc.arg("-L").arg(format!("dependency={}", libraries.display()));
    for crate_name in ["kmem_core", "kmem_layout", "kmem_module"] {
        let library = built(crate_name, libraries);
        rustdoc.arg("--extern").arg(format!("{crate_name}={}", library.display()));
    }
    let done = rustdoc.output().expect("rustdoc runs");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}{}", String::from_utf8_lossy(&done.stderr));
}
