//! The content of a report: its cause and its time, then the rows as text or in another format.

use std::io::{self, Write};

use kmem_snapshot::Reading;
use kmem_snapshot::blackbox::time;
use kmem_snapshot::escape::printable;
use kmem_snapshot::output::{self, Choice, Format};
use kmem_snapshot::report;
use kmem_snapshot::sites::{Order, Site};
use serde_json::json;

use super::cause::Occasion;
use super::subject::Read;
use crate::run::sections;

/// A report about a process.
pub(super) struct Report<'a> {
    pub(super) occasion: &'a Occasion,
    /// Time of the occasion, in nanoseconds since 1970.
    pub(super) time_ns: u64,
    /// Occasions of the same cause before, which were not reported.
    pub(super) more: u64,
    /// The last books of the process.
    pub(super) last: &'a Read,
    /// A later record of its black box, with its time.
    pub(super) record: Option<&'a (Reading, u64)>,
    /// Most rows of a table; with a format, of all.
    pub(super) lines: Option<usize>,
}

/// Rows of a table, if the user does not ask for another number.
const LINES: usize = 10;

impl Report<'_> {
    /// The newest rows.
    fn newest(&self) -> &Reading {
        self.record.map_or(&self.last.reading, |(reading, _)| reading)
    }

    /// The process and the cause in one sentence.
    pub(super) fn title(&self) -> String {
        // A black box has the number that the process has in its own namespace.
        let name = self.last.reading.name();
        printable(&format!("{name} {}", self.occasion.what)).into_owned()
    }

    /// Lines with the cause, the time and the age of the rows.
    fn head(&self) -> Vec<String> {
        let mut lines = vec![self.title()];
        let at = time(self.time_ns);
        let name = self.occasion.cause.name();
        let rows = match self.record {
            Some((_, time_ns)) => format!("the black box, {}", self.age(*time_ns)),
            None => format!("the last snapshot, {}", self.age(self.last.time_ns())),
        };
        lines.push(format!("time {at}, cause {name}, rows of {rows}"));
        if self.more != 0 {
            let more = self.more;
            lines.push(format!("{more} more since the last report of this cause"));
        }
        lines
    }

    /// The time between some rows and the occasion.
    fn age(&self, time_ns: u64) -> String {
        let before = self.time_ns.saturating_sub(time_ns) as f64 / 1e9;
        format!("{before:.1} s before")
    }

    /// Writes the report as text.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub(super) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        for line in self.head() {
            writeln!(out, "kmem: {line}")?;
        }
        let lines = self.lines.unwrap_or(LINES);
        if let Some((record, time_ns)) = self.record {
            notes(out, record)?;
            let sites = record.all();
            writeln!(out, "\nBlack box, {}: {}", self.age(*time_ns), sections::sum(&sites))?;
            table(out, sites, lines)?;
        }
        let last = self.last;
        let reading = &last.reading;
        notes(out, reading)?;
        let live = sections::sum(&reading.sites);
        writeln!(out, "\nLast snapshot, {}: {live}", self.age(last.time_ns()))?;
        table(out, reading.sites.clone(), lines)?;
        if let Some(of) = &reading.snapshot.mappings {
            sections::write_outside(out, "", (of, reading.mappings.clone()), lines)?;
        }
        if let Some(accounting) = reading.accounting() {
            writeln!(out)?;
            report::write_accounting(out, accounting)?;
        }
        for books in &reading.snapshot.books {
            if books.groups.all().len() > 1 {
                writeln!(out, "\nGroups:")?;
                report::write_groups(out, &books.groups)?;
            }
        }
        Ok(())
    }

    /// Writes the newest rows in a format. The cause and the time are at the top where the format
    /// has room for them.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub(super) fn write_rows(&self, out: &mut impl Write, format: Format) -> io::Result<()> {
        let reading = self.newest();
        let cause = Some(self.occasion.cause.name());
        let order = Some(Order::Size);
        let choice = Choice { order, lines: self.lines, cause, ..Choice::default() };
        let mut rows = Vec::new();
        match format {
            Format::Table => {
                for line in self.head() {
                    writeln!(out, "kmem: {line}")?;
                }
                output::write(&mut rows, format, reading, &choice)?;
            }
            Format::V1 | Format::V2 => {
                output::write(&mut rows, format, reading, &choice)?;
                // Comments come behind the line with the version.
                let end = rows.iter().position(|&byte| byte == b'\n').map_or(0, |at| at + 1);
                out.write_all(&rows[..end])?;
                for line in self.head() {
                    writeln!(out, "# {line}")?;
                }
                rows.drain(..end);
            }
            Format::Json => {
                let mut sites = reading.all();
                sites.sort_by(|a, b| Order::Size.compare(a, b));
                sites.truncate(self.lines.unwrap_or(usize::MAX));
                let mut json = output::json::reading(reading, &sites);
                json["report"] = json!({
                    "cause": self.occasion.cause.name(),
                    "what": self.title(),
                    "time_ns": self.time_ns,
                    "more": self.more,
                });
                output::json::write(&mut rows, &json)?;
            }
            _ => output::write(&mut rows, format, reading, &choice)?,
        }
        out.write_all(&rows)
    }
}

fn notes(out: &mut impl Write, reading: &Reading) -> io::Result<()> {
    for note in &reading.notes {
        writeln!(out, "kmem: {}", printable(&note.to_string()))?;
    }
    Ok(())
}

fn table(out: &mut impl Write, mut sites: Vec<Site>, lines: usize) -> io::Result<()> {
    sites.sort_by(|a, b| Order::Size.compare(a, b));
    report::write_table(out, &sites, lines)
}
