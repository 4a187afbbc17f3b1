//! The layers of ARCHITECTURE.md against the code: a module uses only those below it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The ordered list in ARCHITECTURE.md, highest first.
fn layers() -> Vec<String> {
    let text =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md"))
            .expect("ARCHITECTURE.md is there");
    let list = text.split("<!-- layers -->").nth(1).expect("the list is marked");
    list.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| line.split('`').next().expect("a name").to_string())
        .collect()
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Modules of the crate that a file names.
fn uses(text: &str) -> BTreeSet<String> {
    // Tests may look anywhere.
    let code = text.split("\nmod tests {").next().unwrap_or(text);
    let code: String =
        code.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    code.split("crate::")
        .skip(1)
        .map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect())
        .collect()
}

#[test]
fn modules_use_only_layers_below_them() {
    let layers = layers();
    assert!(layers.len() > 8, "the list was found: {layers:?}");
    let rank = |name: &str| layers.iter().position(|l| l == name);
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    let mut wrong = Vec::new();
    for file in &files {
        let relative = file.strip_prefix(&src).expect("inside");
        let module = relative.iter().next().and_then(|p| p.to_str()).expect("a name");
        let module = module.trim_end_matches(".rs");
        if module == "lib" {
            continue;
        }
        let own = rank(module).unwrap_or_else(|| panic!("{module} is not in ARCHITECTURE.md"));
        let text = fs::read_to_string(file).expect("readable");
        for used in uses(&text) {
            let Some(other) = rank(&used) else { continue };
            if other < own {
                wrong.push(format!("{} uses {used}", relative.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "upward uses:\n{}", wrong.join("\n"));
}

#[test]
fn the_platform_is_reached_through_one_door() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&src, &mut files);
    for file in files {
        let relative = file.strip_prefix(&src).expect("inside").display().to_string();
        let text = fs::read_to_string(&file).expect("readable");
        if !relative.starts_with("os/") {
            assert!(!text.contains("libc::"), "{relative} uses libc");
        }
    }
}
