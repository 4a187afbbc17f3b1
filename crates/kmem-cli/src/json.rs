//! JSON that several commands print.

use std::io::Write;

use kmem_snapshot::blackbox::{Moment, Reason, time};
use kmem_snapshot::sites::{Site, total};
use kmem_snapshot::{Reading, Snapshot};
use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::Failure;

/// A reading with the given rows; sizes in bytes.
pub(crate) fn reading(reading: &Reading, rows: &[Site]) -> Value {
    let snapshot = &reading.snapshot;
    let (bytes, calls) = snapshot.totals();
    let mut json = json!({
        "pid": snapshot.pid,
        "exe": snapshot.exe,
        "copies": snapshot.books.len(),
        "torn": snapshot.torn(),
        "used_pages": snapshot.books.iter().map(|b| b.used_pages).sum::<u64>(),
        "totals": { "bytes": bytes, "calls": calls },
        "accounting": reading.accounting().map(|_| accounting(snapshot)),
        "notes": reading.notes.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "rows": rows,
    });
    if reading.filtered {
        let (bytes, calls) = total(&reading.sites);
        json["filtered"] = json!({ "bytes": bytes, "calls": calls });
    }
    if let Some(of) = &reading.moment {
        json["moment"] = moment(of);
    }
    let written = json["rows"].as_array_mut().into_iter().flatten();
    for (json, site) in written.zip(rows) {
        if let Some(counts) = reading.counts_of(site) {
            json["allocated_bytes"] = counts.allocated_bytes.into();
            json["allocations"] = counts.allocations.into();
            json["freed_bytes"] = counts.freed_bytes.into();
            json["frees"] = counts.frees.into();
        }
    }
    json
}

/// The equation of a process's memory, in bytes.
pub(crate) fn accounting(snapshot: &Snapshot) -> Value {
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

/// Writes a value and a newline.
pub(crate) fn write(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, value)?;
    Ok(writeln!(out)?)
}
