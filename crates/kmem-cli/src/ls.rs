//! `kmem ls`: the processes under kmem.

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use kmem_snapshot::books::Profiling;
use kmem_snapshot::escape::printable;
use kmem_snapshot::listing::{Listed, Listing};
use kmem_snapshot::{Snapshot, output, report};
use serde_json::json;

use crate::failure::{Failure, say};

/// Arguments of `kmem ls`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct Row {
    pid: u32,
    comm: String,
    exe: String,
    /// Live bytes; none without books.
    bytes: Option<i64>,
    groups: usize,
    age: Duration,
}

/// The row of a process; none if it has ended, or is still starting.
fn row(of: &Listed) -> Option<Result<Row, Failure>> {
    let (pid, age) = (of.process.pid(), of.process.age().ok()?);
    let snapshot = match Snapshot::take(&of.process) {
        Ok(snapshot) => snapshot,
        Err(error) if error.is_absent() => return None,
        Err(error) => return Some(Err(error.into())),
    };
    let kept = !snapshot.books.iter().all(|books| books.profiling == Profiling::Never);
    // Each copy of the library has a root group, which is not counted.
    let groups = snapshot.books.iter().map(|books| books.groups.all().len().saturating_sub(1));
    Some(Ok(Row {
        pid,
        comm: of.comm.clone(),
        exe: of.exe.clone(),
        bytes: kept.then(|| snapshot.totals().0),
        groups: groups.sum(),
        age,
    }))
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let listing = Listing::take()
        .map_err(|error| Failure::Trouble(format!("cannot read /proc: {error}; mount it")))?;
    let mut failures = Vec::new();
    let mut rows = Vec::new();
    for result in listing.processes.iter().filter_map(row) {
        match result {
            Ok(row) => rows.push(row),
            Err(failure) => failures.push(failure),
        }
    }
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let processes: Vec<_> = rows.iter().map(Row::json).collect();
        let hidden = listing.hidden;
        let json = json!({ "processes": processes, "hidden": hidden });
        output::json::write_pretty(&mut out, &json)?;
    } else {
        write(&mut out, &rows)?;
    }
    out.flush()?;
    if rows.is_empty() && failures.is_empty() {
        say("no process under kmem: start one with `kmem run -- CMD`");
    }
    if listing.hidden > 0 {
        say(&format!(
            "{} that this user may not read: run as their owner, or as root (CAP_SYS_PTRACE)",
            report::counted(listing.hidden as u64, "other process", "other processes")
        ));
    }
    Failure::of_inputs(failures)
}

impl Row {
    fn json(&self) -> serde_json::Value {
        json!({
            "pid": self.pid,
            "name": self.comm,
            "exe": self.exe,
            "bytes": self.bytes,
            "groups": self.groups,
            "age_seconds": self.age.as_secs(),
        })
    }
}

fn write(out: &mut impl Write, rows: &[Row]) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "{:>7} {:>10} {:>6} {:>8}  NAME", "PID", "SIZE", "GROUPS", "AGE")?;
    for Row { pid, comm, bytes, groups, age, .. } in rows {
        let size = bytes.map_or("never".to_owned(), report::size);
        writeln!(out, "{pid:>7} {size:>10} {groups:>6} {:>8}  {}", spoken(*age), printable(comm))?;
    }
    Ok(())
}

/// A duration in its two largest units.
fn spoken(age: Duration) -> String {
    let seconds = age.as_secs();
    match (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, s) => format!("{s}s"),
        (0, 0, m, s) => format!("{m}m{s:02}s"),
        (0, h, m, _) => format!("{h}h{m:02}m"),
        (d, h, ..) => format!("{d}d{h:02}h"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::spoken;

    #[test]
    fn ages_have_two_units() {
        for (seconds, text) in
            [(0, "0s"), (61, "1m01s"), (3600, "1h00m"), (86_400 * 3 + 7200, "3d02h")]
        {
            assert_eq!(spoken(Duration::from_secs(seconds)), text);
        }
    }
}
