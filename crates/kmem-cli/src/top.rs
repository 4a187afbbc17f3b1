//! `kmem top`: the call sites that hold most, for people.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::time::Duration;

use kmem_snapshot::escape::printable;
use kmem_snapshot::report;
use kmem_snapshot::sites::Site;

use crate::failure::{Failure, say};
use crate::source::{self, Reading, Sort};

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
    /// Leave out rows below this size
    #[arg(short, long, value_name = "SIZE", value_parser = source::parse_size)]
    min: Option<i64>,
    /// Order: s(ize), c(alls), t(ag)
    #[arg(short, long, value_enum, default_value = "s")]
    sort: Sort,
    /// Print JSON instead, one line each time
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let clear = !args.once && !args.json && io::stdout().is_terminal();
    let mut shown = false;
    loop {
        let reading = match source::read(args.pid) {
            // It was there, and has ended: so does this.
            Err(Failure::Absent(why)) if shown => {
                say(&why);
                return Ok(());
            }
            result => result?,
        };
        shown = true;
        let mut sites = reading.sites.clone();
        sites.retain(|s| args.min.is_none_or(|min| s.bytes >= min));
        sites.sort_by(|a, b| args.sort.order().compare(a, b));
        let mut out = BufWriter::new(io::stdout().lock());
        if args.json {
            sites.truncate(args.lines);
            serde_json::to_writer(&mut out, &source::json_of(&reading, &sites))?;
            writeln!(out)?;
        } else {
            if clear {
                write!(out, "\x1b[H\x1b[2J")?;
            }
            print(&mut out, &reading, &sites, args.lines)?;
        }
        out.flush()?;
        drop(out);
        if args.once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn print(out: &mut impl Write, reading: &Reading, sites: &[Site], lines: usize) -> io::Result<()> {
    let snapshot = &reading.snapshot;
    let (bytes, calls) = snapshot.totals();
    writeln!(
        out,
        "{} (pid {}): {} in {calls} live objects from {} call sites",
        printable(&snapshot.exe),
        snapshot.pid,
        report::size(bytes),
        reading.sites.len(),
    )?;
    report::write_accounting(out, &snapshot.accounting)?;
    writeln!(out)?;
    report::write_table(out, sites, lines)
}
