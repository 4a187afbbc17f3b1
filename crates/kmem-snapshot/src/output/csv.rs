//! Rows as CSV (RFC 4180): a header line, then a line for each row. Lines end with CR and LF.
//!
//! The names are those of the JSON rows. A field that is not known of a row is empty. Control
//! characters of names are escaped, so that each row is one line.

use std::io::{self, Write};

use csv::{Terminator, WriterBuilder};

use crate::diff::Change;
use crate::escape::printable;
use crate::reading::Reading;
use crate::sites::Site;

/// Names of the columns.
pub const COLUMNS: [&str; 17] = [
    "bytes",
    "calls",
    "kind",
    "function",
    "file",
    "line",
    "module",
    "offset",
    "group",
    "node",
    "mapped",
    "pinned",
    "sole",
    "allocated_bytes",
    "allocations",
    "freed_bytes",
    "frees",
];

/// Names of the columns of changes.
pub const CHANGES: [&str; 12] = [
    "state",
    "delta_bytes",
    "delta_calls",
    "before_bytes",
    "before_calls",
    "after_bytes",
    "after_calls",
    "function",
    "file",
    "line",
    "module",
    "offset",
];

/// Writes the header and all rows.
pub(super) fn write(out: &mut impl Write, reading: &Reading, rows: &[Site]) -> io::Result<()> {
    let mut csv = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(out);
    csv.write_record(COLUMNS)?;
    for site in rows {
        csv.write_record(record(reading, site))?;
    }
    csv.flush()
}

/// Writes a header and all changes.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_changes(out: &mut impl Write, changes: &[Change]) -> io::Result<()> {
    let mut csv = WriterBuilder::new().terminator(Terminator::CRLF).from_writer(out);
    csv.write_record(CHANGES)?;
    for change in changes {
        let place = change.origin.fields();
        let name = |name: Option<&str>| name.map_or_else(String::new, |of| printable(of).into());
        let number = |of: Option<u64>| of.map_or_else(String::new, |of| of.to_string());
        let held = [change.delta(), change.before, change.after];
        let held = held.iter().flat_map(|of| [of.bytes.to_string(), of.calls.to_string()]);
        csv.write_field(change.state().name())?;
        held.into_iter().try_for_each(|number| csv.write_field(number))?;
        csv.write_field(name(place.function))?;
        csv.write_field(name(place.file))?;
        csv.write_field(number(place.line.map(u64::from)))?;
        csv.write_field(name(place.module))?;
        csv.write_field(number(place.offset))?;
        csv.write_record(None::<&[u8]>)?;
    }
    csv.flush()
}

fn record(reading: &Reading, site: &Site) -> [String; COLUMNS.len()] {
    let name = |name: Option<&str>| name.map(|name| printable(name).into_owned());
    let number = |number: Option<u64>| number.map(|number| number.to_string());
    let place = site.origin.fields();
    let counts = reading.counts_of(&site.tags);
    let of_counts = |field: fn(&crate::blackbox::Counts) -> u64| number(counts.as_ref().map(field));
    [
        Some(site.bytes.to_string()),
        Some(site.calls.to_string()),
        Some(site.kind().to_owned()),
        name(place.function),
        name(place.file),
        number(place.line.map(u64::from)),
        name(place.module),
        number(place.offset),
        name(site.group.as_deref()),
        number(site.node.map(u64::from)),
        number(site.mapped),
        number(site.pinned.map(|of| of.pinned)),
        number(site.pinned.map(|of| of.sole)),
        of_counts(|of| of.allocated_bytes),
        of_counts(|of| of.allocations),
        of_counts(|of| of.freed_bytes),
        of_counts(|of| of.frees),
    ]
    .map(Option::unwrap_or_default)
}
