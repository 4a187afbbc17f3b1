//! `kmem top`: the call sites that hold most, for people.

use std::io::{self, BufWriter, IsTerminal as _, Write};
use std::iter::Peekable;
use std::slice;
use std::time::Duration;

use kmem_snapshot::escape::printable;
use kmem_snapshot::report;
use kmem_snapshot::stacks::{Line, Tree};
use serde_json::{Value, json};

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
    /// Show a tree of callers, outermost first
    #[arg(short, long)]
    tree: bool,
    /// Print at most this many rows, or nodes of the tree
    #[arg(short = 'n', long, default_value_t = 20)]
    lines: usize,
    /// Leave out rows, or nodes, below this size
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
        let mut out = BufWriter::new(io::stdout().lock());
        if clear {
            write!(out, "\x1b[H\x1b[2J")?;
        }
        if args.tree {
            show_tree(&mut out, args, &reading)
        } else {
            show(&mut out, args, &reading)
        }?;
        out.flush()?;
        drop(out);
        if args.once {
            return Ok(());
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn show(out: &mut impl Write, args: &Args, reading: &Reading) -> Result<(), Failure> {
    let mut sites = reading.sites.clone();
    sites.retain(|s| args.min.is_none_or(|min| s.bytes >= min));
    sites.sort_by(|a, b| args.sort.order().compare(a, b));
    if args.json {
        sites.truncate(args.lines);
        serde_json::to_writer(&mut *out, &source::json_of(reading, &sites))?;
        writeln!(out)?;
    } else {
        write_head(out, reading)?;
        report::write_table(out, &sites, args.lines)?;
    }
    Ok(())
}

fn show_tree(out: &mut impl Write, args: &Args, reading: &Reading) -> Result<(), Failure> {
    let tree = Tree::of(&reading.sites);
    let lines = tree.lines(args.sort.order(), args.lines, args.min.unwrap_or(i64::MIN));
    if args.json {
        let mut json = source::json_of(reading, &[]);
        json["tree"] = tree_json(&mut lines.iter().peekable(), 0);
        serde_json::to_writer(&mut *out, &json)?;
        writeln!(out)?;
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
    writeln!(
        out,
        "{} (pid {}): {} in {calls} live objects from {} call sites",
        printable(&snapshot.exe),
        snapshot.pid,
        report::size(bytes),
        reading.sites.len(),
    )?;
    report::write_accounting(out, &snapshot.accounting)?;
    writeln!(out)
}
