//! `kmem leaks` on a process, against what LeakSanitizer and valgrind say of the program.

mod program;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kmem_testing::{Compiler, is_missing, not_run, this_test};
use program::{KMEM, Program, compile, directory, library, text};
use serde_json::Value;

/// Objects by kind of leak and function.
type Found = BTreeMap<(String, String), u64>;

/// Most tries on a program that stops within a change of a slab.
const TRIES: usize = 10;
/// Longest wait for a state of a process.
const WAIT: Duration = Duration::from_secs(10);

fn leaks_in(format: &str, program: &Program) -> Output {
    for _ in 0..TRIES {
        let output = program.kmem(&["leaks", "--format", format]);
        let said = text(&output.stderr);
        if output.status.code() != Some(2) || !said.contains("can be looked at") {
            return output;
        }
    }
    panic!("no try of {TRIES} found all objects whole");
}

fn leaks(program: &Program) -> (Value, i32) {
    let output = leaks_in("json", program);
    let json = serde_json::from_slice(&output.stdout);
    let json = json.unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    (json, output.status.code().unwrap())
}

/// Waits until a process is in a state.
fn wait_for_state(pid: u32, wanted: &str) {
    let start = Instant::now();
    while state(pid).0 != wanted {
        assert!(start.elapsed() < WAIT, "state {} instead of {wanted}", state(pid).0);
        std::thread::yield_now();
    }
}

fn found(json: &Value) -> Found {
    let mut found = Found::new();
    for kind in ["direct", "indirect"] {
        for row in json[kind]["rows"].as_array().unwrap() {
            let function = row["function"].as_str().unwrap().to_owned();
            *found.entry((kind.to_owned(), function)).or_default() +=
                row["calls"].as_u64().unwrap();
        }
    }
    found
}

fn expected() -> Found {
    let of =
        |kind: &str, function: &str, objects| ((kind.to_owned(), function.to_owned()), objects);
    Found::from([
        of("direct", "leaked", 100),
        of("direct", "leaked_large", 1),
        of("indirect", "leaked_by_leak", 1),
        of("direct", "leaked_list", 1),
        of("indirect", "leaked_list", 9),
        of("direct", "leaked_ring", 1),
        of("indirect", "leaked_ring", 1),
    ])
}

/// State of a process, as `S` for one that sleeps, and its tracer.
fn state(pid: u32) -> (String, String) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    (field("State:"), field("TracerPid:"))
}

#[test]
fn objects_that_nothing_leads_to_are_found_by_site() {
    let program = Program::start("leaks", &[], &[], "");
    let (json, code) = leaks(&program);
    assert_eq!((found(&json), code), (expected(), 1));
    let page = text(&program.kmem(&["leaks"]).stdout);
    assert!(page.contains("Direct: no pointer leads to them: 3.0 MiB in 103 objects"), "{page}");
    assert!(page.contains("Indirect: only leaked objects lead to them:"), "{page}");
    assert_eq!(state(program.pid()).1, "0");
}

#[test]
fn leaks_of_a_stripped_program_say_which_file_would_name_them() {
    let id = "-Wl,--build-id=0xfa0123456789abcdef";
    let program = Program::start("leaks", &["-s", id], &[], "");
    let output = leaks_in("table", &program);
    let said = text(&output.stderr);
    let debug = "/usr/lib/debug/.build-id/fa/0123456789abcdef.debug would name these";
    assert!(said.contains(debug), "{said}");
}

#[test]
fn direct_leaks_are_in_every_format() {
    let program = Program::start("leaks", &[], &[], "");
    let (json, _) = leaks(&program);
    let bytes = json["direct"]["bytes"].as_i64().unwrap();
    let said = |format| {
        let output = leaks_in(format, &program);
        assert_eq!(output.status.code(), Some(1), "{format}: {}", text(&output.stderr));
        output.stdout
    };
    let sum = |lines: &str, of: fn(&str) -> i64| lines.lines().map(of).sum::<i64>();
    let of_json =
        |line: &str| serde_json::from_str::<Value>(line).unwrap()["bytes"].as_i64().unwrap();
    assert_eq!(sum(&text(&said("jsonl")), of_json), bytes);
    let first = |line: &str| line.split([',', ' ']).find_map(|word| word.parse().ok()).unwrap_or(0);
    assert_eq!(sum(&text(&said("csv")), first), bytes);
    let info = text(&said("1.0"));
    assert!(info.contains("func:leaked_large") && !info.contains("leaked_by_leak"), "{info}");
    assert_eq!(sum(info.split_once("<tag info>").unwrap().1, first), bytes, "{info}");
    let last = |line: &str| line.rsplit(' ').next().unwrap().parse().unwrap();
    assert_eq!(sum(&text(&said("folded")), last), bytes);
    let magic: [(&str, &[u8]); 4] =
        [("pprof", b"\x1f\x8b"), ("parquet", b"PAR1"), ("dhat", b"{"), ("speedscope", b"{")];
    for (format, begin) in magic {
        assert!(said(format).starts_with(begin), "{format}");
    }
}

#[test]
fn a_program_without_leaks_has_none() {
    let program = Program::start("leaks", &[], &["clean"], "");
    let output = program.kmem(&["leaks"]);
    let page = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{page}");
    assert!(page.contains("no leaks"), "{page}");
}

#[test]
fn the_process_goes_on_when_the_command_is_killed() {
    let program = Program::start("leaks", &[], &["leak", "spin"], "");
    let mut traced = 0;
    for _ in 0..20 {
        let mut command = Command::new(KMEM);
        command.args(["leaks", "-p", &program.pid().to_string()]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Until it has stopped the process, or has ended.
        let start = Instant::now();
        let mut tracer = state(program.pid()).1;
        while tracer == "0" && child.try_wait().unwrap().is_none() {
            assert!(start.elapsed() < WAIT, "it neither traces nor ends");
            tracer = state(program.pid()).1;
        }
        child.kill().unwrap();
        let killed = child.wait().unwrap().code().is_none();
        traced += usize::from(killed && tracer != "0");
        let (state, tracer) = state(program.pid());
        assert!(tracer == "0" && !"tT".contains(&*state), "{state} {tracer}");
    }
    assert_ne!(traced, 0, "no run was killed while it traced");
}

#[test]
fn a_stopped_process_stays_stopped_and_a_running_one_is_read_while_it_allocates() {
    let program = Program::start("leaks", &[], &["leak", "spin"], "");
    for _ in 0..5 {
        assert_eq!(found(&leaks(&program).0), expected());
    }
    let signal = |name: &str| {
        let status = Command::new("kill").args([name, &program.pid().to_string()]).status();
        assert!(status.unwrap().success());
    };
    signal("-STOP");
    wait_for_state(program.pid(), "T");
    assert_eq!(found(&leaks(&program).0), expected());
    wait_for_state(program.pid(), "T");
    signal("-CONT");
}

#[test]
fn objects_that_are_hard_to_reach_are_no_leaks() {
    for edge in ["guard", "merged", "sparse", "signals"] {
        let program = Program::start("leaks_edges", &[], &[edge], "");
        // A signal arrives while some of these stop it.
        for _ in 0..if edge == "signals" { 12 } else { 1 } {
            let (json, code) = leaks(&program);
            assert_eq!((found(&json), code), (Found::new(), 0), "{edge}");
            let stopped = json["stopped_seconds"].as_f64().unwrap();
            assert!(stopped < 2.0, "{edge}: {stopped} s");
        }
    }
}

/// Takes the 2 s for which the command waits.
#[test]
fn a_thread_that_does_not_stop_is_named_and_the_others_go_on() {
    let program = Program::start("leaks_edges", &[], &["vfork"], "");
    let tasks = fs::read_dir(format!("/proc/{}/task", program.pid())).unwrap();
    let mut tids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let tid: u32 = tids.find(|&tid| tid != program.pid()).unwrap();
    let output = program.kmem(&["leaks"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("thread {tid} of process")), "{said}");
    assert!(said.contains("did not stop within 2 seconds"), "{said}");
    wait_for_state(program.pid(), "S");
    assert_eq!(state(program.pid()).1, "0");
}

#[test]
fn leak_sanitizer_finds_these_leaks() {
    let dir = directory();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/leaks.c");
    let path = Compiler::c()
        .args(["-g", "-O1", "-pthread", "-fsanitize=leak"])
        .arg(source)
        .compile(dir.path().join("sanitized"));
    let mut command = Command::new(path);
    let output = command.env("LSAN_OPTIONS", "report_objects=0").stdin(Stdio::null()).output();
    let said = text(&output.unwrap().stderr);
    if !said.contains("LeakSanitizer: detected memory leaks") {
        not_run(&this_test(), &format!("LeakSanitizer does not work here: {said}"));
        return;
    }
    let mut lines = said.lines().peekable();
    let mut theirs = Found::new();
    while let Some(line) = lines.next() {
        // Direct leak of 7000 byte(s) in 100 object(s) allocated from:
        let Some((kind, rest)) = line.split_once(" leak of ") else { continue };
        let objects = rest.split_once(" in ").unwrap().1.split(' ').next().unwrap();
        // The frame behind that of malloc.
        let frame = lines.by_ref().nth(1).unwrap();
        let function = frame.split(" in ").nth(1).unwrap().split(' ').next().unwrap();
        let key = (kind.to_lowercase(), function.to_owned());
        *theirs.entry(key).or_default() += objects.parse::<u64>().unwrap();
    }
    // The sanitizer counts the whole of a ring as indirect.
    let mut ours = expected();
    let key = |kind: &str| (kind.to_owned(), "leaked_ring".to_owned());
    ours.remove(&key("direct"));
    ours.insert(key("indirect"), 2);
    assert_eq!(theirs, ours, "{said}");
}

/// `kmem run --leaks` with a program of the tests, which ends when it has no input.
fn at_exit(arguments: &[&str]) -> (String, Option<i32>) {
    let dir = directory();
    let path = compile("leaks", &["-pthread"], dir.path());
    let mut command = Command::new(KMEM);
    command.args(["run", "--leaks", "--library"]).arg(library()).arg("--").arg(path);
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    (text(&output.stderr), output.status.code())
}

#[test]
fn leaks_at_the_exit_are_in_the_report_of_a_run() {
    let (report, code) = at_exit(&[]);
    assert_eq!(code, Some(1), "{report}");
    let (_, leaks) = report.split_once("\nLeaks at exit: ").expect(&report);
    assert!(leaks.contains("Direct: no pointer leads to them: 3.0 MiB in 103 objects"), "{report}");
    let row = |function: &str| leaks.lines().any(|line| line.contains(&format!(" {function} ")));
    assert!(row("leaked_large") && row("leaked_by_leak") && !row("by_global"), "{report}");
}

#[test]
fn a_run_without_leaks_has_the_exit_code_of_the_command() {
    let (report, code) = at_exit(&["clean"]);
    assert_eq!(code, Some(0), "{report}");
    assert!(report.contains("no leaks: pointers lead to all of them"), "{report}");
}

#[test]
fn a_run_whose_leaks_cannot_be_looked_for_fails_and_says_so() {
    let mut command = Command::new(KMEM);
    command.args(["run", "--leaks", "--library"]).arg(library());
    let output = command.args(["--", "sh", "-c", "kill -9 $$"]).output().unwrap();
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(137), "{report}");
    assert!(report.contains("leaks were not looked for"), "{report}");
    let mut command = Command::new(KMEM);
    command.args(["run", "--leaks", "--mem_profiling", "never", "--library"]).arg(library());
    let output = command.args(["--", "true"]).output().unwrap();
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{report}");
    assert!(report.contains("leaks were not looked for"), "{report}");
}

#[test]
fn valgrind_finds_these_leaks() {
    if is_missing("valgrind") {
        return;
    }
    let dir = directory();
    let path = compile("leaks", &[], dir.path());
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--leak-check=full", "--show-leak-kinds=definite,indirect"]).arg(path);
    let said = text(&valgrind.stdin(Stdio::null()).output().unwrap().stderr);
    let blocks = |kind: &str| -> u64 {
        let line = said.lines().find(|line| line.contains(kind)).expect(&said);
        let blocks = line.split(" in ").nth(1).unwrap().split(' ').next().unwrap();
        blocks.replace(',', "").parse().unwrap()
    };
    let sum = |kind: &str| -> u64 {
        expected().iter().filter(|((of, _), _)| of == kind).map(|(_, objects)| objects).sum()
    };
    // Valgrind also follows pointers into an object. An old word on the stack may be one into the
    // large object, which then counts as possibly lost.
    let possible = u64::from(said.contains("possibly lost: 3,1"));
    assert_eq!(blocks("definitely lost: ") + possible, sum("direct"), "{said}");
    // The object that only the large one leads to.
    assert_eq!(blocks("indirectly lost: ") + possible, sum("indirect"), "{said}");
}
