//! `kmem record`, and recordings as sources of other commands.

mod program;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use kmem_snapshot::recording::Recording;
use program::terminal::Terminal;
use program::{KMEM, Program, compile, directory, json, text};
use serde_json::Value;

/// Bytes and objects of one round of `rounds`: objects of the 112-byte class.
const ROUND: (i64, i64) = (112_000, 1000);

fn kmem(args: &[&str], file: &Path) -> Output {
    Command::new(KMEM).args(args).arg(file).output().unwrap()
}

/// The rows of a moment of a recording.
fn dump(file: &Path, moment: &str) -> Value {
    let mut command = Command::new(KMEM);
    json(command.args(["dump", "--json", "--no-mmap", "--at", moment, "--recording"]).arg(file))
}

fn row<'a>(json: &'a Value, function: &str) -> Option<&'a Value> {
    json["rows"].as_array().unwrap().iter().find(|row| row["function"] == function)
}

fn held(row: &Value) -> (i64, i64) {
    (row["bytes"].as_i64().unwrap(), row["calls"].as_i64().unwrap())
}

/// Waits until a recording has this many moments.
fn wait_for(file: &Path, moments: usize) {
    let begun = Instant::now();
    while Recording::open(file).map_or(0, |of| of.times().len()) < moments {
        assert!(begun.elapsed() < Duration::from_secs(60), "no {moments} moments");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_end_of_a_command_is_the_last_moment_and_its_code_is_passed_through() {
    let dir = directory();
    let program = compile("ends", &[], dir.path());
    let file = dir.path().join("rec");
    let output = Command::new(KMEM)
        .args(["record", "--every", "5ms", "-o"])
        .arg(&file)
        .arg("--")
        .arg(program)
        .args(["2000", "exit"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    let recording = Recording::open(&file).unwrap();
    assert_eq!(recording.end(), Some("exited with 3"));
    assert!(recording.about().exe.ends_with("/ends"), "{:?}", recording.about());
    let (bytes, calls) = held(row(&dump(&file, "last"), "hold").unwrap());
    assert!(calls == 2001 && bytes >= 2_000_000, "{bytes} in {calls}");
    assert!(text(&output.stderr).contains("kmem report"), "{}", text(&output.stderr));
}

#[test]
fn a_running_process_is_recorded_until_it_ends_and_each_moment_can_be_read() {
    let mut program = Program::start("rounds", &[], &[], "");
    let file = program.dir.path().join("rec");
    let recorder = Command::new(KMEM)
        .args(["record", "--every", "2ms", "-p", &program.pid().to_string(), "-o"])
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut moments = 1;
    for command in [b'a', b'a', b'f'] {
        wait_for(&file, moments + 2);
        moments = Recording::open(&file).unwrap().times().len();
        program.tell(command);
        wait_for(&file, moments + 2);
    }
    program.kill();
    let output = recorder.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(Recording::open(&file).unwrap().end(), Some("the process has ended"));
    // The function and the line of a site may come later than its first moment.
    assert_eq!(row(&dump(&file, "first"), "allocate"), None);
    let (peak, last) = (dump(&file, "peak"), dump(&file, "last"));
    let rounds = |json: &Value| held(row(json, "allocate").expect("a row"));
    assert_eq!(rounds(&peak), (2 * ROUND.0, 2 * ROUND.1));
    assert_eq!(rounds(&last), ROUND);
    assert_eq!(peak["pid"], program.pid());
    assert!(peak["accounting"]["tracked"].as_u64().unwrap() >= 2 * ROUND.0 as u64);
    let line = row(&peak, "allocate").unwrap()["line"].as_u64().unwrap();
    assert_eq!(line, 20, "the line of malloc in rounds.c");
    // A recording is a source of a comparison, too.
    let named = format!("{}@peak", file.display());
    let diff = Command::new(KMEM).args(["diff", "--json", &named]).arg(&file).output().unwrap();
    let diff: Value = serde_json::from_slice(&diff.stdout).unwrap();
    assert_eq!(held(&diff["delta"]), (-ROUND.0, -ROUND.1));
    let top = kmem(&["top", "-n", "1", "--no-mmap", "--recording"], &file);
    assert!(text(&top.stdout).contains("allocate"), "{}", text(&top.stdout));
}

#[test]
fn a_terminal_shows_the_progress_and_a_file_does_not() {
    let mut program = Program::start("rounds", &[], &[], "");
    let file = program.dir.path().join("rec");
    let args = format!("record --every 5ms -p {} -o {}", program.pid(), file.display());
    let Some(mut terminal) = Terminal::start((24, 200), &args, "") else { return };
    let has = |lines: &[String], part: &str| lines.iter().any(|line| line.contains(part));
    terminal.wait_for(|lines| has(lines, " moments, ") && has(lines, "; the recording has "));
    program.kill();
    terminal.wait_for(|lines| has(lines, "kmem: recorded "));
    // Without a terminal there is the last message alone.
    let mut program = Program::start("rounds", &[], &[], "");
    let mut record = Command::new(KMEM);
    record.args(["record", "--every", "5ms", "--for", "50ms", "-o"]).arg(&file);
    let output = record.args(["-p", &program.pid().to_string()]).output().unwrap();
    program.kill();
    let said = text(&output.stderr);
    assert!(said.starts_with("kmem: recorded ") && !said.contains('\x1b'), "{said}");
}

#[test]
fn an_interrupt_ends_the_recording_and_not_the_process() {
    let mut program = Program::start("rounds", &[], &[], "");
    let file = program.dir.path().join("rec");
    let mut recorder = Command::new(KMEM)
        .args(["record", "--every", "5ms", "-p", &program.pid().to_string(), "-o"])
        .arg(&file)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(&file, 3);
    let kill = Command::new("kill").args(["-INT", &recorder.id().to_string()]).status().unwrap();
    assert!(kill.success());
    assert_eq!(recorder.wait().unwrap().code(), Some(0));
    program.tell(b'a');
    assert_eq!(Recording::open(&file).unwrap().end(), Some("the user ended the recording"));
}

#[test]
fn a_recorder_that_is_killed_leaves_all_moments_but_the_last() {
    let mut program = Program::start("rounds", &[], &[], "");
    program.tell(b'a');
    let file = program.dir.path().join("rec");
    let mut recorder = Command::new(KMEM)
        .args(["record", "--every", "2ms", "-p", &program.pid().to_string(), "-o"])
        .arg(&file)
        .spawn()
        .unwrap();
    wait_for(&file, 10);
    recorder.kill().unwrap();
    recorder.wait().unwrap();
    let recording = Recording::open(&file).unwrap();
    assert!(recording.times().len() >= 10 && recording.end().is_none());
    assert!(!dump(&file, "last")["rows"].as_array().unwrap().is_empty());
}

#[test]
fn a_program_that_a_signal_ends_has_the_record_of_its_black_box_at_the_end() {
    let dir = directory();
    let program = compile("ends", &[], dir.path());
    let file = dir.path().join("rec");
    let output = Command::new(KMEM)
        .args(["record", "--every", "1h", "-o"])
        .arg(&file)
        .arg("--")
        .arg(program)
        .args(["20000", "segv"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(139), "{}", text(&output.stderr));
    let (bytes, _) = held(row(&dump(&file, "last"), "hold").expect("a row"));
    assert!(bytes >= 19_000_000, "{bytes}");
    assert_eq!(Recording::open(&file).unwrap().end(), Some("ended by SIGSEGV"));
}

#[test]
fn a_source_that_cannot_be_read_leaves_the_file_as_it_is() {
    let dir = directory();
    let file = dir.path().join("rec");
    fs::write(&file, "old").unwrap();
    let pid = std::process::id().to_string();
    let output = kmem(&["record", "-p", &pid, "-o"], &file);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&file).unwrap(), "old");
    let output = kmem(&["record", "--every", "0s", "-p", &pid, "-o"], &file);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn text_of_a_kernel_is_recorded_as_often_as_it_changes() {
    let dir = directory();
    let (list, file) = (dir.path().join("allocinfo"), dir.path().join("rec"));
    let content = |bytes: i64| {
        let head = "allocinfo - version: 1.0\n#     <size>  <calls> <tag info>\n";
        format!("{head}{bytes:>12} 1 a.c:1 func:f \n")
    };
    fs::write(&list, content(4096)).unwrap();
    let mut recorder = Command::new(KMEM)
        .args(["record", "--every", "2ms", "--for", "1h", "-o"])
        .arg(&file)
        .arg("--allocinfo")
        .arg(&list)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(&file, 2);
    let new = dir.path().join("new");
    fs::write(&new, content(8192)).unwrap();
    fs::rename(&new, &list).unwrap();
    let moments = Recording::open(&file).unwrap().times().len();
    wait_for(&file, moments + 2);
    let kill = Command::new("kill").args(["-TERM", &recorder.id().to_string()]).status().unwrap();
    assert!(kill.success() && recorder.wait().unwrap().success());
    let size = |moment| held(row(&dump(&file, moment), "f").unwrap()).0;
    assert_eq!((size("first"), size("last")), (4096, 8192));
}
