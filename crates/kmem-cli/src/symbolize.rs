//! `kmem symbolize`: names for rows of a file that came from another machine.

use std::env;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use kmem_snapshot::output::{self, Choice};
use kmem_snapshot::{DebugFiles, Query, Symbolized};

use crate::destination::Destination;
use crate::failure::{Failure, say, say_all};
use crate::format::{self, Named};
use crate::source;

/// The client of debuginfod, of elfutils.
const CLIENT: &str = "debuginfod-find";
/// The servers that the client asks; see debuginfod-find(1).
const SERVERS: &str = "DEBUGINFOD_URLS";

/// Arguments of `kmem symbolize`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name the rows of this source: JSON of kmem dump, a recording, or another one
    #[arg(value_name = "SOURCE")]
    from: PathBuf,
    /// Look for debug files here, too: in .build-id/ab/cdef.debug, as in /usr/lib/debug, and in
    /// abcdef/debuginfo; may be repeated
    #[arg(long, value_name = "DIR")]
    debug_dir: Vec<PathBuf>,
    /// Choose the format
    #[arg(long, value_enum, default_value = "json")]
    format: Named,
    /// Write to this file, instead of standard output; it is replaced when all is written
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let to = format::open(args.format.0, args.output.as_deref(), Destination::Stdout)?;
    let query = Query { mappings: true, ..Query::default() };
    let mut reading = source::target(&args.from)?.read(&query)?;
    let mut is_missing = false;
    let mut fetch = |id: &str| fetch(id, &mut is_missing);
    let files = DebugFiles { directories: &args.debug_dir, fetch: &mut fetch };
    let Symbolized { without, named } = reading.symbolize(files)?;
    say_all(&reading.notes);
    if is_missing {
        say(&format!(
            "{SERVERS} is set, but {CLIENT} is not installed; it is in debuginfod's \
             package"
        ));
    }
    to.write(|out| output::write(out, args.format.0, &reading, &Choice::default()))?;
    if reading.provenance.build_ids.is_empty() && without != 0 {
        say("the source has no build ids, so no call can be named");
    } else {
        say(&format!("of {without} calls without a line, {named} have a name now"));
    }
    Ok(())
}

/// Asks the servers of debuginfod for the debug file of a build id, if any are set.
fn fetch(id: &str, is_missing: &mut bool) -> Option<PathBuf> {
    env::var_os(SERVERS).filter(|urls| !urls.is_empty())?;
    let client = Command::new(CLIENT)
        .args(["debuginfo", id])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match client {
        Ok(of) if of.status.success() => {
            let path = of.stdout.trim_ascii_end();
            Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
        }
        Ok(_) => None,
        Err(error) => {
            *is_missing |= error.kind() == ErrorKind::NotFound;
            None
        }
    }
}
