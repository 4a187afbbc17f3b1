//! `kmem run`: runs a command under libkmem, and reports the memory of its processes at their peaks
//! and at the end, whatever ends them.
//!
//! The command's exit code is passed through; with `--leaks`, a leak makes it 1 where it is 0.
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
//! misuse       lines about a misuse of memory
//! rows         the rows of the command's own process, in place of the report
//! sys          system calls
//! ```

pub(crate) mod boxes;
mod directory;
mod embedded;
pub(crate) mod exit_report;
mod exit_socket;
pub(crate) mod library;
mod misuse;
pub(crate) mod oom;
mod peak;
pub(crate) mod preloadable;
mod rows;
pub(crate) mod sections;
pub(crate) mod settings;
pub(crate) mod sys;
mod watch;

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::destination::Destination;
use crate::failure::{FOUND, Failure, TROUBLE, say, say_all};
use crate::format::{self, Named};
use crate::record::Session;
use crate::report;
use boxes::Boxes;
use directory::Directory;
use exit_report::Show;
use exit_socket::ExitSocket;
use kmem_core::conf::Python;
use kmem_snapshot::output::{self, Choice as Rows, Format};
use kmem_snapshot::{Pattern, Target};
use sections::Choice;
use settings::Settings;
pub(crate) use watch::{Ended, Follow, LastReading, Wants};

/// Arguments of `kmem run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print at most N rows per table, 10 without this option; with --format at most N in all,
    /// without this option all
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Instead of the report, write the rows of the command's own process at its end
    #[arg(long, value_enum, conflicts_with_all = ["only", "all"])]
    format: Option<Named>,
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
    /// At the exit of the command's own process, look for objects to which no pointer leads; with
    /// any, exit with 1 instead of 0
    #[arg(long, conflicts_with = "format")]
    leaks: bool,
    /// Write the report to this file, instead of standard error
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also record the command, and write a page for a browser to this file at its end
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Run this program, with its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Name of the recording for `--report`, and the time between two of its moments.
const RECORDING: &str = "recording";
const EVERY: Duration = Duration::from_millis(100);

/// Rows of a table, if the user does not ask for another number.
const LINES: usize = 10;

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let program = Program::find(&args.command, args.library.as_deref())?;
    let shown = args.command[0].to_string_lossy();
    let start = Start::new(&args.settings, !args.no_mmap)?;
    let (file, stderr) = (args.output.as_deref(), Destination::Stderr);
    let output = match args.format {
        Some(Named(format)) => format::open(format, file, stderr)?,
        None => Destination::open(file, stderr)?,
    };
    let has_own_box = settings::conf(&start.conf).blackbox.get().is_some();
    let mut page = args.report.as_deref().map(PageOf::begin).transpose()?;
    let follow = page.as_mut().map(|page| &mut page.session as _);
    let ended = start.run(&program, Wants { follow, leaks: args.leaks })?;
    if let Some(page) = page
        && let Err(failure) = page.write(&ended)
    {
        failure.report();
    }

    let code = ended.code();
    let reported = ended.main.is_some();
    if let Some(Named(format)) = args.format {
        let written = write_rows(ended, format, args, output);
        let failed = written.map_err(Failure::report).err();
        return Ok(failed.filter(|_| code == 0).unwrap_or(ExitCode::from(code)));
    }
    let choice = match &args.only {
        Some(name) => Choice::Only(Pattern::new(name)),
        None if args.all => Choice::All,
        None => Choice::Largest,
    };
    let lines = args.lines.unwrap_or(LINES);
    let show = Show { choice, lines, mmap: !args.no_mmap, leaks: args.leaks, has_own_box };
    if let Err(e) = output.write(|out| exit_report::write(out, &ended, &shown, &show)) {
        say(&format!("cannot write the report: {e}"));
        return Ok(ExitCode::from(if code == 0 { 2 } else { code }));
    }
    Ok(ExitCode::from(match code {
        // Without a report and without the library the run has failed.
        0 if !reported && !ended.loaded => 2,
        0 if args.leaks => ended.code_of_leaks(),
        code => code,
    }))
}

/// The recording for `--report`, in a private directory.
struct PageOf<'a> {
    session: Session,
    directory: Directory,
    page: &'a Path,
}

impl<'a> PageOf<'a> {
    fn begin(page: &'a Path) -> Result<Self, Failure> {
        let directory = Directory::make().ok_or_else(|| {
            Failure::Trouble(
                "--report: no private directory for the recording: set TMPDIR to one that can be \
                 written"
                    .to_owned(),
            )
        })?;
        let session = Session::begin(&directory.path().join(RECORDING), EVERY, None)?;
        Ok(Self { session, directory, page })
    }

    fn write(mut self, ended: &Ended) -> Result<(), Failure> {
        self.session.after(ended);
        self.session.close(&ended.how())?;
        report::of_recording(&self.directory.path().join(RECORDING), self.page)
    }
}

/// A program that the library can be preloaded into, with its arguments.
pub(crate) struct Program {
    command: Vec<OsString>,
    /// Path of the program.
    path: PathBuf,
    library: PathBuf,
}

impl Program {
    /// Finds the program and the library. `library` is the path that the user gave.
    pub(crate) fn find(command: &[OsString], library: Option<&Path>) -> Result<Self, Failure> {
        let (library, header) = library::find(library)?;
        let name = command.first();
        let name = name.ok_or_else(|| {
            Failure::Trouble("no command is given: put it behind `kmem run --`".to_owned())
        })?;
        let path = preloadable::check(name, &header);
        let path = path.map_err(|e| Failure::Trouble(e.to_string()))?;
        Ok(Self { command: command.to_vec(), path, library })
    }
}

/// Needs of a program that this command has: the socket, the boxes, and the configuration of them.
struct Start {
    socket: ExitSocket,
    boxes: Boxes,
    conf: OsString,
}

impl Start {
    /// `mmap`: memory that programs mapped themselves counts.
    fn new(settings: &Settings, mmap: bool) -> Result<Self, Failure> {
        let socket = ExitSocket::open().map_err(|e| {
            let what = format!("no socket for the exit report: {e}");
            Failure::Trouble(format!("{what}; run the command with LD_PRELOAD=$(kmem library)"))
        })?;
        let boxes = Boxes::make(mmap);
        if boxes.directory().is_none() {
            say("no directory for black boxes: a program that a signal ends leaves no report");
        }
        let conf = settings.text(socket.name(), boxes.directory())?;
        Ok(Self { socket, boxes, conf })
    }

    /// Runs a program to its end.
    fn run(self, program: &Program, wants: Wants<'_>) -> Result<Ended, Failure> {
        let Self { socket, boxes, conf } = self;
        let mut command = Command::new(&program.command[0]);
        command.args(&program.command[1..]);
        command.env("LD_PRELOAD", library::preload(&program.library)).env("KMEM_CONF", &conf);
        if settings::conf(&conf).python == Python::Auto && env::var_os("PYTHONMALLOC").is_none() {
            // Objects of a Python are kmem's own then, not parts of arenas.
            command.env("PYTHONMALLOC", "malloc");
        }
        let path = program.path.display();
        watch::run(command, socket, boxes, wants)
            .map_err(|e| Failure::Trouble(format!("{path}: {e}")))
    }
}

/// Runs a program to its end, and lets `follow` read it.
pub(crate) fn recorded(
    program: &Program,
    settings: &Settings,
    follow: &mut dyn Follow,
) -> Result<Ended, Failure> {
    let wants = Wants { follow: Some(follow), leaks: false };
    Start::new(settings, true)?.run(program, wants)
}

impl Ended {
    /// The exit code of a command that exits with 0, where leaks were to be looked for.
    fn code_of_leaks(&self) -> u8 {
        match &self.leaks {
            Some(Ok(leaks)) if leaks.direct.is_empty() => 0,
            Some(Ok(_)) => FOUND,
            _ => TROUBLE,
        }
    }

    /// The end of the command, in words.
    pub(crate) fn how(&self) -> String {
        exit_report::how(self, None)
    }

    /// The newest record of the command's own process, in its black box.
    pub(crate) fn last_record(&self) -> Option<Target> {
        rows::last_record(&self.boxes)
    }
}

/// Writes the rows of the command's own process, and notes on them on standard error.
fn write_rows(
    ended: Ended,
    format: Format,
    args: &Args,
    output: Destination,
) -> Result<(), Failure> {
    let reading = rows::reading(ended, !args.no_mmap)?;
    say_all(&reading.notes);
    let choice = Rows { lines: args.lines, ..Rows::default() };
    Ok(output.write(|out| output::write(out, format, &reading, &choice))?)
}
