//! The malloc table as text: workloads down, allocators across, then kmem against the best rival of
//! each workload.

use crate::machine::Machine;
use crate::rivals::Allocator;
use crate::statistics::geometric_mean;
use crate::table::Grid;
use serde::Serialize;

/// One figure of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    /// The workload's row.
    pub(super) workload: &'static str,
    /// The allocator's column.
    pub(super) allocator: &'static str,
    /// Threads that allocate or free.
    pub(super) threads: usize,
    /// Nanoseconds per operation.
    pub(super) ns: f64,
}

fn figure(rows: &[Row], workload: &str, allocator: &str) -> Option<f64> {
    let mut found = rows.iter().filter(|row| row.workload == workload);
    found.find(|row| row.allocator == allocator).map(|row| row.ns)
}

/// The figure of the fastest rival on `workload`.
fn best_rival<'a>(rows: &'a [Row], workload: &str) -> Option<&'a Row> {
    rows.iter()
        .filter(|row| row.workload == workload)
        .filter(|row| Allocator::named(row.allocator).is_some_and(|name| !name.is_kmem()))
        .min_by(|a, b| a.ns.total_cmp(&b.ns))
}

/// `allocator`'s time as a part of the best rival's.
fn ratio(rows: &[Row], workload: &str, allocator: &str) -> Option<f64> {
    Some(figure(rows, workload, allocator)? / best_rival(rows, workload)?.ns)
}

/// The names in the order in which they first appear.
fn in_order(names: impl Iterator<Item = &'static str>) -> Vec<&'static str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

/// The table as text.
pub(super) fn text(machine: &Machine, rows: &[Row]) -> String {
    let workloads = in_order(rows.iter().map(|row| row.workload));
    let allocators = in_order(rows.iter().map(|row| row.allocator));
    let own: Vec<_> = allocators
        .iter()
        .copied()
        .filter(|name| Allocator::named(name).is_some_and(Allocator::is_kmem))
        .collect();
    let number = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    let mut grid = Grid::default();
    let ratios = own.iter().map(|name| format!("{name}/best"));
    let names = allocators.iter().map(ToString::to_string);
    grid.push(
        ["ns/operation".to_owned()]
            .into_iter()
            .chain(names)
            .chain(["best rival".into()])
            .chain(ratios),
    );
    for workload in &workloads {
        let figures = allocators.iter().map(|name| number(figure(rows, workload, name)));
        let best = best_rival(rows, workload).map_or("-", |row| row.allocator);
        let ratios = own.iter().map(|name| number(ratio(rows, workload, name)));
        grid.push(
            [(*workload).to_owned()]
                .into_iter()
                .chain(figures)
                .chain([best.to_owned()])
                .chain(ratios),
        );
    }
    let mut text = format!("{machine}\n\n{}", grid.render());
    for name in own {
        let all: Vec<f64> = workloads.iter().filter_map(|w| ratio(rows, w, name)).collect();
        if let Some(mean) = geometric_mean(&all) {
            let worst = all.iter().copied().fold(0.0, f64::max);
            text.push_str(&format!(
                "\n{name} / best rival: geometric mean {mean:.3}, worst {worst:.2}"
            ));
        }
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if !machine.missing.is_empty() {
        let missing: Vec<_> = machine.missing.keys().map(String::as_str).collect();
        text.push_str(&format!("rivals missing: {}\n", missing.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Row, text};
    use crate::machine::Machine;
    use crate::table::Document;

    fn row(workload: &'static str, allocator: &'static str, ns: f64) -> Row {
        Row { workload, allocator, threads: 1, ns }
    }

    #[test]
    fn ratios_are_against_the_best_rival_of_each_workload() {
        let rows = [
            row("pair64", "kmem", 2.0),
            row("pair64", "jemalloc", 4.0),
            row("pair64", "glibc", 5.0),
            row("large", "kmem", 20.0),
            row("large", "jemalloc", 90.0),
            row("large", "glibc", 10.0),
        ];
        let text = text(&Machine::default(), &rows);
        let lines: Vec<_> = text.lines().skip(2).collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>()[4..], ["jemalloc", "0.50"]);
        assert_eq!(lines[2].split_whitespace().collect::<Vec<_>>()[4..], ["glibc", "2.00"]);
        assert!(text.contains("kmem / best rival: geometric mean 1.000, worst 2.00\n"), "{text}");
    }

    #[test]
    fn the_document_has_the_promised_shape() {
        let rows = [row("pair64", "kmem", 2.5)];
        let document = Document { table: "malloc", machine: &Machine::default(), rows: &rows };
        let value = serde_json::to_value(&document).unwrap();
        let keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["machine", "rows", "table"]);
        let expected = serde_json::json!(
            {"workload": "pair64", "allocator": "kmem", "threads": 1, "ns": 2.5}
        );
        assert_eq!(value["rows"][0], expected);
    }

    #[test]
    fn without_kmem_there_is_no_ratio() {
        let text = text(&Machine::default(), &[row("pair64", "glibc", 2.5)]);
        assert!(!text.contains("geometric"), "{text}");
    }
}
