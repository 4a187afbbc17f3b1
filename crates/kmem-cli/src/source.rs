//! Reading one process, living or dead, and what `dump` and `top` share: choosing and ordering
//! rows.

mod blackbox;
mod core;
mod from;

use std::collections::BTreeMap;
use std::io::Write;

use clap::ValueEnum;
use kmem_snapshot::blackbox::Counts;
use kmem_snapshot::books::{Accounting, Profiling};
use kmem_snapshot::filter::Filter;
use kmem_snapshot::live::By;
use kmem_snapshot::sites::{Order, Site};
use kmem_snapshot::symbols::{Modules, Symbols};
use kmem_snapshot::{CoreFile, Process, ReadError, Snapshot, live};
use serde::Serialize;
use serde_json::{Value, json};

use from::Source;
pub(crate) use from::{From, One, Whole};

use crate::failure::{Failure, say};
use crate::{filter, group};

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
    /// The process's memory is known as a whole: the equation can be told.
    accounted: bool,
    /// Of a black box: which moment it is, as JSON.
    moment: Option<Value>,
    /// By tag, what was allocated and freed since the start, where that was asked for.
    counts: Option<BTreeMap<u32, Counts>>,
}

impl Reading {
    /// Names the rows that the filter wants.
    ///
    /// # Errors
    /// There is no group that the filter names.
    fn new(
        snapshot: Snapshot,
        modules: &Modules,
        filter: &Filter,
        by: By,
    ) -> Result<Self, Failure> {
        if let Some(path) = &filter.group {
            group::find(&snapshot, path)?;
        }
        for mismatch in modules.mismatches() {
            say(mismatch);
        }
        let sites = live::sites(&snapshot, &mut Symbols::new(modules), filter, by);
        let filtered = filter.is_on();
        Ok(Self { snapshot, sites, filtered, accounted: true, moment: None, counts: None })
    }

    /// The equation; none where only the books are known.
    pub(crate) fn accounting(&self) -> Option<&Accounting> {
        self.accounted.then_some(&self.snapshot.accounting)
    }

    /// What was allocated and freed at a row since the start.
    pub(crate) fn counts_of(&self, site: &Site) -> Option<Counts> {
        let counts = self.counts.as_ref()?;
        Some(site.tags.iter().filter_map(|tag| counts.get(tag)).fold(
            Counts::default(),
            |mut sum, of| {
                sum.add(of);
                sum
            },
        ))
    }
}

/// Reads what must have books: the rows that the filter wants.
pub(crate) fn read(from: &From, filter: &Filter, by: By) -> Result<Reading, Failure> {
    let exe = from.exe.as_deref();
    match from.source()? {
        Source::Process(pid) => process(pid, filter, by),
        Source::Core(path) => core::read(path, exe, filter, by),
        Source::BlackBox(path) => blackbox::read(path, exe, filter),
    }
}

/// Reads what was allocated and freed since the start, from a black box.
pub(crate) fn counted(from: &From, filter: &Filter) -> Result<Reading, Failure> {
    match from.source()? {
        Source::BlackBox(path) => blackbox::counted(path, from.exe.as_deref(), filter),
        _ => Err(Failure::Trouble("only a black box has counters".to_owned())),
    }
}

/// Reads what must have books, of a process whose memory is there, without names of call sites.
pub(crate) fn whole(from: &Whole) -> Result<Snapshot, Failure> {
    match from.source()? {
        Source::BlackBox(_) => Err(Failure::Trouble("a black box has no memory".to_owned())),
        source => unnamed(&source),
    }
}

/// Reads what must have books, for its groups.
pub(crate) fn of_groups(from: &One) -> Result<Snapshot, Failure> {
    unnamed(&from.source()?)
}

/// Reads what must have books, without names of call sites.
fn unnamed(source: &Source<'_>) -> Result<Snapshot, Failure> {
    match *source {
        Source::Process(pid) => snapshot(&Process::open(pid)?),
        Source::Core(path) => core::snapshot(path, &CoreFile::open(path)?),
        Source::BlackBox(path) => blackbox::snapshot(path),
    }
}

/// Reads a live process.
fn process(pid: u32, filter: &Filter, by: By) -> Result<Reading, Failure> {
    let process = Process::open(pid)?;
    let snapshot = snapshot(&process)?;
    let modules = Modules::open(&process, &snapshot.maps, &snapshot.addresses());
    Reading::new(snapshot, &modules, filter, by)
}

/// Reads a live process that must have books; says what is odd about them.
pub(crate) fn snapshot(process: &Process) -> Result<Snapshot, Failure> {
    let pid = process.pid();
    let snapshot = Snapshot::take(process)?;
    if snapshot.never() {
        return Err(ReadError::ProfilingNever { pid }.into());
    }
    say_state(&snapshot);
    if snapshot.torn() != 0 {
        say(&format!(
            "{} slabs or page allocations changed while they were read, and are left out",
            snapshot.torn()
        ));
    }
    Ok(snapshot)
}

/// What a user must know to read the rows.
fn say_state(snapshot: &Snapshot) {
    for fault in &snapshot.faults {
        say(&format!("{fault}; left out"));
    }
    if snapshot.books.len() > 1 {
        let roots: Vec<String> = snapshot.books.iter().map(|b| format!("{:#x}", b.root)).collect();
        say(&format!(
            "{} copies of kmem in process {}, at {}; their books are added up",
            roots.len(),
            snapshot.pid,
            roots.join(", ")
        ));
    }
    if snapshot.books.iter().any(|b| b.profiling == Profiling::Off) {
        say("profiling is off: what was allocated meanwhile is not tagged");
    }
    if !snapshot.books.iter().all(|b| b.pins.is_exact()) {
        say("too many sets of sites share slabs: what merged rows pin may be shown too large");
    }
    let torn: u64 = snapshot.books.iter().map(|b| b.groups.torn).sum();
    if torn != 0 {
        say(&format!(
            "{torn} groups changed while they were read, or make no sense: what they hold may be \
             shown as the root's, or they below the root"
        ));
    }
    if !snapshot.books.iter().all(|b| b.holdings.is_exact()) {
        say("too many sites in too many groups: some of what groups hold is shown as other sites");
    }
}

/// The accounting line as JSON, in bytes.
pub(crate) fn accounting_json(snapshot: &Snapshot) -> Value {
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
        "accounting": reading.accounting().map(|_| accounting_json(snapshot)),
        "rows": rows,
    });
    if reading.filtered {
        let (bytes, calls) = filter::total(&reading.sites);
        json["filtered"] = json!({ "bytes": bytes, "calls": calls });
    }
    if let Some(moment) = &reading.moment {
        json["moment"] = moment.clone();
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

/// Writes a line of JSON.
pub(crate) fn write_json(out: &mut impl Write, value: &impl Serialize) -> Result<(), Failure> {
    serde_json::to_writer(&mut *out, value)?;
    Ok(writeln!(out)?)
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
