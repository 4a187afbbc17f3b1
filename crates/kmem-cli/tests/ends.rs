//! The report of `kmem run` for each way in which a program may end, and for trees of processes.

mod program;

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use kmem_testing::{copy_program, is_not_root, not_run, this_test};
use program::{KMEM, compile, control_group, directory, library, text};
use tempfile::TempDir;

/// Time in which `kmem run` reads a program that allocates no more.
const FRESH: Duration = Duration::from_millis(1000);

struct Bench {
    dir: TempDir,
    program: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let dir = directory();
        let program = compile("ends", &["-w", "-pthread"], dir.path());
        Self { dir, program }
    }

    /// `kmem run` with options, whose boxes lie in a directory of this test.
    fn run(&self, options: &[&str]) -> Command {
        let mut command = Command::new(KMEM);
        command.arg("run").arg("--library").arg(library()).args(options).arg("--");
        command.env_remove("KMEM_CONF").env_remove("LD_PRELOAD");
        command.env("XDG_RUNTIME_DIR", self.runtime());
        // The signals have their default actions, even when the test runs under nohup.
        // SAFETY: `signal` is async-signal-safe, and SIG_DFL installs no handler.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                Ok(())
            });
        }
        command
    }

    fn runtime(&self) -> PathBuf {
        let dir = self.dir.path().join("runtime");
        fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Starts the program, and waits until it holds its objects. Returns its number.
    fn start(&self, args: &[&str]) -> (Running, u32) {
        let mut command = self.run(&[]);
        command.arg(&self.program).args(args);
        let mut running = Running::start(command);
        let pid = running.line().parse().unwrap();
        (running, pid)
    }

    /// Runs the program, which ends by itself.
    fn output(&self, options: &[&str], args: &[&str]) -> Output {
        self.run(options).arg(&self.program).args(args).output().unwrap()
    }

    #[track_caller]
    fn left_nothing(&self) {
        let left: Vec<_> = fs::read_dir(self.runtime()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// `kmem run` in a process group of its own.
struct Running {
    child: Child,
    out: ChildStdout,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = piped.spawn().unwrap();
        let out = child.stdout.take().unwrap();
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let (mut line, mut byte) = (Vec::new(), [0]);
        while self.out.read_exact(&mut byte).is_ok() && byte != *b"\n" {
            line.extend(byte);
        }
        String::from_utf8(line).unwrap()
    }

    fn end(self) -> (Option<i32>, String) {
        let output = self.child.wait_with_output().unwrap();
        (output.status.code(), text(&output.stderr))
    }
}

#[track_caller]
fn send(signal: &str, to: &str) {
    assert!(Command::new("kill").args(["-s", signal, "--", to]).status().unwrap().success());
}

/// Objects in the row of a function of the last table.
#[track_caller]
fn objects(report: &str, function: &str) -> u64 {
    let rows = report.lines().rev();
    let mut rows = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = rows.find(|row| row.get(3) == Some(&function));
    row.unwrap_or_else(|| panic!("no row of {function}: {report}"))[2].parse().unwrap()
}

#[test]
fn a_program_that_a_signal_ends_leaves_a_report_of_all_that_it_held_a_second_before() {
    // The last objects come after the last record that the program itself writes.
    for (signal, to_group, code, count) in [
        ("KILL", false, 137, 333),
        ("TERM", false, 143, 123),
        ("INT", true, 130, 20_000),
        ("HUP", false, 129, 5000),
    ] {
        let bench = Bench::new();
        let (running, pid) = bench.start(&[&count.to_string()]);
        std::thread::sleep(FRESH);
        let to = if to_group { format!("-{}", running.child.id()) } else { pid.to_string() };
        send(signal, &to);
        let (status, report) = running.end();
        assert_eq!(status, Some(code), "{report}");
        assert!(report.contains(&format!("(pid {pid}) ended by SIG{signal}\n")), "{report}");
        assert!(report.contains("At the last record, "), "{report}");
        assert_eq!(objects(&report, "hold"), count + 1, "{report}");
        bench.left_nothing();
    }
}

#[test]
fn sigterm_to_the_command_is_passed_on_and_the_report_comes_after_the_end() {
    let bench = Bench::new();
    let (running, pid) = bench.start(&["20000"]);
    send("TERM", &running.child.id().to_string());
    let (status, report) = running.end();
    assert_eq!(status, Some(143), "{report}");
    assert!(report.contains(&format!("(pid {pid}) ended by SIGTERM\n")), "{report}");
    assert!(objects(&report, "hold") >= 19_000, "{report}");
}

#[test]
fn ctrl_c_at_a_terminal_ends_the_program_and_not_the_report() {
    let script = r"
import os, pty, signal, sys
pid, fd = pty.fork()
if pid == 0:
    # A shell that starts this in the background may have it ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
said = b''
while b'\n' not in said:
    said += os.read(fd, 1000)
os.write(fd, b'\x03')
try:
    while True:
        part = os.read(fd, 1000)
        if not part:
            break
        said += part
except OSError:
    pass
sys.stdout.write(said.decode())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
";
    let bench = Bench::new();
    let run = bench.run(&[]);
    let mut command = Command::new("python3");
    command.args(["-c", script]).arg(run.get_program()).args(run.get_args());
    command.arg(&bench.program).arg("20000").env_remove("KMEM_CONF").env_remove("LD_PRELOAD");
    command.env("XDG_RUNTIME_DIR", bench.runtime());
    let Ok(output) = command.output() else {
        not_run(&this_test(), "there is no python3 to make a terminal");
        return;
    };
    let report = text(&output.stdout).replace('\r', "");
    assert_eq!(output.status.code(), Some(130), "{report}{}", text(&output.stderr));
    assert!(report.contains(" ended by SIGINT\n"), "{report}");
    assert!(objects(&report, "hold") >= 19_000, "{report}");
    bench.left_nothing();
}

#[test]
fn crashes_aborts_and_exits_are_named_and_reported() {
    for (end, code, what, least) in [
        ("abort", 134, "ended by SIGABRT\n", 19_000),
        ("segv", 139, "ended by SIGSEGV\n", 19_000),
        ("free", 134, "ended by SIGABRT: kmem ended it for a misuse of memory\n", 20_000),
        ("exit", 3, "exited with 3\n", 20_001),
    ] {
        let bench = Bench::new();
        let output = bench.output(&[], &["20000", end]);
        let report = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{report}");
        assert!(report.contains(what), "{end}: {report}");
        let names = report.contains("kmem: the misused memory was last allocated by hold at ");
        assert_eq!(names && report.contains("ends.c:"), end == "free", "{report}");
        assert!((least..=20_001).contains(&objects(&report, "hold")), "{end}: {report}");
        bench.left_nothing();
    }
}

#[test]
fn the_report_is_of_the_programs_own_exit_after_that_of_a_child_of_vfork() {
    let bench = Bench::new();
    let report = text(&bench.output(&[], &["20000", "vfork"]).stderr);
    assert!(report.contains("exited with 0\n"), "{report}");
    assert!(!report.contains("this is from before"), "{report}");
    assert_eq!(objects(&report, "hold"), 20_002, "{report}");
    bench.left_nothing();
}

#[test]
fn a_misuse_of_any_interface_is_named_and_reported() {
    for (end, holder) in [("cache", Some("hold")), ("percpu", None), ("vmalloc", None)] {
        let bench = Bench::new();
        let output = bench.output(&["--check_caches", "1"], &["20000", end]);
        let report = text(&output.stderr);
        assert_eq!(output.status.code(), Some(134), "{report}");
        assert!(report.contains("kmem ended it for a misuse of memory\n"), "{end}: {report}");
        let names = report.contains("kmem: the misused memory was last allocated by hold at ");
        assert_eq!(names, holder.is_some(), "{end}: {report}");
        assert!(report.contains(&in_line("memory was misused", "main", end)), "{end}: {report}");
        assert_eq!(objects(&report, "hold"), 20_001, "{end}: {report}");
        bench.left_nothing();
    }
}

#[test]
fn the_line_that_uses_a_freed_block_is_in_the_report_under_guard() {
    let bench = Bench::new();
    let output = bench.output(&["--guard"], &["2000", "use"]);
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(139), "{report}");
    assert!(report.contains(" ended by SIGSEGV: it misused memory\n"), "{report}");
    assert!(report.contains(&in_line("memory was misused", "main", "after its free")), "{report}");
    assert!(report.contains("kmem: the misused memory was last allocated by hold at "), "{report}");
    bench.left_nothing();
}

/// The line of the report about a call of the program, which has this mark in its source.
#[track_caller]
fn in_line(what: &str, function: &str, mark: &str) -> String {
    let source = include_str!("programs/ends.c");
    let mark = format!("/* {mark} */");
    let line = 1 + source.lines().position(|line| line.contains(&mark)).unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/ends.c");
    format!("kmem: {what} in {function} at {}:{line}\n", file.display())
}

#[test]
fn the_line_of_the_wrong_call_is_in_the_report_on_any_stack_and_in_any_process() {
    for (end, function, mark) in [
        ("free", "main", "twice"),
        ("handler", "free_again", "in a handler"),
        ("free_in_child", "main", "in the child"),
    ] {
        for options in [[].as_slice(), &["--hardened"]] {
            let bench = Bench::new();
            let output = bench.output(&[options, &["--all"]].concat(), &["2000", end]);
            let report = text(&output.stderr);
            let line = in_line("memory was misused", function, mark);
            assert!(report.contains(&line), "{end} {options:?}: {report}");
            bench.left_nothing();
        }
    }
}

#[test]
fn a_double_free_that_is_found_later_is_named_and_reported() {
    let bench = Bench::new();
    for options in [
        [].as_slice(),
        &["--rseq", "off"],
        &["--debug"],
        &["--quarantine_kb", "256", "--check_caches", "1"],
        &["--decay_ms", "0"],
        &["--debug_pagealloc", "1"],
    ] {
        for end in ["trim", "flush"] {
            let output = bench.output(options, &["20000", end]);
            let report = text(&output.stderr);
            let what = format!("{end} {options:?}: {report}");
            assert_eq!(output.status.code(), Some(134), "{what}");
            assert!(report.contains("-byte object at 0x") && report.contains(" was freed twice\n"));
            assert!(report.contains("kmem ended it for a misuse of memory\n"), "{what}");
            assert!(report.contains("was last allocated by hold at "), "{what}");
            // The call that frees is long over.
            assert!(!report.contains("memory was misused in "), "{what}");
            if end == "trim" {
                let found = in_line("the misuse was found", "free_twice_unseen", "finds it");
                assert!(report.contains(&found), "{what}");
            }
            assert_eq!(objects(&report, "hold"), 20_000, "{what}");
            bench.left_nothing();
        }
    }
}

#[test]
fn a_misuse_is_recorded_while_another_thread_writes_records() {
    let bench = Bench::new();
    for _ in 0..20 {
        let output = bench.output(&[], &["20000", "busy"]);
        let report = text(&output.stderr);
        assert!(report.contains("kmem ended it for a misuse of memory\n"), "{report}");
    }
}

#[test]
fn the_kernels_oom_killer_is_named() {
    if is_not_root("make a control group") {
        return;
    }
    let Some(group) = control_group(64 << 20) else { return };
    let bench = Bench::new();
    // Only the program enters the group: the command sees where it goes.
    let enter = format!("echo $$ > {}/cgroup.procs; sleep 0.2; exec \"$@\"", group.display());
    let mut command = bench.run(&[]);
    command.args(["sh", "-c", &enter, "sh"]).arg(&bench.program).args(["1000", "grow"]);
    let output = command.output().unwrap();
    let report = text(&output.stderr);
    fs::remove_dir(&group).unwrap();
    assert_eq!(output.status.code(), Some(137), "{report}");
    assert!(report.contains(" ended by SIGKILL: the kernel's OOM killer ended it\n"), "{report}");
    // The group had room for 640 objects of 100000 bytes.
    assert!((500..2000).contains(&objects(&report, "hold")), "{report}");
}

#[test]
fn workers_of_a_program_are_one_section_without_what_they_inherited() {
    let bench = Bench::new();
    let output = bench.output(&[], &["20000", "fork"]);
    let report = text(&output.stderr);
    assert!(report.contains("\nends (3 processes): 11."), "{report}");
    assert!(report.contains("inherited by fork count for the parent"), "{report}");
    assert_eq!(objects(&report, "hold_in_child"), 12_000, "{report}");
    assert_eq!(objects(&report, "hold"), 20_001, "{report}");
    assert_eq!(report.matches(" hold ").count(), 1, "{report}");
    bench.left_nothing();
}

#[test]
fn a_program_that_becomes_another_by_exec_keeps_its_section() {
    let bench = Bench::new();
    let output = bench.output(&[], &["100000", "exec", "true"]);
    let (pid, report) = (text(&output.stdout), text(&output.stderr));
    let became = fs::canonicalize("/bin/true").unwrap();
    let title =
        format!("\nends (pid {}), before it became {} by exec: 9", pid.trim(), became.display());
    assert!(report.contains(&title), "{report}");
    assert!(objects(&report, "hold") >= 97_000, "{report}");
    let last = report.lines().last().unwrap();
    assert!(last.starts_with("and 1 smaller process: true held at most "), "{report}");
    bench.left_nothing();
}

#[test]
fn a_program_after_exec_is_killed_and_both_it_and_the_one_before_are_reported() {
    let bench = Bench::new();
    let program = bench.program.to_str().unwrap();
    let (mut running, pid) = bench.start(&["30000", "exec", program, "20000"]);
    assert_eq!(running.line().parse::<u32>().unwrap(), pid);
    std::thread::sleep(FRESH);
    send("KILL", &pid.to_string());
    let (status, report) = running.end();
    assert_eq!(status, Some(137), "{report}");
    let (before, after) = report.split_once(", the command:").unwrap_or_else(|| panic!("{report}"));
    assert!(before.contains(&format!("\nends (pid {pid}), before it became ")), "{report}");
    assert!((29_000..=30_001).contains(&objects(before, "hold")), "{report}");
    assert_eq!(objects(after, "hold"), 20_001, "{report}");
    bench.left_nothing();
}

#[test]
fn a_program_that_becomes_one_without_kmem_is_reported_as_of_before() {
    let bench = Bench::new();
    let output = bench.output(&[], &["20000", "leave", "sh", "-c", "exit 4"]);
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{report}");
    assert!(report.contains("became a program that cannot be preloaded, or ended by"), "{report}");
    assert!(report.contains("At the last record, "), "{report}");
    assert!(objects(&report, "hold") >= 19_000, "{report}");
}

#[test]
fn a_shell_that_only_becomes_the_program_has_no_section() {
    let bench = Bench::new();
    let program = bench.program.to_str().unwrap();
    for program in [format!("exec {program} 20000 exit"), format!("exec {program} 0 exit")] {
        for shell in ["sh", "bash"] {
            let output = bench.run(&[]).args([shell, "-c", &program]).output().unwrap();
            let report = text(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{report}");
            assert!(!report.contains("by exec") && !report.contains("smaller"), "{report}");
            assert!(objects(&report, "hold") >= 1, "{report}");
        }
    }
    // All of them together hold more than one MiB.
    let many = "for i in $(seq 40); do bash -c 'exec true'; done";
    let output = bench.run(&["-n", "1"]).args(["bash", "-c", many]).output().unwrap();
    let report = text(&output.stderr);
    assert!(report.contains("true (40 processes)") || report.contains("true (40)"), "{report}");
    assert!(!report.contains("by exec"), "{report}");
}

#[test]
fn a_process_that_was_several_programs_counts_once_in_the_share_of_a_section() {
    let bench = Bench::new();
    let program = bench.program.to_str().unwrap();
    let mut args = ["10000", "exec", program].repeat(20);
    args.extend(["5000", "exit"]);
    let output = bench.output(&[], &args);
    let report = text(&output.stderr);
    // The last one held 1/40 of what all did one after the other, but half of the most at a time.
    assert!(report.contains("\nends (20 runs that ended by exec): "), "{report}");
    assert!(report.contains("; at most 9.8 MiB in one\n"), "{report}");
    let (_, after) = report.split_once(", the command:").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(objects(after, "hold"), 5001, "{report}");
    let only = bench.output(&["--only", "ends"], &["3000", "exec", "true"]);
    assert!(text(&only.stderr).contains("before it became "), "{}", text(&only.stderr));
}

#[test]
fn the_largest_program_comes_first_and_small_ones_are_one_line() {
    let bench = Bench::new();
    let program = bench.program.to_str().unwrap();
    let script = format!("for i in 1 2 3; do /bin/true; expr 1; done; {program} 20000 exit; true");
    let run = |options: &[&str]| {
        let output = bench.run(options).args(["sh", "-c", &script]).output().unwrap();
        text(&output.stderr)
    };
    let report = run(&[]);
    let first = report.lines().nth(3).unwrap();
    assert!(first.starts_with("ends (pid ") && first.ends_with(" at its peak"), "{report}");
    let last = report.lines().last().unwrap();
    assert!(last.starts_with("and 7 smaller processes: "), "{report}");
    assert!(last.contains("expr (3)") && last.contains("true (3)"), "{report}");
    let all = run(&["--all"]);
    assert!(all.contains("\nexpr (3 processes): ") && !all.contains("smaller"), "{all}");
    let only = run(&["--only", "exp?"]);
    assert!(only.contains("\nexpr (3 processes): ") && !only.contains("\nends "), "{only}");
    assert!(run(&["--only", "absent"]).contains("no process of that name"));
}

/// Words that run a program in a PID namespace of its own, with a `/proc` of it. None, and
/// recorded, where that is not allowed.
fn namespace() -> Option<&'static [&'static str]> {
    let words =
        ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"].as_slice();
    let ran = Command::new(words[0]).args(&words[1..]).arg("true").status();
    let may = ran.is_ok_and(|status| status.success());
    if !may {
        not_run(&this_test(), "no PID namespace can be made here");
    }
    may.then_some(words)
}

/// Number here of the process with this executable.
fn number_of(exe: &Path) -> Option<u32> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let runs =
        |entry: &fs::DirEntry| fs::read_link(entry.path().join("exe")).is_ok_and(|e| e == exe);
    processes.filter(runs).find_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[test]
fn processes_of_one_number_in_two_namespaces_keep_their_boxes() {
    let Some(namespace) = namespace() else { return };
    let namespace = namespace.join(" ");
    let bench = Bench::new();
    let (one, two) = (bench.dir.path().join("one"), bench.dir.path().join("two"));
    for copy in [&one, &two] {
        copy_program(&bench.program, copy);
    }
    // Both are process 1 of their namespaces at the same time. The second is killed by a misuse, so
    // that it has a box and no report of its exit.
    let script = format!(
        "{namespace} {one} 20000 & read line; {namespace} {two} 30000 free; wait",
        one = one.display(),
        two = two.display()
    );
    let mut command = bench.run(&[]);
    command.args(["bash", "-c", &script]).stdin(Stdio::piped());
    let mut running = Running::start(command);
    assert_eq!(running.line(), "1");
    let pid = number_of(&one.canonicalize().unwrap()).unwrap();
    let list = Command::new(KMEM).arg("ls").output().unwrap();
    let list = text(&list.stdout);
    let row = |line: &str| line.split_whitespace().next() == Some(&pid.to_string());
    assert!(list.lines().any(row), "{pid}: {list}");
    let dump = Command::new(KMEM).args(["dump", "-p", &pid.to_string()]).output().unwrap();
    assert!(text(&dump.stdout).contains(" 20001 "), "{}", text(&dump.stderr));
    drop(running.child.stdin.take());
    assert_eq!(running.line(), "1");
    std::thread::sleep(FRESH);
    send("KILL", &pid.to_string());
    let (status, report) = running.end();
    assert_eq!(status, Some(0), "{report}");
    let (_, one) =
        report.split_once(&format!("\none (pid {pid}): ")).unwrap_or_else(|| panic!("{report}"));
    assert_eq!(objects(one.split("\n\n").next().unwrap(), "hold"), 20_001, "{report}");
    let (_, two) = report.split_once("\ntwo (pid ").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(objects(two.split("\n\n").next().unwrap(), "hold"), 30_000, "{report}");
    bench.left_nothing();
}

#[test]
fn a_reader_with_the_proc_of_another_namespace_reads_boxes_and_no_other_process() {
    if namespace().is_none() {
        return;
    }
    let bench = Bench::new();
    let inside = ["--user", "--map-root-user", "--pid", "--fork"];
    let mut command = Command::new("unshare");
    let run = bench.run(&[]);
    command.args(inside).arg(run.get_program()).args(run.get_args()).arg(&bench.program);
    command.args(["20000", "exit"]).env_remove("KMEM_CONF").env_remove("LD_PRELOAD");
    let output = command.env("XDG_RUNTIME_DIR", bench.runtime()).output().unwrap();
    let report = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{report}");
    assert!(report.contains("kmem: /proc is that of another pid namespace"), "{report}");
    assert_eq!(objects(&report, "hold"), 20_001, "{report}");
    bench.left_nothing();
    for args in [["ls"].as_slice(), &["dump", "-p", "1"]] {
        let output = Command::new("unshare").args(inside).arg(KMEM).args(args).output().unwrap();
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.contains("unshare --mount-proc"), "{said}");
    }
}

#[test]
fn a_black_box_of_the_users_own_is_left_to_the_user() {
    let bench = Bench::new();
    let path = bench.dir.path().join("box");
    let mut command = bench.run(&[]);
    command.env("KMEM_CONF", format!("blackbox:{}", path.display()));
    let output = command.args(["sh", "-c", "kill -9 $$"]).output().unwrap();
    let report = text(&output.stderr);
    assert!(report.contains("read the black box that you named"), "{report}");
    assert!(path.is_file());
}

#[test]
fn boxes_lie_in_a_private_directory_and_take_little_of_it() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let bench = Bench::new();
    let (running, pid) = bench.start(&["20000"]);
    let dir = fs::read_dir(bench.runtime()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    let files = fs::read_dir(dir).unwrap().flatten();
    let mut of = files.filter(|f| f.file_name().to_str().unwrap().starts_with(&format!("{pid}-")));
    let taken = of.next().unwrap().metadata().unwrap().blocks() * 512;
    println!("{taken} bytes of disk");
    assert!(taken <= 256 << 10, "{taken}");
    send("KILL", &pid.to_string());
    assert_eq!(running.end().0, Some(137));
    bench.left_nothing();
}
