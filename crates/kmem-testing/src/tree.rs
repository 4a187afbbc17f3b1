//! The files of the workspace, as guards and tests of documents read them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Root of the workspace.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Text of a file by its path from the root; `None` if it is absent.
#[must_use]
pub fn read(path: &str) -> Option<String> {
    fs::read_to_string(root().join(path)).ok()
}

/// Paths of all files that git does not ignore, from the root and in order. Without git: all
/// files outside `target` and hidden folders.
///
/// # Panics
///
/// If a folder cannot be read.
#[must_use]
pub fn files() -> Vec<String> {
    let mut found = known_to_git().unwrap_or_else(|| {
        let mut found = Vec::new();
        walk(&root(), "", &mut found);
        found
    });
    found.sort();
    assert!(found.iter().any(|file| file == "Cargo.toml"), "the root of the workspace was found");
    found
}

fn known_to_git() -> Option<Vec<String>> {
    let output = Command::new("git")
        .arg("-C")
        .arg(root())
        .args(["ls-files", "-zco", "--exclude-standard"])
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    let names = String::from_utf8(output.stdout).ok()?;
    let found: Vec<_> = names.split_terminator('\0').map(str::to_string).collect();
    (!found.is_empty()).then_some(found)
}

fn walk(dir: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).expect("a readable folder") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().expect("a type");
        if kind.is_file() {
            found.push(path);
        } else if kind.is_dir() && !name.starts_with('.') && !name.starts_with("target") {
            walk(&entry.path(), &format!("{path}/"), found);
        }
    }
}
