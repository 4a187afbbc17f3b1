//! The rows of the programs table, and the table as text.

use super::{NEVER, NO_THP, Run, summary};
use crate::machine::Machine;
use crate::statistics::rounded;
use crate::table::Grid;
use serde::Serialize;
use std::collections::BTreeMap;

/// One figure of the table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    /// The program.
    pub(super) program: &'static str,
    /// The allocator that it ran under.
    pub(super) allocator: &'static str,
    /// Wall time: the minimum of the runs.
    pub(super) seconds: f64,
    /// Wall time: the median of the runs.
    pub(super) seconds_median: f64,
    /// Peak resident memory of the largest process: the median of the runs.
    pub(super) rss_bytes: u64,
    /// Number of runs.
    pub(super) runs: usize,
}

/// A row for every program and allocator that ran.
pub(super) fn rows(
    programs: &[&'static str],
    allocators: &[&'static str],
    runs: &BTreeMap<(usize, usize), Vec<Run>>,
) -> Vec<Row> {
    let mut rows = Vec::new();
    for (&(program, allocator), runs) in runs {
        if let Some((seconds, seconds_median, rss_bytes)) = summary(runs) {
            rows.push(Row {
                program: programs[program],
                allocator: allocators[allocator],
                seconds: rounded(seconds, 4),
                seconds_median: rounded(seconds_median, 4),
                rss_bytes,
                runs: runs.len(),
            });
        }
    }
    rows
}

/// The best allocator that is not kmem.
const BEST: &str = "best rival";

/// kmem's figure as a part of that of `other` for the same program: of an allocator, or of the best
/// one that is not kmem.
fn ratio(rows: &[Row], program: &str, other: &str, value: impl Fn(&Row) -> f64) -> Option<f64> {
    let same = || rows.iter().filter(|row| row.program == program);
    let own = same().find(|row| row.allocator == "kmem").map(&value)?;
    let is_other = |name: &str| match other {
        BEST => !name.starts_with("kmem"),
        other => name == other,
    };
    let others = same().filter(|row| is_other(row.allocator)).map(&value);
    Some(own / others.min_by(f64::total_cmp)?)
}

/// The table as text.
pub(super) fn text(machine: &Machine, rows: &[Row]) -> String {
    let mut grid = Grid::default();
    grid.push(["program", "allocator", "seconds", "median", "peak MiB", "runs"]);
    for row in rows {
        grid.push([
            row.program.to_owned(),
            row.allocator.to_owned(),
            format!("{:.3}", row.seconds),
            format!("{:.3}", row.seconds_median),
            format!("{:.1}", row.rss_bytes as f64 / f64::from(1 << 20)),
            row.runs.to_string(),
        ]);
    }
    let mut text = format!("{machine}\n\n{}", grid.render());
    let mut programs: Vec<_> = rows.iter().map(|row| row.program).collect();
    programs.dedup();
    for program in programs {
        for other in [BEST, NEVER, NO_THP] {
            let time = ratio(rows, program, other, |row| row.seconds);
            let memory = ratio(rows, program, other, |row| row.rss_bytes as f64);
            if let (Some(time), Some(memory)) = (time, memory) {
                text.push_str(&format!(
                    "\nkmem / {other}, {program}: time {time:.3}, memory {memory:.3}"
                ));
            }
        }
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    if !machine.missing.is_empty() {
        let missing: Vec<_> = machine.missing.keys().map(String::as_str).collect();
        text.push_str(&format!("missing: {}\n", missing.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Run, rows, text};
    use crate::machine::Machine;
    use std::collections::BTreeMap;

    fn run(seconds: f64, rss_bytes: u64) -> Run {
        Run { seconds, rss_bytes, output: String::new(), images: Vec::new() }
    }

    #[test]
    fn time_is_the_minimum_and_memory_the_median() {
        let mut runs = BTreeMap::new();
        runs.insert((0, 0), vec![run(3.0, 10 << 20), run(1.0, 12 << 20), run(2.0, 11 << 20)]);
        runs.insert((0, 1), vec![run(2.0, 22 << 20)]);
        let rows = rows(&["perl"], &["kmem", "glibc"], &runs);
        let value = serde_json::to_value(&rows[0]).unwrap();
        let expected = serde_json::json!({
            "program": "perl", "allocator": "kmem", "seconds": 1.0, "seconds_median": 2.0,
            "rss_bytes": 11 << 20, "runs": 3
        });
        assert_eq!(value, expected);
        let text = text(&Machine::default(), &rows);
        assert!(text.contains("kmem / best rival, perl: time 0.500, memory 0.500\n"), "{text}");
    }
}
