//! Programs that read the formats.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kmem_testing::{is_missing, not_run, this_test};
use serde_json::Value;

use super::program::text;

/// The viewer of valgrind's DHAT.
const VIEWER: &str = "/usr/libexec/valgrind/dh_view.js";
/// A Python with packages in it, which `scripts/install-test-tools.sh` makes.
const PYTHON: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-tools/bin/python3");
/// The schema of speedscope's files, from its own package.
const SPEEDSCOPE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../target/test-tools/speedscope/file-format-schema.json"
);

/// Live bytes and objects; none of the latter in a format without them.
pub(crate) type Sum = (i64, Option<i64>);

#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// True when a tool is there; else the calling test is recorded.
fn has(tool: &str) -> bool {
    !is_missing(tool)
}

/// Output of `go tool pprof`, with sizes in bytes. Names are only those in the profile.
#[track_caller]
pub(crate) fn pprof(args: &[&str], profile: &Path) -> Option<String> {
    has("go").then(|| {
        let mut go = Command::new("go");
        // No toolchain is downloaded, and nothing is kept in the home directory.
        go.env("GOTOOLCHAIN", "local").env("PPROF_TMPDIR", profile.parent().unwrap());
        go.args(["tool", "pprof", "-symbolize=none", "-unit=B", "-nodefraction=0"]);
        output(go.args(["-edgefraction=0", "-nodecount=100000"]).args(args).arg(profile))
    })
}

/// Sum of a sample type, by the line `Showing nodes accounting for A, P% of B total`.
#[track_caller]
pub(crate) fn pprof_total(kind: &str, args: &[&str], profile: &Path) -> Option<i64> {
    let kind = format!("-sample_index={kind}");
    let top = pprof(&[&["-top", &kind], args].concat(), profile)?;
    let line = top.lines().find(|line| line.starts_with("Showing nodes")).expect(&top);
    let (_, total) = line.split_once("% of ").expect(line);
    Some(total.trim_end_matches(" total").trim_end_matches('B').parse().expect(line))
}

/// Sum over a file of DHAT, by the tree that the viewer itself makes of it. Also the text of the
/// whole tree, as the viewer shows it.
#[track_caller]
pub(crate) fn dhat(file: &Path) -> Option<(Sum, String)> {
    if !Path::new(VIEWER).exists() {
        not_run(&this_test(), &format!("there is no {VIEWER}"));
        return None;
    }
    has("node").then(|| {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/formats/dh_view.mjs");
        let json = output(Command::new("node").arg(script).arg(VIEWER).arg(file));
        let json: Value = serde_json::from_str(&json).unwrap();
        let sum = (json["bytes"].as_i64().unwrap(), json["blocks"].as_i64());
        (sum, json["text"].as_str().unwrap().to_owned())
    })
}

/// Python with a package. None, and recorded, where there is none.
fn python_with(package: &str) -> Option<PathBuf> {
    let python = [PathBuf::from(PYTHON), "python3".into()].into_iter().find(|python| {
        let has = Command::new(python).args(["-c", &format!("import {package}")]).output();
        has.is_ok_and(|output| output.status.success())
    });
    if python.is_none() {
        let why = format!("no Python has {package} (scripts/install-test-tools.sh)");
        not_run(&this_test(), &why);
    }
    python
}

/// Checks a file against speedscope's schema.
#[track_caller]
pub(crate) fn speedscope(file: &Path) {
    if !Path::new(SPEEDSCOPE).exists() {
        return not_run(&this_test(), "speedscope's schema is not there");
    }
    let Some(python) = python_with("jsonschema") else { return };
    let check = "import json, jsonschema, sys\n\
                 schema = json.load(open(sys.argv[1]))\n\
                 jsonschema.validate(json.load(open(sys.argv[2])), schema)\n\
                 print('valid')";
    assert_eq!(output(Command::new(python).args(["-c", check, SPEEDSCOPE]).arg(file)), "valid\n");
}

/// Answer of DuckDB to a question about `FILE`, as rows of JSON values.
#[track_caller]
pub(crate) fn duckdb(question: &str, file: &Path) -> Option<Vec<Vec<Value>>> {
    let python = python_with("duckdb")?;
    let question = question.replace("FILE", &format!("'{}'", file.display()));
    let program = "import duckdb, json, sys\n\
                   print(json.dumps(duckdb.sql(sys.argv[1]).fetchall()))";
    let json = output(Command::new(python).args(["-c", program, &question]));
    Some(serde_json::from_str(&json).unwrap())
}

/// Rows of a CSV file by Python's reader, the header among them.
#[track_caller]
pub(crate) fn csv(file: &Path) -> Option<Vec<Vec<String>>> {
    has("python3").then(|| {
        let program = "import csv, json, sys\n\
                       rows = csv.reader(open(sys.argv[1], newline=''), strict=True)\n\
                       print(json.dumps(list(rows)))";
        let json = output(Command::new("python3").args(["-c", program]).arg(file));
        serde_json::from_str(&json).unwrap()
    })
}
