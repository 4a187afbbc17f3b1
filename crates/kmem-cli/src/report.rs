//! `kmem report`: a recording, or any other source, as one HTML page.

use std::path::{Path, PathBuf};

use kmem_snapshot::page::Page;
use kmem_snapshot::recording::Recording;
use kmem_snapshot::{Query, Target};

use crate::destination::Destination;
use crate::failure::{Failure, say, say_all};
use crate::source;

/// Arguments of `kmem report`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show this recording; or, without a time axis, a PID, the name of a process, another file, or
    /// kernel
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// Write the page to this file, instead of standard output; it is replaced when all is written
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let page = match source::target(&args.source)? {
        // One moment of a recording has no time axis, either.
        Target::Recording { path, .. } if path == args.source => {
            Page::of_recording(&Recording::open(&path)?)?
        }
        target => {
            let reading = target.read(&Query { mappings: true, ..Query::default() })?;
            say_all(&reading.notes);
            Page::of_reading(&reading)
        }
    };
    let to = Destination::open(args.output.as_deref(), Destination::Stdout)?;
    if to.is_terminal() {
        return Err(Failure::Trouble(
            "a page is for a browser: send it to a file with -o FILE.html".to_owned(),
        ));
    }
    Ok(to.write(|mut out| page.write(&mut out))?)
}

/// Writes the page of a recording to a file.
pub(crate) fn of_recording(recording: &Path, to: &Path) -> Result<(), Failure> {
    let page = Page::of_recording(&Recording::open(recording)?)?;
    Destination::open(Some(to), Destination::Stdout)?.write(|mut out| page.write(&mut out))?;
    say(&format!("the report is in {}", to.display()));
    Ok(())
}
