//! `kmem-bench census`: the cost of reading the books of a large heap, for the reader and the
//! program.
//!
//! A child under `libkmem.so` holds the objects. One thread of it, on the second CPU, keeps
//! replacing some of them. This process takes one census after another on the first CPU. Periods
//! with and without reading alternate. At the end the child rests, and every row of a census must
//! equal the child's own count.

use crate::affinity::{Places, allowed, pin};
use crate::conversation::Conversation;
use crate::machine::{Machine, kibibytes, value_of};
use crate::mutator::{self, FILE, Heap, Holding, Latency, SITES};
use crate::preload::{NO_LIBKMEM, libkmem};
use crate::statistics::{median, rounded};
use crate::table::{Document, Grid};
use crate::{Failure, table};
use kmem_snapshot::books::Key;
use kmem_snapshot::{Process, Snapshot};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Options of `kmem-bench census`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    common: table::Options,
    /// Live objects of each heap [default: 10 million, or as many as half of the free memory holds]
    #[arg(long, value_name = "N")]
    objects: Option<usize>,
    /// How long each heap is measured with reading, and how long without.
    #[arg(long, value_name = "SECONDS", default_value_t = 4)]
    seconds: u64,
}

const OBJECTS: usize = 10_000_000;
/// Number of periods of each kind.
const PERIODS: u32 = 4;
/// Fewest objects of a heap, so that it has room for all objects that are replaced.
const FEWEST: usize = 10_000;
/// Most bytes of an object beside those asked for: its extension word, the rounding to its class.
const BESIDE: usize = 16;

/// One figure of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Row {
    /// Number of live objects.
    objects: usize,
    /// Their sizes in bytes.
    sizes: String,
    /// Bytes that they take, counted by the child.
    live_bytes: u64,
    /// Median of the time a census took, in milliseconds, and how many there were.
    census_ms: Option<f64>,
    censuses: usize,
    /// Resident memory of the child.
    resident_bytes: u64,
    #[serde(flatten)]
    latency: Latency,
    /// True if censuses were taken during the period.
    reading: bool,
}

/// Measures the table and prints it.
pub(crate) fn run(options: &Options) -> Result<(), Failure> {
    let library = libkmem().ok_or_else(|| Failure::Absent(format!("kmem: {NO_LIBKMEM}")))?;
    let longer = options.common.times();
    let time = Duration::from_secs(options.seconds) * longer;
    let mut machine = Machine::here();
    machine.allocators.insert("kmem".to_owned(), library.display().to_string());
    let mut rows = Vec::new();
    for (from, to) in [(64, 64), (16, 256)] {
        let mut heap = Heap { objects: 0, from, to, step: 16 };
        heap.objects = objects(&heap, options.objects.unwrap_or(OBJECTS * longer as usize))?;
        let (child, holding) = mutator::start(&heap, &library, "").map_err(Failure::Failed)?;
        rows.extend(measure(&heap, child, &holding, time).map_err(Failure::Failed)?);
    }
    let document = Document { table: "census", machine: &machine, rows: &rows };
    options.common.show(&document, || text(&machine, &rows))
}

/// Number of objects of a heap: the option's, or as many as half of the free memory holds.
fn objects(heap: &Heap, wish: usize) -> Result<usize, Failure> {
    if wish < FEWEST {
        return Err(Failure::Absent(format!("--objects {wish}: at least {FEWEST} are needed")));
    }
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = value_of(&text, "MemAvailable").and_then(|value| kibibytes(&value)).unwrap_or(0);
    let most = free as usize / 2 / (heap.mean_size() + BESIDE);
    if most < wish {
        eprintln!(
            "kmem-bench: {most} objects of {} to {} bytes instead of {wish}: half of the \
            free memory, {free} bytes, holds no more",
            heap.from, heap.to
        );
    }
    if most < FEWEST {
        return Err(Failure::Failed(format!("not enough free memory: {free} bytes")));
    }
    Ok(wish.min(most))
}

/// The rows of one heap.
fn measure(
    heap: &Heap,
    mut child: Conversation,
    start: &Holding,
    time: Duration,
) -> Result<[Row; 2], String> {
    let process = Process::open(child.pid()).map_err(|error| error.to_string())?;
    let cpus = allowed();
    pin(&Places::among(&cpus).pair[..1]);
    let (mut took, mut resident) = (Vec::new(), [0; 2]);
    let mut holding = start.clone();
    for _ in 0..PERIODS {
        for (reading, name) in [(false, "alone"), (true, "read")] {
            child.tell(&format!("churn {name}"))?;
            let period = Instant::now();
            while reading && period.elapsed() < time / PERIODS {
                let start = Instant::now();
                // Its rows are not compared, because objects come and go during the census.
                Snapshot::take(&process).map_err(|error| error.to_string())?;
                took.push(start.elapsed().as_secs_f64() * 1e3);
            }
            std::thread::sleep((time / PERIODS).saturating_sub(period.elapsed()));
            resident[usize::from(reading)] =
                process.resident().map_err(|error| error.to_string())?;
            child.tell("rest")?;
            holding = child.read()?;
            compare(&process, &holding)?;
        }
    }
    pin(&cpus);
    let mut row = |reading: bool, name| -> Result<Row, String> {
        child.tell(&format!("latency {name}"))?;
        let took = if reading { &took[..] } else { &[] };
        Ok(Row {
            objects: heap.objects,
            sizes: if heap.from == heap.to {
                heap.from.to_string()
            } else {
                format!("{}..{}", heap.from, heap.to)
            },
            live_bytes: holding.total().1,
            census_ms: median(took).map(|ms| rounded(ms, 2)),
            censuses: took.len(),
            resident_bytes: resident[usize::from(reading)],
            latency: child.read()?,
            reading,
        })
    };
    Ok([row(false, "alone")?, row(true, "read")?])
}

/// Takes a census of a child that rests. Each row must equal the child's own count.
fn compare(process: &Process, holding: &Holding) -> Result<(), String> {
    let snapshot = Snapshot::take(process).map_err(|error| error.to_string())?;
    if snapshot.torn() > 0 {
        return Err(format!("{} slabs of a process at rest were not counted", snapshot.torn()));
    }
    let mut found = vec![(0, 0); SITES];
    for row in snapshot.books.iter().flat_map(|books| &books.rows) {
        let Key::Static(tag) = &row.key else { continue };
        if tag.file != FILE {
            continue;
        }
        let site =
            usize::try_from(tag.line).ok().and_then(|line| found.get_mut(line.checked_sub(1)?));
        let site = site.ok_or_else(|| format!("the census has a site {}", tag.line))?;
        site.0 += row.calls;
        site.1 += u64::try_from(row.bytes).unwrap_or(0);
    }
    differing(&found, &holding.sites)
}

fn differing(census: &[(u64, u64)], known: &[(u64, u64)]) -> Result<(), String> {
    match (0..known.len()).find(|&site| census.get(site) != Some(&known[site])) {
        None => Ok(()),
        Some(site) => Err(format!(
            "the census is not exact: site {} has {:?} (objects, bytes), and the census says {:?}",
            site + 1,
            known[site],
            census.get(site)
        )),
    }
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push([
        "sizes",
        "objects",
        "live MiB",
        "resident MiB",
        "reading",
        "censuses",
        "census ms",
        "p50 ns",
        "p99 ns",
        "p99.9 ns",
        "max ns",
    ]);
    let mebi = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    for row in rows {
        grid.push([
            row.sizes.clone(),
            row.objects.to_string(),
            mebi(row.live_bytes),
            mebi(row.resident_bytes),
            if row.reading { "yes" } else { "no" }.to_owned(),
            row.censuses.to_string(),
            row.census_ms.map_or("-".to_owned(), |ms| format!("{ms:.1}")),
            format!("{:.1}", row.latency.p50_ns),
            format!("{:.1}", row.latency.p99_ns),
            format!("{:.1}", row.latency.p999_ns),
            row.latency.max_ns.to_string(),
        ]);
    }
    format!(
        "{machine}\n\n{}\n\
         Percentiles: a free and an allocation, mean of a batch; max: the longest batch as a \
         whole.\n\
         Every census of the program at rest showed exactly what it holds, site by site.\n",
        grid.render()
    )
}

#[cfg(test)]
mod tests {
    use super::{Heap, Row, differing, objects, text};
    use crate::machine::Machine;
    use crate::mutator::Latency;

    #[test]
    fn one_object_too_many_is_not_exact() {
        let known = [(3, 48), (2, 128)];
        assert_eq!(differing(&known, &known), Ok(()));
        let error = differing(&[(3, 48), (3, 192)], &known).unwrap_err();
        assert!(error.contains("site 2"), "{error}");
        assert!(differing(&[], &known).is_err());
    }

    #[test]
    fn objects_are_limited_by_the_memory_of_the_machine() {
        let heap = Heap { objects: 0, from: 64, to: 64, step: 16 };
        assert!(objects(&heap, 10).is_err());
        assert_eq!(objects(&heap, 10_000).unwrap(), 10_000);
        assert!(objects(&heap, usize::MAX).unwrap() < usize::MAX >> 8);
    }

    #[test]
    fn a_row_has_the_promised_shape() {
        let latency = Latency { p50_ns: 10.0, p99_ns: 20.0, p999_ns: 30.0, max_ns: 4000 };
        let row = Row {
            objects: 100,
            sizes: "64".to_owned(),
            live_bytes: 6400,
            census_ms: None,
            censuses: 0,
            resident_bytes: 8192,
            latency,
            reading: false,
        };
        let value = serde_json::to_value(&row).unwrap();
        for key in [
            "objects",
            "census_ms",
            "resident_bytes",
            "p50_ns",
            "p99_ns",
            "p999_ns",
            "max_ns",
            "reading",
        ] {
            assert!(value.get(key).is_some(), "{key}");
        }
        assert!(value["census_ms"].is_null());
        assert!(text(&Machine::default(), &[row]).contains("4000"));
    }
}
