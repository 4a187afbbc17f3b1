//! A reading as JSON.
//!
//! JSON often goes to a terminal, and names are hostile. Each character that
//! [`escape`](crate::escape) calls unsafe is written as `\uXXXX`, so that a reader of JSON gets the
//! name as it is.

mod escaped;

use std::io::{self, Write};

use escaped::Escaped;
use serde::Serialize;
use serde_json::{Value, json};

use crate::blackbox::{Moment, Reason, time};
use crate::books::{OfAge, Snapshot};
use crate::diff::Change;
use crate::reading::Reading;
use crate::sites::{Site, total};

/// A reading with the given rows; sizes in bytes.
#[must_use]
pub fn reading(reading: &Reading, rows: &[Site]) -> Value {
    let snapshot = &reading.snapshot;
    let (bytes, calls) = reading.totals();
    let books = || reading.books();
    let mut json = json!({
        "pid": reading.pid(),
        "exe": snapshot.exe,
        "host": reading.provenance.host,
        "time_ns": reading.provenance.time_ns,
        "copies": books().count(),
        "torn": books().map(|of| of.torn).sum::<u64>(),
        "used_pages": books().map(|of| of.used_pages).sum::<u64>(),
        "totals": { "bytes": bytes, "calls": calls },
        "accounting": reading.accounting().map(|_| accounting(snapshot)),
        "notes": reading.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "build_ids": reading.provenance.build_ids,
        "rows": rows,
    });
    let processes = reading.by_process();
    if !processes.is_empty() {
        json["processes"] = json!(processes);
    }
    if reading.filtered {
        let (bytes, calls) = total(&reading.sites);
        json["filtered"] = json!({ "bytes": bytes, "calls": calls });
    }
    if let Some(of) = &reading.moment {
        json["moment"] = moment(of);
    }
    let written = json["rows"].as_array_mut().into_iter().flatten();
    written.zip(rows).for_each(|(json, site)| add_counts(json, reading, site));
    json
}

fn add_counts(json: &mut Value, reading: &Reading, site: &Site) {
    // Of several processes, each row would have to be found in each of them.
    let ages = if reading.is_of_several() { Vec::new() } else { reading.ages(site) };
    if !ages.is_empty() {
        json["ages"] = ages.iter().map(age).collect();
    }
    if let Some(counts) = reading.counts_of(&site.tags) {
        json["allocated_bytes"] = counts.allocated_bytes.into();
        json["allocations"] = counts.allocations.into();
        json["freed_bytes"] = counts.freed_bytes.into();
        json["frees"] = counts.frees.into();
    }
}

fn age(of: &OfAge) -> Value {
    let OfAge { from_s, below_s, bytes, calls } = *of;
    json!({ "from_s": from_s, "below_s": below_s, "bytes": bytes, "calls": calls })
}

/// Writes a line for each row: its fields, and those of the process.
pub(super) fn write_lines(
    out: &mut impl Write,
    reading: &Reading,
    rows: &[Site],
) -> io::Result<()> {
    let (snapshot, of) = (&reading.snapshot, &reading.provenance);
    for site in rows {
        let mut json = json!(site);
        json["pid"] = reading.pid().into();
        json["exe"] = snapshot.exe.as_str().into();
        json["host"] = of.host.as_str().into();
        json["time_ns"] = of.time_ns.into();
        add_counts(&mut json, reading, site);
        write(out, &json)?;
    }
    Ok(())
}

/// Writes a line for each change.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_changes(out: &mut impl Write, changes: &[Change]) -> io::Result<()> {
    changes.iter().try_for_each(|change| write(out, change))
}

/// The equation of a process's memory, in bytes.
#[must_use]
pub fn accounting(snapshot: &Snapshot) -> Value {
    let of = &snapshot.accounting;
    json!({
        "tracked": of.tracked,
        "cached": of.cached,
        "overhead": of.overhead,
        "tables": of.tables,
        "unaccounted": of.unaccounted(),
        "resident": of.resident,
        "untouched": of.untouched,
        "swapped": of.swapped,
        "parts": of.parts.map(|parts| json!({
            "mappings": parts.mappings,
            "stacks": parts.stacks,
            "code": parts.code,
            "files": parts.files,
            "other": of.other(),
        })),
        "page_tables": of.page_tables,
    })
}

fn moment(of: &Moment) -> Value {
    json!({
        "reason": match of.reason {
            Reason::Peak => "peak",
            Reason::OutOfMemory => "out_of_memory",
            Reason::Exit => "exit",
            Reason::Time => "time",
            Reason::Fork => "fork",
            Reason::Misuse => "misuse",
            Reason::Unknown => "unknown",
        },
        "number": of.number,
        "time": time(of.time_ns),
        "time_ns": of.time_ns,
        "used": of.used,
        "named_bytes": of.named_bytes,
        "mapped": of.mapped,
        "mapped_resident": of.mapped_resident,
        "mapped_uncounted": of.mapped_uncounted,
    })
}

/// Writes a value and a newline, without any other white space.
///
/// # Errors
///
/// The errors of the writer.
pub fn write(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(Escaped(&mut *out), value)?;
    writeln!(out)
}

/// Writes a value on several lines, with indentation.
///
/// # Errors
///
/// The errors of the writer.
pub fn write_pretty(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(Escaped(&mut *out), value)?;
    writeln!(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_of_names_and_keys_are_escaped_and_the_value_is_the_same() {
        let name = "a\u{9b}31mb\u{7f}\u{202e}c\u{feff}\x1b\n\u{85}";
        let value = json!({ "\u{2066}key": [name, "ünï 😀\"\\"], "none": {}, "empty": [], "n": 1 });
        let written = |write: fn(&mut Vec<u8>, &Value) -> io::Result<()>| {
            let mut out = Vec::new();
            write(&mut out, &value).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
            text
        };
        let compact = written(write);
        let escaped = r#"["a\u009b31mb\u007f\u202ec\ufeff\u001b\n\u0085","ünï 😀\"\\"]"#;
        assert!(compact.ends_with(&format!("\"\\u2066key\":{escaped}}}\n")), "{compact}");
        let pretty = written(write_pretty);
        assert!(pretty.starts_with("{\n  \"empty\": [],\n  "), "{pretty}");
        for text in [compact, pretty] {
            let text = text.replace('\n', "");
            assert!(!text.chars().any(crate::escape::is_unsafe), "{text}");
        }
    }
}
