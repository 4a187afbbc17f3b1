//! The command on a real program under the real libkmem.so.

mod program;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use kmem_testing::{not_run, this_test};
use program::{KMEM, Program, compile, directory, for_another_user, json, preload, text};
use serde_json::Value;

const SOURCE: &str = include_str!("programs/books.c");

fn line_of(mark: &str) -> usize {
    let mark = format!("/* {mark}");
    SOURCE.lines().position(|line| line.contains(&mark)).unwrap() + 1
}

fn run(what: &str) -> (Output, String) {
    let dir = directory();
    let mut command = Command::new(KMEM);
    command.args(["run", "--"]).arg(compile("books", &[], dir.path())).arg(what);
    command.env_remove("LD_PRELOAD").env_remove("KMEM_CONF").env_remove("KMEM_LIBRARY");
    let output = command.output().unwrap();
    let report = text(&output.stderr);
    (output, report)
}

/// Starts `books WHAT`, which waits.
fn start(what: &str, conf: &str) -> Program {
    Program::start("books", &[], &[what], conf)
}

/// Rows of a table, from its heading to the next empty line.
fn table<'a>(report: &'a str, heading: &str) -> Vec<&'a str> {
    let lines = report.lines().skip_while(|line| !line.starts_with(heading));
    lines.take_while(|line| !line.is_empty()).collect()
}

/// The rows of memory on the heap, and the sums of their ages.
fn ages_of(json: &Value) -> Vec<(&Value, i64, i64)> {
    let rows = json["rows"].as_array().unwrap().iter();
    let sums = |row| {
        let ages = |row: &Value| row["ages"].as_array().cloned().unwrap_or_default();
        let sum = |of: &str| ages(row).iter().map(|age| age[of].as_i64().unwrap()).sum();
        (row, sum("bytes"), sum("calls"))
    };
    rows.map(sums).collect()
}

#[test]
fn a_process_that_may_write_no_files_can_be_read() {
    let dir = directory();
    let mut command = Command::new("sh");
    command.args(["-c", r#"ulimit -f 0; exec "$0" wait"#]).arg(compile("books", &[], dir.path()));
    preload(&mut command, "", dir.path());
    let program = Program::run(command, dir);
    let row = &program.json(&["dump", "--json", "--function", "leak"])["rows"][0];
    assert!(row["bytes"].as_i64().unwrap() > 0, "{row}");
}

#[test]
fn with_age_all_bytes_of_a_row_have_an_age() {
    for conf in ["age:1", "age:1,rseq:off", "age:1,check_caches:1", "age:1,hardened"] {
        let program = start("wait", conf);
        let json = program.json(&["dump", "--json", "--no-mmap"]);
        let rows = ages_of(&json);
        assert!(rows.len() > 2, "{conf}: {json:#}");
        for (row, bytes, calls) in rows {
            assert_eq!((&row["bytes"], &row["calls"]), (&bytes.into(), &calls.into()), "{conf}");
            let ages = row["ages"].as_array().unwrap();
            assert!(ages.iter().all(|age| !age["from_s"].is_null()), "{conf}: {row:#}");
        }
    }
    let json = start("wait", "").json(&["dump", "--json", "--no-mmap"]);
    assert!(ages_of(&json).iter().all(|of| of.2 == 0), "{json:#}");
}

#[test]
fn a_stripped_program_says_which_file_would_name_its_rows() {
    let id = "-Wl,--build-id=0xfe0123456789abcdef";
    let [stripped, whole] = [&["-s", id][..], &[id]].map(|flags| {
        let program = Program::start("books", flags, &["wait"], "");
        let json = program.json(&["dump", "--json", "--no-mmap", "--sort", "s"]);
        let page = text(&program.kmem(&["dump", "--no-mmap", "--format", "table"]).stderr);
        (json, page, program.dir.path().join("books"))
    });
    let (json, page, path) = stripped;
    let row = &json["rows"][0];
    assert_eq!((&row["module"], &row["function"]), (&"books".into(), &Value::Null), "{json:#}");
    let debug = "/usr/lib/debug/.build-id/fe/0123456789abcdef.debug";
    let note = format!(
        "3.1 MiB are known by module and offset alone, 3.1 MiB of them in {}; {debug} would name \
         these",
        path.display()
    );
    assert!(json["notes"].as_array().unwrap().contains(&note.clone().into()), "{json:#}");
    assert!(page.contains(&format!("kmem: {note}")), "{page}");
    let (json, page, _) = whole;
    assert_eq!(json["rows"][0]["function"], "large");
    assert!(!page.contains(".debug"), "{page}");
}

#[test]
fn peak_and_leaks_are_exact() {
    let (output, report) = run("spike");
    assert_eq!(output.status.code(), Some(7), "{report}");
    let row = |rows: &[&str], function: &str, mark: &str| -> String {
        let place = format!("books.c:{}", line_of(mark));
        let found =
            rows.iter().find(|r| r.contains(&format!(" {function} ")) && r.ends_with(&place));
        let fields: Vec<&str> =
            found.unwrap_or_else(|| panic!("{report}")).split_whitespace().collect();
        fields[..3].join(" ")
    };
    let peak = table(&report, "At the peak:");
    let exit = table(&report, "At exit (not freed)");
    let highest = peak[1].strip_prefix("  highest: ").unwrap_or_else(|| panic!("{report}"));
    let within = highest.split_once("; sites as of the record at ").and_then(|(_, record)| {
        record.split_once(" s, within ")?.1.strip_suffix(" %")?.parse::<u32>().ok()
    });
    assert!(highest.contains(" MiB of pages in use at ") && within.unwrap() <= 5, "{report}");
    assert!(
        row(&peak, "spike", "spike").ends_with("MiB 50")
            || row(&peak, "spike", "spike").contains("MiB 4"),
        "{report}"
    );
    assert!(!exit.iter().any(|r| r.contains(" spike ")), "{report}");
    // 1000 objects of the 112-byte class.
    assert_eq!(row(&exit, "leak", "leak"), "109.4 KiB 1000");
    assert_eq!(row(&exit, "large", "large"), "3.0 MiB 1");
    assert!(
        report.lines().any(|l| l.starts_with("tracked ") && l.contains(" = resident ")),
        "{report}"
    );
}

#[test]
fn dump_is_allocinfo_of_a_live_process() {
    let live = start("wait", "");
    let output = live.kmem(&["dump", "--no-mmap"]);
    let dump = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(dump.starts_with("allocinfo - version: 2.0\n#     <size>  <calls> <tag info>\n"));
    let leak = format!("{:12} {:8} ", 112_000, 1000);
    let end = format!("books.c:{} func:leak ", line_of("leak"));
    assert!(dump.lines().any(|l| l.starts_with(&leak) && l.ends_with(&end)), "{dump}");
    assert!(dump.lines().skip(2).all(|l| l.ends_with(' ')));
    assert!(text(&output.stderr).starts_with("tracked "), "{}", text(&output.stderr));
    // Equal books print alike.
    assert_eq!(text(&live.kmem(&["dump", "--no-mmap"]).stdout), dump);
    assert!(
        text(&live.kmem(&["dump", "--no-mmap", "--format", "1.0"]).stdout)
            .starts_with("allocinfo - version: 1.0\n")
    );
}

#[test]
fn top_and_json() {
    let live = start("wait", "");
    let top = text(&live.kmem(&["top", "--once", "-n", "1", "--no-mmap"]).stdout);
    assert!(top.contains("   3.0 MiB         1  large     "), "{top}");
    let json: Value =
        serde_json::from_slice(&live.kmem(&["top", "-o", "--json", "--no-mmap"]).stdout).unwrap();
    let of = |name: &str| json["accounting"][name].as_i64().unwrap();
    let heap = of("tracked") + of("cached") + of("overhead") - of("untouched") - of("swapped");
    assert_eq!(heap + of("unaccounted"), of("resident"));
    assert_eq!(json["rows"][0]["bytes"], 3 << 20);
    let rows: Value =
        serde_json::from_slice(&live.kmem(&["dump", "--no-mmap", "--json"]).stdout).unwrap();
    let rows = rows["rows"].as_array().unwrap();
    let sum: i64 = rows.iter().map(|r| r["bytes"].as_i64().unwrap()).sum();
    assert_eq!(sum, of("tracked"));
    let most = ["top", "-o", "--json", "-s", "c", "-m", "64K", "--no-mmap"];
    let most: Value = serde_json::from_slice(&live.kmem(&most).stdout).unwrap();
    assert_eq!(most["rows"][0]["calls"], 1000);
    assert_eq!(most["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn free_parts_of_huge_pages_are_cached_memory() {
    let system = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if system.is_ok_and(|text| text.contains("[never]")) {
        return not_run(&this_test(), "the system has no transparent huge pages");
    }
    let account = |thp: &str| {
        let top = start("wait", &format!("thp:{thp}")).kmem(&["top", "--once", "--json"]);
        let json: Value = serde_json::from_slice(&top.stdout).unwrap();
        let of = |name: &str| json.pointer(&format!("/accounting/{name}")).and_then(Value::as_i64);
        ["cached", "parts/other", "resident"].map(|name| of(name).unwrap())
    };
    let ([few, other, small], [many, other_huge, large]) = (account("never"), account("always"));
    assert!(large > small + (1 << 20), "{small} and {large} resident: no huge page");
    assert!(many > few + (1 << 20), "{few} and {many} cached");
    assert!(other_huge < other + (256 << 10), "{other} and {other_huge} of unknown use");
}

#[test]
fn filters_choose_rows_of_a_live_process() {
    let live = start("wait", "");
    let all = text(&live.kmem(&["dump", "--no-mmap"]).stdout);
    let lines = |args: &[&str]| -> Vec<String> {
        let output = live.kmem(args);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains("a filter is on: "), "{}", text(&output.stderr));
        let dump = text(&output.stdout);
        assert_eq!(dump.lines().next(), Some("allocinfo - version: 2.0"));
        dump.lines().skip(2).map(str::to_owned).collect()
    };
    let expected = |wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        all.lines().skip(2).filter(|l| wanted(l)).map(str::to_owned).collect()
    };
    let leak = expected(&|l| l.ends_with(" func:leak "));
    let both = expected(&|l| l.ends_with(" func:leak ") || l.ends_with(" func:large "));
    assert_eq!((leak.len(), both.len()), (1, 2));
    let line = line_of("leak").to_string();
    assert_eq!(lines(&["dump", "--no-mmap", "--function", "leak"]), leak);
    assert_eq!(lines(&["dump", "--no-mmap", "--function", "leak", "--function", "large"]), both);
    assert_eq!(lines(&["dump", "--no-mmap", "--function", "l*", "--line", &line]), leak);
    // The C library's buffer for standard output is the program's, too.
    let program = expected(&|l| l.contains("/books.c:"));
    assert!(program.len() > both.len(), "{all}");
    assert_eq!(lines(&["dump", "--no-mmap", "--file", "*/books.c"]), program);
    assert_eq!(lines(&["dump", "--no-mmap", "--module", "book?"]), program);
    let small = expected(&|l| l.contains("/books.c:") && !l.ends_with(" func:large "));
    assert_eq!(lines(&["dump", "--no-mmap", "--module", "books", "--max", "1M"]), small);
    assert_eq!(
        lines(&["dump", "--no-mmap", "--min", "112000", "--max", "112000", "--file", "*.c"]),
        leak
    );
    let library = expected(&|l| !l.contains("/books.c:"));
    assert_eq!(lines(&["dump", "--no-mmap", "--module", "lib*"]), library);

    assert_eq!(lines(&["dump", "--no-mmap", "--function", "leak", "--module", "lib*"]), [""; 0]);
    let top = text(&live.kmem(&["top", "--once", "--function", "absent"]).stdout);
    let table: Vec<&str> = top.lines().skip_while(|l| !l.is_empty()).skip(1).collect();
    assert_eq!(table, ["      SIZE   OBJECTS  FUNCTION  WHERE"], "{top}");
    let top = text(&live.kmem(&["top", "--once", "--function", "leak"]).stdout);
    let says = "a filter is on: 109.4 KiB in 1000 live objects from 1 call sites match, of 3.1 MiB";
    assert!(top.lines().next().unwrap().contains(says), "{top}");
    let json: Value = serde_json::from_slice(
        &live.kmem(&["dump", "--no-mmap", "--json", "--line", &line]).stdout,
    )
    .unwrap();
    assert_eq!(json["filtered"]["bytes"], 112_000);
    assert_eq!(json["rows"].as_array().unwrap().len(), 1);
    assert_eq!(live.kmem(&["dump", "--no-mmap", "--line", "x"]).status.code(), Some(2));
}

#[test]
fn a_site_that_pins_what_others_freed_is_shown() {
    let live = start("fragment", "");
    let output = live.kmem(&["dump", "--no-mmap", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let of = |function: &str, field: &str| {
        let row = rows.iter().find(|r| r["function"] == function).unwrap();
        row[field].as_u64().unwrap()
    };
    assert!(!rows.iter().any(|r| r["function"] == "passing"));
    assert_eq!((of("pin", "bytes"), of("pin", "calls")), (64_000, 1000));
    // 101,000 objects of 64 bytes: 6.2 MiB of slabs, most of which hold an object of `pin`.
    let (pinned, sole) = (of("pin", "pinned"), of("pin", "sole"));
    assert!((6 << 20..=8 << 20).contains(&pinned), "{pinned}");
    assert!(sole <= pinned && sole >= pinned - (1 << 20), "{sole} of {pinned}");
    // A page run belongs to one row.
    assert_eq!((of("large", "pinned"), of("large", "sole")), (3 << 20, 3 << 20));
    assert!(of("leak", "pinned") >= 112_000);
    for row in rows {
        let [bytes, pinned, sole] = ["bytes", "pinned", "sole"].map(|f| row[f].as_u64().unwrap());
        assert!(bytes <= pinned && sole <= pinned, "{row}");
    }

    let top = text(&live.kmem(&["top", "--once", "--by", "pinned", "-n", "2"]).stdout);
    let table: Vec<Vec<&str>> = top
        .lines()
        .skip_while(|l| !l.is_empty())
        .skip(1)
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(table[0], ["PINNED", "SOLE", "SIZE", "OBJECTS", "FUNCTION", "WHERE"]);
    assert_eq!(table[1][4..8], ["62.5", "KiB", "1000", "pin"], "{top}");
    assert_eq!(table[2][..8], ["3.0", "MiB", "3.0", "MiB", "3.0", "MiB", "1", "large"], "{top}");
    assert_eq!(table.len(), 3);
    assert_eq!(live.kmem(&["top", "--by", "pinned", "-s", "c"]).status.code(), Some(2));
}

#[test]
fn the_allocators_own_memory_is_the_overhead_to_the_byte() {
    let live = start("fragment", "peak:1");
    let json =
        |args: &[&str]| -> Value { serde_json::from_slice(&live.kmem(args).stdout).unwrap() };
    let own = |json: &Value| -> Vec<Value> {
        let rows = json["rows"].as_array().unwrap();
        rows.iter().filter(|r| r["kind"] == "metadata").cloned().collect()
    };
    assert_eq!(own(&json(&["dump", "--no-mmap", "--json"])), [Value::Null; 0]);
    let top = ["top", "-o", "-n", "1000", "--json", "--metadata"];
    for args in [&["dump", "--no-mmap", "--json", "--metadata"][..], &top] {
        let json = json(args);
        let rows = own(&json);
        let sum: i64 = rows.iter().map(|r| r["bytes"].as_i64().unwrap()).sum();
        assert_eq!(sum, json["accounting"]["overhead"].as_i64().unwrap());
        let names: BTreeSet<&str> = rows.iter().map(|r| r["function"].as_str().unwrap()).collect();
        for name in ["zone_tables", "slab_tables", "site_tables", "peak_table"] {
            assert!(names.contains(name), "{names:?}");
        }
        assert_eq!(rows.len(), names.len());
    }
    let plain = text(&live.kmem(&["dump", "--no-mmap"]).stdout);
    let dump = text(&live.kmem(&["dump", "--no-mmap", "--metadata"]).stdout);
    let own = dump.strip_prefix(&plain).unwrap();
    assert!(own.contains("        0 kmem:0 func:zone_tables \n"), "{own}");
    let one = text(&live.kmem(&["dump", "--no-mmap", "--metadata", "--function", "slab_*"]).stdout);
    assert_eq!(one.lines().skip(2).count(), 1, "{one}");
}

/// A process of root, whose memory the reader may read, and whose page map only root may open.
#[test]
fn without_the_page_map_the_overhead_is_an_estimate_and_said_to_be_one() {
    let Some((_dir, kmem)) = for_another_user() else { return };
    let reader = |program: &Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]).arg(program);
        command
    };
    if !reader(Path::new("true")).output().is_ok_and(|output| output.status.success()) {
        let reason = "there is no setpriv, or no right to read processes to give away";
        not_run(&this_test(), reason);
        return;
    }
    let live = start("fragment", "");
    let pid = live.pid().to_string();
    let hidden =
        json(reader(&kmem).args(["dump", "--no-mmap", "--json", "--metadata", "-p", &pid]));
    let exact = live.json(&["dump", "--no-mmap", "--json", "--metadata"]);
    let of = |json: &Value, name: &str| json["accounting"][name].as_i64().unwrap();
    assert_eq!(
        [&exact["accounting"]["tables"], &hidden["accounting"]["tables"]],
        ["counted", "estimated"]
    );
    for same in ["tracked", "cached", "resident"] {
        assert_eq!(of(&hidden, same), of(&exact, same), "{same}");
    }
    for json in [&exact, &hidden] {
        let sum = ["tracked", "cached", "overhead", "unaccounted"].map(|part| of(json, part));
        let absent =
            ["untouched", "swapped"].map(|of| json["accounting"][of].as_i64().unwrap_or(0));
        assert_eq!(sum.iter().sum::<i64>() - absent[0] - absent[1], of(json, "resident"));
        let rows = json["rows"].as_array().unwrap().iter().filter(|r| r["kind"] == "metadata");
        let own: i64 = rows.map(|row| row["bytes"].as_i64().unwrap()).sum();
        assert_eq!(own, of(json, "overhead"));
    }
    let (guess, count) = (of(&hidden, "overhead"), of(&exact, "overhead"));
    assert!((count / 10 * 9..=count / 10 * 11).contains(&guess), "{guess} for {count}");
    assert_eq!(hidden["accounting"]["untouched"], Value::Null);
    let report =
        text(&reader(&kmem).args(["dump", "--no-mmap", "-p", &pid]).output().unwrap().stderr);
    assert!(report.contains("\n  overhead is an estimate: "), "{report}");
}

#[test]
fn switches_are_told() {
    let live = start("wait", "mem_profiling:never");
    let output = live.kmem(&["dump", "--no-mmap"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty());
    assert!(text(&output.stderr).contains("profiling is `never`"), "{}", text(&output.stderr));

    let live = start("wait", "mem_profiling:0");
    let output = live.kmem(&["dump", "--no-mmap"]);
    assert!(
        text(&output.stdout).contains(" kmem:0 func:not_tagged \n"),
        "{}",
        text(&output.stdout)
    );
    assert!(text(&output.stderr).contains("profiling is off"));
}

#[test]
fn a_busy_process_can_be_read_any_time() {
    let live = start("churn", "");
    for _ in 0..8 {
        let output = live.kmem(&["dump", "--no-mmap", "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let leak = json["rows"].as_array().unwrap().iter().find(|r| r["function"] == "leak");
        // Objects that stay are exact while others come and go.
        assert_eq!(leak.unwrap()["bytes"], 112_000);
        assert_eq!(leak.unwrap()["calls"], 1000);
    }
}

#[test]
fn another_process_of_the_tree_is_shown_with_what_it_held_of_its_own() {
    let (output, report) = run("fork");
    assert_eq!(output.status.code(), Some(7));
    let others = report.lines().filter(|l| l.starts_with("books (") || l.starts_with("and 1 "));
    assert_eq!(others.filter(|l| !l.contains("the command")).count(), 1, "{report}");
    // The child's leaks are its own.
    assert!(report.contains("109.4 KiB      1000  leak "), "{report}");
}

#[test]
fn a_process_that_is_killed_at_once_is_reported() {
    let (output, report) = run("kill");
    assert_eq!(output.status.code(), Some(137));
    assert!(report.contains("ended by SIGKILL"), "{report}");
    assert!(report.contains("3.0 MiB         1  large "), "{report}");
}

#[test]
fn a_closed_pipe_is_silent() {
    let live = start("wait", "");
    let pid = live.pid().to_string();
    let mut child = Command::new(KMEM)
        .args(["top", "-p", &pid])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(0), ""));
}

#[test]
fn what_the_command_says_is_written_by_one_call_and_not_torn_by_output_of_others() {
    let live = start("wait", "");
    let pid = live.pid().to_string();
    let box_of_none = ["dump", "--blackbox", "/dev/null"];
    for arguments in [["dump", "-p", &pid], box_of_none] {
        // Each call that writes to such a socket is a message of its own.
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let mut command = Command::new(KMEM);
        command.args(arguments).stdout(Stdio::null()).stderr(OwnedFd::from(theirs));
        command.status().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut message = [0; 1 << 16];
        let next = || {
            let length = ours.recv(&mut message).ok()?;
            Some(text(&message[..length]))
        };
        let messages: Vec<String> = std::iter::from_fn(next).collect();
        assert!(!messages.is_empty(), "{arguments:?}");
        let torn = messages.iter().find(|message| !message.ends_with('\n'));
        assert_eq!(torn, None, "{arguments:?}");
    }
}

/// Output of the command with these arguments.
fn kmem(arguments: &[&str]) -> Output {
    Command::new(KMEM).args(arguments).output().unwrap()
}

#[test]
fn ls_lists_the_processes_under_kmem_and_their_names_stand_for_pids() {
    let program = start("wait", "");
    let pid = program.pid().to_string();
    let row_of = |text: &str| {
        text.lines().find(|l| l.split_whitespace().next() == Some(&pid)).map(str::to_owned)
    };
    let listed = text(&kmem(&["ls"]).stdout);
    let row = row_of(&listed).unwrap_or_else(|| panic!("{listed}"));
    assert!(row.ends_with(" books"), "{row}");
    let listed = json(Command::new(KMEM).args(["ls", "--json"]));
    let ours = listed["processes"].as_array().unwrap().iter().find(|p| p["pid"] == program.pid());
    let dump = program.json(&["dump", "--json"]);
    assert_eq!(ours.unwrap()["bytes"], dump["totals"]["bytes"], "{listed}");

    // Other tests may run programs of that name at the same time.
    let named = kmem(&["dump", "-p", "books"]);
    if !named.status.success() {
        assert_eq!(named.status.code(), Some(2), "{}", text(&named.stderr));
        let errors = text(&named.stderr);
        assert!(errors.contains("processes are called books"), "{errors}");
        assert!(errors.contains(&format!("-p {pid} (")), "{errors}");
    }
    let absent = kmem(&["dump", "-p", "no-such-name"]);
    assert_eq!(absent.status.code(), Some(3));
    assert!(text(&absent.stderr).contains("no process is called no-such-name"));
}

/// Seconds of an age such as `7s` or `1m02s`.
fn seconds(age: &str) -> u64 {
    let age = age.strip_suffix('s').unwrap_or_else(|| panic!("{age}"));
    let (minutes, seconds) = age.split_once('m').unwrap_or(("0", age));
    60 * minutes.parse::<u64>().unwrap() + seconds.parse::<u64>().unwrap()
}

#[test]
fn ls_counts_the_groups_of_a_live_process_and_its_age() {
    let include = kmem_testing::include();
    let flags = ["-I", include.to_str().unwrap()];
    for (name, groups) in [("books", 0), ("grouped", 1)] {
        let begun = Instant::now();
        let program = Program::start(name, &flags, &["wait"], "");
        let ready = Instant::now();
        // The kernel counts the start of a process in ticks.
        let least = || ready.elapsed().as_secs().saturating_sub(1);
        let is_near = |age: u64, least: u64| {
            assert!((least..=begun.elapsed().as_secs() + 1).contains(&age), "{age} from {least}");
        };
        let youngest = least();
        let listed = text(&kmem(&["ls"]).stdout);
        let mut rows = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(rows.next().unwrap(), ["PID", "SIZE", "GROUPS", "AGE", "NAME"]);
        let pid = program.pid().to_string();
        // A size is a number and its unit.
        let row = rows.find(|row| row[0] == pid).unwrap_or_else(|| panic!("{listed}"));
        assert_eq!((row[3], row[5]), (groups.to_string().as_str(), name), "{listed}");
        is_near(seconds(row[4]), youngest);

        let youngest = least();
        let listed = json(Command::new(KMEM).args(["ls", "--json"]));
        let all = listed["processes"].as_array().unwrap();
        let ours = all.iter().find(|of| of["pid"] == program.pid()).unwrap();
        assert_eq!(ours["groups"], groups, "{listed}");
        is_near(ours["age_seconds"].as_u64().unwrap(), youngest);
    }
}

#[test]
fn a_name_that_only_a_program_without_kmem_has_is_told_apart() {
    let mut bare = Command::new("/bin/cat").stdin(Stdio::piped()).spawn().unwrap();
    let output = kmem(&["dump", "-p", "cat"]);
    bare.kill().unwrap();
    bare.wait().unwrap();
    let errors = text(&output.stderr);
    assert!(errors.contains("start it with `kmem run`"), "{errors}");
}
