//! `kmem-bench profiling`: the cost of the books, in the loops and configurations of the kernel's
//! own table of memory allocation profiling.
//!
//! In a round every configuration runs both loops once, and each round starts with another
//! configuration. A figure is the minimum of all rounds. One thread runs on the second CPU. Every
//! configuration is an instance of its own in this process, called through pointers.

mod config;
mod kernel_test;
mod memory;
mod report;

use crate::affinity::{Places, allowed, pin};
use crate::machine::Machine;
use crate::preload::{NO_LIBKMEM, libkmem};
use crate::statistics::{minimum, rounded};
use crate::table::Document;
use crate::{Failure, table};
use config::{Config, Measured};
use kernel_test::Loops;
use kmem_core::Group;
use memory::Memory;
use report::{Goal, Row, text};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Options of `kmem-bench profiling`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Time for all rounds.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds: u64,
}

/// Least number of rounds, even if they take longer.
const LEAST_ROUNDS: usize = 3;
/// Turns of a loop in a sample.
const KMALLOC_TIMES: usize = 100;
const PAGE_TIMES: usize = 200;

/// The document of every table, and further parts.
#[derive(Debug, Serialize)]
struct Profiling<'a> {
    #[serde(flatten)]
    document: Document<'a, Row>,
    goal: &'a Goal,
    memory: &'a Memory,
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let library = libkmem().ok_or_else(|| Failure::Absent(format!("kmem: {NO_LIBKMEM}")))?;
    let mut machine = Machine::here();
    let measured = config::start().map_err(Failure::Failed)?;
    let longer = options.common.times();
    let budget = Duration::from_secs(options.seconds) * longer;
    let rows = report::rows(&measure(&measured, budget));
    let goal = Goal::of(&rows);
    let memory = memory::measure(&library).map_err(Failure::Failed)?;
    machine.allocators.insert("kmem".to_owned(), "compiled in; memory: in a child".to_owned());
    let document = Document { table: "profiling", machine: &machine, rows: &rows };
    let document = Profiling { document, goal: &goal, memory: &memory };
    options.common.show(&document, || text(&machine, &rows, &goal, &memory))
}

/// Measured nanoseconds of a configuration: per kmalloc, per page.
type Figure = (Config, f64, f64);

/// Makes the rounds.
fn measure(measured: &[Measured], budget: Duration) -> Vec<Figure> {
    let cpus = allowed();
    pin(&[Places::among(&cpus).single]);
    let mut loops = Loops::new();
    let mut kmalloc = vec![Vec::new(); measured.len()];
    let mut page = kmalloc.clone();
    let (start, mut round) = (Instant::now(), 0);
    while round < LEAST_ROUNDS || start.elapsed() < budget {
        for turn in 0..measured.len() {
            let number = (round + turn) % measured.len();
            let Measured { kernel, group, .. } = &measured[number];
            let _scope = group.as_ref().map(Group::enter);
            // Fills the CPU's arrays.
            loops.kmalloc(kernel, KMALLOC_TIMES / 10);
            kmalloc[number].push(loops.kmalloc(kernel, KMALLOC_TIMES));
            loops.page(kernel, PAGE_TIMES / 10);
            page[number].push(loops.page(kernel, PAGE_TIMES));
        }
        round += 1;
    }
    pin(&cpus);
    let least = |samples: &[f64]| minimum(samples).map(|ns| rounded(ns, 3));
    let figures = measured.iter().zip(kmalloc.iter().zip(&page));
    figures.filter_map(|(row, (k, p))| Some((row.config, least(k)?, least(p)?))).collect()
}
