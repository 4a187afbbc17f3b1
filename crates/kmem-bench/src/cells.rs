//! Tables in which each figure is one variant of one workload, run by one thread or several.
//!
//! Visits are interleaved: each round visits every cell once, and starts with another cell. A
//! figure is the minimum of all rounds for the slowest thread. So two threads that do not disturb
//! each other have the figure of one.
//!
//! The throughput of several threads against one is the median of the quotients of each round, not
//! the quotient of minima. On a shared machine one undisturbed CPU is more frequent than two. With
//! minima, even loops over registers would seem to scale badly.

use crate::Failure;
use crate::affinity::{Places, allowed, pin};
use crate::machine::Machine;
use crate::statistics::{median, minimum, rounded};
use crate::table::{self, Document, Grid};
use serde::Serialize;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Least number of rounds, even if they take longer.
const LEAST_ROUNDS: usize = 3;

/// One figure of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    /// Name of the variant.
    pub(crate) variant: &'static str,
    /// Name of the workload.
    pub(crate) workload: &'static str,
    /// Number of threads at once.
    pub(crate) threads: usize,
    /// Nanoseconds per operation and thread.
    pub(crate) ns: f64,
    /// Throughput of several threads against that of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scales: Option<f64>,
}

/// The work of a thread in a visit: gets the thread's number, returns the number of operations and
/// their time.
type Work = Box<dyn Fn(usize) -> (usize, Duration) + Sync>;

/// A variant of a workload.
pub(crate) struct Cell {
    variant: &'static str,
    workload: &'static str,
    threads: usize,
    work: Work,
}

impl Cell {
    /// Makes a cell. `work` measures its own time.
    pub(crate) fn new(
        variant: &'static str,
        workload: &'static str,
        threads: usize,
        work: impl Fn(usize) -> (usize, Duration) + Sync + 'static,
    ) -> Self {
        Self { variant, workload, threads, work: Box::new(work) }
    }

    /// Nanoseconds per operation of one visit.
    fn visit(&self, places: Places) -> f64 {
        let per =
            |(operations, time): (usize, Duration)| time.as_secs_f64() * 1e9 / operations as f64;
        if self.threads == 1 {
            pin(&[places.single]);
            return per((self.work)(0));
        }
        let start = Barrier::new(self.threads);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..self.threads)
                .map(|number| {
                    let (start, work) = (&start, &self.work);
                    scope.spawn(move || {
                        pin(&[places.pair[number % 2]]);
                        start.wait();
                        work(number)
                    })
                })
                .collect();
            let times = threads.into_iter().map(|thread| thread.join().map_or(f64::NAN, per));
            times.fold(0.0, f64::max)
        })
    }
}

/// Runs `body`, which does `operations` operations. Returns them and the time.
pub(crate) fn timed(operations: usize, body: impl FnOnce()) -> (usize, Duration) {
    let start = Instant::now();
    body();
    (operations, start.elapsed())
}

/// Measures all cells, for about `budget`.
pub(crate) fn measure(cells: &[Cell], budget: Duration) -> Vec<Row> {
    let cpus = allowed();
    let places = Places::among(&cpus);
    let mut samples = vec![Vec::new(); cells.len()];
    let (start, mut round) = (Instant::now(), 0);
    while round < LEAST_ROUNDS || start.elapsed() < budget {
        for turn in 0..cells.len() {
            let number = (round + turn) % cells.len();
            samples[number].push(cells[number].visit(places));
        }
        round += 1;
    }
    pin(&cpus);
    let alone = |cell: &Cell| {
        let one = |other: &Cell| {
            (other.variant, other.workload, other.threads) == (cell.variant, cell.workload, 1)
        };
        samples.get(cells.iter().position(one).filter(|_| cell.threads > 1)?)
    };
    let rows = cells.iter().zip(&samples).filter_map(|(cell, many)| {
        let &Cell { variant, workload, threads, .. } = cell;
        let quotients = |one: &Vec<f64>| {
            let rounds = one.iter().zip(many).map(|(one, many)| threads as f64 * one / many);
            median(&rounds.collect::<Vec<_>>())
        };
        let scales = alone(cell).and_then(quotients).map(|scale| rounded(scale, 2));
        Some(Row { variant, workload, threads, ns: rounded(minimum(many)?, 3), scales })
    });
    rows.collect()
}

/// Options of a table of cells.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Time for all rounds [default: as long as the table needs].
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

/// Measures a table and prints it. `seconds` is the time, unless the options give one.
pub(crate) fn run(
    name: &'static str,
    options: &Options,
    seconds: u64,
    cells: &[Cell],
) -> Result<(), Failure> {
    let (seconds, options) = (options.seconds.unwrap_or(seconds), &options.common);
    let mut machine = Machine::here();
    machine.allocators.insert("kmem".to_owned(), "compiled in".to_owned());
    let rows = measure(cells, Duration::from_secs(seconds) * options.times());
    let document = Document { table: name, machine: &machine, rows: &rows };
    options.show(&document, || text(&machine, &rows))
}

/// The table as text: workloads down, variants across, and the throughput of two threads against
/// one.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    let mut variants: Vec<&str> = Vec::new();
    let mut workloads: Vec<(&str, usize)> = Vec::new();
    for row in rows {
        if !variants.contains(&row.variant) {
            variants.push(row.variant);
        }
        if !workloads.contains(&(row.workload, row.threads)) {
            workloads.push((row.workload, row.threads));
        }
    }
    let row = |variant: &str, workload: &str, threads: usize| {
        rows.iter()
            .find(|row| (row.variant, row.workload, row.threads) == (variant, workload, threads))
    };
    grid.push(
        ["ns/operation", "threads"]
            .into_iter()
            .chain(variants.iter().copied())
            .chain(["kmem scales"]),
    );
    for &(workload, threads) in &workloads {
        let figures = variants.iter().map(|variant| {
            row(variant, workload, threads).map_or("-".to_owned(), |row| format!("{:.2}", row.ns))
        });
        let scale = row("kmem", workload, threads).and_then(|row| row.scales);
        let scale = scale.map_or(String::new(), |scale| format!("{scale:.2}"));
        grid.push(
            [workload.to_owned(), threads.to_string()].into_iter().chain(figures).chain([scale]),
        );
    }
    format!("{machine}\n\n{}", grid.render())
}

#[cfg(test)]
mod tests {
    use super::{Cell, measure, text, timed};
    use crate::machine::Machine;
    use std::time::Duration;

    #[test]
    fn every_cell_gets_a_row_and_every_row_a_place() {
        let nothing = |_| timed(10, || std::thread::sleep(Duration::from_micros(10)));
        let cells = [
            Cell::new("kmem", "a", 1, nothing),
            Cell::new("kmem", "a", 2, nothing),
            Cell::new("rival", "b", 1, nothing),
        ];
        let rows = measure(&cells, Duration::ZERO);
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row.ns >= 1000.0), "{rows:?}");
        // One thread has no comparison.
        assert!(rows[0].scales.is_none() && rows[2].scales.is_none(), "{rows:?}");
        assert!(rows[1].scales.is_some_and(|scale| scale > 0.0), "{rows:?}");
        let text = text(&Machine::default(), &rows);
        assert_eq!(text.lines().count(), 2 + 1 + 3, "{text}");
    }
}
