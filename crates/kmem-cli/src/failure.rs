//! Reasons for which a command fails, and the exit code of each.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use kmem_module::Errno;
use kmem_snapshot::{ReadError, ReadFailure};

/// Exit code for a finding: growth over a threshold.
pub(crate) const FOUND: u8 = 1;
/// Exit code for usage and trouble.
pub(crate) const TROUBLE: u8 = 2;
/// Exit code for an absent source.
const ABSENT: u8 = 3;
/// Exit code for missing permission.
const PERMISSION: u8 = 4;

/// A failure to report.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Wrong usage, or trouble.
    Trouble(String),
    /// The user's choice is ambiguous.
    Choice {
        /// The ambiguity.
        what: String,
        /// Possible meanings, one line each.
        candidates: Vec<String>,
    },
    /// The source is absent.
    Absent(String),
    /// The user has no permission.
    Permission(String),
    /// A process or a file of it cannot be read.
    Read(ReadFailure),
    /// Failures of some inputs, in order; never empty. The first one gives the exit code.
    Several(Vec<Self>),
    /// The program that reads our output has closed it.
    BrokenPipe,
}

impl Failure {
    /// Failure of a module, with the name of its file.
    pub(crate) fn of_module(path: &Path, error: &kmem_module::Error) -> Self {
        let text = format!("{}: {error}", path.display());
        match error.errno {
            Errno::ENOENT => Self::Absent(text),
            Errno::EACCES | Errno::EPERM => Self::Permission(text),
            _ => Self::Trouble(text),
        }
    }

    /// The result of a command that goes on after an input that it cannot read.
    pub(crate) fn of_inputs(failures: Vec<Self>) -> Result<(), Self> {
        if failures.is_empty() { Ok(()) } else { Err(Self::Several(failures)) }
    }

    /// Prints the failure and returns its exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (text, code) = match self {
            Self::Trouble(text) => (text, TROUBLE),
            Self::Absent(text) => (text, ABSENT),
            Self::Permission(text) => (text, PERMISSION),
            Self::Choice { what, candidates } => {
                say(&what);
                say_all(&candidates);
                return ExitCode::from(TROUBLE);
            }
            Self::Read(ReadFailure { error, notes }) => {
                say_all(&notes);
                let code = if error.is_absent() {
                    ABSENT
                } else if error.is_permission() {
                    PERMISSION
                } else {
                    TROUBLE
                };
                (error.to_string(), code)
            }
            Self::Several(failures) => {
                let codes: Vec<ExitCode> = failures.into_iter().map(Self::report).collect();
                return codes.into_iter().next().unwrap_or(ExitCode::from(TROUBLE));
            }
            Self::BrokenPipe => return ExitCode::SUCCESS,
        };
        say(&text);
        ExitCode::from(code)
    }
}

/// Prints one message on stderr by one call of the system, so that no output of another program
/// comes between its words. A closed stderr is no failure.
pub(crate) fn say(text: &str) {
    let line = format!("kmem: {}\n", kmem_snapshot::escape::printable(text));
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Prints a message for each item on stderr.
pub(crate) fn say_all<T: Display>(items: &[T]) {
    for item in items {
        say(&item.to_string());
    }
}

impl From<ReadFailure> for Failure {
    fn from(failure: ReadFailure) -> Self {
        Self::Read(failure)
    }
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        Self::Read(error.into())
    }
}

/// Converts an error of our own output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::Trouble(format!("cannot write the output: {error}"))
        }
    }
}
