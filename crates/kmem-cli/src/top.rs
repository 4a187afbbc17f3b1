//! `kmem top`: the call sites that hold most, for people.
//!
//! ```text
//! screen  the terminal: layout, keys
//! view    rows and sums of a reading, as the screen shows them
//! sums    rows of groups, modules and size classes
//! cursor  the row that the user chose
//! details the page about it
//! search  the text that is typed to choose rows
//! ```
//!
//! Without a terminal, and with `--once` or `--json`, it prints instead.

mod cursor;
mod details;
mod screen;
mod search;
mod sums;
mod view;

use std::cmp::Reverse;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::iter::Peekable;
use std::slice;
use std::time::Duration;

use kmem_snapshot::escape::printable;
use kmem_snapshot::output::{Fact, Format};
use kmem_snapshot::sites::{GroupTotal, Order, Site, by_group};
use kmem_snapshot::stacks::{Line, Tree};
use kmem_snapshot::symbols::Kept;
use kmem_snapshot::{Query, ReadFailure, Reading, Target, output, report};
use serde_json::{Value, json};

use crate::destination::Destination;
use crate::failure::{Failure, say_all};
use crate::format::{self, Named};
use crate::options::{Filters, From, NO_METADATA, Sort};
use crate::untracked::untracked;
use screen::End;
use sums::Unit;
use view::Choice;

/// Columns of each site.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum By {
    /// live bytes of each call site
    Size,
    /// also PINNED, the slabs and page runs that its objects keep from being given back, and SOLE,
    /// the part that only its objects keep
    Pinned,
    /// memory that each group itself holds
    Group,
    /// call sites by the group that pays
    #[value(name = "group,site")]
    GroupSite,
}

/// The tree that is shown in place of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
enum Branches {
    /// callers, outermost first; a caller holds what its callees hold
    Callers,
    /// modules, directories, files and calls
    Source,
}

impl Branches {
    fn title(self) -> &'static str {
        match self {
            Self::Callers => "CALL TREE",
            Self::Source => "SOURCE TREE",
        }
    }

    /// The next choice on the screen; none stands for rows.
    fn after(choice: Option<Self>) -> Option<Self> {
        match choice {
            None => Some(Self::Callers),
            Some(Self::Callers) => Some(Self::Source),
            Some(Self::Source) => None,
        }
    }

    /// The names that the tree of these rows needs.
    fn modules(self, reading: &Reading, sites: &[Site]) -> Vec<String> {
        match self {
            Self::Callers => Vec::new(),
            Self::Source => reading.modules(sites),
        }
    }

    /// The tree of rows, with their [`Self::modules`].
    fn tree<'a>(self, sites: &'a [Site], modules: &'a [String]) -> Tree<'a> {
        match self {
            Self::Callers => Tree::of(sites),
            Self::Source => Tree::by_source(sites, modules),
        }
    }
}

/// Arguments of `kmem top`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    from: From,
    /// Print once, instead of every second
    #[arg(short, long)]
    once: bool,
    /// Show a tree, by default of callers
    #[arg(
        short, long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true,
        default_missing_value = "callers", conflicts_with_all = ["by", "max"]
    )]
    tree: Option<Branches>,
    /// Print at most N rows or nodes of the tree
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Order the rows; the tag of a group is its path
    #[arg(short, long, value_enum)]
    sort: Option<Sort>,
    /// Choose the columns, and order by them
    #[arg(long, value_enum, default_value = "size", conflicts_with = "blackbox")]
    by: By,
    /// Choose the format; with one that is neither table nor json, the rows are printed once
    #[arg(long, value_enum, default_value = "table")]
    format: Named,
    /// Short form of --format json; one line each time
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Add a row for each kind of kmem's own tables; together they are the overhead
    #[arg(long, conflicts_with_all = NO_METADATA)]
    metadata: bool,
    /// Leave out memory outside of the heap: what the program mapped itself, stacks, code, files
    #[arg(long)]
    no_mmap: bool,
    #[command(flatten)]
    filters: Filters,
}

impl Args {
    /// Refuses options that do not go with `--by`. The parser does not know these conflicts.
    fn check(&self, target: &Target) -> Result<(), Failure> {
        let what = if target.is_list() && self.by == By::Pinned {
            "--by pinned needs a process or its core file: a list of call sites has no slabs"
        } else if self.by == By::Pinned && self.sort.is_some() {
            "--by pinned orders by what is pinned: it cannot be combined with --sort"
        } else if self.by == By::Pinned && self.filters.has_group() {
            "--by pinned cannot be combined with --group: slabs are shared by all groups"
        } else if self.is_passed_on() && self.tree.is_some() {
            "--tree can only be combined with --format table and json"
        } else if self.is_passed_on() && self.by == By::Pinned {
            "--by pinned can only be combined with --format table and json"
        } else if self.is_passed_on() && self.by == By::Group {
            "--by group can only be combined with --format table and json: it has no call sites"
        } else {
            if self.by == By::GroupSite {
                format::check(self.format(), Fact::Group, "--by group,site")?;
            }
            if self.sort.is_some() {
                format::check(self.format(), Fact::Order, "--sort")?;
            }
            return Ok(());
        };
        Err(Failure::Trouble(what.to_owned()))
    }

    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format.0 }
    }

    /// True for a format of other programs.
    fn is_passed_on(&self) -> bool {
        !matches!(self.format(), Format::Table | Format::Json)
    }

    fn query(&self) -> Query {
        Query {
            // Nodes have sizes of their own, and are chosen by these later.
            filter: if self.tree.is_some() || self.format().has_stacks() {
                self.filters.names()
            } else {
                self.filters.filter()
            },
            by: match self.by {
                By::Size | By::Pinned => kmem_snapshot::By::Site,
                By::Group | By::GroupSite => kmem_snapshot::By::GroupAndSite,
            },
            empty: false,
            cumulative: false,
            metadata: self.metadata,
            // Mapped memory is in no slab.
            mappings: !self.no_mmap && self.by != By::Pinned,
        }
    }

    fn order(&self) -> Order {
        self.sort.map_or(Order::Size, Sort::order)
    }

    /// Reads the target, with the names that an earlier reading kept.
    fn read(&self, target: &Target, kept: &mut Kept) -> Result<Reading, ReadFailure> {
        let mut reading = target.read_again(&self.query(), kept)?;
        if self.no_mmap {
            reading.snapshot.accounting.parts = None;
        }
        Ok(reading)
    }
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let target = args.from.target()?;
    args.check(&target)?;
    let mut names = Kept::default();
    if args.is_passed_on() {
        return pass_on(args, &args.read(&target, &mut names)?);
    }
    let json = args.format() == Format::Json;
    let printed = args.once || json || !target.is_live() || !io::stdout().is_terminal();
    if printed {
        return print(args, &target, &mut names);
    }
    let choice = Choice {
        by: args.by,
        tree: args.tree,
        unit: if args.by == By::Group { Unit::Group } else { Unit::Site },
        order: args.order(),
        least: args.filters.least().unwrap_or(i64::MIN),
    };
    let first = args.read(&target, &mut names)?;
    match screen::run(choice, first, || args.read(&target, &mut names))? {
        End::Quit => Ok(()),
        End::Failed(failure) if failure.error.is_absent() => {
            say_all(&failure.notes);
            say_all(&[failure.error]);
            Ok(())
        }
        End::Failed(failure) => Err(failure.into()),
    }
}

/// Prints the largest rows once, in a format of other programs.
fn pass_on(args: &Args, reading: &Reading) -> Result<(), Failure> {
    let to = format::open(args.format(), None, Destination::Stdout)?;
    say_all(&reading.notes);
    let (min, max) = args.filters.sizes();
    let (order, lines) = (Some(args.order()), Some(args.lines));
    let choice = output::Choice { order, lines, min, max, cause: None };
    Ok(to.write(|out| output::write(out, args.format(), reading, &choice))?)
}

/// Prints every second, or once.
fn print(args: &Args, target: &Target, names: &mut Kept) -> Result<(), Failure> {
    let mut shown = false;
    loop {
        let reading = match args.read(target, names) {
            // The process was there and has ended, and so does this command.
            Err(failure) if shown && failure.error.is_absent() => {
                say_all(&failure.notes);
                say_all(&[failure.error]);
                return Ok(());
            }
            result => result?,
        };
        shown = true;
        say_all(&reading.notes);
        let mut out = BufWriter::new(io::stdout().lock());
        show(&mut out, args, &reading)?;
        out.flush()?;
        drop(out);
        // A dead process does not change.
        if args.once || !target.is_live() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn show(out: &mut impl Write, args: &Args, reading: &Reading) -> Result<(), Failure> {
    let sites = reading.all();
    if let Some(tree) = args.tree {
        show_tree(out, args, tree, reading, &sites)
    } else if args.by == By::Group {
        show_groups(out, args, reading, &sites)
    } else {
        show_sites(out, args, reading, sites)
    }
}

fn show_sites(
    out: &mut impl Write,
    args: &Args,
    reading: &Reading,
    mut sites: Vec<Site>,
) -> Result<(), Failure> {
    let order = if args.by == By::Pinned { Order::Pinned } else { args.order() };
    sites.sort_by(|a, b| order.compare(a, b));
    if args.format() == Format::Json {
        sites.truncate(args.lines);
        return Ok(output::json::write(out, &output::json::reading(reading, &sites))?);
    }
    write_head(out, reading)?;
    if args.by == By::Pinned {
        report::write_pinned_table(out, &sites, args.lines)?;
    } else if args.by == By::GroupSite {
        report::write_group_table(out, &sites, args.lines)?;
    } else if reading.filtered && sites.is_empty() {
        report::write_header(out)?;
    } else {
        report::write_table(out, &sites, args.lines)?;
    }
    Ok(())
}

fn show_groups(
    out: &mut impl Write,
    args: &Args,
    reading: &Reading,
    sites: &[Site],
) -> Result<(), Failure> {
    let mut totals = by_group(sites);
    sort_groups(&mut totals, args.order());
    if args.format() == Format::Json {
        totals.truncate(args.lines);
        let mut json = output::json::reading(reading, &[]);
        json["groups"] = json!(totals);
        return Ok(output::json::write(out, &json)?);
    }
    write_head(out, reading)?;
    report::write_group_totals(out, &totals, args.lines)?;
    Ok(())
}

/// Sorts totals, which come in order of path.
fn sort_groups(totals: &mut [GroupTotal], order: Order) {
    match order {
        Order::Calls => totals.sort_by_key(|of| Reverse((of.calls, of.bytes))),
        Order::Size | Order::Pinned => totals.sort_by_key(|of| Reverse((of.bytes, of.calls))),
        Order::Tag => {}
    }
}

fn show_tree(
    out: &mut impl Write,
    args: &Args,
    branches: Branches,
    reading: &Reading,
    sites: &[Site],
) -> Result<(), Failure> {
    let modules = branches.modules(reading, sites);
    let tree = branches.tree(sites, &modules);
    let lines = tree.lines(args.order(), args.lines, args.filters.least().unwrap_or(i64::MIN));
    if args.format() == Format::Json {
        let mut json = output::json::reading(reading, &[]);
        json["tree"] = tree_json(&mut lines.iter().peekable(), 0);
        output::json::write(out, &json)?;
    } else {
        write_head(out, reading)?;
        report::write_tree(out, branches.title(), &lines, tree.len() - lines.len())?;
    }
    Ok(())
}

/// Takes the next nodes at `depth`, each with the nodes below it. A chain bounds the depth.
fn tree_json(lines: &mut Peekable<slice::Iter<'_, Line<'_, '_>>>, depth: usize) -> Value {
    let mut nodes = Vec::new();
    while let Some(Line { node, .. }) = lines.next_if(|line| line.depth == depth) {
        let source = node.frame.source();
        nodes.push(json!({
            "function": node.frame.name(),
            "location": node.frame.location(),
            "file": source.map(|s| s.0),
            "line": source.map(|s| s.1),
            "bytes": node.bytes,
            "calls": node.calls,
            "children": tree_json(lines, depth + 1),
        }));
    }
    Value::Array(nodes)
}

fn write_head(out: &mut impl Write, reading: &Reading) -> io::Result<()> {
    let (bytes, calls) = reading.totals();
    write!(out, "{}: ", printable(&reading.name()))?;
    if reading.filtered {
        writeln!(out, "{}", report::filtered(&reading.sites, (bytes, calls)))?;
    } else {
        let (size, count) = (report::size(bytes), reading.sites.len());
        write!(out, "{size} in {calls} live objects from {count} call sites")?;
        match reading.mapped() {
            Some(bytes) => {
                writeln!(out, ", and {} mapped by the program", report::size_u(bytes))?;
            }
            None => writeln!(out)?,
        }
    }
    if let Some(accounting) = reading.accounting() {
        report::write_accounting(out, accounting)?;
        if let Some(warning) = untracked(accounting) {
            writeln!(out, "{warning}")?;
        }
    }
    writeln!(out)
}
