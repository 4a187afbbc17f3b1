//! `kmem top`: the call sites that hold most, for people.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::time::Duration;

use kmem_snapshot::escape::printable;
use kmem_snapshot::sites::{Order, Site};
use kmem_snapshot::{live, report};

use crate::failure::{Failure, say};
use crate::filter;
use crate::source::{self, Reading, Sort};

/// What is shown of each site.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum By {
    /// Live bytes
    Size,
    /// Also what its objects keep from being given back: PINNED, all slabs with an object of it
    /// and its page runs; SOLE, of these, what would become free if it freed everything
    Pinned,
}

/// Arguments of `kmem top`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Process to read
    #[arg(short, long)]
    pid: u32,
    /// Print once and end, rather than every second
    #[arg(short, long)]
    once: bool,
    /// Print at most this many rows
    #[arg(short = 'n', long, default_value_t = 20)]
    lines: usize,
    /// Order: s(ize), c(alls), t(ag)
    #[arg(short, long, value_enum, default_value = "s")]
    sort: Sort,
    /// What to show and to order by
    #[arg(long, value_enum, default_value = "size", conflicts_with = "sort")]
    by: By,
    /// Print JSON instead, one line each time
    #[arg(long)]
    json: bool,
    /// Also print the allocator's own memory: the overhead, by kind of table
    #[arg(long)]
    metadata: bool,
    #[command(flatten)]
    filter: filter::Args,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let clear = !args.once && !args.json && io::stdout().is_terminal();
    let filter = args.filter.filter();
    let mut shown = false;
    loop {
        let reading = match source::read(args.pid, &filter) {
            // It was there, and has ended: so does this.
            Err(Failure::Absent(why)) if shown => {
                say(&why);
                return Ok(());
            }
            result => result?,
        };
        shown = true;
        let mut sites = reading.sites.clone();
        if args.metadata {
            sites.extend(live::metadata(&reading.snapshot, &filter));
        }
        let order = if args.by == By::Pinned { Order::Pinned } else { args.sort.order() };
        sites.sort_by(|a, b| order.compare(a, b));
        let mut out = BufWriter::new(io::stdout().lock());
        if args.json {
            sites.truncate(args.lines);
            serde_json::to_writer(&mut out, &source::json_of(&reading, &sites))?;
            writeln!(out)?;
        } else {
            if clear {
                write!(out, "\x1b[H\x1b[2J")?;
            }
            print(&mut out, &reading, &sites, args)?;
        }
        out.flush()?;
        drop(out);
        if args.once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn print(out: &mut impl Write, reading: &Reading, sites: &[Site], args: &Args) -> io::Result<()> {
    let snapshot = &reading.snapshot;
    let (bytes, calls) = snapshot.totals();
    write!(out, "{} (pid {}): ", printable(&snapshot.exe), snapshot.pid)?;
    if reading.filtered {
        writeln!(out, "{}", filter::summary(&reading.sites, (bytes, calls)))?;
    } else {
        let (size, count) = (report::size(bytes), reading.sites.len());
        writeln!(out, "{size} in {calls} live objects from {count} call sites")?;
    }
    report::write_accounting(out, &snapshot.accounting)?;
    writeln!(out)?;
    if args.by == By::Pinned {
        return report::write_pinned_table(out, sites, args.lines);
    }
    if reading.filtered && sites.is_empty() {
        return report::write_header(out, 0);
    }
    report::write_table(out, sites, args.lines)
}
