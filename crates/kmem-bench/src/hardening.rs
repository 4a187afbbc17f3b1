//! `kmem-bench hardening`: the cost of checks and zeroes of objects, by option of `KMEM_CONF`.
//!
//! | column | one operation |
//! |---|---|
//! | `pair64_ns` | malloc and free of 64 bytes |
//! | `bulk64_alloc_ns` | one of a million mallocs of 64 bytes |
//! | `bulk64_free_ns` | one of the million frees, in the order of allocation |
//! | `cache64_ns` | `kmem_cache_alloc` and `kmem_cache_free` of an object of 64 bytes |
//!
//! Each option has an instance of its own. In a round every option makes one visit to each
//! workload, and each round starts with another option. A figure is the minimum of all rounds. One
//! thread runs.

use crate::affinity::{Places, allowed, pin};
use crate::heap::Heap;
use crate::machine::Machine;
use crate::rivals::compiled_in::kmem as instances;
use crate::statistics::{minimum, rounded};
use crate::table::{Document, Grid};
use crate::workload::{Inputs, Workload, visit};
use crate::{Failure, table};
use kmem_core::units::Gfp;
use kmem_core::{Cache, Caller, Kmem, static_tag};
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// Rounds.
const ROUNDS: u32 = 4;
/// Objects of a cache that are allocated and freed in a sample.
const PAIRS: usize = 1 << 18;

/// An option, and an instance with it.
type Option = (&'static str, fn() -> (Heap, String), fn() -> &'static Kmem);

const OPTIONS: [Option; 10] = [
    ("none", instances::on::heap, instances::on::instance),
    ("shuffle:1", instances::pages_shuffled::heap, instances::pages_shuffled::instance),
    ("check_caches:1", instances::caches_checked::heap, instances::caches_checked::instance),
    ("redzone:1", instances::red_zones::heap, instances::red_zones::instance),
    ("quarantine_kb:1024", instances::quarantined::heap, instances::quarantined::instance),
    ("the four above", instances::objects_checked::heap, instances::objects_checked::instance),
    (
        "init_on_alloc:1",
        instances::pages_init_on_alloc::heap,
        instances::pages_init_on_alloc::instance,
    ),
    (
        "init_on_free:1",
        instances::pages_init_on_free::heap,
        instances::pages_init_on_free::instance,
    ),
    ("both", instances::zeroed::heap, instances::zeroed::instance),
    ("hardened", instances::hardened::heap, instances::hardened::instance),
];

/// The columns.
const COLUMNS: usize = 4;

/// One option.
#[derive(Debug, Clone, Serialize)]
struct Row {
    option: &'static str,
    pair64_ns: f64,
    bulk64_alloc_ns: f64,
    bulk64_free_ns: f64,
    cache64_ns: f64,
}

/// A started instance of an option.
struct Contender {
    name: &'static str,
    heap: Heap,
    kmem: &'static Kmem,
    cache: &'static Cache,
}

impl Contender {
    fn start((name, heap, kmem): Option) -> Result<Self, Failure> {
        // The first call of the instance reads the configuration.
        let (heap, kmem) = (heap().0, kmem());
        let cache = kmem.cache_create(b"hardening", 64, 0, None, Caller::tagged(static_tag!()));
        let cache = cache.ok_or_else(|| Failure::Failed(format!("{name}: no cache")))?;
        // SAFETY: the cache is never destroyed.
        Ok(Self { name, heap, kmem, cache: unsafe { cache.as_ref() } })
    }

    /// The samples of each column.
    fn visit(&self, inputs: &Inputs, places: Places) -> [Vec<f64>; COLUMNS] {
        let mut pair = visit(Workload::Pair64, &self.heap, inputs, places);
        let mut bulk = visit(Workload::Bulk64, &self.heap, inputs, places);
        let column = |rows: &mut Vec<Vec<f64>>| rows.pop().unwrap_or_default();
        let free = column(&mut bulk);
        [column(&mut pair), column(&mut bulk), free, vec![self.cache_pairs()]]
    }

    fn cache_pairs(&self) -> f64 {
        let (kmem, cache) = black_box((self.kmem, self.cache));
        let start = Instant::now();
        for _ in 0..PAIRS {
            let object = kmem.cache_alloc(cache, Gfp::KERNEL, Caller::tagged(static_tag!()));
            // SAFETY: null, or an object of the cache that no code uses any more.
            unsafe { kmem.cache_free(cache, black_box(object)) };
        }
        start.elapsed().as_secs_f64() * 1e9 / PAIRS as f64
    }
}

/// Measures the table and prints it.
pub(crate) fn run(options: &table::Options) -> Result<(), Failure> {
    let mut machine = Machine::here();
    machine.allocators.insert("kmem".to_owned(), "compiled in, books open".to_owned());
    let contenders =
        OPTIONS.into_iter().map(Contender::start).collect::<Result<Vec<_>, Failure>>()?;
    let rows = measure(&contenders, ROUNDS * options.times());
    let document = Document { table: "hardening", machine: &machine, rows: &rows };
    options.show(&document, || text(&machine, &rows))
}

fn measure(contenders: &[Contender], rounds: u32) -> Vec<Row> {
    let (inputs, cpus) = (Inputs::default(), allowed());
    let places = Places::among(&cpus);
    let mut samples: Vec<[Vec<f64>; COLUMNS]> = vec![Default::default(); contenders.len()];
    for round in 0..rounds as usize {
        for turn in 0..contenders.len() {
            let number = (round + turn) % contenders.len();
            let visited = contenders[number].visit(&inputs, places);
            for (all, visit) in samples[number].iter_mut().zip(visited) {
                all.extend(visit);
            }
        }
    }
    pin(&cpus);
    let rows = contenders.iter().zip(&samples).map(|(contender, columns)| {
        let least = |column: usize| rounded(minimum(&columns[column]).unwrap_or(f64::NAN), 3);
        Row {
            option: contender.name,
            pair64_ns: least(0),
            bulk64_alloc_ns: least(1),
            bulk64_free_ns: least(2),
            cache64_ns: least(3),
        }
    });
    rows.collect()
}

/// The table as text.
fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["KMEM_CONF, ns", "pair64", "bulk64 alloc", "bulk64 free", "cache64"]);
    for row in rows {
        let figures = [row.pair64_ns, row.bulk64_alloc_ns, row.bulk64_free_ns, row.cache64_ns];
        let figures = figures.into_iter().map(|ns| format!("{ns:.2}"));
        grid.push([row.option.to_owned()].into_iter().chain(figures));
    }
    format!("{machine}\n\n{}", grid.render())
}
