//! `kmem-bench peak`: the memory that a program keeps after a peak.
//!
//! A program uses 100 MiB, then 4 GiB for a moment, then 100 MiB again. Two seconds later its
//! resident memory is compared with the memory that it uses. In these seconds it works (it replaces
//! 1,000 of its blocks every 10 ms) or is idle. Every allocator runs in a process of its own.

use crate::Failure;
use crate::child;
use crate::conversation::{Conversation, answer};
use crate::heap::Block;
use crate::machine::Machine;
use crate::prng::Prng;
use crate::rivals::{Allocator, load};
use crate::statistics::rounded;
use crate::table::{self, Document, Grid};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Options of `kmem-bench peak`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// The peak, in MiB.
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    peak: usize,
    /// MiB that are left of it.
    #[arg(long, value_name = "MIB", default_value_t = 100)]
    rest: usize,
}

/// Options of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Program {
    #[arg(long)]
    allocator: String,
    #[arg(long)]
    peak: usize,
    #[arg(long)]
    rest: usize,
    #[arg(long)]
    idle: bool,
}

const ALLOCATORS: [Allocator; 4] =
    [Allocator::Kmem, Allocator::KmemThread, Allocator::Jemalloc, Allocator::Mimalloc];
/// Time from the peak to the reading of resident memory.
const AFTER: Duration = Duration::from_secs(2);
/// Least and most bytes of a block; the sizes are uniform on a logarithmic scale.
const SIZES: (usize, usize) = (16, 16 << 10);

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    allocator: &'static str,
    /// True if the program works after the peak.
    works: bool,
    #[serde(flatten)]
    figures: Figures,
    /// Resident memory after two seconds, as a part of the memory that is used.
    ratio: f64,
}

/// Figures of the program about itself, in bytes. Resident memory does not include that of its
/// start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Figures {
    used: u64,
    resident_at_peak: u64,
    resident_at_once: u64,
    resident_after: u64,
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    let mut rows = Vec::new();
    for works in [true, false] {
        let one = |allocator| measure(allocator, works, options);
        for (allocator, of) in child::in_turn(&ALLOCATORS, 1, &mut machine, one)? {
            for figures in of {
                let ratio = rounded(figures.resident_after as f64 / figures.used as f64, 3);
                rows.push(Row { allocator: allocator.name(), works, figures, ratio });
            }
        }
    }
    let document = Document { table: "peak", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["MiB resident", "used", "at the peak", "at once", "after 2 s", "of used"]);
    for row in rows {
        let mib = |bytes: u64| (bytes >> 20).to_string();
        let how = if row.works { "works" } else { "idle" };
        grid.push([
            format!("{}, {how}", row.allocator),
            mib(row.figures.used),
            mib(row.figures.resident_at_peak),
            mib(row.figures.resident_at_once),
            mib(row.figures.resident_after),
            format!("{:.2}", row.ratio),
        ]);
    }
    format!("{machine}\n\n{}", grid.render())
}

fn measure(allocator: Allocator, works: bool, options: &Options) -> Result<Figures, String> {
    let mut program = child::program("peak-program", allocator)?;
    program.args(["--peak", &options.peak.to_string(), "--rest", &options.rest.to_string()]);
    if !works {
        program.arg("--idle");
    }
    Conversation::start(&mut program)?.read()
}

/// The program.
pub(crate) fn serve(program: &Program) -> Result<(), Failure> {
    let allocator = Allocator::wanted(&program.allocator)?;
    let heap = load(allocator).map_err(Failure::Failed)?.heap.opaque();
    let mut prng = Prng::new(1);
    // The list of addresses is resident before the measurement.
    let mut blocks: Vec<(Block, usize)> = vec![(Block::dangling(), 0); (program.peak << 20) / 512];
    blocks.clear();
    let mut more = |blocks: &mut Vec<(Block, usize)>, bytes: usize| {
        let mut sum = 0;
        while sum < bytes {
            let size = prng.log_between(SIZES.0, SIZES.1);
            blocks.push((heap.alloc_written(size), size));
            sum += size;
        }
    };
    let before = resident()?;
    let now = || resident().map(|bytes| bytes.saturating_sub(before));
    more(&mut blocks, program.rest << 20);
    let rest = blocks.len();
    more(&mut blocks, (program.peak - program.rest) << 20);
    let resident_at_peak = now()?;
    for (block, _) in blocks.drain(rest..) {
        // SAFETY: allocated above, not used again.
        unsafe { heap.free(block) };
    }
    let resident_at_once = now()?;
    let start = Instant::now();
    let mut prng = Prng::new(2);
    while start.elapsed() < AFTER {
        std::thread::sleep(Duration::from_millis(10));
        for _ in 0..if program.idle { 0 } else { 1000 } {
            let place = prng.between(0, rest - 1);
            // SAFETY: a block of this heap, which is not used again.
            unsafe { heap.free(blocks[place].0) };
            let size = prng.log_between(SIZES.0, SIZES.1);
            blocks[place] = (heap.alloc_written(size), size);
        }
    }
    let used = blocks.iter().map(|(_, size)| *size as u64).sum();
    answer(&Figures { used, resident_at_peak, resident_at_once, resident_after: now()? })?;
    Ok(())
}

/// Resident bytes of this process.
pub(crate) fn resident() -> Result<u64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| Failure::Failed("no statm".to_owned()))
}
