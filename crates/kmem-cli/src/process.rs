//! `-p`: the process that the user names, by its number or by its name.

use std::convert::Infallible;
use std::str::FromStr;

use kmem_snapshot::Process;
use kmem_snapshot::listing::{Listing, any_named};

use crate::failure::Failure;

/// A process, as the user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    /// Its number.
    Pid(u32),
    /// Its short name, as `ps -o comm` prints it, or the name of its executable.
    Name(String),
}

impl FromStr for Named {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Pid))
    }
}

impl Named {
    /// Number of the process. A name stands for the only process under kmem that has it.
    pub(crate) fn pid(&self) -> Result<u32, Failure> {
        let name = match self {
            Self::Pid(pid) => return Ok(*pid),
            Self::Name(name) => name,
        };
        let listing = Listing::take()
            .map_err(|error| Failure::Trouble(format!("cannot read /proc: {error}; mount it")))?;
        match listing.named(name)[..] {
            [one] => Ok(one.process.pid()),
            [] => Err(absent(name)),
            ref several => Err(Failure::Choice {
                what: format!("{} processes are called {name}: name one by its pid", several.len()),
                candidates: several
                    .iter()
                    .map(|of| format!("  -p {} ({})", of.process.pid(), of.exe))
                    .collect(),
            }),
        }
    }

    /// Opens the process.
    pub(crate) fn open(&self) -> Result<Process, Failure> {
        Ok(Process::open(self.pid()?)?)
    }
}

/// No process under kmem has the name. One without kmem may have it.
fn absent(name: &str) -> Failure {
    Failure::Absent(match any_named(name) {
        Some(pid) => format!(
            "no process called {name} runs under kmem, or it is another user's; process {pid} \
             runs without: start it with `kmem run`"
        ),
        None => format!("no process is called {name}: `kmem ls` prints the names"),
    })
}

#[cfg(test)]
mod tests {
    use super::Named;

    #[test]
    fn a_number_is_a_pid_and_anything_else_a_name() {
        assert_eq!("12".parse(), Ok(Named::Pid(12)));
        for name in ["redis-server", "12a", "-1", "99999999999"] {
            assert_eq!(name.parse(), Ok(Named::Name(name.to_owned())), "{name}");
        }
    }
}
