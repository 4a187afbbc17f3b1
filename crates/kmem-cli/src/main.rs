//! `kmem`: who holds every byte of a process.
//!
//! ```text
//! kmem run -- CMD ARGS..   run a command under kmem; report its peak and its leaks
//! kmem dump -p PID         allocinfo text, or call stacks, of a running process
//! kmem top -p PID          the largest call sites, or a tree of callers, for people
//! kmem dump --core FILE    the same of a process that has ended with a core; also top
//! kmem dump --blackbox FILE   what it wrote down before it ended; also top
//! kmem context -p PID SITE tell the callers of one call site apart
//! kmem sysctl -p PID       the settings of a running process
//! ```
//!
//! Data goes to stdout, the rest to stderr. Exit codes: 0 ok; 1 found; 2 usage or trouble;
//! 3 the source is absent; 4 no permission. `kmem run` passes the command's own code through.

mod context;
mod dump;
mod failure;
mod filter;
mod run;
mod source;
mod sysctl;
mod top;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Who holds every byte of a running process
#[derive(Parser)]
#[command(name = "kmem", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the books of a process, of its core file or of its black box, as allocinfo text, JSON
    /// or call stacks
    Dump(dump::Args),
    /// Show the call sites of a process, of its core file or of its black box, that hold most
    Top(top::Args),
    /// Tell the callers of one call site of a running process apart, from now on
    Context(context::Args),
    /// Print or change the settings of a running process
    Sysctl(sysctl::Args),
    /// Run a command under kmem and report what it held at its peak and at exit
    Run(run::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Dump(args) => dump::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Context(args) => context::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Sysctl(args) => sysctl::main(&args).map(|()| ExitCode::SUCCESS),
        Command::Run(args) => run::main(&args),
    };
    match result {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
