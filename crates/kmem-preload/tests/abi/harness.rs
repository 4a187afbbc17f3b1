//! Finds `libkmem.so`, compiles the test programs and runs them, each in a process group of its own that is killed when
//! its time is up.
//!
//! `KMEM_TEST_LIBRARY` names the library to test in place of the one cargo built with the tests, which contains more of
//! Rust's standard library than a release does. A library of another name than `libkmem.so`, or the word `none`, runs
//! the programs on another malloc, which checks the programs themselves. `KMEM_THOROUGH=1` asks for the long versions.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// How long a program may take: it hangs if it is not done by then, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(300);

/// The signals the tests name.
pub(crate) const SIGABRT: i32 = 6;
pub(crate) const SIGSEGV: i32 = 11;

/// How a process is told what to do, as pairs of environment variable and value.
pub(crate) type Environment = &'static [(&'static str, &'static str)];

/// What every legitimate program must work under.
pub(crate) const CONFIGURATIONS: &[(&str, Environment)] = &[
    ("default", &[]),
    ("rseq off by KMEM_CONF", &[("KMEM_CONF", "rseq:off")]),
    ("rseq off by glibc", &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")]),
    ("profiling off", &[("KMEM_CONF", "mem_profiling:0")]),
    ("profiling never", &[("KMEM_CONF", "mem_profiling:never")]),
    (
        "hardened",
        &[("KMEM_CONF", "redzone:1,quarantine_kb:256,check_caches:1,shuffle:1,check_pages:every")],
    ),
];

/// The configurations in which a wrong free must be recognised, and sizes are what they are by default.
pub(crate) const CHECKED_CONFIGURATIONS: &[(&str, Environment)] = &[
    CONFIGURATIONS[0],
    CONFIGURATIONS[1],
    CONFIGURATIONS[2],
    ("quarantine", &[("KMEM_CONF", "quarantine_kb:256,check_caches:1")]),
];

/// True when the long versions of the tests are wanted.
pub(crate) fn thorough() -> bool {
    std::env::var_os("KMEM_THOROUGH").is_some_and(|value| value == "1")
}

/// The library to preload; `None` when the programs are to run on the C library's malloc.
pub(crate) fn library() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("KMEM_TEST_LIBRARY") {
        return (named != "none").then(|| PathBuf::from(named));
    }
    let test = std::env::current_exe().expect("the path of the test");
    let beside = test.parent().expect("the test is in a directory");
    let above = beside.parent().expect("which is in the target directory");
    let found = [beside, above]
        .map(|directory| directory.join("libkmem.so"))
        .into_iter()
        .find(|path| path.exists());
    Some(found.unwrap_or_else(|| panic!("libkmem.so is neither in {} nor above", beside.display())))
}

/// True when the programs run on another malloc than ours, so that only what all allocators share can be asserted.
pub(crate) fn is_reference_run() -> bool {
    library().is_none_or(|path| path.file_name() != Some(OsStr::new("libkmem.so")))
}

/// A library as it is released: the one under test if it was named, else what a release build left beside the
/// directory of this test, if anything.
pub(crate) fn released_library() -> Option<PathBuf> {
    if std::env::var_os("KMEM_TEST_LIBRARY").is_some() {
        return library();
    }
    let test = std::env::current_exe().ok()?;
    let target = test.ancestors().nth(3)?;
    ["release/libkmem.so", "release/deps/libkmem.so"]
        .map(|path| target.join(path))
        .into_iter()
        .find(|path| path.exists())
}

/// Where compiled programs are put.
fn output_directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs");
    std::fs::create_dir_all(&directory).expect("a directory for the compiled programs");
    directory
}

/// Compiles `source` of `tests/programs` with extra arguments, once per run; gives the path of the result.
fn compile(source: &str, output: &str, extra: &[OsString]) -> PathBuf {
    type Outputs = HashMap<String, Arc<OnceLock<PathBuf>>>;
    static OUTPUTS: OnceLock<Mutex<Outputs>> = OnceLock::new();
    let cell = {
        let mut outputs = OUTPUTS
            .get_or_init(Mutex::default)
            .lock()
            .expect("no test panics while it holds this lock");
        Arc::clone(outputs.entry(output.to_owned()).or_default())
    };
    cell.get_or_init(|| {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs");
        let result = output_directory().join(output);
        // Other test runs may be using the file of this name; they keep theirs.
        let fresh = result.with_extension(format!("{}.new", std::process::id()));
        let is_cxx = source.ends_with(".cc");
        let mut compiler = Command::new(if is_cxx { "c++" } else { "cc" });
        if is_cxx {
            compiler.arg("-std=c++17");
        }
        compiler
            .args(["-O1", "-g", "-w", "-fno-builtin", "-pthread", "-Wl,-z,now", "-I"])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include"))
            .arg("-o")
            .arg(&fresh);
        let compiled = compiler
            .arg(directory.join(source))
            .args(extra)
            .output()
            .expect("a C compiler is installed");
        assert!(
            compiled.status.success(),
            "{source}: {}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        std::fs::rename(&fresh, &result).expect("a file can be renamed in its directory");
        result
    })
    .clone()
}

/// Whether the machine has no C++ compiler, which is said; the tests of C++ programs are nothing then.
/// The gate (CI=true) does not put up with that.
pub(crate) fn no_cxx() -> bool {
    let missing = Command::new("c++").arg("--version").output().is_err();
    if missing {
        assert!(std::env::var_os("CI").is_none(), "there is no C++ compiler");
        eprintln!("skipped: there is no C++ compiler");
    }
    missing
}

/// The compiled program of a source file.
pub(crate) fn program(source: &str) -> PathBuf {
    compile(source, source.split('.').next().expect("a name"), &[])
}

/// The same, linked against libraries given by path, which are found again at run time.
pub(crate) fn program_with_libraries(source: &str, output: &str, libraries: &[&Path]) -> PathBuf {
    let mut extra = vec![OsString::from("-Wl,--no-as-needed")];
    for library in libraries {
        let mut run_path = OsString::from("-Wl,-rpath,");
        run_path.push(library.parent().expect("a library is in a directory"));
        extra.extend([library.as_os_str().to_owned(), run_path]);
    }
    compile(source, output, &extra)
}

/// The shared library of a source file.
pub(crate) fn shared_library(source: &str) -> PathBuf {
    let name = source.split('.').next().expect("a name");
    compile(source, &format!("lib{name}.so"), &["-shared".into(), "-fPIC".into()])
}

/// A program about to run.
pub(crate) struct Run {
    command: Command,
    shown: String,
    preload: bool,
}

/// What became of it.
pub(crate) struct Outcome {
    shown: String,
    status: ExitStatus,
    timed_out: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) elapsed: Duration,
}

impl Run {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(&program);
        for variable in ["KMEM_CONF", "GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_CONF"] {
            command.env_remove(variable);
        }
        let shown = Path::new(program.as_ref()).display().to_string();
        Self { command, shown, preload: true }
    }

    /// Runs `program` from a shell that executes `prelude` first; only the program itself is preloaded.
    pub(crate) fn after_shell(prelude: &str, program: impl AsRef<OsStr>) -> Self {
        let mut run = Self::new("/bin/sh");
        let preload = if library().is_some() { "LD_PRELOAD=\"$0\" " } else { "" };
        run.preload = false;
        run.command.arg("-c").arg(format!("{prelude}; {preload}exec \"$@\""));
        run.command.arg(library().unwrap_or_else(|| "sh".into()));
        run.command.env("EXPECT_KMEM", if is_reference_run() { "0" } else { "1" });
        run.shown = format!("{prelude};");
        run.arg(program)
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.shown.push(' ');
        self.shown.push_str(&argument.as_ref().to_string_lossy());
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(self, arguments: &[A]) -> Self {
        arguments.iter().fold(self, Run::arg)
    }

    pub(crate) fn env(mut self, variable: &str, value: impl AsRef<OsStr>) -> Self {
        let text = value.as_ref().to_string_lossy().into_owned();
        self.shown =
            format!("{variable}='{}' {}", text.chars().take(100).collect::<String>(), self.shown);
        self.command.env(variable, value);
        self
    }

    pub(crate) fn configured(self, environment: Environment) -> Self {
        environment.iter().fold(self, |run, (variable, value)| run.env(variable, value))
    }

    /// Runs on the C library's malloc whatever else is being tested.
    pub(crate) fn without_preload(mut self) -> Self {
        self.preload = false;
        self
    }

    pub(crate) fn run(mut self) -> Outcome {
        if self.preload {
            if let Some(library) = library() {
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
        let deadline = start + if thorough() { 6 * PATIENCE } else { PATIENCE };
        let mut child =
            self.command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.shown));
        let group = format!("-{}", child.id());
        let stdout = collect(child.stdout.take().expect("stdout is a pipe"));
        let stderr = collect(child.stderr.take().expect("stderr is a pipe"));

        // The pipes close when the last process of the group is gone, so waiting for them waits for forked children, too.
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
        // Nobody listens any more when the test has failed.
        let _ = sender.send(bytes);
    });
    receiver
}

impl Outcome {
    /// Everything there is to know, for the message of a failed assertion.
    pub(crate) fn story(&self) -> String {
        let head = |text: &str| text.chars().take(4000).collect::<String>();
        let ended = if self.timed_out { "timed out".to_owned() } else { self.status.to_string() };
        format!(
            "{}\nended after {:?}: {ended}\n-- stdout --\n{}\n-- stderr --\n{}",
            self.shown,
            self.elapsed,
            head(&self.stdout),
            head(&self.stderr)
        )
    }

    /// The messages of the library.
    pub(crate) fn messages(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.starts_with("kmem: ")).collect()
    }

    #[track_caller]
    pub(crate) fn assert_success(&self) -> &Self {
        assert!(!self.timed_out && self.status.success(), "{}", self.story());
        self
    }

    /// Success, and the library had nothing to say.
    #[track_caller]
    pub(crate) fn assert_quiet_success(&self) -> &Self {
        self.assert_success();
        assert!(self.messages().is_empty(), "{}", self.story());
        self
    }

    /// Success, with nothing but reports on memory that could not be had.
    #[track_caller]
    pub(crate) fn assert_success_out_of_memory(&self) -> &Self {
        self.assert_success();
        let is_row = |line: &str| {
            let mut words = line.split_whitespace();
            let size = words.next().is_some_and(|size| size.parse::<f64>().is_ok());
            let unit = words.next().is_some_and(|unit| unit.ends_with('B'));
            let calls = words.next().is_some_and(|calls| calls.parse::<u64>().is_ok());
            size && unit && calls && line.contains(" func:")
        };
        let mut lines = self.stderr.lines().peekable();
        assert!(lines.peek().is_some(), "no report: {}", self.story());
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

    #[track_caller]
    pub(crate) fn assert_signal(&self, signal: i32) -> &Self {
        assert!(!self.timed_out && self.status.signal() == Some(signal), "{}", self.story());
        self
    }

    pub(crate) fn ended_by(&self, signal: i32) -> bool {
        !self.timed_out && self.status.signal() == Some(signal)
    }

    pub(crate) fn succeeded(&self) -> bool {
        !self.timed_out && self.status.success()
    }

    /// The program was aborted with one message of the library that contains one of `words`, all of `parts`, and the
    /// pointer the program printed last.
    #[track_caller]
    pub(crate) fn assert_refused(&self, words: &[&str], parts: &[&str]) -> &Self {
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

/// Runs a program in every given configuration.
#[track_caller]
pub(crate) fn in_configurations(
    configurations: &[(&str, Environment)],
    run: impl Fn() -> Run,
    check: impl Fn(&Outcome),
) {
    for (_, environment) in configurations {
        check(&run().configured(environment).run());
    }
}

/// Runs a legitimate program in the checked configurations: it must succeed; the library may speak.
#[track_caller]
pub(crate) fn must_succeed(path: &Path, arguments: &[&str]) {
    in_configurations(
        CHECKED_CONFIGURATIONS,
        || Run::new(path).args(arguments),
        |outcome| {
            outcome.assert_success();
        },
    );
}

/// Runs a legitimate program in every configuration: it must succeed without a word from the library.
#[track_caller]
pub(crate) fn must_work(source: &str, arguments: &[&str]) {
    if source.ends_with(".cc") && no_cxx() {
        return;
    }
    let path = program(source);
    in_configurations(
        CONFIGURATIONS,
        || Run::new(&path).args(arguments),
        |outcome| {
            outcome.assert_quiet_success();
        },
    );
}
