//! The layers of ARCHITECTURE.md against the code. By whatever path, a module uses only modules of
//! layers below its own. Only the top module names an instance.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The ordered list in ARCHITECTURE.md, highest first. There is no other list.
fn layers() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../ARCHITECTURE.md");
    let text = fs::read_to_string(path).expect("ARCHITECTURE.md is there");
    let list = text.split("<!-- layers -->").nth(1).expect("the list is marked");
    list.lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .map(|line| line.split('`').next().expect("a name").to_string())
        .collect()
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// All source files, by path from `src`.
fn sources() -> Vec<(PathBuf, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a readable folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&src(), &mut found);
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("readable");
        (path.strip_prefix(src()).expect("inside").to_path_buf(), text)
    };
    found.into_iter().map(read).collect()
}

/// The layer that a file belongs to; none for the root.
fn layer_of(file: &Path) -> Option<String> {
    let first = file.iter().next().and_then(|part| part.to_str()).expect("a name");
    Some(first.trim_end_matches(".rs").to_string()).filter(|name| name != "lib")
}

/// Code without comments and without tests, which may look anywhere.
fn code(text: &str) -> String {
    let code = text.split("\nmod tests {").next().unwrap_or(text);
    let code = code.split("\nmod tests;").next().unwrap_or(code);
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// The identifier that a text begins with.
fn identifier(text: &str) -> String {
    text.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// Names that the root exports from a layer, such as `Caller` from `request`.
fn exported(root: &str) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    for export in code(root).split("pub use ").skip(1) {
        let export = export.split(';').next().unwrap_or_default();
        let layer = identifier(export);
        let list = export.split_once("::").map_or("", |(_, list)| list);
        for name in list.split(|c: char| !c.is_alphanumeric() && c != '_') {
            if !name.is_empty() {
                names.insert(name.to_string(), layer.clone());
            }
        }
    }
    names
}

/// Names behind `crate::` in a file.
fn uses(code: &str) -> Vec<String> {
    code.split("crate::").skip(1).map(identifier).collect()
}

/// Longest chain of `super::` in a file.
fn steps_up(code: &str) -> usize {
    let chain = |at: usize| code[at..].split("super::").take_while(|part| part.is_empty()).count();
    code.match_indices("super::").map(|(at, _)| chain(at)).max().unwrap_or(0)
}

#[test]
fn modules_use_only_layers_below_them() {
    let layers = layers();
    assert!(layers.len() > 8, "the list was found: {layers:?}");
    let rank = |name: &str| layers.iter().position(|layer| layer == name);
    let exported = exported(&fs::read_to_string(src().join("lib.rs")).expect("readable"));
    let mut wrong = Vec::new();
    for (file, text) in sources() {
        let Some(module) = layer_of(&file) else { continue };
        let own = rank(&module).unwrap_or_else(|| panic!("{module} is not in ARCHITECTURE.md"));
        let code = code(&text);
        for used in uses(&code) {
            // Macros of the root belong to no layer.
            let layer = exported.get(&used).unwrap_or(&used);
            match rank(layer) {
                Some(other) if other < own => wrong.push(format!("{} uses {used}", file.display())),
                None if used.is_empty() => {
                    wrong.push(format!("{} uses a list of layers in braces", file.display()));
                }
                _ => {}
            }
        }
    }
    assert!(wrong.is_empty(), "upward uses:\n{}", wrong.join("\n"));
    let known: Vec<_> = sources().iter().filter_map(|(file, _)| layer_of(file)).collect();
    let gone: Vec<_> = layers.iter().filter(|layer| !known.contains(layer)).collect();
    assert!(gone.is_empty(), "layers without a file: {gone:?}");
}

#[test]
fn no_path_of_supers_leaves_a_layer() {
    for (file, text) in sources() {
        // `src/heap/mod.rs` is one step below the root, `src/heap/runs.rs` two.
        let parts = file.iter().count();
        let depth = if file.ends_with("mod.rs") { parts - 1 } else { parts };
        let steps = steps_up(&code(&text));
        assert!(layer_of(&file).is_none() || steps < depth, "{} reaches the root", file.display());
    }
}

#[test]
fn the_instance_is_named_in_the_top_layer_alone() {
    for (file, text) in sources() {
        let named = code(&text).contains("Instance<");
        let top = file.starts_with("instance") || layer_of(&file).is_none();
        assert!(top || !named, "{} names an instance", file.display());
    }
}

#[test]
fn the_platform_is_reached_through_one_door() {
    for (file, text) in sources() {
        let uses = code(&text).contains("libc::");
        assert!(file.starts_with("os") || !uses, "{} uses libc", file.display());
    }
}
