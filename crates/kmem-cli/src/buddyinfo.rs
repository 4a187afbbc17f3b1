//! `kmem buddyinfo`: free blocks of pages per order, in the layout of `/proc/buddyinfo`.

use std::io::{self, Write};

use kmem_snapshot::books::{Buddy, Buddyinfo, ORDERS};
use kmem_snapshot::output;
use serde_json::json;

use crate::failure::{Failure, say};
use crate::options::Whole;

/// Arguments of `kmem buddyinfo`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    from: Whole,
    /// Add the fragmentation index and the unusable free space index of each order, in the layout
    /// of the kernel's extfrag files
    #[arg(long)]
    index: bool,
    /// Print blocks and both indices as JSON
    #[arg(long, conflicts_with = "index")]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let info = args.from.target()?.buddyinfo()?;
    for fault in &info.faults {
        say(&format!("{fault}; left out"));
    }
    let mut out = io::stdout().lock();
    if args.json {
        return Ok(output::json::write(&mut out, &json(&info))?);
    }
    for zone in &info.zones {
        let counts = zone.free.map(|blocks| format!("{blocks:>6}"));
        writeln!(out, "{} {} ", head(zone), counts.join(" "))?;
    }
    if args.index {
        writeln!(out, "\nfragmentation index")?;
        for zone in &info.zones {
            write_thousandths(&mut out, zone, |order| zone.fragmentation_index(order))?;
        }
        writeln!(out, "\nunusable free space index")?;
        for zone in &info.zones {
            write_thousandths(&mut out, zone, |order| zone.unusable_index(order) as i64)?;
        }
    }
    Ok(out.flush()?)
}

/// The beginning of a zone's line, as the kernel has it. A program has zones of one kind only.
fn head(zone: &Buddy) -> String {
    format!("Node {}, zone {:>8}", zone.node, "Normal")
}

fn write_thousandths(
    out: &mut impl Write,
    zone: &Buddy,
    of: impl Fn(usize) -> i64,
) -> io::Result<()> {
    write!(out, "{} ", head(zone))?;
    for value in (0..ORDERS).map(of) {
        let sign = if value < 0 { "-" } else { "" };
        let value = value.unsigned_abs();
        write!(out, "{sign}{}.{:03} ", value / 1000, value % 1000)?;
    }
    writeln!(out)
}

/// The zones as JSON.
pub(crate) fn json(info: &Buddyinfo) -> serde_json::Value {
    let zone = |zone: &Buddy| {
        let fragmentation = (0..ORDERS).map(|order| zone.fragmentation_index(order));
        let unusable = (0..ORDERS).map(|order| zone.unusable_index(order));
        json!({
            "root": zone.root,
            "node": zone.node,
            "base": zone.base,
            "pages": zone.pages,
            "free": zone.free,
            "free_pages": zone.free_pages(),
            "fragmentation_index": fragmentation.collect::<Vec<_>>(),
            "unusable_index": unusable.collect::<Vec<_>>(),
        })
    };
    json!({ "pid": info.pid, "zones": info.zones.iter().map(zone).collect::<Vec<_>>() })
}
