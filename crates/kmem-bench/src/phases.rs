//! `kmem-bench phases`: the price of memory that a program needs again.
//!
//! A program works in phases. In each one it allocates a million objects of 64 bytes, writes to
//! them, and frees them. Between phases it works on with few objects. An allocator that gives the
//! memory back in between takes page faults in the next phase. One that keeps it for long wastes
//! it. So the table has both: the time of a phase, and the memory that is resident in pauses and at
//! the end. Every allocator runs in a process of its own, and all of them take turns.

use crate::Failure;
use crate::child;
use crate::conversation::{Conversation, answer};
use crate::heap::{Block, Heap};
use crate::machine::Machine;
use crate::peak::resident;
use crate::rivals::{Allocator, load};
use crate::statistics::{median, rounded};
use crate::table::{self, Document, Grid};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Options of `kmem-bench phases`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Milliseconds between two phases.
    #[arg(long, value_name = "MS", default_value_t = 50)]
    pause: u64,
    /// Objects of a phase.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    objects: usize,
}

/// Options of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Program {
    #[arg(long)]
    allocator: String,
    #[arg(long)]
    pause: u64,
    #[arg(long)]
    objects: usize,
}

const ALLOCATORS: [Allocator; 6] = [
    Allocator::Kmem,
    Allocator::Mimalloc,
    Allocator::Jemalloc,
    Allocator::Tcmalloc,
    Allocator::Snmalloc,
    Allocator::Glibc,
];
/// Processes of each allocator.
const ROUNDS: u32 = 2;
/// Phases of a program. The first one is not counted.
const PHASES: usize = 12;
/// Bytes of an object.
const SIZE: usize = 64;
/// Objects that the program works with in a pause.
const FEW: usize = 1000;
/// Time from the last phase to the last reading of resident memory.
const AFTER: Duration = Duration::from_secs(2);

/// One allocator.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    allocator: &'static str,
    /// Nanoseconds to allocate, write to and free an object of a phase: the median of all phases.
    object_ns: f64,
    /// Bytes that are resident at the end of a pause: the median.
    pause_bytes: u64,
    /// Bytes that are resident two seconds after the last phase: the median.
    after_bytes: u64,
}

/// Figures of one process. Resident memory does not include that of its start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Figures {
    object_ns: Vec<f64>,
    pause_bytes: Vec<u64>,
    after_bytes: u64,
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    let rounds = ROUNDS * options.common.times();
    let one = |allocator| measure(allocator, options);
    let figures = child::in_turn(&ALLOCATORS, rounds, &mut machine, one)?;
    let rows: Vec<_> = figures.iter().filter_map(|(allocator, of)| row(*allocator, of)).collect();
    let document = Document { table: "phases", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["", "ns an object", "MiB in a pause", "after 2 s"]);
    for row in rows {
        let mib = |bytes: u64| (bytes >> 20).to_string();
        let time = format!("{:.1}", row.object_ns);
        grid.push([row.allocator.to_owned(), time, mib(row.pause_bytes), mib(row.after_bytes)]);
    }
    format!("{machine}\n\n{}", grid.render())
}

fn row(allocator: Allocator, of: &[Figures]) -> Option<Row> {
    let times: Vec<_> = of.iter().flat_map(|figures| &figures.object_ns).copied().collect();
    let bytes = |each: &dyn Fn(&Figures) -> Vec<u64>| {
        let all: Vec<_> = of.iter().flat_map(each).map(|bytes| bytes as f64).collect();
        median(&all).map(|bytes| bytes as u64)
    };
    Some(Row {
        allocator: allocator.name(),
        object_ns: rounded(median(&times)?, 2),
        pause_bytes: bytes(&|figures| figures.pause_bytes.clone())?,
        after_bytes: bytes(&|figures| vec![figures.after_bytes])?,
    })
}

fn measure(allocator: Allocator, options: &Options) -> Result<Figures, String> {
    let mut program = child::program("phases-program", allocator)?;
    program.args(["--pause", &options.pause.to_string()]);
    program.args(["--objects", &options.objects.to_string()]);
    Conversation::start(&mut program)?.read()
}

/// The program.
pub(crate) fn serve(program: &Program) -> Result<(), Failure> {
    let allocator = Allocator::wanted(&program.allocator)?;
    let heap = load(allocator).map_err(Failure::Failed)?.heap.opaque();
    // The list of addresses is resident before the measurement.
    let mut blocks = vec![Block::dangling(); program.objects];
    let before = resident()?;
    let now = || resident().map(|bytes| bytes.saturating_sub(before));
    let mut figures = Figures { object_ns: Vec::new(), pause_bytes: Vec::new(), after_bytes: 0 };
    for phase in 0..PHASES {
        let time = work(&heap, &mut blocks);
        pause(&heap, Duration::from_millis(program.pause));
        if phase > 0 {
            figures.object_ns.push(time.as_nanos() as f64 / program.objects as f64);
            figures.pause_bytes.push(now()?);
        }
    }
    pause(&heap, AFTER);
    figures.after_bytes = now()?;
    answer(&figures)
}

/// Allocates as many objects as there are `blocks`, writes to them and frees them.
fn work(heap: &Heap, blocks: &mut [Block]) -> Duration {
    let start = Instant::now();
    for block in &mut *blocks {
        *block = heap.alloc_written(SIZE);
    }
    for &block in &*blocks {
        // SAFETY: allocated above, not used again.
        unsafe { heap.free(block) };
    }
    start.elapsed()
}

/// Works with few objects for a time.
fn pause(heap: &Heap, time: Duration) {
    let mut few = [Block::dangling(); FEW];
    let end = Instant::now() + time;
    while Instant::now() < end {
        work(heap, &mut few);
    }
}
