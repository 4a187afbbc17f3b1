//! `kmem dump`: the books of a process, for other programs.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use kmem_snapshot::output::{self, Choice, Fact, Format};
use kmem_snapshot::{By, Query, report};

use crate::destination::Destination;
use crate::failure::{Failure, say, say_all};
use crate::format::{self, Named};
use crate::options::{Filters, From, NO_BOX, NO_METADATA, Sort};
use crate::untracked::untracked;

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
    format: Named,
    /// Add total_bytes: and total_calls: to each row of a black box, which count all allocations
    /// since the start; the process needs KMEM_CONF=cumulative:1
    #[arg(long, conflicts_with_all = NO_BOX)]
    cumulative: bool,
    /// Short form of --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Write to this file, instead of standard output; it is replaced when all is written
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print at most N rows or stacks
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Order the rows; without this option the call site that was first used comes first. Static
    /// tags of an object count as used when it is loaded
    #[arg(short, long, value_enum)]
    sort: Option<Sort>,
    /// Add a row for each kind of kmem's own tables; together they are the overhead
    #[arg(long, conflicts_with_all = NO_METADATA)]
    metadata: bool,
    /// Leave out memory outside of the heap: what the program mapped itself, stacks, code, files
    #[arg(long)]
    no_mmap: bool,
    /// Leave out static tags that hold nothing; /proc/allocinfo lists them, too
    #[arg(long)]
    no_empty: bool,
    /// Choose what makes a row
    #[arg(long, value_enum, default_value = "site", conflicts_with = "blackbox")]
    by: Rows,
    #[command(flatten)]
    filters: Filters,
}

impl Args {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format.0 }
    }

    /// Refuses options that do not go with the format. The parser does not know these conflicts.
    fn check(&self) -> Result<(), Failure> {
        let facts = [
            (self.cumulative, Fact::Total, "--cumulative"),
            (self.by == Rows::GroupSite, Fact::Group, "--by group,site"),
            (self.by == Rows::Node, Fact::Node, "--by node"),
            (self.sort.is_some(), Fact::Order, "--sort"),
        ];
        let asked = facts.iter().filter(|(asked, ..)| *asked);
        asked.copied().try_for_each(|(_, fact, option)| format::check(self.format(), fact, option))
    }

    fn choice(&self) -> Choice {
        let (min, max) = self.filters.sizes();
        Choice { order: self.sort.map(Sort::order), lines: self.lines, min, max, cause: None }
    }

    fn query(&self) -> Query {
        let stacks = self.format().has_stacks();
        Query {
            // Stacks have sizes of their own, and are chosen by these later.
            filter: if stacks { self.filters.names() } else { self.filters.filter() },
            by: match self.by {
                Rows::Site => By::Site,
                Rows::GroupSite => By::GroupAndSite,
                Rows::Node => By::NodeAndSite,
            },
            empty: !self.no_empty && !stacks,
            cumulative: self.cumulative,
            metadata: self.metadata,
            mappings: !self.no_mmap && !self.cumulative,
        }
    }
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    args.check()?;
    let to = format::open(args.format(), args.output.as_deref(), Destination::Stdout)?;
    let mut reading = args.from.target()?.read(&args.query())?;
    if args.no_mmap {
        reading.snapshot.accounting.parts = None;
    }
    say_all(&reading.notes);
    to.write(|out| output::write(out, args.format(), &reading, &args.choice()))?;
    // Tools parse stdout, so everything else goes to stderr.
    if reading.filtered {
        say(&report::filtered(&reading.sites, reading.totals()));
    }
    if let Some(accounting) = reading.accounting() {
        let write = |mut out: &mut dyn Write| report::write_accounting(&mut out, accounting);
        // A closed stderr is no failure.
        let _: io::Result<()> = Destination::Stderr.write(write);
        say_all(untracked(accounting).as_slice());
    }
    Ok(())
}
