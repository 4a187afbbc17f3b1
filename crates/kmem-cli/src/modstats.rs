//! `kmem modstats`: the statistics of a process's module loader, in the kernel's format.

use std::io::{self, BufWriter, Write};

use kmem_snapshot::escape::printable;
use kmem_snapshot::modules::{Stat, Stats, reason_name};
use kmem_snapshot::output;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::lsmod::boards;
use crate::process::Named;

/// Arguments of `kmem modstats`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Named,
    /// Print JSON, instead of the text of /sys/kernel/debug/modules/stats
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let pid = args.pid.pid()?;
    let boards = boards(pid)?;
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let loaders: Vec<Value> = boards.iter().map(|board| json(&board.stats)).collect();
        output::json::write_pretty(&mut out, &json!({ "pid": pid, "loaders": loaders }))?;
    } else {
        for (number, board) in boards.iter().enumerate() {
            if number > 0 {
                writeln!(out)?;
            }
            write(&mut out, &board.stats)?;
        }
    }
    out.flush()?;
    Ok(())
}

/// Writes the kernel's text. Names come from the process and are made safe to print.
pub(crate) fn write(out: &mut impl Write, stats: &Stats) -> io::Result<()> {
    let mut stats = stats.clone();
    for (name, _, _) in &mut stats.failed {
        *name = printable(name).into_owned();
    }
    write!(out, "{stats}")
}

/// The statistics as JSON, with the bytes that the loader holds.
pub(crate) fn json(stats: &Stats) -> Value {
    let mut value = json!({
        "wasted_bytes": stats.wasted(),
        "held_bytes": stats.held,
        "held_peak_bytes": stats.held_peak,
        "duplicates": stats.failed.iter().map(|(name, count, reason)| {
            json!({ "name": name, "count": count, "reason": reason_name(*reason) })
        }).collect::<Vec<_>>(),
    });
    for stat in Stat::ALL {
        value[stat.key()] = json!(stats.get(stat));
    }
    value
}
