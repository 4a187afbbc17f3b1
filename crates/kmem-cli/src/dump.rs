//! `kmem dump`: the books of a process, for other programs.

use std::io::{self, BufWriter, Write};

use clap::ValueEnum;
use kmem_snapshot::allocinfo::{self, Version};
use kmem_snapshot::sites::Site;
use kmem_snapshot::stacks::{self, Speedscope, Stacks, write_folded};
use kmem_snapshot::{By, Query, Reading, report};

use crate::failure::{Failure, say, say_all};
use crate::json;
use crate::options::{Filters, From, Sort};

/// Output format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// allocinfo text as of Linux 6.10
    #[value(name = "1.0")]
    V1,
    /// allocinfo text as of Linux 6.16
    #[value(name = "2.0")]
    V2,
    /// collapsed stacks, for flame graphs
    Folded,
    /// JSON for speedscope
    Speedscope,
}

/// Keys of rows.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Rows {
    /// a call site
    Site,
    /// a call site and a group, printed as group: of each row or as outermost frame of each stack
    #[value(name = "group,site")]
    GroupSite,
    /// a call site and the NUMA node of its memory, printed as node: of each row
    Node,
}

/// Arguments of `kmem dump`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    from: From,
    /// Choose the format
    #[arg(long, value_enum, default_value = "2.0")]
    format: Format,
    /// Add total_bytes: and total_calls: to each row of a black box, which count all allocations
    /// since the start; the process needs KMEM_CONF=cumulative:1
    #[arg(long, requires = "blackbox", conflicts_with_all = ["pid", "core"])]
    cumulative: bool,
    /// Print the rows as JSON
    #[arg(long)]
    json: bool,
    /// Print at most N rows or stacks
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Order the rows; without this option the call site that was first used comes first
    #[arg(short, long, value_enum)]
    sort: Option<Sort>,
    /// Add a row for each kind of kmem's own tables; together they are the overhead
    #[arg(long, conflicts_with_all = ["blackbox", "group"])]
    metadata: bool,
    /// Leave out memory outside of the heap: what the program mapped itself, stacks, code, files
    #[arg(long)]
    no_mmap: bool,
    /// Choose what makes a row
    #[arg(long, value_enum, default_value = "site", conflicts_with = "blackbox")]
    by: Rows,
    #[command(flatten)]
    filters: Filters,
}

impl Args {
    fn stacks(&self) -> bool {
        matches!(self.format, Format::Folded | Format::Speedscope)
    }

    /// Refuses options that do not go with a format. The parser does not know these conflicts.
    fn check(&self) -> Result<(), Failure> {
        let what = if self.stacks() && self.json {
            "--json prints rows; it cannot be combined with a format of call stacks"
        } else if self.stacks() && self.cumulative {
            "--cumulative counts rows; it cannot be combined with a format of call stacks"
        } else if self.cumulative && !self.json && self.format == Format::V1 {
            "allocinfo 1.0 has no total_bytes: ask for --format 2.0 or --json"
        } else if self.by == Rows::GroupSite && !self.json && self.format == Format::V1 {
            "allocinfo 1.0 has no group: ask for --format 2.0 or --json"
        } else if self.by == Rows::Node && !self.json && self.format != Format::V2 {
            "only rows have a node: ask for --format 2.0 or --json"
        } else {
            return Ok(());
        };
        Err(Failure::Trouble(what.to_owned()))
    }

    fn query(&self) -> Query {
        Query {
            // Stacks have sizes of their own, and are chosen by these later.
            filter: if self.stacks() { self.filters.names() } else { self.filters.filter() },
            by: match self.by {
                Rows::Site => By::Site,
                Rows::GroupSite => By::GroupAndSite,
                Rows::Node => By::NodeAndSite,
            },
            cumulative: self.cumulative,
            metadata: self.metadata,
            mappings: !self.no_mmap && !self.cumulative,
        }
    }
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let mut reading = args.from.target()?.read(&args.query())?;
    if args.no_mmap {
        reading.snapshot.accounting.parts = None;
    }
    say_all(&reading.notes);
    let sites = [&reading.sites[..], &reading.metadata, &reading.mappings].concat();
    let mut out = BufWriter::new(io::stdout().lock());
    match args.format {
        Format::V1 => write_rows(&mut out, args, &reading, sites, Version::V1)?,
        Format::V2 => write_rows(&mut out, args, &reading, sites, Version::V2)?,
        Format::Folded | Format::Speedscope => write_stacks(&mut out, args, &reading, &sites)?,
    }
    out.flush()?;
    // Tools parse stdout, so everything else goes to stderr.
    if reading.filtered {
        say(&report::filtered(&reading.sites, reading.snapshot.totals()));
    }
    if let Some(accounting) = reading.accounting() {
        let _ = report::write_accounting(&mut io::stderr(), accounting);
    }
    Ok(())
}

fn write_rows(
    out: &mut impl Write,
    args: &Args,
    reading: &Reading,
    mut sites: Vec<Site>,
    version: Version,
) -> Result<(), Failure> {
    if let Some(sort) = args.sort {
        sites.sort_by(|a, b| sort.order().compare(a, b));
    }
    sites.truncate(args.lines.unwrap_or(usize::MAX));
    if args.json {
        return json::write(out, &json::reading(reading, &sites));
    }
    allocinfo::write_header(out, version)?;
    for site in &sites {
        let mut extras = Vec::new();
        if let Some(counts) = reading.counts_of(site) {
            extras.push(("total_bytes", counts.allocated_bytes.to_string()));
            extras.push(("total_calls", counts.allocations.to_string()));
        }
        if let Some(group) = &site.group {
            extras.push(("group", group.to_string()));
        }
        if let Some(mapped) = site.mapped.filter(|_| version == Version::V2) {
            extras.push(("mapped", mapped.to_string()));
        }
        if let Some(node) = site.node {
            extras.push(("node", node.to_string()));
        }
        allocinfo::write_row_with(out, site.bytes, site.calls, &site.origin.tag(), extras)?;
    }
    Ok(())
}

fn write_stacks(
    out: &mut impl Write,
    args: &Args,
    reading: &Reading,
    sites: &[Site],
) -> Result<(), Failure> {
    let folded = args.format == Format::Folded;
    let by = if folded { stacks::By::Name } else { stacks::By::Place };
    let mut all = Stacks::of(sites, by);
    if let Some(sort) = args.sort {
        all.sort(sort.order());
    }
    all.stacks.retain(|stack| args.filters.admits_size(stack.bytes));
    all.stacks.truncate(args.lines.unwrap_or(usize::MAX));
    if folded {
        write_folded(out, &all)?;
    } else {
        let name = format!("{} (pid {})", reading.snapshot.exe, reading.snapshot.pid);
        json::write(out, &Speedscope::of(&all, &name))?;
    }
    Ok(())
}
