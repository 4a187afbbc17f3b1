//! `kmem dump`: the books of a running process, for other programs.

use std::io::{self, BufWriter, Write};

use clap::ValueEnum;
use kmem_snapshot::allocinfo::{self, Version};
use kmem_snapshot::report;
use kmem_snapshot::stacks::{By, Speedscope, Stacks, write_folded};

use crate::failure::Failure;
use crate::source::{self, Reading, Sort};

/// What to write.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// allocinfo text as of Linux 6.10
    #[value(name = "1.0")]
    V1,
    /// allocinfo text as of Linux 6.16
    #[value(name = "2.0")]
    V2,
    /// Collapsed stacks, which flame graphs are made from
    Folded,
    /// JSON for speedscope
    Speedscope,
}

/// Arguments of `kmem dump`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Process to read
    #[arg(short, long)]
    pid: u32,
    /// What to write: a version of the allocinfo text, or call stacks
    #[arg(long, value_enum, default_value = "2.0")]
    format: Format,
    /// Print the rows as JSON instead
    #[arg(long)]
    json: bool,
    /// Leave out rows, or stacks, below this size
    #[arg(short, long, value_name = "SIZE", value_parser = source::parse_size)]
    min: Option<i64>,
    /// Print at most this many rows, or stacks
    #[arg(short = 'n', long)]
    lines: Option<usize>,
    /// Order: s(ize), c(alls), t(ag); else that of the first call of each site
    #[arg(short, long, value_enum)]
    sort: Option<Sort>,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    if args.json && matches!(args.format, Format::Folded | Format::Speedscope) {
        return Err(Failure::Trouble(
            "--json prints rows; it cannot be combined with a format of call stacks".to_owned(),
        ));
    }
    let reading = source::read(args.pid)?;
    let mut out = BufWriter::new(io::stdout().lock());
    match args.format {
        Format::V1 => write_rows(&mut out, args, &reading, Version::V1)?,
        Format::V2 => write_rows(&mut out, args, &reading, Version::V2)?,
        Format::Folded | Format::Speedscope => write_stacks(&mut out, args, &reading)?,
    }
    out.flush()?;
    // The text on stdout stays what tools expect; what does not belong there goes to stderr.
    let _ = report::write_accounting(&mut io::stderr(), &reading.snapshot.accounting);
    Ok(())
}

fn write_rows(
    out: &mut impl Write,
    args: &Args,
    reading: &Reading,
    version: Version,
) -> Result<(), Failure> {
    let mut sites = reading.sites.clone();
    if let Some(min) = args.min {
        sites.retain(|s| s.bytes >= min);
    }
    if let Some(sort) = args.sort {
        sites.sort_by(|a, b| sort.order().compare(a, b));
    }
    sites.truncate(args.lines.unwrap_or(usize::MAX));
    if args.json {
        serde_json::to_writer(&mut *out, &source::json_of(reading, &sites))?;
        writeln!(out)?;
        return Ok(());
    }
    allocinfo::write_header(out, version)?;
    for site in &sites {
        allocinfo::write_row(out, site.bytes, site.calls, &allocinfo::tag_of(site))?;
    }
    Ok(())
}

fn write_stacks(out: &mut impl Write, args: &Args, reading: &Reading) -> Result<(), Failure> {
    let folded = args.format == Format::Folded;
    let mut all = Stacks::of(&reading.sites, if folded { By::Name } else { By::Place });
    if let Some(sort) = args.sort {
        all.sort(sort.order());
    }
    if let Some(min) = args.min {
        all.stacks.retain(|s| s.bytes >= min);
    }
    all.stacks.truncate(args.lines.unwrap_or(usize::MAX));
    if folded {
        write_folded(out, &all)?;
    } else {
        let name = format!("{} (pid {})", reading.snapshot.exe, reading.snapshot.pid);
        serde_json::to_writer(&mut *out, &Speedscope::of(&all, &name))?;
        writeln!(out)?;
    }
    Ok(())
}
