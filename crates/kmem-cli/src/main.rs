//! `kmem`: who holds every byte of a process.
//!
//! ```text
//! kmem run -- CMD ARGS..          run a command under kmem; report its peak and its end
//! kmem library                    the path of libkmem.so
//! kmem ls                         the processes under kmem
//! kmem top -p PID                 the largest call sites, or a tree of callers, for people
//! kmem dump -p PID                allocinfo text and other formats, for programs
//! kmem diff BEFORE AFTER          call sites whose memory changed between two sources
//! kmem export -p PID              metrics and profiles over HTTP
//! kmem watch -p PID -o DIR        reports when memory runs short, and when a process ends
//! kmem attach -p PID              what is known of a process without kmem
//! kmem doctor                     what of this machine makes kmem slower, or hides facts
//! kmem leaks -p PID               live objects to which no pointer leads
//! kmem completions SHELL          completions for a shell
//! kmem man                        pages of the manual
//! kmem record -o FILE -- CMD      the rows at many moments, in a file
//! kmem report FILE -o FILE.html   a recording as a page for a browser
//! kmem symbolize FILE             names for a file that came from another machine
//! kmem kernel                     the account of the Linux kernel's memory
//! kmem buddyinfo -p PID           free blocks of pages per order
//! kmem context -p PID SITE        tell the callers of one call site apart
//! kmem sysctl -p PID NAME=VALUE   the settings of a running process
//! kmem modinfo FILE..             the descriptions in files of modules
//! kmem modload FILE..             a host to try modules in
//! kmem lsmod -p PID               the modules of a process
//! kmem modstats -p PID            the statistics of its loader
//! kmem group ls|show|set -p PID   groups: memory charged to them, and their limits
//! kmem slabinfo -p PID            the size classes, as /proc/slabinfo has them
//! ```
//!
//! `top`, `dump`, `group ls` and `group show` also take `--core FILE` or `--blackbox FILE`, for a
//! process that has ended; `buddyinfo` and `slabinfo` take `--core FILE`. `top` and `dump` also
//! take rows that others counted: `--kernel`, `--kernel-log FILE`, and `--allocinfo FILE`; and a
//! moment of a recording, `--recording FILE`.
//!
//! Each command parses its arguments, makes one call into `kmem-snapshot`, and prints. Modules:
//!
//! ```text
//! process      `-p`: a process by its number or its name
//! source       a process, a file or the kernel, as an argument
//! options      arguments that several commands share: targets, filters, sizes
//! format       names of the formats that rows are printed in
//! cgroup       files of the control groups of a process
//! destination  files and streams that output goes to
//! examples     examples of every command, and exit codes
//! failure      reasons for which a command fails, exit codes, messages on stderr
//! internal     the report of a panic: a fault of kmem itself
//! quote        words for a shell
//! ```
//!
//! Data goes to stdout, the rest to stderr. Exit codes: 0 ok; 1 found; 2 usage or trouble;
//! 3 the source is absent; 4 no permission; 70 a fault of kmem itself. `kmem run` passes the
//! command's own code through.

// An error is a failure that is reported, so nothing here panics by design.
#![cfg_attr(
    not(test),
    deny(
        clippy::expect_used,
        clippy::panic,
        clippy::todo,
        clippy::unimplemented,
        clippy::unreachable,
        clippy::unwrap_used
    )
)]

mod attach;
mod buddyinfo;
mod cgroup;
mod context;
mod destination;
mod diff;
mod doctor;
mod dump;
mod examples;
mod export;
mod failure;
mod format;
mod group;
mod internal;
mod kernel;
mod leaks;
mod library;
mod ls;
mod lsmod;
mod manual;
mod modinfo;
mod modload;
mod modstats;
mod mount;
mod options;
#[cfg(test)]
mod pages;
mod process;
mod quote;
mod record;
mod report;
mod run;
mod slabinfo;
mod source;
mod symbolize;
mod sysctl;
mod top;
mod untracked;
mod watch;

use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser, Subcommand};

/// Show who holds every byte of a process, running or ended
#[derive(Parser)]
#[command(name = "kmem", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program under kmem, and report who held its memory at the peak and at the end
    Run(run::Args),
    /// Print the path of libkmem.so, for LD_PRELOAD
    Library(library::Args),
    /// List the processes under kmem
    Ls(ls::Args),
    /// Show the call sites that hold most memory in a process, a core file, a black box, a kernel
    Top(top::Args),
    /// Print all call sites of a process, a core file, a black box or a kernel as allocinfo text or
    /// in another format
    Dump(dump::Args),
    /// Show the call sites whose memory changed between two sources; fail if it grew
    ///
    /// A source is a process by its number or its name, a file by its path, or the word kernel. A
    /// file is a core file, a black box, allocinfo text, JSON of kmem dump, a log of a kernel, or
    /// a recording. FILE@MOMENT names a moment of it. A path wins over the name of a process.
    Diff(diff::Args),
    /// Serve metrics for Prometheus, and profiles for pprof, over HTTP
    Export(export::Args),
    /// Look after processes: report who held their memory when it ran short, and when they ended
    ///
    /// Reports are files in a directory. It runs until SIGINT or SIGTERM, and with -p alone until
    /// these processes have ended.
    Watch(watch::Args),
    /// Show what is known of a process without kmem, and how to start it again with it
    Attach(attach::Args),
    /// Check what of this machine makes programs under kmem slower, or hides facts from kmem
    Doctor(doctor::Args),
    /// Show live objects of a process to which no pointer leads, by call site
    ///
    /// The process is stopped meanwhile. Exit code 1 if there are any.
    Leaks(leaks::Args),
    /// Record the call sites of a process or a kernel at many moments, into a file
    ///
    /// kmem report, diff, dump and top read the file, also one that was cut off.
    Record(record::Args),
    /// Write a page for a browser: call sites over time, a flame graph, tables
    ///
    /// A source that is no recording has no time axis. The page needs no network.
    Report(report::Args),
    /// Name call sites of a file that came from another machine, by debug files or debuginfod
    ///
    /// A source is as in kmem diff. Rows whose programs were stripped have a module and an offset.
    /// The build ids of the modules are in the file. Debug files come from /usr/lib/debug, from
    /// --debug-dir, and from the servers in DEBUGINFOD_URLS.
    Symbolize(symbolize::Args),
    /// Print the account of the Linux kernel's memory: call sites, slabs, zones
    Kernel(kernel::Args),
    /// Print the number of free blocks of pages per order, of a process or a core file
    Buddyinfo(buddyinfo::Args),
    /// Tell the callers of one call site apart in a running process
    Context(context::Args),
    /// Print or change the settings of a running process
    Sysctl(sysctl::Args),
    /// Print the descriptions in files of modules, as modinfo(8) does
    Modinfo(modinfo::Args),
    /// Load modules into a new process, and print the statistics of its module loader
    Modload(modload::Args),
    /// List the modules of a running process
    Lsmod(lsmod::Args),
    /// Print the statistics of the module loader of a running process
    Modstats(modstats::Args),
    /// Show groups, their memory and their limits; set limits in a running process
    Group(group::Args),
    /// Show processes, their call sites and their groups as files in a directory
    ///
    /// Each process has PID/allocinfo, PID/slabinfo and PID/groups, in which limits can be written.
    /// It runs until DIR is unmounted.
    Mount(mount::Args),
    /// Print the size classes and caches of a process or a core file, in the columns of
    /// /proc/slabinfo
    Slabinfo(slabinfo::Args),
    /// Print a script that completes commands and options in a shell
    Completions(manual::Completions),
    /// Print the manual page of kmem, or write the pages of all commands to a directory
    Man(manual::Man),
}

fn main() -> ExitCode {
    internal::report_panics();
    let cli = Cli::from_arg_matches(&examples::command().get_matches());
    let result = match cli.unwrap_or_else(|error| error.exit()).command {
        Command::Dump(args) => dump::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Library(args) => library::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Ls(args) => ls::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Buddyinfo(args) => buddyinfo::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Context(args) => context::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Sysctl(args) => sysctl::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Modinfo(args) => modinfo::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Modload(args) => modload::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Lsmod(args) => lsmod::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Modstats(args) => modstats::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Group(args) => group::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Mount(args) => mount::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Slabinfo(args) => slabinfo::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Export(args) => export::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Attach(args) => attach::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Doctor(args) => doctor::main(&args),
        Command::Leaks(args) => leaks::main(&args),
        Command::Completions(args) => manual::completions(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => manual::man(&args).map(|()| ExitCode::SUCCESS),
        Command::Kernel(args) => kernel::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Symbolize(args) => symbolize::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => diff::main(&args),
        Command::Record(args) => record::main(&args),
        Command::Report(args) => report::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::main(&args),
        Command::Watch(args) => watch::main(&args).map(|()| ExitCode::SUCCESS),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
