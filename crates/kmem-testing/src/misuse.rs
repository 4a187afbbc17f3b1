//! The catalogue of memory misuse: its programs, and the endings of their runs.
//!
//! `crates/kmem-preload/tests/programs/misuse/catalogue.txt` lists the cases. A test runs them
//! under `libkmem.so`, and a table of `kmem-bench` under other allocators, too. Each program prints
//! which object has `malloc`, then the addresses that it misuses. A program that the allocator does
//! not end says how that went, by its status; see `misuse.h`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Compiler, Environment, Outcome, Run};

/// A mode of kmem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mode {
    /// Name in tables.
    pub name: &'static str,
    /// Variables of the environment that set it.
    pub environment: Environment,
}

/// The modes of kmem that the catalogue is run in: the default, then the strictest one, then
/// others.
pub const MODES: [Mode; 4] = [
    Mode { name: "default", environment: &[] },
    Mode { name: "hardened", environment: &[("KMEM_CONF", "hardened")] },
    Mode { name: "guard", environment: &[("KMEM_CONF", "guard")] },
    Mode { name: "debug_pagealloc", environment: &[("KMEM_CONF", "debug_pagealloc:1")] },
];

/// One kind of misuse.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// Subject, such as `free` or `write`.
    pub group: String,
    /// Description in a few words. It is unique in its group.
    pub name: String,
    /// Path of the source, from the folder of the programs.
    pub source: String,
    /// Arguments of the program.
    pub arguments: Vec<String>,
}

/// The folder of the programs.
fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../kmem-preload/tests/programs")
}

/// All cases, in the order of the catalogue.
///
/// # Panics
///
/// If the catalogue cannot be read, or a line of it is malformed.
#[must_use]
pub fn cases() -> Vec<Case> {
    let path = programs().join("misuse/catalogue.txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    parse(&text)
}

fn parse(text: &str) -> Vec<Case> {
    let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut cases: Vec<Case> = Vec::new();
    for line in lines {
        let parts: Vec<&str> = line.split(" | ").collect();
        let &[group, name, command] = &parts[..] else { panic!("{line:?} has not three parts") };
        let mut words = command.split_whitespace().map(str::to_owned);
        let source = words.next().unwrap_or_else(|| panic!("{line:?} names no program"));
        let arguments = words.collect();
        let twice = cases.iter().any(|case| case.group == group && case.name == name);
        assert!(!twice, "{line:?} is there twice");
        cases.push(Case { group: group.to_owned(), name: name.to_owned(), source, arguments });
    }
    cases
}

impl Case {
    /// File name of the compiled program.
    #[must_use]
    pub fn program(&self) -> String {
        let stem = Path::new(&self.source).file_stem().unwrap_or_default();
        format!("misuse-{}", stem.to_string_lossy())
    }

    /// The compiler with its arguments, but without an output. Nothing is optimised, because an
    /// optimiser may remove what has no defined behaviour.
    #[must_use]
    pub fn compiler(&self) -> Compiler {
        let is_cxx = Path::new(&self.source).extension() == Some(OsStr::new("cc"));
        let compiler = if is_cxx {
            Compiler::cxx().args(["-std=c++17", "-fsized-deallocation"])
        } else {
            Compiler::c().arg("-std=gnu11")
        };
        let options = ["-O0", "-g", "-w", "-fno-builtin", "-pthread", "-Wl,-z,now"];
        compiler.args(options).include().arg(programs().join(&self.source))
    }
}

/// How a case ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ending {
    /// The case cannot be tried, because the allocator lacks a function.
    Absent,
    /// The program was not done in time.
    Hang,
    /// The program went on, and what it did had an effect.
    Missed,
    /// The program went on, and saw no effect of what it did.
    Harmless,
    /// The call failed, as it should.
    Refused,
    /// A signal ended the program without a message.
    Crash,
    /// A message named the misuse.
    Found,
}

impl Ending {
    /// All endings, the best first.
    pub const ALL: [Self; 7] = [
        Self::Found,
        Self::Crash,
        Self::Refused,
        Self::Harmless,
        Self::Missed,
        Self::Hang,
        Self::Absent,
    ];

    /// Ending of a run. Programs write nothing to standard error, so its text is the allocator's.
    ///
    /// # Errors
    ///
    /// The story of a run that says nothing about the allocator: the program failed by itself.
    pub fn of(outcome: &Outcome) -> Result<Self, String> {
        let silent = outcome.stderr.trim().is_empty();
        if outcome.timed_out() {
            return Ok(Self::Hang);
        }
        match (outcome.code(), silent) {
            (None, true) => Ok(Self::Crash),
            (None, false) | (Some(UNNOTICED), false) => Ok(Self::Found),
            (Some(UNNOTICED), true) => Ok(Self::Missed),
            (Some(REFUSED), _) => Ok(Self::Refused),
            (Some(HARMLESS), _) => Ok(Self::Harmless),
            (Some(NO_SUCH_CASE), _) => Ok(Self::Absent),
            _ => Err(outcome.story()),
        }
    }

    /// Word in tables.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Found => "found",
            Self::Crash => "crash",
            Self::Refused => "refused",
            Self::Harmless => "harmless",
            Self::Missed => "missed",
            Self::Hang => "hang",
            Self::Absent => "-",
        }
    }

    /// Returns whether the misuse went on with an effect.
    #[must_use]
    pub fn is_missed(self) -> bool {
        matches!(self, Self::Missed | Self::Hang)
    }

    /// Returns whether this is a worse ending than that of another allocator. The misuse has an
    /// effect where it has none there, or goes on where it ends there. Crashes, messages and
    /// refused calls are equal.
    #[must_use]
    pub fn is_worse_than(self, other: Self) -> bool {
        self.rank().zip(other.rank()).is_some_and(|(this, other)| this < other)
    }

    fn rank(self) -> Option<u32> {
        match self {
            Self::Absent => None,
            Self::Hang | Self::Missed => Some(0),
            Self::Harmless => Some(1),
            Self::Refused | Self::Crash | Self::Found => Some(2),
        }
    }
}

// Statuses of the programs, as in misuse.h.
const REFUSED: i32 = 0;
const UNNOTICED: i32 = 3;
const NO_SUCH_CASE: i32 = 4;
const HARMLESS: i32 = 5;

/// The object that had `malloc` in a run.
#[must_use]
pub fn malloc_of(outcome: &Outcome) -> Option<&Path> {
    outcome.stdout.lines().next()?.strip_prefix("malloc of ").map(Path::new)
}

/// The compiled program of a case with the case's arguments, about to run on the C library's
/// malloc.
pub fn run(case: &Case, program: &Path) -> Run {
    case.arguments.iter().fold(Run::new(program), Run::arg).without_preload()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_catalogue_has_many_cases_of_programs_that_exist() {
        let cases = cases();
        assert!(cases.len() >= 80, "{}", cases.len());
        for case in &cases {
            assert!(programs().join(&case.source).is_file(), "{case:?}");
        }
    }

    #[test]
    fn lines_have_three_parts() {
        let cases = parse("# a note\n\nfree | twice, 1 byte | double_free.c immediate 1\n");
        assert_eq!(cases.len(), 1);
        assert_eq!((&*cases[0].group, &*cases[0].name), ("free", "twice, 1 byte"));
        assert_eq!(cases[0].program(), "misuse-double_free");
        assert_eq!(cases[0].arguments, ["immediate", "1"]);
    }

    #[test]
    #[should_panic(expected = "is there twice")]
    fn a_name_stands_once_in_its_group() {
        parse("a | b | c.c\na | c | c.c\nb | b | c.c\na | b | d.c\n");
    }

    #[test]
    fn endings_are_read_from_signal_status_and_message() {
        let ending = |script: &str| {
            let run = Run::new("/bin/sh").arg("-c").arg(format!("ulimit -c 0; {script}"));
            Ending::of(&run.without_preload().within(Duration::from_secs(60)).run())
        };
        assert_eq!(ending("echo a message >&2; kill -ABRT $$"), Ok(Ending::Found));
        assert_eq!(ending("echo a message >&2; exit 3"), Ok(Ending::Found));
        assert_eq!(ending("kill -SEGV $$"), Ok(Ending::Crash));
        assert_eq!(ending("exit 0"), Ok(Ending::Refused));
        assert_eq!(ending("exit 3"), Ok(Ending::Missed));
        assert_eq!(ending("exit 4"), Ok(Ending::Absent));
        assert_eq!(ending("exit 5"), Ok(Ending::Harmless));
        assert!(ending("exit 1").is_err_and(|story| story.contains("exit status: 1")));
    }

    #[test]
    fn a_program_that_takes_too_long_hangs() {
        let run = Run::new("/bin/sh").arg("-c").arg("while :; do :; done").without_preload();
        let outcome = run.within(Duration::from_millis(10)).run();
        assert_eq!(Ending::of(&outcome), Ok(Ending::Hang));
    }

    #[test]
    fn the_first_line_names_the_object_with_malloc() {
        let says = |text: &str| {
            let run = Run::new("/bin/sh").arg("-c").arg(format!("echo '{text}'"));
            malloc_of(&run.without_preload().run()).map(Path::to_owned)
        };
        assert_eq!(says("malloc of /lib/a.so"), Some("/lib/a.so".into()));
        assert_eq!(says("0x1234"), None);
    }

    #[test]
    fn only_what_goes_on_is_worse() {
        assert!(Ending::Missed.is_worse_than(Ending::Harmless));
        assert!(Ending::Hang.is_worse_than(Ending::Crash));
        assert!(Ending::Harmless.is_worse_than(Ending::Found));
        assert!(!Ending::Crash.is_worse_than(Ending::Found));
        assert!(!Ending::Missed.is_worse_than(Ending::Absent));
        assert!(!Ending::Absent.is_worse_than(Ending::Found));
    }
}
