//! `kmem run`: runs a command under libkmem, and reports its memory at the peak and at exit.
//!
//! The command's exit code is passed through.
//!
//! ```text
//! library      finds libkmem.so; LD_PRELOAD and KMEM_CONF
//! embedded     the library inside this program, as a file
//! preloadable  checks that the command can run under it
//! watch        starts the command, forwards signals, reads each process that exits
//! exit_socket  socket at which processes report that they are about to exit
//! exit_report  the report
//! sys          system calls
//! ```

mod embedded;
mod exit_report;
mod exit_socket;
pub(crate) mod library;
mod preloadable;
mod sys;
mod watch;

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use crate::failure::{Failure, say};
use exit_report::Output;
use exit_socket::ExitSocket;

/// Arguments of `kmem run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print at most N rows per table
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    lines: usize,
    /// Preload this library, instead of the libkmem.so that belongs to this command
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Write the report to this file, instead of standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Run this program, with its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "CMD"
    )]
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
    let output = Output::open(args.output.as_deref())?;
    let trouble = |what: &str, e: io::Error| Failure::Trouble(format!("{what}: {e}"));
    let socket = ExitSocket::open().map_err(|e| trouble("no socket for the exit report", e))?;

    let mut command = Command::new(name);
    command
        .args(rest)
        .env("LD_PRELOAD", library::preload(&library))
        .env("KMEM_CONF", library::conf(socket.name()));
    let ended = watch::run(command, socket).map_err(|e| trouble(&program.to_string_lossy(), e))?;

    let code = ended.code();
    let reported = ended.main.is_some();
    if let Err(e) = output.write(|out| exit_report::write(out, &ended, &shown, args.lines)) {
        say(&format!("cannot write the report: {e}"));
        return Ok(ExitCode::from(if code == 0 { 2 } else { code }));
    }
    // Without a report and without the library the run has failed.
    Ok(ExitCode::from(if code == 0 && !reported && !ended.loaded { 2 } else { code }))
}
