//! `kmem run`: runs a command under libkmem, and reports the memory of its processes at their peaks
//! and at the end, whatever ends them.
//!
//! The command's exit code is passed through.
//!
//! ```text
//! library      finds libkmem.so; LD_PRELOAD
//! settings     the options of the allocator; KMEM_CONF
//! embedded     the library inside this program, as a file
//! preloadable  checks that the command can run under it
//! watch        starts the command, forwards signals, reads each process that exits
//! boxes        the private black boxes of the command's processes
//! directory    the directory that they are in
//! peak         how near the report's rows are to the peak
//! oom          kills by the kernel's OOM killer
//! exit_socket  socket at which processes report that they are about to exit
//! exit_report  the report
//! sections     its parts: processes, grouped by program
//! sys          system calls
//! ```

mod boxes;
mod directory;
mod embedded;
mod exit_report;
mod exit_socket;
pub(crate) mod library;
mod oom;
mod peak;
mod preloadable;
mod sections;
mod settings;
mod sys;
mod watch;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::failure::{Failure, say};
use boxes::Boxes;
use exit_report::{Output, Show};
use exit_socket::ExitSocket;
use kmem_snapshot::Pattern;
use sections::Choice;
use settings::Settings;

/// Arguments of `kmem run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print at most N rows per table
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// Preload this library, instead of the libkmem.so that belongs to this command
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Show only processes of this program, by its base name; `*` and `?` stand for any text
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Show all programs, not only those that held 5 % of the memory or more
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// Leave out memory outside of the heap: what the program mapped itself, stacks, code, files
    #[arg(long)]
    no_mmap: bool,
    /// Write the report to this file, instead of standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Run this program, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let (library, header) = library::find(args.library.as_deref())?;
    let (name, rest) = args
        .command
        .split_first()
        .ok_or_else(|| Failure::Trouble("no command given".to_owned()))?;
    let shown = name.to_string_lossy();
    let program = preloadable::check(name, &header).map_err(|e| Failure::Trouble(e.to_string()))?;
    let trouble = |what: &str, e: io::Error| Failure::Trouble(format!("{what}: {e}"));
    let socket = ExitSocket::open().map_err(|e| trouble("no socket for the exit report", e))?;

    let boxes = Boxes::make(!args.no_mmap);
    if boxes.directory().is_none() {
        say("no directory for black boxes: a program that a signal ends leaves no report");
    }
    let text = args.settings.text(socket.name(), boxes.directory())?;
    let output = Output::open(args.output.as_deref())?;
    let has_own_box = settings::conf(&text).blackbox.get().is_some();
    let mut command = Command::new(name);
    command.args(rest).env("LD_PRELOAD", library::preload(&library)).env("KMEM_CONF", text);
    let ended =
        watch::run(command, socket, boxes).map_err(|e| trouble(&program.to_string_lossy(), e))?;

    let code = ended.code();
    let reported = ended.main.is_some();
    let choice = match &args.only {
        Some(name) => Choice::Only(Pattern::new(name)),
        None if args.all => Choice::All,
        None => Choice::Largest,
    };
    let show = Show { choice, lines: args.lines, mmap: !args.no_mmap, has_own_box };
    if let Err(e) = output.write(|out| exit_report::write(out, &ended, &shown, &show)) {
        say(&format!("cannot write the report: {e}"));
        return Ok(ExitCode::from(if code == 0 { 2 } else { code }));
    }
    // Without a report and without the library the run has failed.
    Ok(ExitCode::from(if code == 0 && !reported && !ended.loaded { 2 } else { code }))
}
