//! Tags of shared objects that are loaded and unloaded.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::harness::{Program, Said, compile, source};

const SOURCES: &[&str] = &["plugin.c", "plugin_other.c", "another.c"];

struct Built {
    _dir: tempfile::TempDir,
    host: PathBuf,
    plugin: PathBuf,
    another: PathBuf,
}

impl Built {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let (host, plugin, another) = (at("host"), at("plugin.so"), at("another.so"));
        compile("cc", &[], &["host.c"], &host);
        compile("cc", &["-shared", "-fPIC"], &["plugin.c", "plugin_other.c"], &plugin);
        compile("cc", &["-shared", "-fPIC"], &["another.c", "plugin_other.c"], &another);
        Self { _dir: dir, host, plugin, another }
    }

    fn start(&self, what: &str, more: &[&str]) -> Program {
        let plugin = path(&self.plugin);
        Program::start(&self.host, &[&[what, plugin], more].concat(), "", SOURCES)
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn next_check(program: &mut Program) -> Value {
    let Said::Check(rows) = program.next() else { panic!("no check: {}", program.stderr()) };
    assert!(rows.is_empty());
    program.dump()
}

/// File, line, function, module, bytes and calls of the rows with tags of the plugins.
fn rows(dump: &Value) -> Vec<String> {
    let rows = dump["rows"].as_array().unwrap().iter().filter(|row| row["kind"] == "static");
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut rows: Vec<String> = rows
        .map(|row| {
            let [file, function, module] = ["file", "function", "module"].map(|f| text(&row[f]));
            let file = file.rsplit('/').next().unwrap();
            let (line, bytes, calls) = (&row["line"], &row["bytes"], &row["calls"]);
            format!("{file}:{line} [{module}] func:{function} {bytes} {calls}")
        })
        .collect();
    rows.sort();
    rows
}

const WORK: &str = "plugin.c:9 [plugin.so] func:work 112 1";
const OTHER: &str = "plugin_other.c:28 [plugin.so] func:from_other 320 1";
const BEGIN: [&str; 2] = [
    "plugin_other.c:13 [plugin.so] func:begin 6144 1",
    "plugin_other.c:8 [plugin.so] func:begin_early 5120 1",
];

#[test]
fn a_plugin_that_goes_with_live_memory_is_warned_of_and_its_rows_stay() {
    let built = Built::new();
    let mut program = built.start("once", &[]);
    let dump = next_check(&mut program);
    assert_eq!(rows(&dump), [WORK, OTHER]);
    program.go_on();
    assert_eq!(rows(&next_check(&mut program)), [""; 0]);
    program.go_on();
    let (success, said) = program.end();
    assert!(success, "{said}");
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.remove(0), "kmem: plugin.so is unloaded, and memory it allocated is in use:");
    lines.sort_by_key(|line| line.contains("plugin_other.c"));
    let ends =
        ["plugin.c:9 [plugin.so] func:work", "plugin_other.c:28 [plugin.so] func:from_other"];
    assert_eq!(lines.len(), 2, "{said}");
    assert!(lines[0].trim_start().starts_with("112 B        1 "), "{said}");
    assert!(lines[1].trim_start().starts_with("320 B        1 "), "{said}");
    for (line, end) in lines.iter().zip(ends) {
        assert!(line.ends_with(end), "{said}");
    }
}

#[test]
fn a_plugin_that_frees_everything_goes_in_silence_destructors_included() {
    let built = Built::new();
    let mut program = built.start("clean", &[]);
    assert_eq!(rows(&next_check(&mut program)), [""; 0]);
    program.go_on();
    assert_eq!(program.end(), (true, String::new()));
}

#[test]
fn a_dump_lists_tags_that_hold_nothing_as_allocinfo_does_until_their_object_goes() {
    let built = Built::new();
    let mut program = built.start("freed", &[]);
    next_check(&mut program);
    let lines = |program: &Program, args: &[&str]| {
        let text = program.dump_text("plugin.so", args);
        let directory = format!("{}/", source("").display()).replace("//", "/");
        let text = text.replace(&directory, "");
        let mut lines: Vec<String> = text.lines().skip(2).map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let empty = [
        "           0        0 plugin.c:9 [plugin.so] func:work ",
        "           0        0 plugin_other.c:28 [plugin.so] func:from_other ",
        "           0        0 plugin_other.c:33 [plugin.so] func:never_called ",
    ];
    let held = [
        "        5120        1 plugin_other.c:8 [plugin.so] func:begin_early ",
        "        6144        1 plugin_other.c:13 [plugin.so] func:begin ",
    ];
    assert_eq!(lines(&program, &[]), [&empty[..], &held].concat());
    assert_eq!(lines(&program, &["--format", "1.0"]), [&empty[..], &held].concat());
    assert_eq!(lines(&program, &["--no-empty"]), held);
    assert_eq!(lines(&program, &["--min", "1"]), held);
    let named = lines(&program, &["--function", "never_*"]);
    assert_eq!(named, empty[2..]);
    program.go_on();
    // The constructor's object of 5120 bytes was freed by a destructor that ran last.
    next_check(&mut program);
    assert_eq!(lines(&program, &[]), [""; 0]);
    program.go_on();
    assert_eq!(program.end(), (true, String::new()));
}

#[test]
fn the_end_of_a_program_is_no_reason_to_warn() {
    let built = Built::new();
    let mut program = built.start("exit", &[]);
    let dump = next_check(&mut program);
    assert_eq!(rows(&dump), [WORK, BEGIN[0], OTHER, BEGIN[1]]);
    program.go_on();
    assert_eq!(program.end(), (true, String::new()));
}

#[test]
fn a_thousand_loads_of_one_plugin_reuse_its_tags() {
    let built = Built::new();
    let mut program = built.start("cycles", &["1000"]);
    assert_eq!(rows(&next_check(&mut program)), [""; 0]);
    program.go_on();
    let dump = next_check(&mut program);
    assert_eq!(rows(&dump), [WORK, BEGIN[0], OTHER, BEGIN[1]]);
    let tags = dump["rows"].as_array().unwrap().iter().flat_map(|r| r["tags"].as_array().unwrap());
    assert!(tags.filter_map(Value::as_u64).max() < Some(100), "{dump:#}");
    program.go_on();
    assert_eq!(program.end(), (true, String::new()));
}

#[test]
fn another_plugin_at_the_same_address_has_its_own_names() {
    let built = Built::new();
    let mut program = built.start("another", &[path(&built.another)]);
    let dump = next_check(&mut program);
    let another = [
        "another.c:10 [another.so] func:work 208 1",
        "plugin_other.c:13 [another.so] func:begin 6144 1",
        "plugin_other.c:28 [another.so] func:from_other 320 1",
        "plugin_other.c:8 [another.so] func:begin_early 5120 1",
    ];
    let mut expected = [&another[..], &[WORK, OTHER]].concat();
    expected.sort_unstable();
    assert_eq!(rows(&dump), expected);
    program.go_on();
    let twice = [
        "plugin.c:9 [plugin.so] func:work 224 2",
        "plugin_other.c:28 [plugin.so] func:from_other 640 2",
    ];
    let mut expected = [&another[..1], &another[2..3], &twice[..], &BEGIN[..]].concat();
    expected.sort_unstable();
    assert_eq!(rows(&next_check(&mut program)), expected);
    program.go_on();
    let (success, said) = program.end();
    assert!(success);
    assert_eq!(
        said.matches(" is unloaded, and memory it allocated is in use:").count(),
        2,
        "{said}"
    );
}
