//! `kmem diff` between sources of all kinds.

mod program;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use program::{KMEM, Program, compile, directory, preload, text};
use serde_json::Value;

/// Bytes and objects of one round of `rounds`: objects of the 112-byte class.
const ROUND: (i64, i64) = (112_000, 1000);

fn rounds() -> Program {
    Program::start("rounds", &[], &[], "")
}

fn diff(args: &[&str], before: &Path, after: &Path) -> Output {
    Command::new(KMEM).arg("diff").args(args).arg(before).arg(after).output().unwrap()
}

/// Output of a comparison without growth.
#[track_caller]
fn said(args: &[&str], before: &Path, after: &Path) -> String {
    let output = diff(args, before, after);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn json(args: &[&str], before: &Path, after: &Path) -> Value {
    serde_json::from_str(&said(&[args, &["--json"]].concat(), before, after)).unwrap()
}

/// Bytes and objects of a part of the JSON.
fn held(value: &Value) -> (i64, i64) {
    (value["bytes"].as_i64().unwrap(), value["calls"].as_i64().unwrap())
}

/// Keeps a dump of the process in a file.
fn keep(of: &Program, name: &str, args: &[&str]) -> PathBuf {
    let file = of.dir.path().join(name);
    let output = of.kmem(&[&["dump"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    fs::write(&file, output.stdout).unwrap();
    file
}

fn pid(of: &Program) -> PathBuf {
    of.pid().to_string().into()
}

/// Checks the JSON against its rows: the deltas add up, in each row and over all.
#[track_caller]
fn assert_exact(json: &Value) {
    let add = |a: (i64, i64), b: (i64, i64)| (a.0 + b.0, a.1 + b.1);
    assert_eq!(
        add(held(&json["before"]["held"]), held(&json["delta"])),
        held(&json["after"]["held"])
    );
    let rows = json["rows"].as_array().unwrap();
    for row in rows {
        assert_eq!(add(held(&row["before"]), held(&row["delta"])), held(&row["after"]), "{row}");
    }
    let sum = rows.iter().map(|row| held(&row["delta"])).fold((0, 0), add);
    assert_eq!(add(sum, held(&json["left_out"]["delta"])), held(&json["delta"]));
}

#[test]
fn a_dump_of_any_format_is_compared_with_the_process_now() {
    let mut live = rounds();
    let formats: [(&str, &[&str]); 3] =
        [("1.0", &["--format", "1.0"]), ("2.0", &[]), ("json", &["--json"])];
    let empty = formats.map(|(name, args)| keep(&live, name, args));
    live.tell(b'a');
    for before in &empty {
        let json = json(&[], before, &pid(&live));
        assert_exact(&json);
        let rows = json["rows"].as_array().unwrap();
        let row = &rows[0];
        assert_eq!((rows.len(), &row["state"], held(&row["delta"])), (1, &"new".into(), ROUND));
        assert_eq!(row["function"], "allocate");
        assert!(row["file"].as_str().unwrap().ends_with("/rounds.c"), "{row}");
    }
    let full = formats.map(|(name, args)| keep(&live, &format!("full-{name}"), args));
    live.tell(b'f');
    for before in &full {
        let json = json(&[], before, &pid(&live));
        assert_exact(&json);
        let row = &json["rows"][0];
        assert_eq!((&row["state"], held(&row["delta"])), (&"gone".into(), (-112_000, -1000)));
    }
    // Files with one another, and in the other order.
    for (before, after) in full.iter().zip(empty.iter().rev()) {
        assert_eq!(held(&json(&[], before, after)["delta"]), (-112_000, -1000));
    }
    assert!(said(&[], &empty[0], &empty[2]).contains("\n  (no change)\ntotal: "));
}

#[test]
fn a_core_and_a_black_box_equal_the_process_that_left_them() {
    let dir = directory();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c 1000000; exec \"$0\" abort"]);
    command.arg(compile("dies", &[], dir.path())).current_dir(dir.path());
    preload(&mut command, "", dir.path());
    let mut dying = Program::run(command, dir);
    let before = keep(&dying, "json", &["--json"]);
    if let Some(core) = dying.die(b'x') {
        let json = json(&[], &before, &core);
        assert_exact(&json);
        assert_eq!(json["rows"], Value::Array(vec![]), "{json}");
        assert_eq!(json["before"]["pid"], dying.pid());
        assert!(held(&json["after"]["held"]).1 > 1000);
    }
    let mut ending = Program::start("books", &[], &["wait"], "blackbox:DIR/box");
    let before = keep(&ending, "2.0", &[]);
    ending.end(b'x');
    let json = json(&[], &before, &ending.dir.path().join("box"));
    assert_exact(&json);
    assert_eq!(json["rows"], Value::Array(vec![]), "{json}");
}

#[test]
fn growth_over_a_threshold_exits_with_1_and_names_the_site() {
    let mut live = rounds();
    let before = keep(&live, "before", &[]);
    live.tell(b'a');
    let now = pid(&live);
    for limits in [
        &["112000"][..],
        &["1M", "112000@allocate"],
        &["0@main"],
        &["0@nowhere", "0@*.cc:*"],
        &["110K@rounds"],
    ] {
        let args: Vec<&str> = limits.iter().flat_map(|limit| ["--fail-on-growth", limit]).collect();
        said(&args, &before, &now);
    }
    for (limit, size) in [
        ("111999", "109.4 KiB"),
        ("100K@allocate", "100.0 KiB"),
        ("0@rounds.c:*", "0 B"),
        ("64K@rounds", "64.0 KiB"),
    ] {
        let output = diff(&["--fail-on-growth", "1G", "--fail-on-growth", limit], &before, &now);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{limit}: {message}");
        let start = format!(
            "kmem: grew by 109.4 KiB (112000 bytes), more than {size} (--fail-on-growth {limit}): \
             allocate "
        );
        assert!(message.lines().any(|line| line.starts_with(&start)), "{message}");
        assert!(
            message.contains("rounds.c:20 +109.4 KiB (112000 bytes, +1000 objects)\n"),
            "{message}"
        );
    }
    // Rows that are not printed count, too.
    let output =
        diff(&["-n", "0", "--min", "1M", "--json", "--fail-on-growth", "1K"], &before, &now);
    assert_eq!(output.status.code(), Some(1));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["growth"][0]["sites"][0]["function"], "allocate");
    assert_eq!(json["growth"][0]["limit"], "1K");
    // A name of no site is told: the threshold would never be exceeded.
    let output = diff(&["--fail-on-growth", "0@alocate"], &before, &now);
    assert!(text(&output.stderr).contains("0@alocate: no call site has this name"));
    for limit in ["", "x", "1K@", "@f"] {
        let output = diff(&["--fail-on-growth", limit], &before, &now);
        assert_eq!(output.status.code(), Some(2), "{limit}");
    }
}

#[test]
fn growth_is_found_even_if_the_reader_of_the_rows_has_left() {
    let dir = directory();
    let [before, after] = texts(dir.path());
    for args in [&["--json"][..], &["--format", "folded"], &[]] {
        let run = |limit: &str, out: Stdio| {
            let mut kmem = Command::new(KMEM);
            kmem.arg("diff").args(args).args(["--fail-on-growth", limit]);
            let output = kmem.args([&before, &after]).stdout(out).output().unwrap();
            // The first message is a note on the rows.
            let messages = text(&output.stderr);
            (output.status.code(), messages.split_once('\n').unwrap().1.to_owned())
        };
        let closed = || Stdio::from(std::io::pipe().unwrap().1);
        let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
        let (code, message) = run("1K", closed());
        assert_eq!(code, Some(1), "{args:?}: {message}");
        assert!(message.starts_with("kmem: grew by ") && message.lines().count() == 1, "{message}");
        assert_eq!(run("1G", closed()), (Some(0), String::new()), "{args:?}");
        let (code, message) = run("1K", full());
        assert_eq!(code, Some(1), "{args:?}: {message}");
        let said = ["kmem: grew by ", "kmem: cannot write the output: "];
        assert!(message.lines().zip(said).all(|(line, said)| line.starts_with(said)), "{message}");
        assert_eq!(run("1G", full()).0, Some(2), "{args:?}");
    }
}

/// Two texts of a kernel: rows of the second one are new, gone, smaller and larger.
fn texts(dir: &Path) -> [PathBuf; 2] {
    let head = "allocinfo - version: 1.0\n#     <size>  <calls> <tag info>\n";
    let before = "4096 1 mm/a.c:1 func:a \n 8192 2 mm/b.c:1 func:b \n 100 1 mm/c.c:1 [m] func:c \n\
                  -128 18446744073709551615 mm/d.c:1 func:d \n 7 7 mm/same.c:1 func:same \n";
    let after = "4096 1 mm/a.c:1 func:a \n 12288 3 mm/a.c:1 func:a \n 1000 5 mm/new.c:1 func:new \n\
                 50 1 mm/c.c:1 [m] func:c \n 128 1 mm/d.c:1 func:d \n 7 7 mm/same.c:1 func:same \n";
    [("before", before), ("after", after)].map(|(name, rows)| {
        let file = dir.join(name);
        fs::write(&file, format!("{head}{rows}")).unwrap();
        file
    })
}

#[test]
fn texts_of_kernels_are_compared_in_a_table_with_exact_sums() {
    let dir = directory();
    let [before, after] = texts(dir.path());
    let table = said(&["-n", "3"], &before, &after);
    let rows = table.split_once("\n\n").unwrap().1;
    let expected = "      \
      DELTA    OBJECTS     BEFORE      AFTER       FUNCTION  WHERE
  +12.0 KiB         +3    4.0 KiB   16.0 KiB       a         mm/a.c:1
   -8.0 KiB         -2    8.0 KiB        0 B gone  b         mm/b.c:1
    +1000 B         +5        0 B     1000 B new   new       mm/new.c:1
     +206 B         +2      -28 B      178 B       (in 2 more rows)
total: 12267 + 5302 = 17569 bytes, 10 + 8 = 18 objects
";
    assert_eq!(rows, expected);
    assert!(table.contains("before: 12.0 KiB in 10 live objects\nafter "), "{table}");
    let exact = json(&[], &before, &after);
    assert_exact(&exact);
    assert_eq!(exact["rows"].as_array().unwrap().len(), 5);
    assert_eq!(exact["before"]["pid"], Value::Null);
    for order in ["c", "t"] {
        let rows = json(&["-s", order], &before, &after);
        let first = if order == "c" { "new" } else { "a" };
        assert_eq!(rows["rows"][0]["function"], first);
    }
}

#[test]
fn filters_choose_sites_by_name_and_changes_by_size() {
    let dir = directory();
    let [before, after] = texts(dir.path());
    let only = json(&["--module", "m"], &before, &after);
    assert_exact(&only);
    assert_eq!((held(&only["before"]["held"]), held(&only["delta"])), ((100, 1), (-50, 0)));
    let large = json(&["--min", "1K"], &before, &after);
    assert_exact(&large);
    let names: Vec<_> =
        large["rows"].as_array().unwrap().iter().map(|row| row["function"].as_str()).collect();
    assert_eq!(names, [Some("a"), Some("b")]);
    assert_eq!(large["left_out"]["rows"], 3);
    let output = diff(&["--group", "/a"], &before, &after);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("a list of call sites has no groups"));
}

#[test]
fn stacks_have_two_numbers_and_those_that_did_not_change_are_there() {
    let dir = directory();
    let [before, after] = texts(dir.path());
    let folded = said(&["--format", "folded"], &before, &after);
    assert_eq!(folded, "a 4096 16384\nb 8192 0\nnew 0 1000\nd -128 128\nc 100 50\nsame 7 7\n");
    assert_eq!(said(&["--format", "folded", "-n", "1"], &before, &after), "a 4096 16384\n");
    let output = diff(&["--format", "folded", "--sort", "c"], &before, &after);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    let message = text(&output.stderr);
    assert!(message.contains("--sort cannot be combined with --format folded"), "{message}");
    // Callers are told apart, in a process and in its JSON.
    let mut live = Program::start("rounds", &[], &[], "depth:8");
    let kept = keep(&live, "json", &["--json"]);
    live.tell(b'a');
    let folded = said(&["--format", "folded"], &kept, &pid(&live));
    let line = folded.lines().next().unwrap();
    assert!(line.ends_with("main;allocate 0 112000"), "{folded}");
}

#[test]
fn changes_are_the_same_in_every_format_of_rows() {
    let dir = directory();
    let [before, after] = texts(dir.path());
    let whole = json(&[], &before, &after);
    let lines = said(&["--format", "jsonl"], &before, &after);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(Value::Array(lines), whole["rows"]);
    let csv = said(&["--format", "csv"], &before, &after);
    let mut rows = csv.split_terminator("\r\n");
    assert_eq!(
        rows.next().unwrap(),
        "state,delta_bytes,delta_calls,before_bytes,before_calls,after_bytes,after_calls,function,\
         file,line,module,offset"
    );
    for (line, row) in rows.by_ref().zip(whole["rows"].as_array().unwrap()) {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!((fields.len(), Some(fields[0])), (12, row["state"].as_str()));
        for (at, part) in [(1, "delta"), (3, "before"), (5, "after")] {
            let numbers = (fields[at].parse().unwrap(), fields[at + 1].parse().unwrap());
            assert_eq!(numbers, held(&row[part]), "{line}");
        }
        assert_eq!(Some(fields[7]), row["function"].as_str());
    }
    assert_eq!(csv.lines().count(), 1 + whole["rows"].as_array().unwrap().len());
    // Filters, an order and a limit choose the rows of each.
    let choice = ["--min", "1K", "--sort", "t", "-n", "1"];
    let csv = said(&[&choice[..], &["--format", "csv"]].concat(), &before, &after);
    assert_eq!((csv.lines().count(), csv.contains(",a,")), (2, true), "{csv}");
    let short = said(&["--json"], &before, &after);
    assert_eq!(said(&["--format", "json"], &before, &after), short);
}

#[test]
fn memory_outside_of_the_heap_is_compared_on_request() {
    let live = rounds();
    let kept = keep(&live, "json", &["--json"]);
    let without = json(&[], &kept, &pid(&live));
    let with = json(&["--mmap"], &kept, &pid(&live));
    assert_exact(&with);
    assert!(held(&with["before"]["held"]).0 > held(&without["before"]["held"]).0 + (64 << 10));
    let text_only = keep(&live, "heap", &["--no-mmap"]);
    let output = diff(&["--mmap"], &text_only, &pid(&live));
    let message = text(&output.stderr);
    assert!(message.contains("/heap has no rows of memory outside of the heap"), "{message}");
}

#[test]
fn a_source_is_a_number_a_name_a_file_a_pipe_or_the_kernel() {
    let live = rounds();
    let kept = keep(&live, "kept", &[]);
    let total = |before: &Path| json(&[], before, &pid(&live))["delta"].clone();
    assert_eq!(held(&total(&pid(&live))), (0, 0));
    assert_eq!(held(&total(&kept)), (0, 0));
    let mut piped = Command::new(KMEM);
    piped.args(["diff", "/dev/stdin"]).arg(pid(&live)).stdin(File::open(&kept).unwrap());
    let piped = piped.output().unwrap();
    assert!(text(&piped.stdout).contains("(no change)"), "{}", text(&piped.stderr));
    let script = "cat \"$1\" | \"$0\" diff /dev/stdin \"$2\"";
    let mut piped = Command::new("sh");
    piped.args(["-c", script, KMEM]).arg(&kept).arg(pid(&live));
    let piped = piped.output().unwrap();
    assert!(text(&piped.stdout).contains("(no change)"), "{}", text(&piped.stderr));
    // A name, in a directory without such a file, and with one.
    let named = |dir: &Path| {
        let mut command = Command::new(KMEM);
        command.current_dir(dir).args(["diff", "rounds"]).arg(pid(&live)).output().unwrap()
    };
    let elsewhere = directory();
    let output = named(elsewhere.path());
    let message = text(&output.stderr);
    // Other tests run this program concurrently.
    let ambiguous = message.contains("processes are called rounds");
    assert!(output.status.code() == Some(0) || ambiguous, "{message}");
    let output = named(live.dir.path());
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("rounds: an ELF program or library, not the core file"));
    let output = diff(&[], Path::new("kernel"), &pid(&live));
    let message = text(&output.stderr);
    let absent = matches!(output.status.code(), Some(3 | 4));
    assert!(!absent || message.starts_with("kmem: /proc/allocinfo: "), "{message}");
    for (source, what) in [
        ("nothing-is-called-this", "there is no file nothing-is-called-this, and no process"),
        ("./nothing", "./nothing: No such file"),
        ("4294967295", "no process 4294967295"),
    ] {
        let output = diff(&[], Path::new(source), &pid(&live));
        assert_eq!(output.status.code(), Some(3), "{source}");
        assert!(text(&output.stderr).contains(what), "{}", text(&output.stderr));
    }
}
