//! `kmem-bench malloc`: nanoseconds per operation, side by side.
//!
//! Each workload has rounds. In a round every allocator makes one visit, and each round starts with
//! another allocator. A row is the minimum of all samples, because disturbances only add time.

mod report;

use crate::affinity::{Places, allowed, pin};
use crate::child::Remote;
use crate::heap::Heap;
use crate::machine::Machine;
use crate::rivals::{Allocator, load};
use crate::statistics::{minimum, rounded};
use crate::table::Document;
use crate::workload::{Inputs, Workload, visit};
use crate::{Failure, preload, table};
use report::{Row, text};
use std::time::{Duration, Instant};

/// Options of `kmem-bench malloc`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Only this row; may be repeated.
    #[arg(long, value_name = "WORKLOAD")]
    only: Vec<String>,
    /// Only these allocators, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    allocators: Vec<String>,
    /// Measure every allocator in a process of its own.
    #[arg(long)]
    alone: bool,
    /// Say on stderr what is measured, and from which object.
    #[arg(long, short)]
    verbose: bool,
}

/// Time for the rounds of one workload: eight workloads stay within a minute.
const BUDGET: Duration = Duration::from_millis(6000);
/// Least number of rounds, even if they take longer.
const LEAST_ROUNDS: usize = 3;

/// The place of an allocator's measurement: this process or a child.
#[derive(Debug)]
enum Place {
    Here(Heap),
    Child(Remote),
}

/// A column during the measurement.
#[derive(Debug)]
struct Contender {
    allocator: Allocator,
    place: Place,
}

impl Contender {
    fn visit(
        &mut self,
        workload: Workload,
        inputs: &Inputs,
        places: Places,
    ) -> Result<Vec<Vec<f64>>, String> {
        match &mut self.place {
            Place::Here(heap) => Ok(visit(workload, heap, inputs, places)),
            Place::Child(remote) => remote.visit(workload),
        }
    }
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let allocators = selected_allocators(&options.allocators)?;
    let workloads = selected_workloads(&options.only)?;
    let mut machine = Machine::here();
    let mut contenders = Vec::new();
    for allocator in allocators {
        match enter(allocator, options.alone, &mut machine) {
            Ok(contender) => contenders.push(contender),
            Err(reason) if allocator.is_kmem() => {
                return Err(Failure::Absent(format!("{}: {reason}", allocator.name())));
            }
            Err(reason) => {
                machine.missing.insert(allocator.name().to_owned(), reason);
            }
        }
    }
    if options.verbose {
        for (name, what) in &machine.allocators {
            eprintln!("{name}: {what}");
        }
    }
    let mut rows = Vec::new();
    for &workload in &workloads {
        rows.extend(measure(workload, &mut contenders, &mut machine, options)?);
    }
    if !options.only.is_empty() {
        rows.retain(|row| options.only.iter().any(|only| only == row.workload));
    }
    let document = Document { table: "malloc", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))?;
    for (name, reason) in &machine.missing {
        eprintln!("kmem-bench: {name} is missing: {reason}");
    }
    Ok(())
}

fn selected_allocators(names: &[String]) -> Result<Vec<Allocator>, Failure> {
    if names.is_empty() {
        return Ok(Allocator::ALL.into());
    }
    let find = |name: &String| {
        Allocator::named(name).ok_or_else(|| {
            let known = Allocator::ALL.map(Allocator::name).join(", ");
            Failure::Absent(format!("no allocator `{name}`; there are {known}"))
        })
    };
    names.iter().map(find).collect()
}

fn selected_workloads(rows: &[String]) -> Result<Vec<Workload>, Failure> {
    if rows.is_empty() {
        return Ok(Workload::ALL.into());
    }
    let mut workloads = Vec::new();
    for row in rows {
        let Some(workload) = Workload::of_row(row) else {
            let known: Vec<_> = Workload::ALL.iter().flat_map(|w| w.rows()).copied().collect();
            let known = known.join(", ");
            return Err(Failure::Absent(format!("no workload `{row}`; there are {known}")));
        };
        if !workloads.contains(&workload) {
            workloads.push(workload);
        }
    }
    Ok(workloads)
}

/// Loads `allocator`, here or in a child, and records its version and place.
fn enter(allocator: Allocator, alone: bool, machine: &mut Machine) -> Result<Contender, String> {
    if allocator.is_kmem() && preload::libkmem().is_none() {
        return Err(preload::NO_LIBKMEM.to_owned());
    }
    let (place, version, object, process) = if alone || allocator.needs_child() {
        let (remote, greeting) = Remote::start(allocator)?;
        (Place::Child(remote), greeting.version, greeting.object, "in a child")
    } else {
        let loaded = load(allocator)?;
        let object = loaded.object.to_string_lossy().into_owned();
        (Place::Here(loaded.heap), loaded.version, object, "in process")
    };
    let what = format!("{version}, {process}, {object}");
    machine.allocators.insert(allocator.name().to_owned(), what);
    Ok(Contender { allocator, place })
}

/// Makes the rounds of one workload.
fn measure(
    workload: Workload,
    contenders: &mut Vec<Contender>,
    machine: &mut Machine,
    options: &Options,
) -> Result<Vec<Row>, Failure> {
    let (inputs, cpus) = (Inputs::default(), allowed());
    let places = Places::among(&cpus);
    let budget = BUDGET * options.common.times();
    let start = Instant::now();
    let mut samples: Vec<(Allocator, Vec<Vec<f64>>)> = contenders
        .iter()
        .map(|contender| (contender.allocator, vec![Vec::new(); workload.rows().len()]))
        .collect();
    let mut round = 0;
    while !contenders.is_empty() && (round < LEAST_ROUNDS || start.elapsed() < budget) {
        let count = contenders.len();
        let mut failed = Vec::new();
        for turn in 0..count {
            let contender = &mut contenders[(round + turn) % count];
            let allocator = contender.allocator;
            match contender.visit(workload, &inputs, places) {
                Ok(visit) => collect(&mut samples, allocator, visit),
                Err(reason) if allocator.is_kmem() => {
                    return Err(Failure::Failed(format!("{}: {reason}", allocator.name())));
                }
                Err(reason) => {
                    machine.missing.insert(allocator.name().to_owned(), reason);
                    failed.push(allocator);
                }
            }
        }
        contenders.retain(|contender| !failed.contains(&contender.allocator));
        round += 1;
    }
    pin(&cpus);
    if options.verbose {
        eprintln!("{}: {round} rounds", workload.rows()[0]);
    }
    Ok(rows(workload, &samples))
}

fn collect(samples: &mut [(Allocator, Vec<Vec<f64>>)], allocator: Allocator, visit: Vec<Vec<f64>>) {
    let own = samples.iter_mut().find(|(name, _)| *name == allocator);
    for (all, new) in own.into_iter().flat_map(|(_, rows)| rows).zip(visit) {
        all.extend(new);
    }
}

fn rows(workload: Workload, samples: &[(Allocator, Vec<Vec<f64>>)]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, &name) in workload.rows().iter().enumerate() {
        for (allocator, samples) in samples {
            if let Some(ns) = samples.get(index).and_then(|samples| minimum(samples)) {
                rows.push(Row {
                    workload: name,
                    allocator: allocator.name(),
                    threads: workload.threads(),
                    ns: rounded(ns, 3),
                });
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::{rows, selected_allocators, selected_workloads};
    use crate::rivals::Allocator;
    use crate::workload::Workload;

    #[test]
    fn a_row_is_the_minimum_of_its_samples() {
        let samples = [(Allocator::Glibc, vec![vec![5.0, 4.0], vec![7.0, 8.0]])];
        let rows = rows(Workload::Bulk64, &samples);
        let figures: Vec<_> = rows.iter().map(|row| (row.workload, row.ns)).collect();
        assert_eq!(figures, [("bulk64_alloc", 4.0), ("bulk64_free", 7.0)]);
    }

    #[test]
    fn an_unknown_name_is_refused() {
        assert!(selected_allocators(&["nomalloc".to_owned()]).is_err());
        assert!(selected_workloads(&["nothing".to_owned()]).is_err());
        let both = ["bulk64_free".to_owned(), "bulk64_alloc".to_owned()];
        assert_eq!(selected_workloads(&both).unwrap(), [Workload::Bulk64]);
    }
}
