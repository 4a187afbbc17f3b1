//! The table of memory misuse, for a few cases.

use serde_json::Value;
use std::process::{Command, Output};

fn misuse(only: &str, library: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kmem-bench"));
    // Variables that would change the endings under glibc are removed again.
    command.args(["misuse", "--only", only, "--json"]).env("MALLOC_PERTURB_", "7");
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0").env("KMEM_CONF", "no_option");
    if let Some(library) = library {
        command.env("KMEM_LIBRARY", library);
    }
    command.output().unwrap()
}

fn document(only: &str) -> Value {
    let output = misuse(only, None);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn endings_are_told_apart_by_allocator() {
    let document = document("twice, 64 bytes");
    assert_eq!(document["table"], "misuse");
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0]["group"], "free");
    for name in ["glibc", "kmem default", "kmem hardened", "kmem debug_pagealloc"] {
        assert_eq!(rows[0]["endings"][name], "found", "{name} in {document}");
        assert_eq!(document["counts"][name]["found"], 1, "{name} in {document}");
    }
}

#[test]
fn a_mode_that_misses_what_another_allocator_finds_is_named() {
    let document = document("write: after free, start of 1 MiB");
    let row = &document["rows"][0]["endings"];
    assert_eq!(row["glibc"], "crash");
    let worse = document["default_is_worse_than_glibc"].as_array().unwrap();
    let is_worse = ["missed", "harmless"].iter().any(|ending| row["kmem default"] == *ending);
    assert_eq!(worse.len(), usize::from(is_worse), "{document}");
}

#[test]
fn a_library_that_is_not_kmem_is_refused() {
    let output = misuse("twice, 64 bytes", Some("/proc/self/exe"));
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(complaint.contains("malloc is not that of"), "{complaint}");
}

#[test]
fn a_case_that_is_not_there_is_an_error() {
    assert_eq!(misuse("no such case", None).status.code(), Some(2));
}
