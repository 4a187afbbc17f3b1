//! `kmem`: who holds every byte of a process.
//!
//! ```text
//! kmem run -- CMD ARGS..          run a command under kmem; report its peak and its end
//! kmem library                    the path of libkmem.so
//! kmem ls                         the processes under kmem
//! kmem top -p PID                 the largest call sites, or a tree of callers, for people
//! kmem dump -p PID                allocinfo text, JSON or call stacks, for programs
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
//! process that has ended; `buddyinfo` and `slabinfo` take `--core FILE`.
//!
//! Each command parses its arguments, makes one call into `kmem-snapshot`, and prints. Modules:
//!
//! ```text
//! process   `-p`: a process by its number or its name
//! options   arguments that several commands share: targets, filters, sizes
//! json      JSON that several commands print
//! failure   reasons for which a command fails, exit codes, messages on stderr
//! ```
//!
//! Data goes to stdout, the rest to stderr. Exit codes: 0 ok; 1 found; 2 usage or trouble;
//! 3 the source is absent; 4 no permission. `kmem run` passes the command's own code through.

mod buddyinfo;
mod context;
mod dump;
mod failure;
mod group;
mod json;
mod library;
mod ls;
mod lsmod;
mod modinfo;
mod modload;
mod modstats;
mod options;
#[cfg(test)]
mod pages;
mod process;
mod run;
mod slabinfo;
mod sysctl;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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
    /// Show the call sites that hold most memory in a process, a core file or a black box
    Top(top::Args),
    /// Print all call sites of a process, a core file or a black box as allocinfo text, JSON or
    /// call stacks
    Dump(dump::Args),
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
    /// Print the size classes of a process or a core file, in the columns of /proc/slabinfo
    Slabinfo(slabinfo::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
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
        Command::Slabinfo(args) => slabinfo::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::main(&args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
