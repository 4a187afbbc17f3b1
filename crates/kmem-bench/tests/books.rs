//! The tables that measure the books (profiling, accounting and census), in short runs of the
//! command.

use serde_json::Value;
use std::process::Command;

fn document(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_kmem-bench"))
        .args(arguments)
        .arg("--json")
        .env_remove("KMEM_CONF")
        .output()
        .unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn profiling_measures_every_configuration_of_the_kernels_table() {
    let document = document(&["profiling", "--seconds", "0"]);
    assert_eq!(document["table"], "profiling");
    let rows = document["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["config"].as_str().unwrap()).collect();
    let expected =
        ["never", "off", "on", "on-at-run-time", "accounted", "accounted+off", "accounted+on"];
    assert_eq!(names, expected);
    for row in rows {
        assert!(row["kmalloc_ns"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["page_ns"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(document["goal"]["kmalloc_met"].is_boolean());
    let memory = &document["memory"];
    let gibi = 1 << 30;
    let requested = memory["requested_bytes"].as_u64().unwrap();
    assert!(requested.abs_diff(gibi) < gibi / 1000, "{memory}");
    // A word per object cannot be free, and must not be much more than that.
    let words = 4 * memory["objects"].as_i64().unwrap();
    let books = memory["books_bytes"].as_i64().unwrap();
    assert!(books >= words && books < 3 * words, "{memory}");
    let resident = &memory["resident_bytes"];
    assert!(resident["on"].as_u64().unwrap() > resident["never"].as_u64().unwrap(), "{memory}");
}

#[test]
fn every_scope_of_accounting_is_charged_what_it_should_be() {
    // It fails if a group is charged another byte.
    let document = document(&["accounting", "--rounds", "1"]);
    assert_eq!(document["table"], "accounting");
    let rows = document["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["scope"].as_str().unwrap()).collect();
    assert_eq!(names, ["none", "root", "group", "group-refcounted", "8-groups-alternating"]);
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap();
        assert!(figure("alloc_ns") > 0.0 && figure("free_ns") > 0.0, "{row}");
    }
}

#[test]
fn a_census_of_a_program_at_rest_is_exact() {
    // It fails if a single site differs.
    let document = document(&["census", "--objects", "20000", "--seconds", "1"]);
    assert_eq!(document["table"], "census");
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!(row["objects"], 20_000);
        assert!(row["max_ns"].as_u64().unwrap() > 0, "{row}");
        assert!(row["p99_ns"].as_f64() <= row["p999_ns"].as_f64(), "{row}");
        let reading = row["reading"].as_bool().unwrap();
        assert_eq!(row["census_ms"].as_f64().is_some(), reading, "{row}");
        assert_eq!(row["censuses"].as_u64().unwrap() > 0, reading, "{row}");
    }
}

#[test]
fn a_mutator_without_libkmem_says_so() {
    let output = Command::new(env!("CARGO_BIN_EXE_kmem-bench"))
        .args(["mutator", "--objects", "100", "--from", "64", "--to", "64", "--step", "1"])
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("libkmem.so is not preloaded"));
}

#[test]
fn too_few_objects_are_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_kmem-bench"))
        .args(["census", "--objects", "1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
