//! Why a command failed, and the exit code that says so.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use kmem_module::Errno;
use kmem_snapshot::ReadError;

/// A failure to report.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Usage or trouble: 2.
    Trouble(String),
    /// It is not clear what was meant: 2.
    Choice {
        /// What was not clear.
        what: String,
        /// What may have been meant, one line each.
        candidates: Vec<String>,
    },
    /// The source is absent: 3.
    Absent(String),
    /// No permission: 4.
    Permission(String),
    /// The reader of our output has gone: nothing to say.
    BrokenPipe,
}

impl Failure {
    /// What is wrong with a module, named by its file.
    pub(crate) fn of_module(path: &Path, error: &kmem_module::Error) -> Self {
        let text = format!("{}: {error}", path.display());
        match error.errno {
            Errno::ENOENT => Self::Absent(text),
            Errno::EACCES | Errno::EPERM => Self::Permission(text),
            _ => Self::Trouble(text),
        }
    }

    /// Says what happened and gives the exit code.
    pub(crate) fn report(self) -> ExitCode {
        let (text, code) = match self {
            Self::Trouble(text) => (text, 2),
            Self::Absent(text) => (text, 3),
            Self::Permission(text) => (text, 4),
            Self::Choice { what, candidates } => {
                say(&what);
                for candidate in candidates {
                    say(&candidate);
                }
                return ExitCode::from(2);
            }
            Self::BrokenPipe => return ExitCode::SUCCESS,
        };
        say(&text);
        ExitCode::from(code)
    }
}

/// One message on stderr; a closed stderr is not worth dying for.
pub(crate) fn say(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(io::stderr(), "kmem: {}", kmem_snapshot::escape::printable(text));
}

impl From<ReadError> for Failure {
    fn from(error: ReadError) -> Self {
        let text = error.to_string();
        if error.is_absent() {
            Self::Absent(text)
        } else if error.is_permission() {
            Self::Permission(text)
        } else {
            Self::Trouble(text)
        }
    }
}

/// For errors of our own output.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            Self::BrokenPipe
        } else {
            Self::Trouble(format!("cannot write the output: {error}"))
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::from(io::Error::from(error))
    }
}
