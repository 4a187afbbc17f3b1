//! `kmem run` with real commands, and a stand-in for the library that does the handshake.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use kmem_testing::library::{LIBRARY, built};
use kmem_testing::{Compiler, is_missing, is_not_root};
use tempfile::TempDir;

const KMEM: &str = env!("CARGO_BIN_EXE_kmem");

struct Bench {
    dir: TempDir,
    library: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/exit_client.c");
        let library = dir.path().join("libkmem.so");
        shared_library(&source, &library);
        Self { dir, library }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program that says "ran".
    fn program(&self, name: &str, flags: &[&str]) -> PathBuf {
        let source = self.path("ran.c");
        fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 0; }\n")
            .unwrap();
        Compiler::c().arg(&source).args(flags).compile(self.path(name))
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn command(&self) -> Command {
        let mut command = Command::new(KMEM);
        command.arg("run").arg("--library").arg(&self.library).arg("--");
        command.env_remove("KMEM_CONF").env_remove("LD_PRELOAD");
        command
    }

    fn run(&self, command: &[&str]) -> Output {
        self.command().args(command).output().unwrap()
    }

    #[track_caller]
    fn refused(&self, command: &Path, why: &str) {
        let output = self.run(&[command.to_str().unwrap()]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(why), "{text}");
        assert!(output.stdout.is_empty(), "the program was run");
    }
}

fn shared_library(source: &Path, to: &Path) {
    Compiler::c().arg(source).args(["-shared", "-fPIC"]).compile(to);
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_commands_code_passes_through() {
    let bench = Bench::new();
    assert_eq!(bench.run(&["sh", "-c", "exit 7"]).status.code(), Some(7));
    assert_eq!(bench.run(&["true"]).status.code(), Some(0));
    let killed = bench.run(&["sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(137));
    assert!(stderr(&killed).contains("ended by SIGKILL"));
    assert!(
        stderr(&killed)
            .contains("no exit report: a signal ended the process, and it left no black box")
    );
}

#[test]
fn the_commands_streams_are_its_own() {
    let bench = Bench::new();
    let mut child = bench
        .command()
        .args(["sh", "-c", "cat; echo err >&2"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in and out\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"in and out\n");
    assert!(stderr(&output).starts_with("err\n"));
}

#[test]
fn every_process_that_exits_is_answered() {
    let bench = Bench::new();
    let output = bench
        .command()
        .args(["sh", "-c", "cat /dev/null; cat /dev/null; exit 3"])
        .env("SHOW_REPLY", "1")
        .output()
        .unwrap();
    let text = stderr(&output);
    // The shell prints the reply. Both cats have closed their stderr by then, and are counted.
    assert!(text.contains("released\n"), "{text}");
    assert!(text.contains("and 2 smaller processes: cat (2) held at most 0 B each\n"), "{text}");
    assert_eq!(output.status.code(), Some(3));
    // The stand-in keeps no books, and the report says so.
    assert!(text.contains("no exit report: process"), "{text}");
    assert!(text.contains("runs without kmem"), "{text}");
}

#[test]
fn the_environment_is_added_to() {
    let bench = Bench::new();
    let show = ["sh", "-c", "echo $LD_PRELOAD; echo $KMEM_CONF"];
    let library = bench.library.canonicalize().unwrap();
    let library = library.to_str().unwrap();
    let plain = bench.command().args(show).output().unwrap();
    let text = String::from_utf8(plain.stdout).unwrap();
    let (preload, conf) = text.trim().split_once('\n').unwrap();
    assert_eq!(preload, library);
    assert!(conf.starts_with("peak:1,boxes:/"), "{conf}");
    assert!(conf.contains(",report:kmem-run-"), "{conf}");
    let more = bench
        .command()
        .args(show)
        .env("KMEM_CONF", "rseq:off")
        .env("LD_PRELOAD", library)
        .output()
        .unwrap();
    let text = String::from_utf8(more.stdout).unwrap();
    assert!(text.starts_with(&format!("{library} {library}\nrseq:off,peak:1,boxes:")), "{text}");
}

/// `kmem run FLAGS.. -- sh -c 'echo $KMEM_CONF'`.
fn with_flags(bench: &Bench, flags: &[&str], conf: &str) -> Output {
    let mut command = Command::new(KMEM);
    command.arg("run").arg("--library").arg(&bench.library).args(flags).current_dir(&bench.dir);
    command.args(["--", "sh", "-c", "echo $KMEM_CONF"]).env_remove("LD_PRELOAD");
    command.env("KMEM_CONF", conf).output().unwrap()
}

#[test]
fn options_of_the_allocator_are_flags_which_win_over_the_environment() {
    let bench = Bench::new();
    let flags = ["--depth", "8", "--blackbox", "here.box", "--debug", "--check-pages=off"];
    let output = with_flags(&bench, &flags, "depth:2,rseq:off");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let set = "depth:2,rseq:off,peak:1,depth:8,blackbox:here.box,check_pages:off,debug:,boxes:/";
    assert!(text.starts_with(set), "{text}{}", stderr(&output));
}

#[test]
fn a_program_is_not_started_with_a_wrong_option() {
    let bench = Bench::new();
    let refused = |flags: &[&str], conf: &str, why: &str| {
        let output = with_flags(&bench, flags, conf);
        assert_eq!(output.status.code(), Some(2), "{flags:?} {conf}");
        assert!(output.stdout.is_empty(), "{flags:?} {conf}: the program was run");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    };
    refused(&["--depth", "33"], "", "'33' for '--depth': depth takes 1 to 32");
    refused(&["--dept", "3"], "", "a similar argument exists: '--depth'");
    let bad = "kmem: KMEM_CONF: bad value in \"decay_ms:x\": decay_ms takes 0 to 3600000\n";
    refused(&["-o", "report"], "decay_ms:x", bad);
    refused(&[], "dept:3,peak:x", "unknown option \"dept\"; did you mean \"depth\"?\n");
    refused(&[], "dept:3,peak:x", "bad value in \"peak:x\": peak takes 0, 1\n");
    refused(&[], &"x".repeat(4097), "longer than 4096 bytes");
    refused(&["--depth=2"], &",".repeat(4090), "longer than 4096 bytes with the options");
    // No report, not even under its temporary name.
    assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 1);
}

#[test]
fn the_help_lists_the_options_of_the_allocator_by_themselves() {
    let help = Command::new(KMEM).args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let (_, options) = help.split_once("Options of the allocator:\n").expect("a heading");
    assert!(options.contains("--depth <N>") && options.contains("--blackbox <PATH>"), "{options}");
    // The command sets these two itself. Its own --report is another option.
    assert!(!options.contains("--report") && !help.contains("--boxes"), "{help}");
}

#[test]
fn programs_that_cannot_be_preloaded_are_refused() {
    let bench = Bench::new();
    bench.refused(&bench.program("static", &["-static"]), "statically linked");
    bench.refused(&bench.program("static-pie", &["-static-pie"]), "statically linked");
    let script = bench.script("script", &format!("#!{}\n", bench.path("static").display()));
    bench.refused(&script, "static is statically linked");
    bench.refused(&bench.path("static"), "into it. Link it without -static, or with libkmem.a.");
    bench.refused(
        &bench.script("lost", "#!/no/such/interpreter\n"),
        "/no/such/interpreter does not exist",
    );
    bench.refused(&bench.path("absent"), "command not found");
    bench.refused(Path::new("no-such-command-anywhere"), "command not found");
    bench.refused(bench.dir.path(), "it is a directory");
    let plain = bench.script("plain", "echo ran\n");
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    bench.refused(&plain, "no permission to execute");

    let dynamic = fs::read(bench.program("dynamic", &[])).unwrap();
    let variant = |name: &str, change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = dynamic.clone();
        change(&mut bytes);
        let path = bench.path(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    bench.refused(
        &variant("arm", &|b| b[18..20].copy_from_slice(&[183, 0])),
        "is a program for AArch64, but libkmem.so is for",
    );
    let i386 = |b: &mut Vec<u8>| {
        b[4] = 1;
        b[18..20].copy_from_slice(&[3, 0]);
    };
    bench.refused(&variant("i386", &i386), "is a program for 32-bit x86");
    bench.refused(&variant("short", &|b| b.truncate(30)), "broken ELF header");
}

#[test]
fn programs_for_musl_are_refused() {
    if is_missing("musl-gcc") {
        return;
    }
    let bench = Bench::new();
    let source = bench.path("plain.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let musl = |name: &str, flag: &str| {
        Compiler::new("musl-gcc").arg(&source).arg(flag).compile(bench.path(name))
    };
    bench.refused(&musl("musl", "-O1"), "is linked against musl (/lib/ld-musl-");
    bench.refused(&bench.path("musl"), "Link the program against glibc");
    bench.refused(&musl("musl-static", "-static"), "statically linked");
}

#[test]
fn programs_that_gain_privileges_are_refused() {
    let bench = Bench::new();
    let program = bench.program("privileged", &[]);
    if is_not_root("give files away") {
        return;
    }
    let mode = |user: u32, group: u32, bits: u32| {
        std::os::unix::fs::chown(&program, Some(user), Some(group)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(bits)).unwrap();
    };
    mode(65534, 0, 0o4755);
    bench.refused(&program, "is setuid to user 65534");
    mode(0, 65534, 0o2755);
    bench.refused(&program, "is setgid to group 65534");
    // The file belongs to our own user, so it gains no privilege.
    mode(0, 0, 0o6755);
    assert_eq!(bench.run(&[program.to_str().unwrap()]).stdout, b"ran\n");
}

#[test]
fn scripts_run() {
    let bench = Bench::new();
    for text in ["#!/bin/sh\necho ran\n", "#!/usr/bin/env sh\necho ran\n", "echo ran\n"] {
        let output = bench.run(&[bench.script("script", text).to_str().unwrap()]);
        assert_eq!(output.stdout, b"ran\n", "{text}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(0));
    }
}

#[test]
fn a_library_that_is_not_loaded_is_no_success() {
    let mut bench = Bench::new();
    let source = bench.path("empty.c");
    fs::write(&source, "int nothing;\n").unwrap();
    bench.library = bench.path("libempty.so");
    shared_library(&source, &bench.library);
    let output = bench.run(&["true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("libkmem was not loaded"), "{}", stderr(&output));
    assert_eq!(bench.run(&["sh", "-c", "exit 5"]).status.code(), Some(5));
    bench.library = bench.path("absent.so");
    let output = bench.run(&["true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("no library at"), "{}", stderr(&output));
}

#[test]
fn signals_are_passed_on() {
    let bench = Bench::new();
    for (signal, code) in [("TERM", 143), ("INT", 130), ("HUP", 129)] {
        let mut command = bench.command();
        command.args(["sh", "-c", "echo up; exec sleep 600"]);
        // The signals have their default actions, even when the test runs under nohup.
        // SAFETY: `signal` is async-signal-safe, and SIG_DFL installs no handler.
        unsafe {
            command.pre_exec(|| {
                for number in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                    libc::signal(number, libc::SIG_DFL);
                }
                Ok(())
            });
        }
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut up = [0; 3];
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut up).unwrap();
        let sent =
            Command::new("kill").args(["-s", signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        assert_eq!(child.wait().unwrap().code(), Some(code), "{signal}");
    }
}

/// Runs a command under the real library, and gives it the pid of `kmem run`.
fn run_really(script: &str) -> (std::process::Child, std::process::ChildStdout) {
    let mut command = Command::new(KMEM);
    command.arg("run").arg("--library").arg(built(LIBRARY)).args(["--", "sh", "-c", script]);
    let piped = command.env_remove("KMEM_CONF").env_remove("LD_PRELOAD").stdin(Stdio::piped());
    let mut child = piped.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    (child, out)
}

fn line(out: &mut impl std::io::Read) -> String {
    let mut line = Vec::new();
    let mut byte = [0];
    while out.read_exact(&mut byte).is_ok() && byte != *b"\n" {
        line.extend(byte);
    }
    String::from_utf8(line).unwrap()
}

fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_stopped_command_does_not_block_its_program() {
    // Programs that exit while the command is stopped, in a program that goes on.
    let script = "echo up; read x; for i in 1 2 3 4 5 6 7 8; do /bin/true; done; echo went; read x";
    let (mut child, mut out) = run_really(script);
    assert_eq!(line(&mut out), "up");
    send("STOP", child.id());
    let start = std::time::Instant::now();
    writeln!(child.stdin.as_mut().unwrap()).unwrap();
    assert_eq!(line(&mut out), "went");
    // One of them may have been waiting when the command stopped.
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    send("CONT", child.id());
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("At exit"), "{}", stderr(&output));
}

#[test]
fn the_report_can_go_to_a_file() {
    let bench = Bench::new();
    let file = bench.path("report");
    let mut command = Command::new(KMEM);
    command
        .arg("run")
        .arg("--library")
        .arg(&bench.library)
        .arg("-o")
        .arg(&file)
        .args(["--", "true"]);
    let output = command.output().unwrap();
    assert!(output.stderr.is_empty(), "{}", stderr(&output));
    assert!(fs::read_to_string(&file).unwrap().contains("exited with 0"));
    assert_eq!(fs::read_dir(bench.dir.path()).unwrap().count(), 2);
    command = Command::new(KMEM);
    command.arg("run").arg("--library").arg(&bench.library).args([
        "-o",
        "/no/such/dir/x",
        "--",
        "echo",
        "ran",
    ]);
    let output = command.output().unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
}

#[test]
fn exit_codes_of_dump_and_top() {
    let code = |args: &[&str]| Command::new(KMEM).args(args).output().unwrap();
    for command in ["dump", "top"] {
        let absent = code(&[command, "-p", "2147483632"]);
        assert_eq!(absent.status.code(), Some(3));
        assert!(stderr(&absent).contains("no process 2147483632"));
        let own = std::process::id().to_string();
        let bare = code(&[command, "-p", &own]);
        assert_eq!(bare.status.code(), Some(3));
        assert!(stderr(&bare).contains("runs without kmem"));
        assert_eq!(code(&[command]).status.code(), Some(2));
        assert_eq!(code(&[command, "-p", "no-such-name"]).status.code(), Some(3));
        assert_eq!(code(&[command, "-p", &own, "-m", "1x"]).status.code(), Some(2));
    }
    assert_eq!(code(&["run"]).status.code(), Some(2));
}
