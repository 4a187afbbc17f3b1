//! Rows in the formats that other programs read. This is the one place that knows them.
//!
//! Some formats have rows, others have call stacks. [`Choice`] chooses among the things that a
//! format has. Not every format has room for every fact, see [`Format::has`].
//!
//! ```
//! use kmem_snapshot::output::{Choice, Format, write};
//! use kmem_snapshot::sites::{Origin, Site};
//! use kmem_snapshot::Reading;
//!
//! let site = Site { bytes: 64, calls: 1, ..Site::new(Origin::NotTagged) };
//! let mut reading = Reading::default();
//! reading.sites.push(site);
//! let mut out = Vec::new();
//! write(&mut out, Format::Folded, &reading, &Choice::default())?;
//! assert_eq!(out, b"not_tagged 64\n");
//! # Ok::<(), std::io::Error>(())
//! ```

mod allocinfo;
pub mod csv;
mod dhat;
mod folded;
pub mod json;
mod parquet;
pub mod pprof;
mod speedscope;

use std::io::{self, Write};

pub use dhat::Dhat;
pub use folded::{FoldedChange, folded_changes, write_folded};
pub use speedscope::Speedscope;

use crate::allocinfo::Version;
use crate::reading::Reading;
use crate::report;
use crate::sites::{Filter, Order, Site};
use crate::stacks::{By, Stacks};

/// Format of rows or of call stacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// allocinfo text as of Linux 6.10.
    V1,
    /// allocinfo text as of Linux 6.16.
    V2,
    /// A table for people.
    Table,
    /// One JSON object with an array of rows.
    Json,
    /// A JSON object on a line for each row.
    Jsonl,
    /// Lines of fields with commas between them.
    Csv,
    /// The file format of Parquet.
    Parquet,
    /// A profile for pprof.
    Pprof,
    /// Collapsed stacks.
    Folded,
    /// The file format of speedscope.
    Speedscope,
    /// The file format of DHAT.
    Dhat,
}

/// Fact about a row that not every format has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fact {
    /// The group that pays.
    Group,
    /// The NUMA node of the memory.
    Node,
    /// All allocations since the start.
    Total,
    /// The place of a row among the others.
    Order,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 11] = [
        Self::V1,
        Self::V2,
        Self::Table,
        Self::Json,
        Self::Jsonl,
        Self::Csv,
        Self::Parquet,
        Self::Pprof,
        Self::Folded,
        Self::Speedscope,
        Self::Dhat,
    ];

    /// The formats that have room for the changes between two readings.
    pub const OF_CHANGES: [Self; 5] =
        [Self::Table, Self::Json, Self::Jsonl, Self::Csv, Self::Folded];

    /// Name of the format on a command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V1 => "1.0",
            Self::V2 => "2.0",
            Self::Table => "table",
            Self::Json => "json",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Parquet => "parquet",
            Self::Pprof => "pprof",
            Self::Folded => "folded",
            Self::Speedscope => "speedscope",
            Self::Dhat => "dhat",
        }
    }

    /// The format in a few words.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::V1 => "allocinfo text as of Linux 6.10",
            Self::V2 => "allocinfo text as of Linux 6.16",
            Self::Table => "a table, for people",
            Self::Json => "one JSON object, with all that is known",
            Self::Jsonl => "a JSON object on a line for each row",
            Self::Csv => "CSV with a header line",
            Self::Parquet => "a Parquet file, for DuckDB and others",
            Self::Pprof => "a profile for pprof",
            Self::Folded => "collapsed stacks, for flame graphs",
            Self::Speedscope => "JSON for speedscope",
            Self::Dhat => "JSON for DHAT's viewer",
        }
    }

    /// True for a format of call stacks, false for one of rows.
    #[must_use]
    pub const fn has_stacks(self) -> bool {
        matches!(self, Self::Pprof | Self::Folded | Self::Speedscope | Self::Dhat)
    }

    /// True for a format that is no text.
    #[must_use]
    pub const fn is_binary(self) -> bool {
        matches!(self, Self::Parquet | Self::Pprof)
    }

    /// True when the format has room for a fact.
    #[must_use]
    pub const fn has(self, fact: Fact) -> bool {
        match (self, fact) {
            (Self::V1, fact) => matches!(fact, Fact::Order),
            (Self::V2 | Self::Json | Self::Jsonl | Self::Csv, _) => true,
            // Its rows have an order of their own.
            (Self::Parquet, fact) => !matches!(fact, Fact::Order),
            (_, Fact::Group | Fact::Order) | (Self::Pprof, Fact::Total) => true,
            (_, Fact::Node | Fact::Total) => false,
        }
    }
}

/// Choice among rows, or among call stacks where the format has these.
#[derive(Debug, Clone, Copy, Default)]
pub struct Choice {
    /// Their order; none for that of the reading.
    pub order: Option<Order>,
    /// Most of them; none for all.
    pub lines: Option<usize>,
    /// Least live bytes of a stack. Rows were chosen by their sizes when they were read.
    pub min: Option<i64>,
    /// Most live bytes of a stack.
    pub max: Option<i64>,
    /// Cause for which the rows are kept. Parquet has a column for it.
    pub cause: Option<&'static str>,
}

impl Choice {
    fn sorted(&self, mut rows: Vec<Site>) -> Vec<Site> {
        if let Some(order) = self.order {
            rows.sort_by(|a, b| order.compare(a, b));
        }
        rows
    }

    fn most(&self) -> usize {
        self.lines.unwrap_or(usize::MAX)
    }

    /// Builds stacks, sorts and cuts them.
    fn stacks<'a>(&self, reading: &Reading, rows: &'a [Site], by: By) -> Stacks<'a> {
        let mut all = Stacks::counted(rows, by, |tags| reading.counts_of(tags));
        if let Some(order) = self.order {
            all.sort(order);
        }
        let sizes = Filter { min: self.min, max: self.max, ..Filter::default() };
        all.stacks.retain(|stack| sizes.admits_size(stack.bytes));
        all.stacks.truncate(self.most());
        all
    }
}

/// Writes the rows of a reading.
///
/// # Errors
///
/// The errors of the writer.
pub fn write(
    mut out: &mut dyn Write,
    format: Format,
    reading: &Reading,
    choice: &Choice,
) -> io::Result<()> {
    let out = &mut out;
    let mut rows = reading.all();
    if !format.has_stacks() {
        rows = choice.sorted(rows);
    }
    // The table says what it leaves out.
    if !format.has_stacks() && format != Format::Table {
        rows.truncate(choice.most());
    }
    let stacks = |by| choice.stacks(reading, &rows, by);
    match format {
        Format::V1 => allocinfo::write(out, Version::V1, reading, &rows),
        Format::V2 => allocinfo::write(out, Version::V2, reading, &rows),
        Format::Table if rows.iter().any(|row| row.group.is_some()) => {
            report::write_group_table(out, &rows, choice.most())
        }
        Format::Table => report::write_table(out, &rows, choice.most()),
        Format::Json => json::write(out, &json::reading(reading, &rows)),
        Format::Jsonl => json::write_lines(out, reading, &rows),
        Format::Csv => csv::write(out, reading, &rows),
        Format::Parquet => parquet::write(out, reading, &rows, choice.cause),
        Format::Pprof => pprof::write(out, reading, &stacks(By::Address)),
        Format::Folded => write_folded(out, &stacks(By::Name)),
        Format::Speedscope => {
            json::write(out, &Speedscope::of(&stacks(By::Place), &reading.name()))
        }
        Format::Dhat => json::write(out, &Dhat::of(reading, &stacks(By::Address))),
    }
}
