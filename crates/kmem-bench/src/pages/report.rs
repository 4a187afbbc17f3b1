//! The rows of the page table, and the table as text.

use super::contender::Variant;
use super::kernel_table::LINES;
use crate::machine::Machine;
use crate::table::Grid;
use serde::Serialize;

/// One figure for allocations and one for frees.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    /// Name of the variant.
    pub(super) variant: &'static str,
    /// Name of the pattern.
    pub(super) pattern: &'static str,
    /// log2 of the pages of a block.
    pub(super) order: u8,
    /// Number of threads.
    pub(super) threads: usize,
    /// Nanoseconds per allocation.
    pub(super) alloc_ns: f64,
    /// Nanoseconds per free.
    pub(super) free_ns: f64,
    /// True if it was measured; else it was modelled or published.
    pub(super) measured: bool,
}

/// Published figures of LLFree, a page-frame allocator (Wrenger et al., USENIX ATC 2023), in its
/// Rust crate, for another machine (two cores, Zen 5). The crate is not in the registry, so it is
/// not measured here.
pub(super) fn published() -> Vec<Row> {
    let row = |pattern, order, threads, alloc_ns, free_ns| Row {
        variant: "llfree-published",
        pattern,
        order,
        threads,
        alloc_ns,
        free_ns,
        measured: false,
    };
    vec![
        row("bulk", 0, 1, 33.0, 30.0),
        row("bulk", 0, 2, 34.0, 30.0),
        row("pair", 0, 1, 30.0, 30.0),
        row("bulk", 9, 1, 53.0, 21.0),
        row("bulk", 9, 2, 70.0, 24.0),
    ]
}

/// Columns of threads.
const THREADS: [usize; 6] = [1, 2, 4, 8, 16, 24];

/// The table as text.
pub(super) fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut text = format!("{machine}\nns per allocation / free; * modelled or published\n");
    for order in (0..=9).filter(|&order| rows.iter().any(|row| row.order == order)) {
        for pattern in ["bulk", "pair", "random"] {
            let mut grid = Grid::default();
            let threads = THREADS.iter().map(|threads| match threads {
                1 => "1 thread".to_owned(),
                n => format!("{n} threads"),
            });
            grid.push([format!("order {order}, {pattern}")].into_iter().chain(threads));
            let names = Variant::MEASURED.into_iter().chain(Variant::options()).map(Variant::name);
            for variant in names.chain(["llfree-published"]) {
                let cell = |threads: &usize| {
                    let row = rows.iter().find(|row| {
                        (row.variant, row.pattern, row.order) == (variant, pattern, order)
                            && row.threads == *threads
                    });
                    row.map_or("-".to_owned(), |row| {
                        let mark = if row.measured { "" } else { "*" };
                        format!("{:.2} / {:.2}{mark}", row.alloc_ns, row.free_ns)
                    })
                };
                let cells: Vec<String> = THREADS.iter().map(cell).collect();
                if cells.iter().any(|cell| cell != "-") {
                    grid.push([variant.to_owned()].into_iter().chain(cells));
                }
            }
            if pattern == "bulk" {
                kernel(&mut grid, order);
            }
            text.push('\n');
            text.push_str(&grid.render());
        }
    }
    text.push('\n');
    text.push_str(&goals(rows));
    text
}

/// The kernel's figures, in the columns of their CPUs.
fn kernel(grid: &mut Grid, order: u8) {
    type Part = fn(&super::kernel_table::Line) -> f64;
    let parts: [(&str, Part); 3] = [
        ("kernel default", |line| line.default),
        ("kernel patched", |line| line.patched),
        ("kernel nocheck", |line| line.nocheck),
    ];
    for (name, part) in parts {
        let cells = THREADS.iter().map(|&threads| {
            let line =
                LINES.iter().find(|line| (line.order, line.cpus as usize) == (order, threads));
            line.map_or("-".to_owned(), |line| format!("{}*", part(line)))
        });
        grid.push([name.to_owned()].into_iter().chain(cells));
    }
}

/// True if the goals are met: with one thread and with two, a checked page costs at most 3 ns. It
/// costs at most 5 % more than an unchecked one.
fn goals(rows: &[Row]) -> String {
    let of = |variant: Variant, row: &Row| {
        rows.iter().find(|other| {
            other.variant == variant.name()
                && (other.pattern, other.order, other.threads)
                    == (row.pattern, row.order, row.threads)
        })
    };
    let mut grid = Grid::default();
    grid.push(["checked", "alloc ns", "free ns", "at most 3", "over nocheck", "at most 5 %"]);
    let checked = rows.iter().filter(|row| {
        row.measured && row.variant == Variant::KmemChecked.name() && row.pattern != "random"
    });
    for row in checked {
        let met = |met: bool| if met { "met" } else { "not met" };
        let both = row.alloc_ns + row.free_ns;
        let over = of(Variant::KmemNocheck, row)
            .map(|off| (both / (off.alloc_ns + off.free_ns) - 1.0) * 100.0);
        grid.push([
            format!("order {}, {}, {} threads", row.order, row.pattern, row.threads),
            format!("{:.2}", row.alloc_ns),
            format!("{:.2}", row.free_ns),
            met(row.alloc_ns <= 3.0 && row.free_ns <= 3.0).to_owned(),
            over.map_or("-".to_owned(), |over| format!("{over:+.1} %")),
            met(over.is_some_and(|over| over <= 5.0)).to_owned(),
        ]);
    }
    grid.render()
}
