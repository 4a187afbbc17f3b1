//! `kmem dump`: allocinfo text of a running process.

use std::io::{self, BufWriter, Write as _};

use clap::ValueEnum;
use kmem_snapshot::allocinfo::{self, Version};
use kmem_snapshot::{live, report};

use crate::failure::{Failure, say};
use crate::filter;
use crate::source::{self, Sort};

/// Version of the text.
#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// As of Linux 6.10
    #[value(name = "1.0")]
    V1,
    /// As of Linux 6.16
    #[value(name = "2.0")]
    V2,
}

/// Arguments of `kmem dump`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Process to read
    #[arg(short, long)]
    pid: u32,
    /// Version of the allocinfo text
    #[arg(long, value_enum, default_value = "2.0")]
    format: Format,
    /// Print JSON instead
    #[arg(long)]
    json: bool,
    /// Print at most this many rows
    #[arg(short = 'n', long)]
    lines: Option<usize>,
    /// Order: s(ize), c(alls), t(ag); else that of the first call of each site
    #[arg(short, long, value_enum)]
    sort: Option<Sort>,
    /// Also print the allocator's own memory: the overhead, by kind of table
    #[arg(long)]
    metadata: bool,
    #[command(flatten)]
    filter: filter::Args,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let filter = args.filter.filter();
    let reading = source::read(args.pid, &filter)?;
    let mut sites = reading.sites.clone();
    if args.metadata {
        sites.extend(live::metadata(&reading.snapshot, &filter));
    }
    if let Some(sort) = args.sort {
        sites.sort_by(|a, b| sort.order().compare(a, b));
    }
    sites.truncate(args.lines.unwrap_or(usize::MAX));

    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        serde_json::to_writer(&mut out, &source::json_of(&reading, &sites))?;
        writeln!(out)?;
    } else {
        let version = match args.format {
            Format::V1 => Version::V1,
            Format::V2 => Version::V2,
        };
        allocinfo::write_header(&mut out, version)?;
        for site in &sites {
            allocinfo::write_row(&mut out, site.bytes, site.calls, &allocinfo::tag_of(site))?;
        }
    }
    out.flush()?;
    // The text on stdout stays what tools expect; what does not belong there goes to stderr.
    if reading.filtered {
        say(&filter::summary(&reading.sites, reading.snapshot.totals()));
    }
    let _ = report::write_accounting(&mut io::stderr(), &reading.snapshot.accounting);
    Ok(())
}
