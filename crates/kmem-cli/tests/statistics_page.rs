//! Names on the page of statistics against the names that the command prints.

#[path = "../../kmem-snapshot/tests/fake_box/mod.rs"]
mod fake_box;
mod program;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use fake_box::{CALLER, FakeBox};
use kmem_testing::page::names;
use program::{KMEM, Program, json, text};
use serde_json::Value;

const PAGE: &str = "docs/statistics.md";
/// The text of a kernel that could not count all allocations of a row.
const INACCURATE: &str = "allocinfo - version: 2.0\n 7 1 mm/a.c:1 func:a accurate:no \n";
const FRAMES: [&str; 2] = ["-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"];

/// A program of which call sites are chains, and all memory has an age and is charged to a group.
fn program() -> Program {
    let mut program = Program::start("callers", &FRAMES, &[], "depth:8,group-by:thread-name,age:1");
    program.tell(b'x');
    program
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Adds the keys of an object, or of each object of an array, to `all`.
fn collect(all: &mut BTreeSet<String>, value: &Value) {
    match value {
        Value::Object(object) => all.extend(object.keys().cloned()),
        Value::Array(array) => array.iter().for_each(|value| collect(all, value)),
        _ => {}
    }
}

/// Output of commands.
struct Printed {
    all: Vec<Value>,
}

impl Printed {
    /// Keys of the values at a path, in which `*` stands for each entry of an array.
    fn keys(&self, path: &[&str]) -> BTreeSet<String> {
        fn at<'a>(value: &'a Value, path: &[&str], found: &mut Vec<&'a Value>) {
            match path {
                [] => found.push(value),
                ["*", rest @ ..] => {
                    value.as_array().into_iter().flatten().for_each(|value| at(value, rest, found));
                }
                [key, rest @ ..] => value.get(key).into_iter().for_each(|v| at(v, rest, found)),
            }
        }
        let mut found = Vec::new();
        self.all.iter().for_each(|value| at(value, path, &mut found));
        let mut keys = BTreeSet::new();
        found.into_iter().for_each(|value| collect(&mut keys, value));
        keys
    }
}

/// Output of `dump --json` and `top --json` in all their variants.
fn printed(program: &Program, fake: &FakeBox) -> Printed {
    let of_box = |args: &[&str]| {
        json(Command::new(KMEM).args(args).args(["--json", "--blackbox"]).arg(fake.path()))
    };
    let live = |args: &[&str]| program.json(&[args, &["--json"]].concat());
    let list = program.dir.path().join("list");
    fs::write(&list, INACCURATE).unwrap();
    Printed {
        all: vec![
            live(&["dump"]),
            live(&["dump", "--by", "group,site", "--metadata", "--min", "1"]),
            live(&["dump", "--by", "node"]),
            json(Command::new(KMEM).args(["dump", "--json", "--name", "callers"])),
            live(&["top", "--once", "--by", "pinned"]),
            live(&["top", "--once", "--by", "group"]),
            live(&["top", "--once", "--tree"]),
            of_box(&["dump"]),
            of_box(&["dump", "--cumulative"]),
            of_box(&["top", "--once"]),
            json(Command::new(KMEM).args(["dump", "--json", "--allocinfo"]).arg(&list)),
        ],
    }
}

fn fake() -> FakeBox {
    let fake = FakeBox::new(64, 2);
    fake.put_record(1, &[(CALLER, 7000, 7)], (10_000, 20));
    fake.put_counter(0, CALLER, [10, 1000, 0, 0]);
    fake
}

#[test]
fn the_page_has_every_field_of_json() {
    let printed = printed(&program(), &fake());
    assert_eq!(names(PAGE, "json", 0), printed.keys(&[]));
    assert_eq!(names(PAGE, "rows", 0), printed.keys(&["rows", "*"]));
    assert_eq!(names(PAGE, "chains", 0), printed.keys(&["rows", "*", "chains", "*"]));
    assert_eq!(names(PAGE, "ages", 0), printed.keys(&["rows", "*", "ages", "*"]));
    assert_eq!(names(PAGE, "tree", 0), printed.keys(&["tree", "*"]));
    assert_eq!(names(PAGE, "moment", 0), printed.keys(&["moment"]));
    assert_eq!(names(PAGE, "account", 0), printed.keys(&["accounting"]));
    let sums = set(&["bytes", "calls"]);
    assert_eq!(printed.keys(&["totals"]), sums);
    assert_eq!(printed.keys(&["filtered"]), sums);
    assert_eq!(printed.keys(&["groups", "*"]), set(&["bytes", "calls", "group"]));
    let place = set(&["function", "file", "line", "module", "offset"]);
    assert_eq!(printed.keys(&["rows", "*", "chains", "*", "frames", "*"]), place);
}

#[test]
fn rows_that_are_parts_of_a_call_site_have_no_ages() {
    let program = program();
    for args in [&["dump", "--json"][..], &["dump", "--json", "--by", "group,site"]] {
        let json = program.json(args);
        let rows = json["rows"].as_array().unwrap();
        let ages = rows.iter().filter(|row| row.get("ages").is_some());
        for row in ages.clone() {
            let sum = |of: &str| -> u64 {
                row["ages"].as_array().unwrap().iter().map(|age| age[of].as_u64().unwrap()).sum()
            };
            assert_eq!(
                (sum("bytes").into(), sum("calls").into()),
                (row["bytes"].clone(), row["calls"].clone())
            );
        }
        assert!(ages.count() > 0, "{json:#}");
    }
}

#[test]
fn the_page_has_every_column() {
    let program = program();
    let mut columns = BTreeSet::new();
    for by in ["size", "pinned", "group", "group,site"] {
        let table = text(&program.kmem(&["top", "--once", "--by", by]).stdout);
        let head = table.lines().find(|line| line.contains("SIZE ")).expect("a head");
        columns.extend(head.split_whitespace().map(str::to_owned));
    }
    assert_eq!(names(PAGE, "rows", 1), columns);
    let fake = fake();
    let cumulative = Command::new(KMEM)
        .args(["dump", "--cumulative", "--blackbox"])
        .arg(fake.path())
        .output()
        .unwrap();
    let dumped = text(&program.kmem(&["dump", "--by", "group,site"]).stdout);
    let list = program.dir.path().join("list");
    fs::write(&list, INACCURATE).unwrap();
    let listed = Command::new(KMEM).args(["dump", "--allocinfo"]).arg(&list).output().unwrap();
    let dumped = dumped + &text(&cumulative.stdout) + &text(&listed.stdout);
    let by_node = text(&program.kmem(&["dump", "--by", "node"]).stdout);
    // All words that a value follows; places have a line, which is a number.
    let keys = dumped.split_whitespace().filter_map(|word| word.split_once(':'));
    let keys = keys.filter(|(_, value)| !value.is_empty() && !value.starts_with(char::is_numeric));
    let keys = keys.map(|(key, _)| format!("{key}:"));
    let counted = ["total_bytes:", "total_calls:"].into_iter().filter(|key| dumped.contains(key));
    let counted = counted.chain(["node:"].into_iter().filter(|key| by_node.contains(key)));
    let mapped = text(&program.kmem(&["dump"]).stdout);
    let counted = counted.chain(["mapped:"].into_iter().filter(|key| mapped.contains(key)));
    let heads = ["<size>", "<calls>"].into_iter().filter(|key| dumped.contains(key));
    let all = keys.chain(counted.chain(heads).map(str::to_owned)).collect();
    assert_eq!(names(PAGE, "rows", 2), all);
}

#[test]
fn the_page_has_every_column_of_groups() {
    let program = program();
    let table = text(&program.kmem(&["group", "ls"]).stdout);
    let head = table.lines().next().expect("a head");
    let columns: BTreeSet<String> = head.split_whitespace().map(str::to_owned).collect();
    assert_eq!(names(PAGE, "group ls", 1), columns);
    let all = Printed { all: vec![program.json(&["group", "ls", "--json"])] };
    assert_eq!(names(PAGE, "group ls", 0), all.keys(&["copies", "*", "groups", "*"]));
}
