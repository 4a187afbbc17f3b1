//! `kmem-bench pages`: nanoseconds per single page and per huge page, against the classic page
//! allocator: a buddy zone under one lock, with lists per CPU.
//!
//! In a round every variant makes one visit to a workload, and each round starts with another
//! variant. A figure is the minimum of all rounds. One and two pinned threads are measured. More
//! threads are modelled from the variant's work in sections that one CPU at a time can be in, see
//! [`section`].

mod contender;
mod fragmentation;
mod kernel_table;
mod pattern;
mod report;
mod section;

use crate::Failure;
use crate::affinity::{Places, allowed, pin};
use crate::machine::Machine;
use crate::statistics::{minimum, rounded};
use crate::table::{self, Document};
use contender::{Contender, Variant};
use fragmentation::Fragmentation;
use kmem_core::units::Order;
use pattern::{Pattern, Work};
use report::{Row, text};
use section::Section;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Options of `kmem-bench pages`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Orders to measure, from 0 to 9.
    #[arg(
        long,
        value_name = "ORDERS",
        value_delimiter = ',',
        default_values_t = [0, 9],
        value_parser = order
    )]
    orders: Vec<u8>,
}

fn order(text: &str) -> Result<u8, String> {
    let order = text.parse().ok().filter(|&order| order <= Order::PAGEBLOCK.0);
    order.ok_or_else(|| "CPUs keep blocks of the orders 0 to 9".to_owned())
}

/// Time for the rounds of one workload.
const BUDGET: Duration = Duration::from_millis(1500);
/// Least number of rounds, even if they take longer.
const LEAST_ROUNDS: usize = 3;

/// The document of every table, and the fragmentation of zones.
#[derive(Debug, Serialize)]
struct Pages<'a> {
    #[serde(flatten)]
    document: Document<'a, Row>,
    fragmentation: &'a [Fragmentation],
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    let contenders: Vec<Contender> = Variant::MEASURED.into_iter().map(Contender::new).collect();
    let note = "not in the registry; published figures".to_owned();
    machine.missing.insert("llfree".to_owned(), note);
    let (mut rows, times) = (Vec::new(), options.common.times());
    for &order in &options.orders {
        let sections: Vec<Section> =
            contenders.iter().map(|contender| section::measure(contender, order)).collect();
        for pattern in Pattern::ALL {
            for threads in [1, 2] {
                let work = Work { pattern, order, threads };
                rows.extend(measure(work, &contenders, times));
            }
            for (contender, section) in contenders.iter().zip(&sections) {
                rows.extend(section::model(&rows, contender.variant, pattern, order, section));
            }
        }
    }
    let checked: Vec<Contender> = Variant::options().map(Contender::new).collect();
    let work = Work { pattern: Pattern::Pair, order: 0, threads: 1 };
    rows.extend(measure(work, &checked, times));
    rows.extend(report::published());
    let fragmentation = fragmentation::measure();
    let document = Document { table: "pages", machine: &machine, rows: &rows };
    let document = Pages { document, fragmentation: &fragmentation };
    options
        .common
        .show(&document, || text(&machine, &rows) + "\n" + &fragmentation::text(&fragmentation))
}

/// Makes the rounds of one workload.
fn measure(work: Work, contenders: &[Contender], times: u32) -> Vec<Row> {
    let cpus = allowed();
    let places = Places::among(&cpus);
    let mut samples = vec![(Vec::new(), Vec::new()); contenders.len()];
    let (start, mut round) = (Instant::now(), 0);
    while round < LEAST_ROUNDS || start.elapsed() < BUDGET * times {
        for turn in 0..contenders.len() {
            let number = (round + turn) % contenders.len();
            let (alloc, free) = contenders[number].visit(work, places);
            samples[number].0.push(alloc);
            samples[number].1.push(free);
        }
        round += 1;
    }
    pin(&cpus);
    let rows = contenders.iter().zip(&samples).filter_map(|(contender, (alloc, free))| {
        Some(Row {
            variant: contender.variant.name(),
            pattern: work.pattern.name(),
            order: work.order,
            threads: work.threads,
            alloc_ns: rounded(minimum(alloc)?, 3),
            free_ns: rounded(minimum(free)?, 3),
            measured: true,
        })
    });
    rows.collect()
}
