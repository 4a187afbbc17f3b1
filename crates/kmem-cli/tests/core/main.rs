//! Core files and black boxes of real processes. Their books equal those of the live process, and
//! files that are no cores, or are damaged, are refused by name.

mod broken;
mod dying;
#[path = "../program/mod.rs"]
mod program;

use std::collections::BTreeSet;

use dying::{Dying, by_gcore, kmem, text};
use serde_json::Value;

/// Checks that the rows and the exact sums of a core are those of the live process.
fn assert_same(live: &Dying, core: &std::path::Path) {
    let output = kmem(&["dump", "--no-mmap", "--core"], core);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), live.dump);
    let output = kmem(&["dump", "--no-mmap", "--json", "--core"], core);
    let dead: Value = serde_json::from_slice(&output.stdout).unwrap();
    for field in ["pid", "exe", "rows", "totals", "used_pages", "copies", "torn"] {
        assert_eq!(dead[field], live.json[field], "{field}");
    }
    let of = |name: &str| dead["accounting"][name].as_i64().unwrap();
    for exact in ["tracked", "cached"] {
        assert_eq!(of(exact), live.json["accounting"][exact].as_i64().unwrap(), "{exact}");
    }
    let heap = of("tracked") + of("cached") + of("overhead");
    let absent =
        ["untouched", "swapped"].map(|name| dead["accounting"][name].as_i64().unwrap_or(0));
    assert_eq!(heap - absent[0] - absent[1] + of("unaccounted"), of("resident"));
    assert!(of("resident") > 0);
}

#[test]
fn a_core_says_what_the_process_said_before_it_died() {
    for (how, signal) in [("segv", 11), ("abort", 6)] {
        let live = Dying::start(how, true);
        for function in ["small", "freed", "touched", "untouched"] {
            assert!(live.dump.contains(&format!(" func:{function} ")), "{}", live.dump);
        }
        let Some(core) = live.kill() else { return };
        assert_same(&live, &core);
        let errors = text(&kmem(&["dump", "--no-mmap", "--core"], &core).stderr);
        assert!(errors.contains(&format!("ended by signal {signal}")), "{errors}");
        // Resident memory is the bytes in the file, not the address space in its headers.
        assert!(errors.contains(" = resident "), "{errors}");
    }
}

#[test]
fn trees_stacks_filters_and_pins_of_a_core_are_those_of_the_process() {
    let live = Dying::start_with("abort", Some("depth:8"));
    let views = [
        &["dump", "--no-mmap", "--format", "folded"][..],
        &["dump", "--no-mmap", "--format", "speedscope", "-s", "s"],
        &["dump", "--no-mmap", "--function", "small", "--function", "touched", "-s", "t"],
        &["dump", "--no-mmap", "--min", "1K", "--max", "1M", "--module", "dies"],
        &["top", "--once", "--tree", "-n", "1000", "--no-mmap"],
        &["top", "--once", "--tree", "--min", "64K", "--no-mmap"],
        &["top", "--once", "--by", "pinned"],
        &["buddyinfo", "--index"],
        &["buddyinfo", "--json"],
    ];
    // All lines but those of resident memory, of which a core has less.
    let rows = |text: String| -> Vec<String> {
        let account = [" = resident ", "unaccounted", "  page tables "];
        let kept = |line: &&str| !account.iter().any(|part| line.contains(part));
        text.lines().filter(kept).map(str::to_owned).collect()
    };
    let before = views.map(|args| rows(live.live(args)));
    let Some(core) = live.kill() else { return };
    for (args, before) in views.iter().zip(before) {
        let output = kmem(&[args, &["--core"][..]].concat(), &core);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(rows(text(&output.stdout)), before, "{args:?}");
    }
    let folded = text(&kmem(&["dump", "--no-mmap", "--format", "folded", "--core"], &core).stdout);
    assert!(folded.contains("main;small ") && folded.contains("work;small "), "{folded}");

    let output = kmem(&["dump", "--no-mmap", "--metadata", "--json", "--core"], &core);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap().iter().filter(|row| row["kind"] == "metadata");
    let own: i64 = rows.map(|row| row["bytes"].as_i64().unwrap()).sum();
    assert!(own > 0);
    assert_eq!(json["accounting"]["overhead"], own);
}

#[test]
fn the_counters_of_a_black_box_say_it_too() {
    let live = Dying::start_with("segv", Some("blackbox:DIR/box,cumulative:1"));
    live.kill();
    let output = kmem(&["dump", "--no-mmap", "--cumulative", "--blackbox"], &live.black_box());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // Rows without their totals, and without sites that hold nothing any more.
    let dump = text(&output.stdout);
    let rows = dump.lines().skip(2).filter_map(|line| line.split_once("total_bytes:"));
    let rows: BTreeSet<&str> =
        rows.map(|(row, _)| row).filter(|row| !row.starts_with("           0 ")).collect();
    assert_eq!(rows, live.dump.lines().skip(2).collect());
    assert!(dump.contains(" func:freed total_bytes:104000 total_calls:500 "), "{dump}");
}

#[test]
fn a_core_of_gcore_says_the_same() {
    let live = Dying::start("segv", true);
    let Some(core) = by_gcore(&live) else { return };
    assert_same(&live, &core);
    let errors = text(&kmem(&["dump", "--no-mmap", "--core"], &core).stderr);
    assert!(!errors.contains("ended by signal"), "{errors}");
    // gdb writes pages that the process never touched, so tables would be far too large.
    assert!(errors.contains("does not tell which pages were in memory"), "{errors}");
    assert!(errors.contains("overhead lacks kmem's tables, which are in unaccounted"), "{errors}");
    let of = |name: &str| {
        let output = kmem(&["dump", "--no-mmap", "--json", "--core"], &core);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        json["accounting"][name].clone()
    };
    assert_eq!((of("tables"), of("untouched")), ("unknown".into(), Value::Null));
    let overhead = live.json["accounting"]["overhead"].as_i64().unwrap();
    assert!(of("overhead").as_i64().unwrap() <= overhead);
}

/// Rows of stacks in a dump of JSON: mapped bytes and ranges of the first thread's, and of others.
fn stacks(dump: &str) -> [[i64; 2]; 2] {
    let dump: Value = serde_json::from_str(dump).unwrap();
    let rows = dump["rows"].as_array().unwrap();
    ["stack", "thread_stacks"].map(|function| {
        let is_it = |row: &&Value| row["kind"] == "stack" && row["function"] == function;
        let row = rows.iter().find(is_it).unwrap_or_else(|| panic!("{function}: {dump}"));
        assert!(row["bytes"].as_i64().unwrap() > 0, "{row}");
        ["mapped", "calls"].map(|field| row[field].as_i64().unwrap())
    })
}

#[test]
fn a_core_tells_the_stacks_of_all_threads() {
    let live = Dying::start("abort", true);
    let [_, before] = stacks(&live.live(&["dump", "--json"]));
    assert_eq!(before[1], 4);
    let tells = |core: &std::path::Path| {
        let output = kmem(&["dump", "--json", "--core"], core);
        let [first, others] = stacks(&text(&output.stdout));
        assert_eq!((first[1], others), (1, before));
        assert!(!text(&output.stderr).contains("stacks: they are among"));
    };
    if let Some(core) = by_gcore(&live) {
        tells(&core);
    }
    if let Some(core) = live.kill() {
        tells(&core);
    }
}

#[test]
fn top_shows_a_core_once() {
    let live = Dying::start("segv", true);
    let Some(core) = live.kill() else { return };
    let output = kmem(&["top", "-n", "1", "--core"], &core);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let top = text(&output.stdout);
    assert!(top.contains("   5.0 MiB         1  untouched "), "{top}");
    assert!(top.contains(&format!("(pid {})", live.pid())), "{top}");
}

#[test]
fn another_file_in_the_place_of_a_module_gives_no_names() {
    let live = Dying::start("segv", true);
    let Some(core) = live.kill() else { return };
    // The executable is at another path, as on another machine.
    let program = live.program();
    let moved = program.with_file_name("moved");
    std::fs::rename(&program, &moved).unwrap();
    let gone = kmem(&["dump", "--no-mmap", "--core"], &core);
    assert!(text(&gone.stderr).contains("cannot be opened here; no names from it"));
    assert!(text(&gone.stdout).contains(" func:dies+0x"), "{}", text(&gone.stdout));
    let found = kmem(&["dump", "--no-mmap", "--exe", moved.to_str().unwrap(), "--core"], &core);
    assert_eq!(text(&found.stdout), live.dump, "{}", text(&found.stderr));
    std::fs::copy("/bin/sh", &program).unwrap();
    let other = kmem(&["dump", "--no-mmap", "--core"], &core);
    let errors = text(&other.stderr);
    assert!(errors.contains("dies: not the file that the process ran (build-id "), "{errors}");
    assert_eq!(text(&other.stdout), text(&gone.stdout));
    // Names are lost; bytes are exact.
    let sum = |dump: &str| -> u64 {
        let sizes = dump.lines().skip(2).map(|l| l.split_whitespace().next().unwrap());
        sizes.map(|size| size.parse::<u64>().unwrap()).sum()
    };
    assert_eq!(sum(&text(&other.stdout)), sum(&live.dump));
}

#[test]
fn a_process_without_kmem_is_absent() {
    let live = Dying::start("abort", false);
    let Some(core) = live.kill() else { return };
    let output = kmem(&["dump", "--no-mmap", "--core"], &core);
    assert_eq!(output.status.code(), Some(3));
    let errors = text(&output.stderr);
    assert!(errors.contains("was not instrumented: no mapping named kmem-root"), "{errors}");
    assert!(errors.contains(&format!("process {} ", live.pid())), "{errors}");
}

#[test]
fn exactly_one_source() {
    let nothing = std::path::Path::new("/nonexistent");
    for args in [
        &["dump", "--no-mmap"][..],
        &["top", "--once"],
        &["dump", "--no-mmap", "--exe", "x", "-p", "1"],
    ] {
        let output = kmem(args, std::path::Path::new(""));
        assert_eq!(output.status.code(), Some(2), "{args:?}");
    }
    let output = kmem(&["dump", "--no-mmap", "-p", "1", "--core"], nothing);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("cannot be used with"), "{}", text(&output.stderr));
    let output = kmem(&["dump", "--no-mmap", "--core"], nothing);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
}
