//! `kmem top`: the call sites that hold most, for people.

use std::cmp::Reverse;
use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::iter::Peekable;
use std::slice;
use std::time::Duration;

use kmem_snapshot::escape::printable;
use kmem_snapshot::sites::{Order, Site};
use kmem_snapshot::stacks::{Line, Tree};
use kmem_snapshot::{live, report};
use serde_json::{Value, json};

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
    /// What each group holds itself
    Group,
    /// Call sites, by the group that pays
    #[value(name = "group,site")]
    GroupSite,
}

impl By {
    /// What makes a row.
    fn rows(self) -> live::By {
        match self {
            Self::Size | Self::Pinned => live::By::Site,
            Self::Group | Self::GroupSite => live::By::GroupAndSite,
        }
    }
}

/// Arguments of `kmem top`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    from: source::From,
    /// Print once and end, rather than every second
    #[arg(short, long)]
    once: bool,
    /// Show a tree of callers, outermost first; a caller holds all that it calls
    #[arg(short, long, conflicts_with_all = ["by", "max"])]
    tree: bool,
    /// Print at most this many rows, or nodes of the tree
    #[arg(short = 'n', long, default_value_t = 20)]
    lines: usize,
    /// Order: s(ize), c(alls), t(ag); of groups the last is their path
    #[arg(short, long, value_enum)]
    sort: Option<Sort>,
    /// What to show and to order by
    #[arg(long, value_enum, default_value = "size", conflicts_with = "blackbox")]
    by: By,
    /// Print JSON instead, one line each time
    #[arg(long)]
    json: bool,
    /// Also print the allocator's own memory: the overhead, by kind of table
    #[arg(long, conflicts_with_all = ["blackbox", "group"])]
    metadata: bool,
    #[command(flatten)]
    filter: filter::Args,
}

impl Args {
    fn order(&self) -> Order {
        self.sort.map_or(Order::Size, Sort::order)
    }
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let clear = !args.once && !args.json && io::stdout().is_terminal();
    // The sizes that nodes are chosen by are their own.
    let filter = if args.tree { args.filter.names() } else { args.filter.filter() };
    if args.by == By::Pinned && args.sort.is_some() {
        let what = "--by pinned orders by what is pinned: it cannot be combined with --sort";
        return Err(Failure::Trouble(what.to_owned()));
    }
    if args.by == By::Pinned && args.filter.has_group() {
        let what = "--by pinned cannot be combined with --group: slabs are shared by all groups";
        return Err(Failure::Trouble(what.to_owned()));
    }
    let mut shown = false;
    loop {
        let reading = match source::read(&args.from, &filter, args.by.rows()) {
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
        let mut out = BufWriter::new(io::stdout().lock());
        if clear {
            write!(out, "\x1b[H\x1b[2J")?;
        }
        if args.tree {
            show_tree(&mut out, args, &reading, &sites)
        } else {
            show(&mut out, args, &reading, sites)
        }?;
        out.flush()?;
        drop(out);
        // The dead do not change.
        if args.once || !args.from.is_live() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn show(
    out: &mut impl Write,
    args: &Args,
    reading: &Reading,
    mut sites: Vec<Site>,
) -> Result<(), Failure> {
    if args.by == By::Group {
        return show_groups(out, args, reading, &sites);
    }
    let order = if args.by == By::Pinned { Order::Pinned } else { args.order() };
    sites.sort_by(|a, b| order.compare(a, b));
    if args.json {
        sites.truncate(args.lines);
        return source::write_json(out, &source::json_of(reading, &sites));
    }
    write_head(out, reading)?;
    if args.by == By::Pinned {
        report::write_pinned_table(out, &sites, args.lines)?;
    } else if args.by == By::GroupSite {
        report::write_group_table(out, &sites, args.lines)?;
    } else if reading.filtered && sites.is_empty() {
        report::write_header(out, 0)?;
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
    let mut totals = live::by_group(sites);
    // In order of their paths until here.
    match args.order() {
        Order::Calls => totals.sort_by_key(|of| Reverse((of.calls, of.bytes))),
        Order::Size | Order::Pinned => totals.sort_by_key(|of| Reverse((of.bytes, of.calls))),
        Order::Tag => {}
    }
    if args.json {
        totals.truncate(args.lines);
        let mut json = source::json_of(reading, &[]);
        json["groups"] = json!(totals);
        return source::write_json(out, &json);
    }
    write_head(out, reading)?;
    report::write_group_totals(out, &totals, args.lines)?;
    Ok(())
}

fn show_tree(
    out: &mut impl Write,
    args: &Args,
    reading: &Reading,
    sites: &[Site],
) -> Result<(), Failure> {
    let tree = Tree::of(sites);
    let lines = tree.lines(args.order(), args.lines, args.filter.least().unwrap_or(i64::MIN));
    if args.json {
        let mut json = source::json_of(reading, &[]);
        json["tree"] = tree_json(&mut lines.iter().peekable(), 0);
        source::write_json(out, &json)?;
    } else {
        write_head(out, reading)?;
        report::write_tree(out, &lines, tree.len() - lines.len())?;
    }
    Ok(())
}

/// The nodes at `depth` that come next, each with those below it. No deeper than a chain is long.
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
    let snapshot = &reading.snapshot;
    let (bytes, calls) = snapshot.totals();
    write!(out, "{} (pid {}): ", printable(&snapshot.exe), snapshot.pid)?;
    if reading.filtered {
        writeln!(out, "{}", filter::summary(&reading.sites, (bytes, calls)))?;
    } else {
        let (size, count) = (report::size(bytes), reading.sites.len());
        writeln!(out, "{size} in {calls} live objects from {count} call sites")?;
    }
    if let Some(accounting) = reading.accounting() {
        report::write_accounting(out, accounting)?;
    }
    writeln!(out)
}
