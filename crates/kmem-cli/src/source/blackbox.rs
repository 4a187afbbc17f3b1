//! Reading the black box of a process.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use kmem_snapshot::blackbox::{Moment, Reason};
use kmem_snapshot::filter::Filter;
use kmem_snapshot::live::By;
use kmem_snapshot::symbols::Modules;
use kmem_snapshot::{BlackBox, Snapshot, report};
use serde_json::{Value, json};

use super::Reading;
use crate::failure::{Failure, say};

/// Reads the newest record, without names of call sites.
pub(super) fn snapshot(path: &Path) -> Result<Snapshot, Failure> {
    let black_box = open(path)?;
    let snapshot = black_box.snapshot()?;
    say_moment(&black_box);
    Ok(snapshot)
}

/// Says which moment the record is of.
fn say_moment(black_box: &BlackBox) -> Moment {
    let moment = black_box.moment().cloned().unwrap_or_default();
    say(&format!(
        "{} of process {} ({}) at {}: {} in use, {} in {} live objects",
        words(moment.reason),
        black_box.pid(),
        black_box.exe(),
        time(moment.time_ns),
        report::size_u(moment.used),
        report::size_u(moment.bytes),
        moment.calls,
    ));
    moment
}

/// Reads the newest record.
pub(super) fn read(path: &Path, exe: Option<&Path>, filter: &Filter) -> Result<Reading, Failure> {
    let black_box = open(path)?;
    let snapshot = black_box.snapshot()?;
    let moment = say_moment(&black_box);
    if let Some((named, all)) = black_box.named() {
        let share = if all == 0 { 100.0 } else { named as f64 / all as f64 * 100.0 };
        say(&format!(
            "{} of {} live bytes ({share:.1} %) are of the {} sites that the record names; the \
             rest is in other_sites",
            report::size_u(named),
            report::size_u(all),
            moment.rows
        ));
    }
    let json = moment_json(&black_box, &moment);
    named(snapshot, &black_box, exe, filter, Some(json))
}

/// Reads the counters since the start.
pub(super) fn counted(
    path: &Path,
    exe: Option<&Path>,
    filter: &Filter,
) -> Result<Reading, Failure> {
    let black_box = open(path)?;
    let (snapshot, counts) = black_box.counters()?;
    say(&format!(
        "counters of process {} ({}) since its start at {}",
        black_box.pid(),
        black_box.exe(),
        time(black_box.started_ns()),
    ));
    Ok(Reading { counts: Some(counts), ..named(snapshot, &black_box, exe, filter, None)? })
}

fn open(path: &Path) -> Result<BlackBox, Failure> {
    let black_box = BlackBox::open(path)?;
    for remark in black_box.remarks() {
        say(&format!("{}: {remark}", path.display()));
    }
    Ok(black_box)
}

fn named(
    snapshot: Snapshot,
    black_box: &BlackBox,
    exe: Option<&Path>,
    filter: &Filter,
    moment: Option<Value>,
) -> Result<Reading, Failure> {
    let modules = Modules::of_maps(&snapshot.maps, &snapshot.addresses(), black_box.exe(), exe);
    let mut reading = Reading::new(snapshot, &modules, filter, By::Site)?;
    for site in &mut reading.sites {
        // Which slabs they were in is not known.
        site.pinned = None;
    }
    Ok(Reading { accounted: false, moment, ..reading })
}

fn words(reason: Reason) -> &'static str {
    match reason {
        Reason::Peak => "peak",
        Reason::OutOfMemory => "out of memory: the books",
        Reason::Exit => "exit",
        Reason::Unknown => "a moment",
    }
}

fn time(ns: u64) -> String {
    let time = UNIX_EPOCH + Duration::from_nanos(ns);
    // 2^64 nanoseconds end in the year 2554, well within what can be written.
    humantime::format_rfc3339_seconds(time).to_string()
}

fn moment_json(black_box: &BlackBox, moment: &Moment) -> Value {
    let named = black_box.named().map(|(bytes, _)| bytes);
    json!({
        "reason": match moment.reason {
            Reason::Peak => "peak",
            Reason::OutOfMemory => "out_of_memory",
            Reason::Exit => "exit",
            Reason::Unknown => "unknown",
        },
        "number": moment.number,
        "time": time(moment.time_ns),
        "time_ns": moment.time_ns,
        "used": moment.used,
        "named_bytes": named,
    })
}
