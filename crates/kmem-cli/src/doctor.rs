//! `kmem doctor`: what of this machine makes programs under kmem slower, or hides facts from kmem.
//!
//! ```text
//! machine  the files and calls that tell, and the judgement of each
//! ```

mod machine;

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use kmem_snapshot::escape::printable;
use kmem_snapshot::output;
use serde::Serialize;
use serde_json::json;

use crate::failure::{FOUND, Failure};

/// Arguments of `kmem doctor`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// State of one thing, in order of its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As it should be.
    Ok,
    /// Something is absent that only some uses need.
    Note,
    /// Programs under kmem are slower.
    Slower,
    /// Facts are missing in what kmem shows.
    Missing,
    /// Programs do not run under kmem.
    Broken,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Slower => "slower",
            Self::Missing => "missing",
            Self::Broken => "broken",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Check {
    /// Its name.
    name: &'static str,
    state: State,
    /// The fact that was found.
    found: String,
    /// The consequence; empty when all is well.
    effect: &'static str,
    /// The remedy; empty when all is well.
    remedy: &'static str,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, found: found.into(), effect: "", remedy: "" }
    }

    fn not(
        name: &'static str,
        state: State,
        found: impl Into<String>,
        effect: &'static str,
        remedy: &'static str,
    ) -> Self {
        Self { name, state, found: found.into(), effect, remedy }
    }

    /// True for what changes the exit code.
    fn counts(&self) -> bool {
        !matches!(self.state, State::Ok | State::Note)
    }
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let checks = machine::checks();
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        output::json::write_pretty(&mut out, &json!({ "checks": checks }))?;
    } else {
        write(&mut out, &checks)?;
    }
    out.flush()?;
    let found = checks.iter().any(Check::counts);
    Ok(if found { ExitCode::from(FOUND) } else { ExitCode::SUCCESS })
}

fn write(out: &mut impl Write, checks: &[Check]) -> io::Result<()> {
    for Check { name, state, found, effect, remedy } in checks {
        writeln!(out, "{:<8} {name}: {}", state.name(), printable(found))?;
        if !effect.is_empty() {
            writeln!(out, "         {effect}")?;
        }
        if !remedy.is_empty() {
            writeln!(out, "         -> {remedy}")?;
        }
    }
    Ok(())
}
