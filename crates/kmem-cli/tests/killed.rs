//! The black box that a killed process leaves, against the process's own counts.

mod program;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use kmem_snapshot::{BlackBox, Process, Snapshot};
use program::{KMEM, Program, json, text};
use serde_json::Value;

const BOX: &str = "blackbox:DIR/box";

fn dump(program: &Program, args: &[&str]) -> Value {
    let file = program.dir.path().join("box");
    json(Command::new(KMEM).args(["dump", "--json", "--blackbox"]).arg(file).args(args))
}

#[test]
fn the_black_box_names_most_of_the_peak_whenever_the_process_is_killed() {
    // The sizes end just after a record of the peak, just before one, and in between.
    for megabytes in [20, 47, 80, 100, 103] {
        let mut program = Program::start("peak", &[], &[], BOX);
        let mut live = 0;
        for _ in 0..megabytes {
            live = program.tell(b'x')[0].parse().unwrap();
        }
        program.kill();
        assert!(live >= megabytes << 20, "{live}");
        let json = dump(&program, &[]);
        assert_eq!(json["pid"], program.pid());
        // A slow machine also makes a record for the time.
        assert!(["peak", "time"].contains(&json["moment"]["reason"].as_str().unwrap()), "{json}");
        let rows = json["rows"].as_array().unwrap();
        let sites = rows
            .iter()
            .filter(|row| row["function"].as_str().is_some_and(|f| f.starts_with("site_")));
        let named: i64 = sites.clone().map(|row| row["bytes"].as_i64().unwrap()).sum();
        let share = named as f64 / live as f64;
        assert!(
            (0.95..=1.0).contains(&share),
            "{megabytes} MiB: {share} of {live} in {}",
            sites.count()
        );
    }
}

#[test]
fn the_peak_table_is_as_high_as_the_black_box() {
    let mut program = Program::start("peak", &[], &[], &format!("{BOX},peak:1"));
    for megabytes in 1..40 {
        program.tell(b'x');
        let process = Process::open(program.pid()).unwrap();
        let snapshot = Snapshot::take(&process).unwrap();
        let table = snapshot.books[0].peak.as_ref().expect("a peak").used_pages * 4096;
        let of = BlackBox::open(&program.dir.path().join("box")).unwrap();
        let record = of.peak().expect("a peak").used;
        assert!(table >= record, "{table}, {record} after {megabytes} MiB");
    }
}

#[test]
fn the_black_box_has_what_was_allocated_up_to_a_second_before_without_a_new_peak() {
    let mut program = Program::start("peak", &[], &[], BOX);
    (0..20).for_each(|_| drop(program.tell(b'x')));
    // All of this is too little for a record of a peak.
    (0..10).for_each(|_| drop(program.tell(b's')));
    // On a slow machine, records for the time are further apart.
    for _ in 0..20 {
        std::thread::sleep(std::time::Duration::from_millis(600));
        (0..10).for_each(|_| drop(program.tell(b's')));
        if dump(&program, &[])["moment"]["reason"] == "time" {
            break;
        }
    }
    program.kill();
    let json = dump(&program, &[]);
    assert_eq!(json["moment"]["reason"], "time");
    let rows = json["rows"].as_array().unwrap();
    let small = rows.iter().find(|row| row["function"] == "small").expect("a row of the objects");
    assert!(small["calls"].as_i64().unwrap() >= 500, "{small}");
}

#[test]
fn counters_of_four_threads_are_exact_to_the_unit_after_sigkill() {
    for conf in ["", ",rseq:off"] {
        let conf = format!("{BOX},cumulative:1{conf}");
        let mut program = Program::start("counted", &[], &[], &conf);
        let said = program.tell(b'x');
        program.kill();
        let json = dump(&program, &["--cumulative"]);
        let rows = json["rows"].as_array().unwrap();
        let counted: BTreeMap<&str, [i64; 4]> = rows
            .iter()
            .filter_map(|row| {
                let fields = ["allocations", "allocated_bytes", "frees", "freed_bytes"];
                let counts = fields.map(|field| row[field].as_i64().unwrap());
                let [calls, bytes, frees, freed] = counts;
                assert_eq!(row["bytes"], bytes - freed, "{row}");
                assert_eq!(row["calls"], calls - frees, "{row}");
                Some((row["function"].as_str()?, counts))
            })
            .collect();
        assert_eq!(said.len(), 6);
        for line in said {
            let (function, numbers) = line.split_once(' ').unwrap();
            let numbers: Vec<i64> = numbers.split(' ').map(|n| n.parse().unwrap()).collect();
            assert!(numbers.iter().all(|&n| n > 0), "{line}");
            assert_eq!(counted[function].as_slice(), numbers, "{function}{conf}");
        }
    }
}

#[test]
fn what_a_black_box_does_not_hold_is_refused_by_name() {
    let mut program = Program::start("peak", &[], &[], BOX);
    (0..3).for_each(|_| drop(program.tell(b'x')));
    program.kill();
    let run = |args: &[&str]| {
        let mut command = Command::new(KMEM);
        let output =
            command.args(args).arg("--blackbox").arg(program.dir.path().join("box")).output();
        let output = output.unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    for (args, what) in [
        (&["dump", "--metadata"][..], "--metadata"),
        (&["top", "--metadata"], "--metadata"),
        (&["top", "--by", "pinned"], "--by"),
        (&["dump", "--cumulative", "--format", "folded"], "--cumulative"),
    ] {
        let (code, out, errors) = run(args);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{args:?}");
        assert!(errors.contains(what), "{errors}");
    }
    // The process keeps no counters.
    assert_eq!(run(&["dump", "--cumulative"]).0, Some(3));
    // All other options work as on a live process.
    let (code, folded, errors) = run(&["dump", "--format", "folded", "--function", "site_1?0"]);
    assert_eq!((code, folded.lines().count()), (Some(0), 10), "{folded}{errors}");
    let (_, tree, _) = run(&["top", "--tree", "--function", "site_123"]);
    assert!(tree.lines().last().unwrap().contains("  site_123  "), "{tree}");
    let (_, rows, _) = run(&["dump", "--min", "64K", "-s", "s"]);
    assert!(!rows.lines().skip(2).any(|row| row.starts_with("     1") && row.len() < 64), "{rows}");
    assert!(Path::new(&program.dir.path().join("box")).is_file());
}
