//! `kmem-bench huge-pages`: transparent huge pages under a heap that the TLB does not reach.
//!
//! A program allocates 512 MiB of objects of 64 to 1024 bytes and writes to each of them. Then it
//! follows pointers from object to object, in random order. Nearly every step needs another
//! translation. With pages of 4 KiB that is a walk through the page tables. With huge pages it is
//! not, and the program takes fewer page faults. Every allocator runs in a process of its own.

use crate::Failure;
use crate::child;
use crate::conversation::{Conversation, answer};
use crate::heap::{Block, Heap};
use crate::machine::Machine;
use crate::peak::resident;
use crate::prng::Prng;
use crate::rivals::{Allocator, load};
use crate::statistics::{minimum, rounded};
use crate::table::{self, Document, Grid};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Options of `kmem-bench huge-pages`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// MiB of objects.
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    objects: usize,
}

/// Options of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub(crate) struct Program {
    #[arg(long)]
    allocator: String,
    #[arg(long)]
    objects: usize,
}

const ALLOCATORS: [Allocator; 7] = [
    Allocator::KmemThpNever,
    Allocator::KmemThpAuto,
    Allocator::KmemThpAlways,
    Allocator::Mimalloc,
    Allocator::Jemalloc,
    Allocator::Tcmalloc,
    Allocator::Glibc,
];
/// Processes of each allocator.
const ROUNDS: u32 = 2;
/// Least and most bytes of an object; the sizes are uniform on a logarithmic scale.
const SIZES: (usize, usize) = (64, 1024);
/// Steps from object to object.
const STEPS: usize = 1 << 22;

/// One allocator.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    allocator: &'static str,
    /// Nanoseconds of a step from object to object: the least of all processes.
    step_ns: f64,
    /// Nanoseconds to allocate an object and to write to it: the least of all processes.
    object_ns: f64,
    #[serde(flatten)]
    memory: Memory,
}

/// Memory of one process, without that of its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Memory {
    /// Page faults while it allocated and wrote.
    faults: u64,
    /// Bytes in huge pages.
    huge_bytes: u64,
    /// Resident bytes.
    resident_bytes: u64,
}

/// Figures of one process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Figures {
    step_ns: f64,
    object_ns: f64,
    memory: Memory,
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    let rounds = ROUNDS * options.common.times();
    // A process that takes huge pages leaves them free, and in the memory of the host. Behind one
    // with small pages, the kernel must first join pages, which took ten times as long.
    let one = |allocator| {
        measure(Allocator::KmemThpAlways, options)?;
        measure(allocator, options)
    };
    let figures = child::in_turn(&ALLOCATORS, rounds, &mut machine, one)?;
    let rows: Vec<_> = figures.iter().filter_map(|(allocator, of)| row(*allocator, of)).collect();
    let document = Document { table: "huge-pages", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["", "ns a step", "ns an object", "faults", "MiB huge", "MiB resident"]);
    for row in rows {
        let mib = |bytes: u64| (bytes >> 20).to_string();
        let Memory { faults, huge_bytes, resident_bytes } = row.memory;
        grid.push([
            row.allocator.to_owned(),
            format!("{:.1}", row.step_ns),
            format!("{:.1}", row.object_ns),
            faults.to_string(),
            mib(huge_bytes),
            mib(resident_bytes),
        ]);
    }
    format!("{machine}\n\n{}", grid.render())
}

fn row(allocator: Allocator, of: &[Figures]) -> Option<Row> {
    let least = |each: &dyn Fn(&Figures) -> f64| {
        minimum(&of.iter().map(each).collect::<Vec<_>>()).map(|ns| rounded(ns, 2))
    };
    Some(Row {
        allocator: allocator.name(),
        step_ns: least(&|figures| figures.step_ns)?,
        object_ns: least(&|figures| figures.object_ns)?,
        memory: of.last()?.memory,
    })
}

fn measure(allocator: Allocator, options: &Options) -> Result<Figures, String> {
    let mut program = child::program("huge-pages-program", allocator)?;
    program.args(["--objects", &options.objects.to_string()]);
    Conversation::start(&mut program)?.read()
}

/// The program.
pub(crate) fn serve(program: &Program) -> Result<(), Failure> {
    let allocator = Allocator::wanted(&program.allocator)?;
    let heap = load(allocator).map_err(Failure::Failed)?.heap.opaque();
    let mut prng = Prng::new(1);
    // The list of addresses is resident before the measurement.
    let mut blocks = vec![Block::dangling(); (program.objects << 20) / SIZES.0];
    blocks.clear();
    let (faults, before) = (faults()?, resident()?);
    let begun = Instant::now();
    fill(&heap, &mut prng, &mut blocks, program.objects << 20);
    let object_ns = begun.elapsed().as_secs_f64() * 1e9 / blocks.len() as f64;
    let memory = Memory {
        faults: self::faults()?.saturating_sub(faults),
        huge_bytes: huge()?,
        resident_bytes: resident()?.saturating_sub(before),
    };
    shuffle(&mut blocks, &mut prng);
    link(&blocks);
    let begun = Instant::now();
    let mut at = blocks[0];
    for _ in 0..STEPS {
        // SAFETY: each object begins with the address of another one.
        at = unsafe { at.cast::<Block>().read_volatile() };
    }
    let step_ns = begun.elapsed().as_secs_f64() * 1e9 / STEPS as f64;
    answer(&Figures { step_ns, object_ns, memory })
}

/// Allocates objects, and writes to all of each.
fn fill(heap: &Heap, prng: &mut Prng, blocks: &mut Vec<Block>, bytes: usize) {
    let mut sum = 0;
    while sum < bytes {
        let size = prng.log_between(SIZES.0, SIZES.1);
        blocks.push(heap.alloc_written(size));
        sum += size;
    }
}

/// Puts the objects into random order (Fisher and Yates).
fn shuffle(blocks: &mut [Block], prng: &mut Prng) {
    for last in (1..blocks.len()).rev() {
        blocks.swap(last, prng.between(0, last));
    }
}

/// Makes a ring of the objects, in their order.
fn link(blocks: &[Block]) {
    for (block, next) in blocks.iter().zip(blocks.iter().cycle().skip(1)) {
        // SAFETY: an object has room for an address.
        unsafe { block.cast::<Block>().write(*next) };
    }
}

/// Page faults of this process without input or output.
fn faults() -> Result<u64, Failure> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // Field 10 of proc(5). The name, in parentheses, is field 2.
    let field = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(7));
    let faults = field.and_then(|field| field.parse().ok());
    faults.ok_or_else(|| Failure::Failed("no page faults in /proc/self/stat".to_owned()))
}

/// Bytes of this process in huge pages.
fn huge() -> Result<u64, Failure> {
    let sums = std::fs::read_to_string("/proc/self/smaps_rollup")?;
    let line = sums.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map(|kib| kib << 10).ok_or_else(|| Failure::Failed("no AnonHugePages".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_leads_through_all_objects() {
        let heap = load(Allocator::Glibc).unwrap().heap;
        let mut blocks = Vec::new();
        fill(&heap, &mut Prng::new(1), &mut blocks, 64 << 10);
        shuffle(&mut blocks, &mut Prng::new(2));
        link(&blocks);
        let mut met = std::collections::BTreeSet::new();
        let mut at = blocks[0];
        for _ in 0..blocks.len() {
            met.insert(at);
            // SAFETY: each object begins with the address of another one.
            at = unsafe { at.cast::<Block>().read() };
        }
        assert_eq!((met.len(), at), (blocks.len(), blocks[0]));
    }

    #[test]
    fn faults_are_counted() {
        let before = faults().unwrap();
        let mut pages = vec![0_u8; 1 << 20];
        pages.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
        std::hint::black_box(&pages);
        assert!(faults().unwrap() > before);
    }
}
