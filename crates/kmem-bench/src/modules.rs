//! `kmem-bench modules`: the cost of duplicates when many threads load the same modules at once.
//!
//! Each row is a storm: a number of threads begin at once, and each loads all modules of the storm
//! in the same order. There are three loaders. The kernel's earlier one (`before`) finds a
//! duplicate when file and module have memory. The kernel's since 6.4 (`after`) finds it when the
//! file has been read. The third is kmem's. All consist of the same parts and count the same bytes.

mod before;
mod files;

use crate::machine::Machine;
use crate::statistics::rounded;
use crate::table::{Document, Grid};
use crate::{Failure, table};
use before::{Found, Old};
use files::{Files, Module};
use kmem_module::stats::Stat;
use kmem_module::{Config, Errno, Loader};
use serde::Serialize;
use std::os::fd::AsRawFd as _;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Number of modules of a boot.
const BOOT: usize = 50;
/// Bytes of each in memory: the average of a server's modules.
const AVERAGE: usize = 116 << 10;
/// Bytes of xfs in memory, and of its file beyond that (Debian's 6.1).
const XFS: (usize, usize) = (1_900_000, 2_300_000);
/// Threads of the kernel's kmod test 0008, and of stress-ng.
const KMOD_0008: usize = 150;
const STRESS_NG: usize = 100;

/// Figures that the kernel's developers published.
const KERNEL: &str = "The kernel, at boot, per CPU: 463 MiB wasted before, 230 MiB after (finding \
a duplicate once the file is read), 0 for concurrent loads since loading is idempotent; late \
duplicates and loads from memory still cost the file.";

/// One storm under one loader.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    /// Name of the storm.
    storm: &'static str,
    /// Number of threads that load.
    threads: usize,
    /// Name of the loader.
    variant: &'static str,
    /// Bytes that duplicates took.
    wasted_bytes: u64,
    /// Most bytes held at one time.
    peak_bytes: u64,
    /// Milliseconds until the last thread is done; the least of the rounds.
    ms: f64,
}

/// The loaders.
const VARIANTS: [&str; 3] = ["before", "after", "kmem"];

/// The source of modules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    File,
    Memory,
}

/// The threads of a storm and the modules that they load.
struct Storm<'a> {
    name: &'static str,
    threads: usize,
    by: By,
    modules: &'a [Module],
    /// True if the modules are loaded before the storm.
    late: bool,
}

/// Measures the table and prints it.
pub(crate) fn run(options: &table::Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    machine.allocators.insert("kmem".to_owned(), "kmem-module, in this process".to_owned());
    let files = Files::build(BOOT, AVERAGE, XFS).map_err(Failure::Failed)?;
    let (boot, xfs) = (&files.boot[..], std::slice::from_ref(&files.xfs));
    let mut storms: Vec<Storm<'_>> = (0..=6)
        .map(|n| Storm { name: "boot", threads: 1 << n, by: By::File, modules: boot, late: false })
        .collect();
    let one = |name, threads, by, modules, late| Storm { name, threads, by, modules, late };
    storms.push(one("boot from memory", 16, By::Memory, boot, false));
    storms.push(one("late", 16, By::File, boot, true));
    storms.push(one("late from memory", 16, By::Memory, boot, true));
    storms.push(one("kmod 0008", KMOD_0008, By::File, &boot[..1], false));
    storms.push(one("stress-ng xfs", STRESS_NG, By::File, xfs, false));
    let rounds = 3 * options.times();
    let mut rows = Vec::new();
    for storm in &storms {
        for variant in VARIANTS {
            rows.push(row(storm, variant, rounds).map_err(Failure::Failed)?);
        }
    }
    let document = Document { table: "modules", machine: &machine, rows: &rows };
    options.show(&document, || text(&machine, &rows))
}

/// Bytes wasted, most bytes held, time.
type Figures = (u64, u64, Duration);

/// Measures a storm: the most bytes and the shortest time of the rounds.
fn row(storm: &Storm<'_>, variant: &'static str, rounds: u32) -> Result<Row, String> {
    let (mut wasted_bytes, mut peak_bytes, mut least) = (0, 0, Duration::MAX);
    for _ in 0..rounds {
        let (wasted, peak, took) = match variant {
            "before" => old(storm, Found::WithMemory)?,
            "after" => old(storm, Found::WithFile)?,
            _ => ours(storm)?,
        };
        (wasted_bytes, peak_bytes) = (wasted_bytes.max(wasted), peak_bytes.max(peak));
        least = least.min(took);
    }
    let ms = rounded(least.as_secs_f64() * 1e3, 3);
    Ok(Row { storm: storm.name, threads: storm.threads, variant, wasted_bytes, peak_bytes, ms })
}

/// Runs `load` on all threads at once.
fn rush(
    storm: &Storm<'_>,
    load: impl Fn(&Module) -> Result<(), String> + Sync,
) -> Result<Duration, String> {
    let barrier = Barrier::new(storm.threads + 1);
    std::thread::scope(|scope| {
        let one = || {
            barrier.wait();
            storm.modules.iter().try_for_each(&load)
        };
        let threads: Vec<_> = (0..storm.threads).map(|_| scope.spawn(one)).collect();
        barrier.wait();
        let start = Instant::now();
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked".to_owned())??;
        }
        Ok(start.elapsed())
    })
}

fn old(storm: &Storm<'_>, found: Found) -> Result<Figures, String> {
    let old = Old::new(found);
    let load = |module: &Module| match storm.by {
        By::File => old.finit_module(&module.path),
        By::Memory => old.init_module(&module.bytes),
    };
    if storm.late {
        storm.modules.iter().try_for_each(load)?;
    }
    let took = rush(storm, load)?;
    if old.loaded() != storm.modules.len() as u64 {
        return Err(format!("{} modules were loaded", old.loaded()));
    }
    Ok((old.wasted(), old.peak(), took))
}

fn ours(storm: &Storm<'_>) -> Result<Figures, String> {
    let loader = Loader::new(Config::default()).map_err(|e| e.to_string())?;
    let load = |module: &Module| {
        let result = match storm.by {
            By::File => {
                let file = std::fs::File::open(&module.path).map_err(|e| e.to_string())?;
                loader.finit_module(file.as_raw_fd(), "", 0)
            }
            By::Memory => loader.init_module(&module.bytes, ""),
        };
        match result {
            Err(error) if error.errno != Errno::EEXIST => Err(error.to_string()),
            _ => Ok(()),
        }
    };
    if storm.late {
        storm.modules.iter().try_for_each(load)?;
    }
    let took = rush(storm, load)?;
    let (stats, peak) = (loader.stats(), loader.gauge().peak());
    if stats.get(Stat::Loaded) != storm.modules.len() as u64 {
        return Err(format!("{} modules were loaded", stats.get(Stat::Loaded)));
    }
    for info in loader.modules(false) {
        loader.delete_module(&info.name, 0).map_err(|e| e.to_string())?;
    }
    if loader.gauge().now() != 0 {
        return Err(format!("{} bytes are left", loader.gauge().now()));
    }
    Ok((stats.wasted(), peak, took))
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["storm", "threads", "variant", "wasted MiB", "peak MiB", "ms"]);
    let mebi = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    for row in rows {
        grid.push([
            row.storm.to_owned(),
            row.threads.to_string(),
            row.variant.to_owned(),
            mebi(row.wasted_bytes),
            mebi(row.peak_bytes),
            format!("{:.1}", row.ms),
        ]);
    }
    format!("{machine}\n\n{}\n{KERNEL}\n", grid.render())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_costs_both_allocations_then_one_then_none() {
        let files = Files::build(3, 20_000, (100_000, 50_000)).unwrap();
        for (by, late) in
            [(By::File, false), (By::Memory, false), (By::File, true), (By::Memory, true)]
        {
            let storm = Storm { name: "test", threads: 8, by, modules: &files.boot, late };
            let [before, after, kmem] = VARIANTS.map(|variant| row(&storm, variant, 2).unwrap());
            assert!(before.wasted_bytes > after.wasted_bytes, "{before:?} {after:?}");
            assert!(after.wasted_bytes > 0 && kmem.wasted_bytes == 0, "{after:?} {kmem:?}");
            // Small modules: the tables that any load needs for a while are as large as they are.
            assert!(kmem.peak_bytes < after.peak_bytes + (64 << 10), "{after:?} {kmem:?}");
        }
    }

    #[test]
    fn a_row_has_the_promised_shape() {
        let row = Row {
            storm: "boot",
            threads: 4,
            variant: "kmem",
            wasted_bytes: 0,
            peak_bytes: 1 << 20,
            ms: 1.5,
        };
        let value = serde_json::to_value(&row).unwrap();
        for key in ["storm", "threads", "variant", "wasted_bytes", "peak_bytes", "ms"] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert!(text(&Machine::default(), &[row]).contains("463 MiB"));
    }
}
