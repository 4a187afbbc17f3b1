//! Tables as text, and the JSON document for programs.

use crate::Failure;
use crate::machine::Machine;
use serde::Serialize;
use std::io::{ErrorKind, Write, stdout};
use std::path::PathBuf;

/// Prints `text`, which ends with a line break. A closed pipe is no failure.
fn print(text: &str) -> Result<(), Failure> {
    match stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Options of every table. Those of a single table have this name, too, which clap takes for that
/// of a group.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Print one JSON document instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the JSON document to this file, too.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Ten times as many rounds; of a census ten times as many objects, ten times as long.
    #[arg(long)]
    thorough: bool,
}

impl Options {
    /// Factor for the amount of work.
    pub(crate) fn times(&self) -> u32 {
        if self.thorough { 10 } else { 1 }
    }

    /// Prints a table as text or as a document, and writes the document to the file of `--save`.
    pub(crate) fn show(
        &self,
        document: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let json = serde_json::to_string_pretty(document);
        let json = json.map_err(|error| Failure::Failed(error.to_string()))? + "\n";
        if let Some(file) = &self.save {
            let failed = |error| Failure::Failed(format!("{}: {error}", file.display()));
            std::fs::write(file, &json).map_err(failed)?;
        }
        if self.json { print(&json) } else { print(&text()) }
    }
}

/// The JSON document of every table.
#[derive(Debug, Serialize)]
pub(crate) struct Document<'a, Row> {
    /// The name of the table.
    pub(crate) table: &'static str,
    /// The machine that it was measured on.
    pub(crate) machine: &'a Machine,
    /// One row per figure.
    pub(crate) rows: &'a [Row],
}

/// A grid of text: the first column to the left, the others to the right.
#[derive(Debug, Default)]
pub(crate) struct Grid {
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// Appends a row.
    pub(crate) fn push<I>(&mut self, cells: I)
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }

    /// The grid as lines without trailing blanks.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, &width) in row.iter().zip(&widths) {
                if line.is_empty() {
                    line = format!("{cell:<width$}");
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::Grid;

    #[test]
    fn names_to_the_left_and_figures_to_the_right() {
        let mut grid = Grid::default();
        grid.push(["workload", "kmem", "glibc"]);
        grid.push(["pair64", "2.80", "10.10"]);
        assert_eq!(grid.render(), "workload  kmem  glibc\npair64    2.80  10.10\n");
    }

    #[test]
    fn an_empty_grid_is_empty_text() {
        assert_eq!(Grid::default().render(), "");
    }
}
