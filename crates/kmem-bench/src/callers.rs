//! `kmem-bench callers`: the cost of `KMEM_CONF=depth:N`, in a program without frame pointers.
//!
//! | column | one operation: malloc and free of 64 bytes |
//! |---|---|
//! | `main_ns` | on the main thread, twelve calls deep |
//! | `thread_ns` | the same on another thread |
//! | `paths_ns` | by eight callers in turn, which differ ten calls further out |
//!
//! Each depth has a child of its own under libkmem.so. In a round each child makes one visit, and
//! each round starts with another one. A figure is the minimum of all rounds. One thread runs, on
//! the second CPU.

use crate::affinity::{Places, allowed, pin};
use crate::conversation::{Conversation, answer};
use crate::machine::Machine;
use crate::preload::{NO_LIBKMEM, libkmem, untuned};
use crate::statistics::{minimum, rounded};
use crate::table::{Document, Grid};
use crate::{Failure, table};
use serde::Serialize;
use std::hint::black_box;
use std::io::stdin;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The depths of the rows.
const DEPTHS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const ROUNDS: u32 = 60;
/// Operations of a sample.
const TIMES: u32 = 8 * 2000;
/// Calls between the outermost function of a sample and malloc.
const CALLS: u32 = 10;

/// Nanoseconds per operation of each column.
type Sample = [f64; 3];

/// One depth.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    depth: u32,
    main_ns: f64,
    thread_ns: f64,
    paths_ns: f64,
}

/// Measures the table and prints it.
pub(crate) fn run(options: &table::Options) -> Result<(), Failure> {
    let library = libkmem().ok_or_else(|| Failure::Absent(format!("kmem: {NO_LIBKMEM}")))?;
    let mut machine = Machine::here();
    machine.allocators.insert("kmem".to_owned(), library.display().to_string());
    let rows = measure(&library, ROUNDS * options.times()).map_err(Failure::Failed)?;
    let document = Document { table: "callers", machine: &machine, rows: &rows };
    options.show(&document, || text(&machine, &rows))
}

fn measure(library: &Path, rounds: u32) -> Result<Vec<Row>, String> {
    let mut children = Vec::new();
    for depth in DEPTHS {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        untuned(&mut command).env("LD_PRELOAD", library).arg("callers-program");
        command.env("KMEM_CONF", format!("depth:{depth}"));
        children.push(Conversation::start(&mut command)?);
    }
    let mut samples: Vec<[Vec<f64>; 3]> = vec![Default::default(); children.len()];
    for round in 0..rounds as usize {
        for turn in 0..children.len() {
            let number = (round + turn) % children.len();
            children[number].tell("visit")?;
            let sample: Sample = children[number].read()?;
            for (all, ns) in samples[number].iter_mut().zip(sample) {
                all.push(ns);
            }
        }
    }
    let rows = DEPTHS.into_iter().zip(&samples).map(|(depth, columns)| {
        let least = |column: usize| rounded(minimum(&columns[column]).unwrap_or(f64::NAN), 2);
        Row { depth, main_ns: least(0), thread_ns: least(1), paths_ns: least(2) }
    });
    Ok(rows.collect())
}

/// The hidden subcommand: a visit for each line of its input.
pub(crate) fn serve() -> Result<(), Failure> {
    pin(&[Places::among(&allowed()).single]);
    for line in stdin().lines() {
        line?;
        let on_thread = || std::thread::scope(|scope| scope.spawn(|| nested(CALLS)).join());
        let thread = on_thread().map_err(|_| Failure::Failed("a thread panicked".to_owned()))?;
        let sample: Sample = [nested(CALLS), thread, paths()];
        answer(&sample)?;
    }
    Ok(())
}

fn pair() {
    // SAFETY: the block is freed where it was allocated.
    unsafe { libc::free(black_box(libc::malloc(black_box(64)))) };
}

#[inline(never)]
fn pairs() -> f64 {
    let start = Instant::now();
    for _ in 0..TIMES {
        pair();
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
}

/// Each call has a frame of its own.
#[inline(never)]
fn nested(calls: u32) -> f64 {
    let room = black_box([calls; 4]);
    let ns = if calls == 0 { pairs() } else { nested(room[0] - 1) };
    black_box(room);
    ns
}

#[inline(never)]
fn deep_pair(calls: u32) {
    let room = black_box([calls; 4]);
    if calls == 0 {
        pair()
    } else {
        deep_pair(room[0] - 1)
    }
    black_box(room);
}

#[inline(never)]
fn paths() -> f64 {
    let start = Instant::now();
    for _ in 0..TIMES / 8 {
        deep_pair(CALLS);
        deep_pair(CALLS);
        deep_pair(CALLS);
        deep_pair(CALLS);
        deep_pair(CALLS);
        deep_pair(CALLS);
        deep_pair(CALLS);
        deep_pair(CALLS);
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
}

/// The table as text, with the cost over the first row.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["depth", "main ns", "more", "thread ns", "more", "paths ns", "more"]);
    for row in rows {
        let first = &rows[0];
        let figures = [
            (row.main_ns, first.main_ns),
            (row.thread_ns, first.thread_ns),
            (row.paths_ns, first.paths_ns),
        ];
        let figures = figures
            .into_iter()
            .flat_map(|(ns, first)| [format!("{ns:.1}"), format!("{:+.1}", ns - first)]);
        grid.push([row.depth.to_string()].into_iter().chain(figures));
    }
    format!("{machine}\n\n{}", grid.render())
}
