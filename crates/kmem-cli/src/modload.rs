//! `kmem modload`: a host to try modules in.
//!
//! It runs under libkmem, so that the memory of modules is in its books.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::time::Instant;

use kmem_module::loader::{WhenLive, delete};
use kmem_module::{Config, Errno, Error, Loader};
use kmem_snapshot::output;

use crate::failure::{Failure, say};
use crate::modstats;
use crate::run::library;

/// Arguments of `kmem modload`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Load all files in each of N threads, concurrently
    #[arg(short, long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Load all files N times, and unload them in between
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    repeat: u32,
    /// Give every module these parameters, "name=value .."
    #[arg(short, long, value_name = "TEXT", default_value = "")]
    args: String,
    /// Look for modules in this directory when one is requested by name; may be repeated, and
    /// directories are searched in order
    #[arg(short, long, value_name = "DIR")]
    search: Vec<PathBuf>,
    /// Keep a module loaded while memory that it allocated is in use, or if it has an init function
    /// and no exit function
    #[arg(long)]
    refuse_live: bool,
    /// Keep the modules of the last round loaded until standard input ends
    #[arg(long)]
    stay: bool,
    /// Print the statistics as JSON
    #[arg(long)]
    json: bool,
    /// Preload this library, instead of the libkmem.so that belongs to this command
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Modules to load, in this order: files, or names to look for in the directories of --search
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Variable in the environment of the process that runs under the library.
const UNDER: &str = "KMEM_MODLOAD";

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    if std::env::var_os(UNDER).is_none() {
        return Err(start_again(args));
    }
    let search_path = args.search.clone();
    let when_live = if args.refuse_live { WhenLive::Refuse } else { WhenLive::KeepTags };
    let loader = Loader::new(Config { search_path, when_live, ..Config::default() })
        .map_err(|e| Failure::Trouble(e.to_string()))?;
    let mut failures: BTreeMap<&Path, Failure> = BTreeMap::new();
    for round in 1..=args.repeat {
        let start = Instant::now();
        let failed = storm(&loader, args);
        let (count, took) = (loader.modules(false).len(), start.elapsed());
        if args.repeat == 1 || !failed.is_empty() {
            say(&format!("{count} modules are loaded after {:.1} ms", took.as_secs_f64() * 1e3));
        }
        for (path, error) in failed {
            // All threads and rounds fail alike: a file is told once.
            failures.entry(path).or_insert_with(|| Failure::of_module(path, &error));
        }
        if round < args.repeat && failures.is_empty() {
            unload(&loader, args)?;
        }
    }
    let mut out = io::stdout().lock();
    let stats = loader.stats();
    if args.json {
        output::json::write_pretty(&mut out, &modstats::json(&stats))?;
    } else {
        modstats::write(&mut out, &stats)?;
    }
    out.flush()?;
    if args.stay {
        let _ = io::stdin().read_to_end(&mut Vec::new());
    }
    unload(&loader, args)?;
    let in_order = args.files.iter().filter_map(|path| failures.remove(path.as_path()));
    Failure::of_inputs(in_order.collect())
}

/// Executes this program again, under the library. Returns the reason when that fails.
fn start_again(args: &Args) -> Failure {
    let (library, _) = match library::find(args.library.as_deref()) {
        Ok(found) => found,
        Err(failure) => return failure,
    };
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(e) => return Failure::Trouble(format!("cannot find this program: {e}")),
    };
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).env(UNDER, "1");
    let error = command.env("LD_PRELOAD", library::preload(&library)).exec();
    Failure::Trouble(format!("cannot start again under {}: {error}", library.display()))
}

/// Loads all files on all threads at once. Returns the failures; a module that is already loaded is
/// none.
fn storm<'a>(loader: &Loader, args: &'a Args) -> Vec<(&'a Path, Error)> {
    let barrier = Barrier::new(args.threads as usize);
    let one = || {
        barrier.wait();
        let mut failed = Vec::new();
        for path in &args.files {
            match load(loader, path, args) {
                Err(error) if error.errno != Errno::EEXIST => failed.push((path.as_path(), error)),
                _ => {}
            }
        }
        failed
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..args.threads).map(|_| scope.spawn(one)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap_or_default()).collect()
    })
}

fn load(loader: &Loader, path: &Path, args: &Args) -> Result<(), Error> {
    let name = path.to_string_lossy();
    if !args.search.is_empty() && !name.contains(['/', '.']) {
        return loader.request_module(&name);
    }
    loader.load_file(path, &args.args)
}

/// Unloads all modules, users before the modules that they use.
fn unload(loader: &Loader, args: &Args) -> Result<(), Failure> {
    let force = if args.refuse_live { 0 } else { delete::FORCE };
    loop {
        let modules = loader.modules(false);
        let Some(free) = modules.iter().find(|module| module.users.is_empty()) else {
            return Ok(());
        };
        loader
            .delete_module(&free.name, delete::NONBLOCK | force)
            .map_err(|e| Failure::Trouble(format!("cannot unload: {e}")))?;
    }
}
