//! Memory of the books: two children with equal heaps of 1 GiB, one of them without books.

use crate::mutator::{self, Heap};
use crate::statistics::rounded;
use crate::table::Grid;
use kmem_snapshot::books::Table;
use kmem_snapshot::{Process, Snapshot};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Requested bytes of each heap.
const BYTES: usize = 1 << 30;
/// The kernel's own figure for its extension words, in percent of memory.
const KERNEL_PERCENT: f64 = 0.2;

/// Bytes without books and with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Pair {
    never: u64,
    on: u64,
}

impl Pair {
    fn more(self) -> i64 {
        self.on.cast_signed() - self.never.cast_signed()
    }
}

/// The figures.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Memory {
    /// Number of objects of each heap, equally many of 8, 16 .. 240 bytes.
    objects: usize,
    /// Their requested bytes.
    requested_bytes: u64,
    /// Bytes of their size classes.
    live_bytes: u64,
    /// Resident memory of the processes.
    resident_bytes: Pair,
    /// Resident bytes of each kind of table. With books, tables of slabs contain the extension
    /// vectors, and tables of zones the page extension.
    tables: BTreeMap<&'static str, Pair>,
    /// Bytes of the books: all tables with books, minus those without.
    books_bytes: i64,
    /// Bytes of the books in percent of the live bytes.
    books_percent: f64,
    /// Resident memory with books minus that without, in percent of that without.
    resident_percent: f64,
    /// The kernel's own figure.
    kernel_percent: f64,
}

/// Figures of one child.
struct Figures {
    requested: u64,
    live: u64,
    resident: u64,
    tables: [u64; Table::ALL.len()],
}

/// Fills both heaps, one after the other.
pub(super) fn measure(library: &Path) -> Result<Memory, String> {
    let mut heap = Heap { objects: 0, from: 8, to: 240, step: 8 };
    heap.objects = BYTES / heap.mean_size();
    let never = figures(&heap, library, "mem_profiling:never")?;
    let on = figures(&heap, library, "mem_profiling:1")?;
    let tables: BTreeMap<_, _> = Table::ALL
        .iter()
        .zip(never.tables.into_iter().zip(on.tables))
        .map(|(table, (never, on))| (table.name(), Pair { never, on }))
        .collect();
    let books_bytes = tables.values().map(|pair| pair.more()).sum();
    let resident_bytes = Pair { never: never.resident, on: on.resident };
    let percent = |part: i64, whole: u64| rounded(part as f64 * 100.0 / whole.max(1) as f64, 3);
    Ok(Memory {
        objects: heap.objects,
        requested_bytes: on.requested,
        live_bytes: on.live,
        resident_bytes,
        tables,
        books_bytes,
        books_percent: percent(books_bytes, on.live),
        resident_percent: percent(resident_bytes.more(), resident_bytes.never),
        kernel_percent: KERNEL_PERCENT,
    })
}

fn figures(heap: &Heap, library: &Path, conf: &str) -> Result<Figures, String> {
    let (child, holding) = mutator::start(heap, library, conf)?;
    let process = Process::open(child.pid()).map_err(|error| error.to_string())?;
    let snapshot = Snapshot::take(&process).map_err(|error| error.to_string())?;
    let table = |table| snapshot.books.iter().map(|books| books.metadata.bytes(table)).sum();
    Ok(Figures {
        requested: holding.requested,
        live: holding.total().1,
        resident: snapshot.accounting.resident,
        tables: Table::ALL.map(table),
    })
}

impl Memory {
    /// The figures as text.
    pub(super) fn text(&self) -> String {
        let mebi = |bytes: i64| format!("{:.2}", bytes as f64 / f64::from(1 << 20));
        let mut grid = Grid::default();
        grid.push(["memory, MiB", "never", "on", "more"]);
        let mut push = |name: &str, pair: &Pair| {
            let (never, on) = (pair.never.cast_signed(), pair.on.cast_signed());
            grid.push([name.to_owned(), mebi(never), mebi(on), mebi(pair.more())]);
        };
        for (name, pair) in &self.tables {
            push(name, pair);
        }
        push("resident", &self.resident_bytes);
        format!(
            "{}{} objects of 8..240 bytes, {} MiB asked for, {} MiB by size class\n\
             the books: {:+.2} % of that; resident memory: {:+.2} % (the kernel says {:+} %)\n",
            grid.render(),
            self.objects,
            mebi(self.requested_bytes.cast_signed()),
            mebi(self.live_bytes.cast_signed()),
            self.books_percent,
            self.resident_percent,
            self.kernel_percent
        )
    }
}
