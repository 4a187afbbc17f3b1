//! Reading one process, and what `dump` and `top` share: choosing and ordering rows.

use clap::ValueEnum;
use kmem_snapshot::books::Profiling;
use kmem_snapshot::filter::Filter;
use kmem_snapshot::sites::{Order, Site};
use kmem_snapshot::symbols::{Modules, Symbols};
use kmem_snapshot::{Process, ReadError, Snapshot, live};
use serde_json::{Value, json};

use crate::failure::{Failure, say};
use crate::filter;

/// What to order rows by, as alloctop spells it.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// By size
    #[value(name = "s", alias = "size")]
    Size,
    /// By calls
    #[value(name = "c", alias = "calls")]
    Calls,
    /// By tag: function and place
    #[value(name = "t", alias = "tag")]
    Tag,
}

impl Sort {
    pub(crate) fn order(self) -> Order {
        match self {
            Self::Size => Order::Size,
            Self::Calls => Order::Calls,
            Self::Tag => Order::Tag,
        }
    }
}

/// A process read once, its rows named.
pub(crate) struct Reading {
    pub(crate) snapshot: Snapshot,
    /// Live rows that the filter wants, in order of tag.
    pub(crate) sites: Vec<Site>,
    /// Whether a filter is on.
    pub(crate) filtered: bool,
}

/// Reads a process that must have books: the rows that the filter wants.
pub(crate) fn read(pid: u32, filter: &Filter) -> Result<Reading, Failure> {
    let process = Process::open(pid)?;
    let snapshot = snapshot(&process)?;
    if !snapshot.books.iter().all(|b| b.pins.is_exact()) {
        say("too many sets of sites share slabs: what merged rows pin may be shown too large");
    }
    let modules = Modules::open(&process, &snapshot.maps, &snapshot.addresses());
    let mut symbols = Symbols::new(&modules);
    let sites = live::sites(&snapshot, &mut symbols, filter);
    Ok(Reading { snapshot, sites, filtered: filter.is_on() })
}

/// Reads a process that must have books; says what is odd about them.
pub(crate) fn snapshot(process: &Process) -> Result<Snapshot, Failure> {
    let pid = process.pid();
    let snapshot = Snapshot::take(process)?;
    for fault in &snapshot.faults {
        say(&format!("{fault}; left out"));
    }
    if snapshot.never() {
        return Err(ReadError::ProfilingNever { pid }.into());
    }
    if snapshot.books.len() > 1 {
        let roots: Vec<String> = snapshot.books.iter().map(|b| format!("{:#x}", b.root)).collect();
        say(&format!(
            "{} copies of kmem in process {pid}, at {}; their books are added up",
            roots.len(),
            roots.join(", ")
        ));
    }
    if snapshot.books.iter().any(|b| b.profiling == Profiling::Off) {
        say("profiling is off: what was allocated meanwhile is not tagged");
    }
    if snapshot.torn() != 0 {
        say(&format!(
            "{} slabs or page allocations changed while they were read, and are left out",
            snapshot.torn()
        ));
    }
    Ok(snapshot)
}

/// The accounting line as JSON, in bytes.
pub(crate) fn accounting_json(snapshot: &Snapshot) -> Value {
    let of = &snapshot.accounting;
    json!({
        "tracked": of.tracked,
        "cached": of.cached,
        "overhead": of.overhead,
        "unaccounted": of.unaccounted(),
        "resident": of.resident,
        "untouched": of.untouched,
        "swapped": of.swapped,
    })
}

/// A reading as JSON, with the rows given.
pub(crate) fn json_of(reading: &Reading, rows: &[Site]) -> Value {
    let snapshot = &reading.snapshot;
    let (bytes, calls) = snapshot.totals();
    let mut json = json!({
        "pid": snapshot.pid,
        "exe": snapshot.exe,
        "copies": snapshot.books.len(),
        "torn": snapshot.torn(),
        "used_pages": snapshot.books.iter().map(|b| b.used_pages).sum::<u64>(),
        "totals": { "bytes": bytes, "calls": calls },
        "accounting": accounting_json(snapshot),
        "rows": rows,
    });
    if reading.filtered {
        let (bytes, calls) = filter::total(&reading.sites);
        json["filtered"] = json!({ "bytes": bytes, "calls": calls });
    }
    json
}

/// Parses `10`, `64K`, `1.5MiB`, `2g` into bytes.
pub(crate) fn parse_size(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number
        .parse()
        .map_err(|_| format!("{text:?} is not a size such as 4096, 64K or 1.5MiB"))?;
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("{text:?}: unknown unit, expected K, M, G or T")),
    };
    let bytes = number * (1_u64 << shift) as f64;
    if bytes >= i64::MAX as f64 {
        return Err(format!("{text:?} is too large"));
    }
    Ok(bytes as i64)
}

#[cfg(test)]
mod tests {
    use super::parse_size;

    #[test]
    fn sizes() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64K", 65536),
            ("1.5MiB", 1_572_864),
            ("2g", 2 << 30),
            ("7 B", 7),
        ] {
            assert_eq!(parse_size(text), Ok(bytes));
        }
        for text in ["", "x", "-1", "1x", "1e9", "99999999999999T", "1.2.3"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }
}
