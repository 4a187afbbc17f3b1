//! `kmem attach`: a process that runs without the library, and how to start it again with it.
//!
//! Nothing is put into a running process. Its allocator has handed out blocks that have no word
//! beside them, and another one could not take these back.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use kmem_snapshot::Process;
use kmem_snapshot::bare::{Bare, Kinds, Manager};
use kmem_snapshot::escape::printable;
use kmem_snapshot::program::base_name;
use kmem_snapshot::report::size_u;

use crate::failure::Failure;
use crate::quote::quoted;
use crate::run::{library, preloadable};

/// Arguments of `kmem attach`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Look at the process with this number
    #[arg(short, long, value_name = "PID")]
    pid: u32,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let process = Process::open(args.pid)?;
    let bare = Bare::of(&process)?;
    let (library, header) = library::find(None)?;
    // The file that runs, also if another one has its name by now, or it is in a container.
    let exe = process.path("exe");
    let refusal = preloadable::check(exe.as_os_str(), &header).err();
    let mut out = BufWriter::new(io::stdout().lock());
    let (pid, name) = (bare.pid, printable(&bare.comm));
    if bare.has_kmem {
        writeln!(out, "{name} (pid {pid}) runs under kmem: `kmem top -p {pid}` shows its memory")?;
        return Ok(out.flush()?);
    }
    writeln!(out, "{name} (pid {pid}, {}) runs without kmem.", printable(&bare.exe))?;
    writeln!(out, "kmem puts nothing into a running process.\n")?;
    now(&mut out, &bare)?;
    writeln!(out)?;
    match refusal {
        Some(refusal) => {
            let why = refusal.to_string().replace(&*exe.to_string_lossy(), &bare.exe);
            writeln!(out, "The library cannot be preloaded into it:\n  {}", printable(&why))?;
        }
        None => again(&mut out, &bare, &library)?,
    }
    Ok(out.flush()?)
}

/// Prints the facts that are known of the process as it runs.
fn now(out: &mut impl Write, bare: &Bare) -> io::Result<()> {
    writeln!(out, "What can be had now, without call sites and groups:")?;
    match bare.memory {
        Some(memory) => {
            let Kinds { heap, anonymous, stack, files } = memory;
            let [total, heap, anonymous, stack, files] =
                [memory.total(), heap, anonymous, stack, files].map(size_u);
            writeln!(
                out,
                "  resident {total} = heap {heap} + other anonymous memory {anonymous} + \
                 stack {stack} + files {files}"
            )?;
        }
        None => writeln!(out, "  nothing: this user may not read its smaps")?,
    }
    match bare.allocator {
        Some(allocator) => {
            writeln!(out, "  its allocator is {allocator}, which has a profiler of its own")
        }
        None => Ok(()),
    }
}

/// How to start the process again, with the library.
fn again(out: &mut impl Write, bare: &Bare, library: &Path) -> io::Result<()> {
    writeln!(out, "To have the rest, start it again with the library:")?;
    let path = quoted(library.as_os_str());
    match &bare.manager {
        Some(Manager::Unit { name, user }) => {
            let (name, user) = (quoted(OsStr::new(name)), if *user { " --user" } else { "" });
            // systemd replaces what follows a percent sign.
            let value = library.to_string_lossy().replace('%', "%%");
            writeln!(out, "  systemctl{user} edit {name}      # add these two lines")?;
            writeln!(out, "      [Service]\n      Environment=LD_PRELOAD={}", printable(&value))?;
            writeln!(out, "  systemctl{user} restart {name}")?;
            writeln!(out, "The user of the unit must be able to read {path}.")
        }
        Some(Manager::Container { runtime: runtime @ ("docker" | "podman"), id }) => {
            writeln!(out, "  {runtime} inspect {id}      # its options, for OPTIONS below")?;
            let mount = [library.as_os_str().as_bytes(), b":/kmem/libkmem.so:ro"].concat();
            writeln!(
                out,
                "  {runtime} run -v {} -e LD_PRELOAD=/kmem/libkmem.so OPTIONS \
                 \"$({runtime} inspect -f '{{{{.Config.Image}}}}' {id})\"",
                quoted(OsStr::from_bytes(&mount))
            )?;
            writeln!(out, "Then `kmem top -p PID` reads it from outside, as root.")
        }
        Some(Manager::Container { id, .. }) => {
            writeln!(out, "  container {id}: add to its spec a volume with {path}, and")?;
            writeln!(out, "      env: [{{name: LD_PRELOAD, value: /kmem/libkmem.so}}]")?;
            writeln!(out, "Then `kmem top -p PID` reads it from the node, as root.")
        }
        None => by_hand(out, bare),
    }
}

/// The command line, for a shell.
fn by_hand(out: &mut impl Write, bare: &Bare) -> io::Result<()> {
    let Some(command) = command(bare) else {
        writeln!(out, "  kmem run -- COMMAND      # as it was started")?;
        return writeln!(
            out,
            "Its command line is not known: the program has changed it, or it is too long."
        );
    };
    let directory = bare.directory.as_ref().map(|of| format!("cd {} && ", quoted(of.as_os_str())));
    writeln!(out, "  {}kmem run -- {command}", directory.unwrap_or_default())?;
    write!(out, "Its environment may be another one (/proc/{}/environ)", bare.pid)?;
    match bare.user {
        Some(user) => writeln!(out, ", and its user is number {user}."),
        None => writeln!(out, "."),
    }
}

/// The command, quoted; none when the arguments are not those that the process was given.
fn command(bare: &Bare) -> Option<String> {
    let (name, args) = bare.args.split_first()?;
    // A title that a program gives itself is one text, as in `nginx: worker process`.
    if args.is_empty() && name.as_bytes().contains(&b' ') && bare.exe.as_bytes() != name.as_bytes()
    {
        return None;
    }
    let exe = OsString::from(kmem_snapshot::maps::unmarked(&bare.exe).0);
    // A program with several names does what its name says.
    let called = base_name(&name.to_string_lossy()).to_owned();
    let program =
        if called == base_name(&bare.exe) || called.starts_with('-') { &exe } else { name };
    let words = [program].into_iter().chain(args).map(|word| quoted(word));
    Some(words.collect::<Vec<_>>().join(" "))
}
