//! `kmem-bench misuse`: the endings of the catalogue of memory misuse, by allocator.
//!
//! Each case is a small program that makes one mistake. It runs once under each allocator, which is
//! preloaded. The program prints the object that has `malloc`, and the table is printed only if
//! that is the expected one in every run.
//!
//! | ending | meaning |
//! |---|---|
//! | `found` | a message of the allocator; it ended the program, or let it go on |
//! | `crash` | a signal without a message |
//! | `refused` | the call failed, as it should |
//! | `harmless` | the program went on, and saw no effect |
//! | `missed` | the program went on, and what it did had an effect, or could have had one |
//! | `hang` | the program was not done in time |
//! | `-` | the allocator lacks the function |

mod allocators;
mod report;

use crate::dynamic::same_file;
use crate::machine::Machine;
use crate::preload::TUNING;
use crate::{Failure, table};
use allocators::{Allocator, here};
use kmem_testing::misuse::{Case, Ending, cases, malloc_of, run as program_of};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Options of `kmem-bench misuse`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Only cases whose group and name, as in the table, contain this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Say on stderr how each run ended, with the first line of the allocator.
    #[arg(long, short)]
    verbose: bool,
}

/// Longest time of a run. The slowest takes a tenth of it on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The endings of one case, in the order of the allocators.
#[derive(Debug, Clone)]
struct Row {
    case: Case,
    endings: Vec<Ending>,
}

/// Name of a case in the table.
fn title(case: &Case) -> String {
    format!("{}: {}", case.group, case.name)
}

/// Runs all cases under all allocators, and prints the table.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    let allocators = here(&mut machine)?;
    let chosen: Vec<Case> =
        cases().into_iter().filter(|case| title(case).contains(&options.only)).collect();
    if chosen.is_empty() {
        return Err(Failure::Absent(format!("no case contains `{}`", options.only)));
    }
    let directory = tempfile::tempdir()?;
    let programs = compiled(&chosen, &directory)?;
    let mut rows = Vec::new();
    for case in chosen {
        let program = &programs[&case.source];
        let ending = |allocator: &Allocator| ending(&case, program, allocator, options.verbose);
        let endings = allocators.iter().map(ending).collect::<Result<_, _>>()?;
        rows.push(Row { case, endings });
    }
    let document = report::document(&machine, &allocators, &rows);
    options.common.show(&document, || report::text(&machine, &allocators, &rows))
}

/// The compiled programs, by source.
fn compiled(cases: &[Case], to: &TempDir) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let mut programs = BTreeMap::new();
    for case in cases {
        if programs.contains_key(&case.source) {
            continue;
        }
        let program = to.path().join(case.program());
        if !case.compiler().can_compile(&program) {
            let what = format!("the C or C++ compiler cannot compile {}", case.source);
            return Err(Failure::Failed(what));
        }
        programs.insert(case.source.clone(), program);
    }
    Ok(programs)
}

/// Runs a case under an allocator. Fails if the program had the malloc of another one.
fn ending(
    case: &Case,
    program: &Path,
    allocator: &Allocator,
    verbose: bool,
) -> Result<Ending, Failure> {
    let mut run = program_of(case, program).within(PATIENCE);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let tunes =
            ["MIMALLOC_", "TCMALLOC_", "SCUDO_"].iter().any(|start| text.starts_with(start));
        if tunes || TUNING.contains(&&*text) {
            run = run.without_env(&name);
        }
    }
    if let Some(library) = &allocator.preload {
        run = run.env("LD_PRELOAD", library);
    }
    let outcome = run.configured(allocator.environment).run();
    let what = || format!("{} under {}", title(case), allocator.name);
    if !malloc_of(&outcome).is_some_and(|malloc| same_file(malloc, &allocator.library)) {
        let expected = allocator.library.display();
        let story = outcome.story();
        let reason = format!("{}: malloc is not that of {expected}\n{story}", what());
        return Err(Failure::Failed(reason));
    }
    let ending = Ending::of(&outcome)
        .map_err(|story| Failure::Failed(format!("{}: the program failed\n{story}", what())))?;
    if verbose {
        let said = outcome.stderr.lines().next().unwrap_or_default();
        eprintln!("{}: {} {said}", what(), ending.word());
    }
    Ok(ending)
}
