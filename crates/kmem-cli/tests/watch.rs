//! `kmem watch` on processes that are killed, run out of memory, or exceed limits.

mod program;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use kmem_testing::{copy_program, is_not_root, not_run, this_test};
use program::{KMEM, Program, check_unit, compile, control_group, directory, preload, text};
use serde_json::Value;
use tempfile::TempDir;

/// Seconds after which a watch is ended, so that a report that does not come fails the test.
const DEADLINE: &str = "120";
/// Line of `malloc` in `watched.c`.
const LINE: &str = "watched.c:12\n";

/// A running `kmem watch`, with a directory for its reports.
struct Watch {
    child: Child,
    lines: BufReader<ChildStderr>,
    dir: TempDir,
}

impl Watch {
    fn start(args: &[&str]) -> Self {
        let dir = directory();
        // It passes signals and the exit code on.
        let mut command = Command::new("timeout");
        command.args([DEADLINE, KMEM, "watch"]).args(args);
        command.arg("-o").arg(dir.path().join("reports"));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines, dir }
    }

    /// Starts it, and waits until it has read the program for the first time.
    fn of(program: &Program, args: &[&str]) -> Self {
        let mut watch = Self::start(&[&["-p", &program.pid().to_string()], args].concat());
        watch.wait_for(&format!("kmem: watching {}", program_name(program)));
        watch
    }

    /// The next line on standard error; none at the end.
    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let len = self.lines.read_line(&mut line).unwrap();
        (len != 0).then_some(line)
    }

    /// Waits for a line that begins so.
    #[track_caller]
    fn wait_for(&mut self, begin: &str) -> String {
        let mut before = String::new();
        while let Some(line) = self.line() {
            if line.starts_with(begin) {
                return line;
            }
            before += &line;
        }
        panic!("no line begins with {begin:?}, after {before}");
    }

    /// Waits for a report of a cause. Returns its path, and its content if it is text.
    #[track_caller]
    fn report(&mut self, cause: &str) -> (PathBuf, String) {
        let begin = format!("kmem: {}/", self.reports().display());
        loop {
            let line = self.wait_for(&begin);
            let path = line.strip_prefix("kmem: ").and_then(|line| line.split(": ").next());
            let path = PathBuf::from(path.unwrap());
            if name(&path).contains(&format!(".{cause}.")) {
                let content = fs::read(&path).unwrap();
                return (path, text(&content));
            }
        }
    }

    fn reports(&self) -> PathBuf {
        self.dir.path().join("reports")
    }

    /// Names of all files in the directory of reports.
    fn names(&self) -> Vec<String> {
        let files = fs::read_dir(self.reports()).unwrap();
        files.map(|file| name(&file.unwrap().path())).collect()
    }

    /// Waits for its end, and returns its code.
    fn code(&mut self) -> Option<i32> {
        while self.line().is_some() {}
        self.child.wait().unwrap().code()
    }

    fn send(&self, signal: &str) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-s", signal, &pid]).status();
    }

    fn stop(&mut self, signal: &str) -> Option<i32> {
        self.send(signal);
        self.code()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.send("TERM");
        }
        let _ = self.child.wait();
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

fn program_name(program: &Program) -> String {
    program.dir.path().join("watched").display().to_string()
}

/// Sends a signal to the program, and does not wait for its end. Before Linux 6.15, a status is
/// known only until the parent has waited.
#[track_caller]
fn send(signal: &str, program: &Program) {
    let pid = program.pid().to_string();
    assert!(Command::new("kill").args(["-s", signal, &pid]).status().unwrap().success());
}

fn include() -> String {
    kmem_testing::include().display().to_string()
}

fn started(conf: &str) -> Program {
    Program::start("watched", &["-I", &include()], &[], conf)
}

/// Starts the program, and puts it into a control group.
fn started_in(group: &Path) -> Program {
    let program = started("");
    fs::write(group.join("cgroup.procs"), program.pid().to_string()).unwrap();
    program
}

#[test]
fn a_process_that_is_killed_leaves_a_report_that_names_the_line() {
    let mut program = started("");
    (0..9).for_each(|_| drop(program.tell(b'a')));
    let mut watch = Watch::of(&program, &[]);
    send("KILL", &program);
    let (path, report) = watch.report("signal");
    let begin = format!("watched.{}.", program.pid());
    assert!(name(&path).starts_with(&begin) && name(&path).ends_with(".signal.txt"), "{path:?}");
    let first = format!(
        "kmem: {} (pid {}) ended by SIGKILL\nkmem: time ",
        program_name(&program),
        program.pid()
    );
    assert!(report.starts_with(&first), "{report}");
    let row = report.lines().find(|line| line.contains(" eat ")).expect("a row");
    assert!(row.starts_with("  10.0 MiB        10  eat ") && report.contains(LINE), "{report}");
    assert!(report.contains("\ntracked 10.0 MiB + cached "), "{report}");
    // The only process has ended, and so does the watch.
    assert_eq!(watch.code(), Some(0));
    assert_eq!(watch.names(), [name(&path)]);
}

#[test]
fn exits_and_crashes_are_told_apart() {
    let mut program = started("");
    let mut watch = Watch::of(&program, &[]);
    let other = started("");
    let mut both = Watch::start(&["-p", &other.pid().to_string(), "-p", &other.pid().to_string()]);
    both.wait_for("kmem: watching ");
    program.close();
    assert!(watch.report("exit").1.contains(" exited with 0\n"));
    send("ABRT", &other);
    assert!(both.report("signal").1.contains(" ended by SIGABRT\n"));
    assert_eq!((watch.code(), both.code()), (Some(0), Some(0)));
}

/// The version of the kernel.
fn linux() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

#[test]
fn the_status_of_a_process_is_known_after_its_parent_has_waited_for_it() {
    if linux() < (6, 15) {
        not_run(&this_test(), "the kernel tells of a status only before (Linux 6.15)");
        return;
    }
    let mut program = started("");
    let mut watch = Watch::of(&program, &[]);
    // The watch is stopped until the process has gone.
    let children = format!("/proc/{0}/task/{0}/children", watch.child.id());
    let pid = fs::read_to_string(children).unwrap();
    let signal = |name: &str| {
        assert!(Command::new("kill").args(["-s", name, pid.trim()]).status().unwrap().success());
    };
    signal("STOP");
    program.kill();
    signal("CONT");
    assert!(watch.report("signal").1.contains(" ended by SIGKILL\n"));
}

#[test]
fn the_kernels_oom_killer_is_named_with_the_line_that_ate_the_memory() {
    if is_not_root("make a control group") {
        return;
    }
    let Some(group) = control_group(96 << 20) else { return };
    let mut program = started_in(&group);
    (0..30).for_each(|_| drop(program.tell(b'a')));
    let mut watch = Watch::of(&program, &["--interval", "20ms"]);
    program.write(b'g');
    let (_, report) = watch.report("oom-kill");
    let code = watch.code();
    program.kill();
    fs::remove_dir(&group).unwrap();
    assert_eq!(code, Some(0), "{report}");
    assert!(report.contains(" ended by SIGKILL: the kernel's OOM killer ended it\n"), "{report}");
    let row = report.lines().find(|line| line.contains(" eat ")).expect("a row");
    let objects: u64 = row.split_whitespace().nth(2).unwrap().parse().unwrap();
    assert!((31..=100).contains(&objects) && report.contains(LINE), "{report}");
}

#[test]
fn a_control_group_is_watched_with_processes_that_join_it_and_without_others() {
    if is_not_root("make a control group") {
        return;
    }
    let Some(group) = control_group(64 << 20) else { return };
    let path = format!("/{}", name(&group));
    let mut watch = Watch::start(&["--cgroup", &path, "--interval", "20ms"]);
    let other = started("");
    let mut program = started_in(&group);
    let line = watch.wait_for("kmem: watching ");
    assert!(line.contains(&program_name(&program)), "{line}");
    send("KILL", &other);
    send("KILL", &program);
    let (path, _) = watch.report("signal");
    let begin = format!("watched.{}.", program.pid());
    assert!(name(&path).starts_with(&begin), "{path:?}");
    program.kill();
    watch.stop("TERM");
    assert!(watch.names().iter().all(|name| name.starts_with(&begin)), "{:?}", watch.names());
    fs::remove_dir(&group).unwrap();
}

#[test]
fn waiting_for_memory_is_pressure() {
    if is_not_root("make a control group") {
        return;
    }
    if !Path::new("/proc/pressure/memory").exists() {
        not_run(&this_test(), "the kernel tells of no memory pressure");
        return;
    }
    let Some(group) = control_group(16 << 20) else { return };
    let mut program = started_in(&group);
    let mut watch = Watch::of(&program, &["--pressure", "1ms", "--interval", "50ms"]);
    // The cache of a file that is larger than the group has to be dropped and read again.
    let big = program.dir.path().join("big");
    fs::write(&big, "").unwrap();
    let script = "echo $$ > $0/cgroup.procs
        while [ -e $1 ]; do head -c 64M /dev/zero > $1.all; cat $1.all; done";
    let mut thrash = Command::new("sh");
    thrash.args(["-c", script]).arg(&group).arg(&big).stdout(Stdio::null());
    let mut thrash = thrash.spawn().unwrap();
    let (_, report) = watch.report("pressure");
    fs::remove_file(&big).unwrap();
    assert!(thrash.wait().unwrap().success());
    program.kill();
    fs::remove_dir(&group).unwrap();
    assert!(report.contains(" is under memory pressure: tasks waited 1 ms of a second"));
    assert!(report.contains("memory: some avg10=") || report.contains("pressure: some avg10="));
    assert!(report.contains(LINE), "{report}");
}

#[test]
fn a_process_that_starts_later_is_taken_up_by_its_name() {
    // Other tests run programs of the other name, and another run may run this test.
    let dir = directory();
    let own_name = format!("later-{}", std::process::id());
    let path = dir.path().join(&own_name);
    copy_program(compile("watched", &["-I", &include()], dir.path()), &path);
    let mut watch = Watch::start(&["--name", &own_name, "--interval", "20ms"]);
    watch.wait_for("kmem: watching: no process is chosen yet");
    for _ in 0..2 {
        let mut command = Command::new(&path);
        let own = directory();
        preload(&mut command, "", own.path());
        let program = Program::run(command, own);
        watch.wait_for(&format!("kmem: watching {} (pid {})", path.display(), program.pid()));
        send("KILL", &program);
        let (report, content) = watch.report("signal");
        assert!(name(&report).starts_with(&format!("{own_name}.{}.", program.pid())));
        assert!(content.contains(LINE), "{content}");
    }
    assert_eq!(watch.stop("TERM"), Some(0));
    assert_eq!(watch.names().len(), 2);
}

#[test]
fn a_group_above_its_high_is_reported_once_in_the_time_that_is_given() {
    let mut program = started("");
    let args = ["--interval", "5ms", "--again", "700ms"];
    let mut watch = Watch::of(&program, &args);
    program.tell(b'h');
    let (first, report) = watch.report("group-high");
    assert!(report.contains(" has groups above their high: /tenant (1 times)\n"), "{report}");
    assert!(report.contains("\nGroups:\n") && report.contains("  tenant\n"), "{report}");
    assert!(!report.contains(" more since "), "{report}");
    // It goes on while the watch may not report it again.
    let done = std::sync::atomic::AtomicBool::new(false);
    let (second, report) = std::thread::scope(|scope| {
        let exceeding = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                program.tell(b'h');
            }
        });
        let report = watch.report("group-high");
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        exceeding.join().unwrap();
        report
    });
    assert!(report.contains(" more since the last report of this cause\n"), "{report}");
    // The time in the name is in milliseconds, up to the seconds of a day.
    let ms = |path: &Path| {
        let name = name(path);
        let parts: Vec<u64> =
            name.split(['.', '-']).filter_map(|part| part.parse().ok()).skip(2).take(2).collect();
        let (clock, ms) = (parts[0], parts[1]);
        ((clock / 10_000 * 60 + clock / 100 % 100) * 60 + clock % 100) * 1000 + ms
    };
    let passed = (ms(&second) + 86_400_000 - ms(&first)) % 86_400_000;
    assert!(passed >= 690, "{passed} ms");
    assert_eq!(watch.stop("INT"), Some(0));
    let of_groups = watch.names().iter().filter(|name| name.contains(".group-high.")).count();
    assert!(of_groups == 2 || passed >= 1400, "{:?}", watch.names());
}

#[test]
fn a_later_record_of_the_black_box_has_the_rows() {
    for format in [&[][..], &["--format", "json"]] {
        let mut program = started("blackbox:DIR/box");
        let mut watch = Watch::of(&program, &[&["--interval", "1h"], format].concat());
        (0..40).for_each(|_| drop(program.tell(b'a')));
        send("KILL", &program);
        let (path, report) = watch.report("signal");
        let eaten = if format.is_empty() {
            assert!(report.contains("rows of the black box, "), "{report}");
            let (of_box, last) = report.split_once("\nLast snapshot, ").expect("both");
            assert!(last.contains("   1.0 MiB         1  eat "), "{report}");
            let row = of_box.lines().find(|line| line.contains(" eat ")).expect("a row");
            row.split_whitespace().nth(2).unwrap().parse().unwrap()
        } else {
            let json: Value = serde_json::from_str(&report).unwrap();
            assert_eq!(json["report"]["cause"], "signal");
            assert!(json["report"]["what"].as_str().unwrap().ends_with(" ended by SIGKILL"));
            let rows = json["rows"].as_array().unwrap();
            let row = rows.iter().find(|row| row["function"] == "eat").expect("a row");
            assert_eq!(row["line"], 12);
            row["calls"].as_u64().unwrap()
        };
        // A record comes at each 3 % of growth.
        assert!((39..=41).contains(&eaten), "{eaten} in {path:?}: {report}");
    }
}

#[test]
fn formats_have_the_cause_at_their_top_where_they_have_room() {
    let program = started("");
    let watches = ["2.0", "table", "pprof"].map(|format| {
        let watch = Watch::of(&program, &["--format", format]);
        (format, watch)
    });
    send("KILL", &program);
    for (format, mut watch) in watches {
        let (path, content) = watch.report("signal");
        match format {
            "2.0" => {
                let end = "(pid 0) ended".replace('0', &program.pid().to_string());
                let head = format!("allocinfo - version: 2.0\n# {} {end}", program_name(&program));
                assert!(content.starts_with(&head), "{content}");
                // It is a source of other commands.
                let mut dump = Command::new(KMEM);
                dump.args(["dump", "--json", "--function", "eat", "--allocinfo"]).arg(&path);
                let dump = program::json(&mut dump);
                assert_eq!(dump["rows"][0]["bytes"], 1 << 20);
            }
            "table" => assert!(content.starts_with("kmem: /") && content.contains(LINE)),
            _ => assert!(name(&path).ends_with(".signal.pb.gz"), "{path:?}"),
        }
    }
}

#[test]
fn files_for_a_fleet_lie_by_day_service_machine_and_build() {
    let program = started("");
    let times = ["--every", "200ms", "--interval", "100ms", "--again", "1h"];
    let mut watch =
        Watch::of(&program, &[&times[..], &["--format", "parquet", "--partitioned"]].concat());
    let mut paths = Vec::new();
    for cause in ["interval", "interval", "signal"] {
        if cause == "signal" {
            send("KILL", &program);
        }
        let (path, content) = watch.report(cause);
        assert!(content.starts_with("PAR1") && name(&path).ends_with(".parquet"), "{path:?}");
        paths.push(path);
    }
    for path in &paths {
        let partition = path.parent().unwrap().strip_prefix(watch.reports()).unwrap();
        let parts: Vec<_> = partition.iter().map(|part| part.to_str().unwrap()).collect();
        let values = ["dt=", "service=", "host=", "build="].iter().zip(&parts);
        let values = values.map(|(key, part)| part.strip_prefix(key).expect("a partition"));
        let [day, service, host, build] = values.collect::<Vec<_>>()[..] else {
            panic!("{partition:?}")
        };
        assert!(day.len() == 10 && !service.is_empty() && !host.is_empty(), "{partition:?}");
        assert!(build == "none" || build.bytes().all(|digit| digit.is_ascii_hexdigit()));
    }
    assert!(paths.is_sorted() && paths[0] < paths[1], "{paths:?}");
}

#[test]
fn what_cannot_be_done_is_an_error_at_the_start() {
    let program = started("");
    let pid = program.pid().to_string();
    let run = |args: &[&str], output: &Path| {
        let mut command = Command::new(KMEM);
        let output = command.arg("watch").args(args).arg("-o").arg(output).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    let dir = directory();
    fs::write(dir.path().join("file"), "").unwrap();
    for name in ["file", "absent/reports"] {
        let (code, said) = run(&["-p", &pid], &dir.path().join(name));
        assert_eq!(code, Some(2), "{said}");
        assert!(said.starts_with("kmem: no report can be written to /"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let own = std::process::id().to_string();
    let (code, said) = run(&["-p", &own], &dir.path().join("reports"));
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains(" runs without kmem"), "{said}");
    for args in [&[][..], &["-p", &pid, "--pressure", "2s"], &["-p", &pid, "--keep", "0"]] {
        assert_eq!(run(args, &dir.path().join("reports")).0, Some(2), "{args:?}");
    }
}

#[test]
fn the_unit_is_understood_and_hardened() {
    check_unit("kmem-watch", &["watch", "--all"]);
}
