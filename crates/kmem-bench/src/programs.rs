//! `kmem-bench programs`: wall time and peak memory of real programs, unmodified, under preloaded
//! allocators. `kmem-never` is kmem without books, `kmem-no-thp` is kmem without huge pages.
//!
//! In a round every program runs once under every allocator, and each round starts with another
//! allocator. Seconds are the minimum and the median of the rounds, memory is the median of the
//! peaks. [`tracer`] watches every run. At the exit of each process, the order of the loaded
//! objects proves which of them provided `malloc`.

mod document;
mod link_map;
mod program;
mod server;
mod tracer;

use crate::machine::Machine;
use crate::preload::{INSTALL, NO_LIBKMEM, libkmem, system_library};
use crate::table::Document;
use crate::{Failure, statistics, table};
use document::{rows, text};
use program::{Program, Run};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Options of `kmem-bench programs`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Only this program; may be repeated.
    #[arg(long, value_name = "PROGRAM")]
    only: Vec<String>,
    /// Only these allocators, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    allocators: Vec<String>,
    /// Least number of rounds.
    #[arg(long, default_value_t = 1, value_name = "N")]
    rounds: u32,
    /// Say on stderr how each run went.
    #[arg(long, short)]
    verbose: bool,
}

/// Time for all rounds of one program; another round starts only if it should fit.
const BUDGET: Duration = Duration::from_millis(10_400);

/// A library that is preloaded, and its name in the rows.
#[derive(Debug, Clone)]
struct Allocator {
    name: &'static str,
    library: PathBuf,
    /// `KMEM_CONF` of its runs.
    conf: Option<&'static str>,
}

/// The allocators of the table, with the sonames of those of the distribution, and kmem with these
/// configurations. The C library is preloaded, too, because some programs link another allocator.
const ALLOCATORS: [(&str, Source); 6] = [
    ("kmem", Source::Kmem(None)),
    (NEVER, Source::Kmem(Some("mem_profiling:never"))),
    (NO_THP, Source::Kmem(Some("thp:never"))),
    ("jemalloc", Source::System("libjemalloc.so.2")),
    ("mimalloc", Source::System("libmimalloc.so.2")),
    ("glibc", Source::System("libc.so.6")),
];
/// kmem without books.
const NEVER: &str = "kmem-never";
/// kmem that asks for no huge pages.
const NO_THP: &str = "kmem-no-thp";

/// Where an allocator comes from.
#[derive(Clone, Copy)]
enum Source {
    /// The library of this workspace, with this `KMEM_CONF`.
    Kmem(Option<&'static str>),
    /// A library of the distribution, by its soname.
    System(&'static str),
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    let allocators = selected_allocators(&options.allocators, &mut machine)?;
    let programs = selected_programs(&options.only, &mut machine)?;
    let longer = options.common.times();
    let budget = BUDGET * longer * programs.len() as u32;
    let mut runs: BTreeMap<(usize, usize), Vec<Run>> = BTreeMap::new();
    let mut outputs: BTreeMap<usize, String> = BTreeMap::new();
    let start = Instant::now();
    let mut round = 0_u32;
    loop {
        for (number, program) in programs.iter().enumerate() {
            for turn in 0..allocators.len() {
                let column = (round as usize + turn) % allocators.len();
                let allocator = &allocators[column];
                let run = program.run(allocator).map_err(|reason| {
                    let what = format!("{} under {}", program.name(), allocator.name);
                    Failure::Failed(format!("{what}: {reason}"))
                })?;
                if options.verbose {
                    eprintln!(
                        "{:9} {:9} {:7.3} s  {:6.1} MiB  malloc of {} in {}",
                        program.name(),
                        allocator.name,
                        run.seconds,
                        run.rss_bytes as f64 / f64::from(1 << 20),
                        allocator.library.display(),
                        run.images.join(" "),
                    );
                }
                let first = outputs.entry(number).or_insert_with(|| run.output.clone());
                if *first != run.output {
                    let what = format!("{} under {}", program.name(), allocator.name);
                    return Err(Failure::Failed(format!("{what}: another output than before")));
                }
                runs.entry((number, column)).or_default().push(run);
            }
        }
        round += 1;
        let elapsed = start.elapsed();
        if round >= options.rounds && elapsed + elapsed / round > budget {
            break;
        }
    }
    let names: Vec<_> = programs.iter().map(Program::name).collect();
    let columns: Vec<_> = allocators.iter().map(|allocator| allocator.name).collect();
    let rows = rows(&names, &columns, &runs);
    let document = Document { table: "programs", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))?;
    for (name, reason) in &machine.missing {
        eprintln!("kmem-bench: {name} is missing: {reason}");
    }
    Ok(())
}

fn selected_allocators(names: &[String], machine: &mut Machine) -> Result<Vec<Allocator>, Failure> {
    let known = ALLOCATORS.map(|(name, _)| name);
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(Failure::Absent(format!("no allocator `{name}`; there are {known}")));
    }
    let mut found = Vec::new();
    for (name, source) in ALLOCATORS {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        let (library, conf) = match source {
            Source::Kmem(conf) => {
                let absent = || Failure::Absent(format!("kmem: {NO_LIBKMEM}"));
                (libkmem().ok_or_else(absent)?, conf)
            }
            Source::System(soname) => match system_library(soname) {
                Some(library) => (library, None),
                None => {
                    let reason = format!("no {soname}; {INSTALL}");
                    machine.missing.insert(name.to_owned(), reason);
                    continue;
                }
            },
        };
        if !link_map::provides_malloc(&library) {
            let reason = format!("{name}: {} has no malloc", library.display());
            return Err(Failure::Absent(reason));
        }
        machine.allocators.insert(name.to_owned(), library.display().to_string());
        found.push(Allocator { name, library, conf });
    }
    Ok(found)
}

fn selected_programs(names: &[String], machine: &mut Machine) -> Result<Vec<Program>, Failure> {
    let known = Program::NAMES;
    if let Some(name) = names.iter().find(|name| !known.contains(&name.as_str())) {
        let known = known.join(", ");
        return Err(Failure::Absent(format!("no program `{name}`; there are {known}")));
    }
    let mut found = Vec::new();
    for name in known {
        if !names.is_empty() && !names.iter().any(|wanted| wanted == name) {
            continue;
        }
        match Program::prepare(name) {
            Ok(program) => found.push(program),
            Err(reason) => {
                machine.missing.insert(name.to_owned(), format!("{reason}; {INSTALL}"));
            }
        }
    }
    Ok(found)
}

/// The minimum and median of the wall times, and the median of the peaks.
fn summary(runs: &[Run]) -> Option<(f64, f64, u64)> {
    let seconds: Vec<f64> = runs.iter().map(|run| run.seconds).collect();
    let peaks: Vec<f64> = runs.iter().map(|run| run.rss_bytes as f64).collect();
    let least = statistics::minimum(&seconds)?;
    let middle = statistics::median(&seconds)?;
    Some((least, middle, statistics::median(&peaks)? as u64))
}
