//! `kmem record`: the rows of a process or a kernel at many moments, in a file.
//!
//! ```text
//! session  when to read, what to show of it, and the end
//! ```

mod session;

use std::ffi::OsString;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kmem_snapshot::{Process, Target};

use crate::failure::Failure;
use crate::options::interval;
use crate::process::Named;
use crate::run::settings::Settings;
use crate::run::{self, Program, sys};
pub(crate) use session::Session;

/// Arguments of `kmem record`.
#[derive(clap::Args)]
#[group(skip)]
#[command(group = clap::ArgGroup::new("recorded").required(true).multiple(false))]
pub(crate) struct Args {
    /// Write the recording to this file, which is replaced
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Read the rows once in this time, such as 100ms or 5s. A reading that takes long is followed
    /// by a pause of three times its length
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = interval)]
    every: Duration,
    /// End the recording after this time. A command that was started runs on to its end
    #[arg(long = "for", value_name = "TIME", value_parser = interval)]
    time: Option<Duration>,
    /// Record the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME", group = "recorded")]
    pid: Option<Named>,
    /// Record the kernel of this machine
    #[arg(long, group = "recorded")]
    kernel: bool,
    /// Record the allocinfo text in this file, which is read again each time
    #[arg(long, value_name = "FILE", group = "recorded")]
    allocinfo: Option<PathBuf>,
    /// Preload this library, instead of the libkmem.so that belongs to this command
    #[arg(long, value_name = "PATH", requires = "command")]
    library: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Run this program, with its arguments, and record it
    #[arg(trailing_var_arg = true, value_name = "CMD", group = "recorded")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let begin = || Session::begin(&args.output, args.every, args.time);
    let (pid, target) = match (&args.pid, &args.allocinfo) {
        (Some(named), _) => {
            let process = named.open()?;
            (Some(process.clone()), Target::Process(process.pid()))
        }
        (_, Some(path)) => (None, Target::List(path.clone())),
        _ if args.kernel => (None, Target::Kernel),
        _ => {
            let program = Program::find(&args.command, args.library.as_deref())?;
            let mut session = begin()?;
            let ended = run::recorded(&program, &args.settings, &mut session)?;
            return session.end_of(ended);
        }
    };
    // A source that cannot be read leaves the file as it is.
    match &pid {
        Some(_) => drop(target.snapshot()?),
        None => drop(target.read(&kmem_snapshot::Query::default())?),
    }
    follow(begin()?, pid.as_ref(), &target)?;
    Ok(ExitCode::SUCCESS)
}

/// Records a process that is there, or a kernel, until it ends or the user ends the recording.
fn follow(mut session: Session, process: Option<&Process>, target: &Target) -> Result<(), Failure> {
    let signals = sys::ends()?;
    let begun = Instant::now();
    let how = loop {
        let read = session.turn(|recorder| match process {
            Some(process) => Ok(recorder.process(process)?),
            None => recorder.read(target),
        });
        match read {
            Ok(()) => {}
            Err(failure) if failure.error.is_absent() && session.moments() != 0 => {
                break "the process has ended";
            }
            Err(failure) => {
                session.end("")?;
                return Err(failure.into());
            }
        }
        if session.is_over(begun) {
            break "the time is over";
        }
        let wait = session.due().min(session.left(begun));
        let ready = sys::poll(&[signals.fd.as_raw_fd()], wait)
            .map_err(|error| Failure::Trouble(format!("cannot wait: {error}")))?;
        if ready[0] {
            break "the user ended the recording";
        }
        if session.is_over(begun) {
            break "the time is over";
        }
    };
    session.end(how)
}
