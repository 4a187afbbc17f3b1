//! A program that a test runs to its end, and assertions on its outcome. When its time is up, all
//! processes of its group are killed.

use std::ffi::OsStr;
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use crate::library::{is_reference_run, under_test};

/// Longest time that a program may take. One that is not done by then hangs, however busy the
/// machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// Number of the signal that `abort` raises.
pub const SIGABRT: i32 = 6;
/// Bus error.
pub const SIGBUS: i32 = 7;
/// Number of the signal of an invalid access to memory.
pub const SIGSEGV: i32 = 11;

/// Pairs of environment variable and value.
pub type Environment = &'static [(&'static str, &'static str)];

/// Returns whether `KMEM_THOROUGH=1` asks for the long versions of the tests.
pub fn thorough() -> bool {
    std::env::var_os("KMEM_THOROUGH").is_some_and(|value| value == "1")
}

/// Copies a program that the test then executes. A child process writes the copy, because the
/// kernel refuses to execute a file that is open for writing (`ETXTBSY`, execve(2)). Had this
/// process opened it, children of other threads would hold the descriptor until their `execve`.
#[track_caller]
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let (from, to) = (from.as_ref(), to.as_ref());
    let copied = Command::new("cp").arg("--").args([from, to]).status().expect("there is cp");
    assert!(copied.success(), "{} is not copied to {}: {copied}", from.display(), to.display());
}

/// A program about to run.
#[derive(Debug)]
#[must_use]
pub struct Run {
    command: Command,
    shown: String,
    preload: bool,
    patience: Duration,
}

/// The end of a program, and its output.
#[derive(Debug)]
pub struct Outcome {
    shown: String,
    status: ExitStatus,
    timed_out: bool,
    /// Text of its standard output.
    pub stdout: String,
    /// Text of its standard error.
    pub stderr: String,
    /// Time from its start until the last process of its group closed the pipes.
    pub elapsed: Duration,
}

impl Run {
    /// A program that runs with the library under test preloaded. Variables that change an
    /// allocator are removed from its environment.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(&program);
        for variable in ["KMEM_CONF", "GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF"] {
            command.env_remove(variable);
        }
        let shown = Path::new(program.as_ref()).display().to_string();
        Self { command, shown, preload: true, patience: PATIENCE }
    }

    /// Runs `program` from a shell that executes `prelude` first. The library is preloaded into the
    /// program, not into the shell.
    pub fn after_shell(prelude: &str, program: impl AsRef<OsStr>) -> Self {
        let mut run = Self::new("/bin/sh");
        let preload = if under_test().is_some() { "LD_PRELOAD=\"$0\" " } else { "" };
        run.preload = false;
        run.command.arg("-c").arg(format!("{prelude}; {preload}exec \"$@\""));
        run.command.arg(under_test().unwrap_or_else(|| "sh".into()));
        run.command.env("EXPECT_KMEM", if is_reference_run() { "0" } else { "1" });
        run.shown = format!("{prelude};");
        run.arg(program)
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.shown.push(' ');
        self.shown.push_str(&argument.as_ref().to_string_lossy());
        self.command.arg(argument);
        self
    }

    /// Adds arguments.
    pub fn args<A: AsRef<OsStr>>(self, arguments: &[A]) -> Self {
        arguments.iter().fold(self, Run::arg)
    }

    /// Sets an environment variable.
    pub fn env(mut self, variable: &str, value: impl AsRef<OsStr>) -> Self {
        let text = value.as_ref().to_string_lossy().into_owned();
        self.shown =
            format!("{variable}='{}' {}", text.chars().take(100).collect::<String>(), self.shown);
        self.command.env(variable, value);
        self
    }

    /// Sets environment variables.
    pub fn configured(self, environment: Environment) -> Self {
        environment.iter().fold(self, |run, (variable, value)| run.env(variable, value))
    }

    /// Runs it on the C library's malloc, without the library under test.
    pub fn without_preload(mut self) -> Self {
        self.preload = false;
        self
    }

    /// Removes an environment variable.
    pub fn without_env(mut self, variable: impl AsRef<OsStr>) -> Self {
        self.command.env_remove(variable);
        self
    }

    /// Sets the longest time that it may take.
    pub fn within(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs it to its end. Standard input is empty. When its time is up, it is killed with all
    /// processes of its group.
    #[track_caller]
    pub fn run(mut self) -> Outcome {
        if self.preload {
            if let Some(library) = under_test() {
                self.command.env("LD_PRELOAD", library);
            }
            self.command.env("EXPECT_KMEM", if is_reference_run() { "0" } else { "1" });
        }
        self.command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let start = Instant::now();
        let deadline = start + if thorough() { 6 * self.patience } else { self.patience };
        let mut child =
            self.command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.shown));
        let group = format!("-{}", child.id());
        let stdout = collect(child.stdout.take().expect("stdout is a pipe"));
        let stderr = collect(child.stderr.take().expect("stderr is a pipe"));

        // The pipes close when the last process of the group ends. The receivers therefore wait for
        // forked children, too.
        let mut timed_out = false;
        let mut text = |receiver: Receiver<Vec<u8>>| {
            let left = deadline.saturating_duration_since(Instant::now());
            let bytes = receiver.recv_timeout(left).unwrap_or_else(|_| {
                timed_out = true;
                kill_group(&group);
                receiver.recv().expect("the pipe closes once its writers are killed")
            });
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (stdout, stderr) = (text(stdout), text(stderr));
        let (sender, exited) = mpsc::channel();
        let waiter = thread::spawn(move || {
            let status = child.wait().expect("the child is ours");
            sender.send(status).expect("the receiver waits for it");
        });
        let left = deadline.saturating_duration_since(Instant::now());
        let status = exited.recv_timeout(left).unwrap_or_else(|_| {
            timed_out = true;
            kill_group(&group);
            exited.recv().expect("a killed child ends")
        });
        waiter.join().expect("the waiter does not panic");
        Outcome { shown: self.shown, status, timed_out, stdout, stderr, elapsed: start.elapsed() }
    }
}

fn kill_group(group: &str) {
    drop(Command::new("kill").args(["-KILL", "--", group]).status());
}

fn collect(mut pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        drop(pipe.read_to_end(&mut bytes));
        // Without a receiver, the test has failed already.
        let _ = sender.send(bytes);
    });
    receiver
}

/// Characters of each end of an output in the message of a failed assertion.
const SHOWN: usize = 4000;

/// The beginning and the end of a text.
fn both_ends(text: &str) -> String {
    let count = text.chars().count();
    let head: String = text.chars().take(SHOWN).collect();
    let tail: String = text.chars().skip(SHOWN.max(count.saturating_sub(SHOWN))).collect();
    if count > 2 * SHOWN { format!("{head}\n[..]\n{tail}") } else { head + &tail }
}

impl Outcome {
    /// Command, end and output, for the message of a failed assertion.
    pub fn story(&self) -> String {
        let ended = if self.timed_out { "timed out".to_owned() } else { self.status.to_string() };
        format!(
            "{}\nended after {:?}: {ended}\n-- stdout --\n{}\n-- stderr --\n{}",
            self.shown,
            self.elapsed,
            both_ends(&self.stdout),
            both_ends(&self.stderr)
        )
    }

    /// Returns whether it was killed because its time was up.
    pub fn timed_out(&self) -> bool {
        self.timed_out
    }

    /// Its status of exit; `None` if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The signal that ended it, if any.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Messages of the library on standard error.
    pub fn messages(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("kmem: ")).collect()
    }

    /// Asserts that it exited with code 0 in time.
    #[track_caller]
    pub fn assert_success(&self) -> &Self {
        assert!(!self.timed_out && self.status.success(), "{}", self.story());
        self
    }

    /// Asserts success without a message of the library.
    #[track_caller]
    pub fn assert_quiet_success(&self) -> &Self {
        self.assert_success();
        assert!(self.messages().is_empty(), "{}", self.story());
        self
    }

    /// Asserts success, with at least one report that memory ran out, and nothing else on standard
    /// error.
    #[track_caller]
    pub fn assert_success_out_of_memory(&self) -> &Self {
        assert!(!self.stderr.is_empty(), "no report: {}", self.story());
        self.assert_success_if_out_of_memory()
    }

    /// Asserts success, with nothing on standard error but reports that memory ran out, if any.
    #[track_caller]
    pub fn assert_success_if_out_of_memory(&self) -> &Self {
        self.assert_success();
        let is_row = |line: &str| {
            let mut words = line.split_whitespace();
            let size = words.next().is_some_and(|size| size.parse::<f64>().is_ok());
            let unit = words.next().is_some_and(|unit| unit.ends_with('B'));
            let calls = words.next().is_some_and(|calls| calls.parse::<u64>().is_ok());
            size && unit && calls && line.contains(" func:")
        };
        let mut lines = self.stderr.lines().peekable();
        while let Some(line) = lines.next() {
            assert!(line.starts_with("kmem: out of memory: no "), "{line}: {}", self.story());
            assert_eq!(lines.next(), Some("Memory allocations:"), "{}", self.story());
            let mut rows = 0;
            while lines.next_if(|line| is_row(line)).is_some() {
                rows += 1;
            }
            assert!((1..=10).contains(&rows), "{}", self.story());
        }
        self
    }

    /// Asserts that this signal ended it.
    #[track_caller]
    pub fn assert_signal(&self, signal: i32) -> &Self {
        assert!(!self.timed_out && self.status.signal() == Some(signal), "{}", self.story());
        self
    }

    /// Returns whether this signal ended it.
    pub fn ended_by(&self, signal: i32) -> bool {
        !self.timed_out && self.status.signal() == Some(signal)
    }

    /// Returns whether it exited with code 0 in time.
    pub fn succeeded(&self) -> bool {
        !self.timed_out && self.status.success()
    }

    /// Asserts that the library aborted the program with a message. The message contains one of
    /// `words`, all of `parts`, and the pointer that the program printed last.
    #[track_caller]
    pub fn assert_refused(&self, words: &[&str], parts: &[&str]) -> &Self {
        self.assert_signal(SIGABRT);
        let pointer = self.stdout.lines().last().unwrap_or_default().to_lowercase();
        let fits = |line: &&str| {
            let line = line.to_lowercase();
            words.iter().any(|word| line.contains(word))
                && parts.iter().all(|part| line.contains(part))
                && !pointer.is_empty()
                && line.contains(&pointer)
        };
        assert!(
            self.messages().iter().any(fits),
            "no message with one of {words:?}, all of {parts:?} and {pointer:?}\n{}",
            self.story()
        );
        self
    }
}
