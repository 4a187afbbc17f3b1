//! `kmem diff`: the call sites whose memory changed between two sources.
//!
//! ```text
//! growth  `--fail-on-growth`: thresholds, and the sites that exceed them
//! ```

mod growth;

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use kmem_snapshot::diff::{Change, Diff, Held};
use kmem_snapshot::escape::printable;
use kmem_snapshot::output::{Format, csv, folded_changes, json};
use kmem_snapshot::program::base_name;
use kmem_snapshot::sites::{Order, Site};
use kmem_snapshot::stacks::{self, Stacks};
use kmem_snapshot::{By, Query, Reading, Target, report};
use serde::Serialize;

use crate::failure::{FOUND, Failure, say, say_all};
use crate::format::{self, Named};
use crate::options::{Filters, Sort};
use crate::source;
use growth::{Growth, Limit};

/// Rows of a table, without `-n`.
const LINES: usize = 20;

/// Arguments of `kmem diff`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Compare with this source: a PID, the name of a process, a file, FILE@MOMENT, or kernel
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// Compare this source: a PID, the name of a process, a file, FILE@MOMENT, or kernel
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Exit with 1 if live memory grew by more than SIZE, or that of the sites of one name. SITE is
    /// a FILE:LINE, a function or a module, or a glob for one; may be repeated
    #[arg(long, value_name = "SIZE[@SITE]")]
    fail_on_growth: Vec<Limit>,
    /// Choose the format; collapsed stacks have the bytes before and afterwards
    #[arg(long, value_parser = format::of_changes(), default_value = "table")]
    format: Named,
    /// Short form of --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// Print at most N rows or stacks; without this option, 20 rows of a table and all else
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Order the rows by their change, whatever its sign; without this option by its bytes. Stacks
    /// are always in order of bytes
    #[arg(short, long, value_enum)]
    sort: Option<Sort>,
    /// Compare memory outside of the heap, too: what the program mapped itself, stacks, code, files
    #[arg(long)]
    mmap: bool,
    #[command(flatten)]
    filters: Filters,
}

/// A source, read.
struct Side {
    reading: Reading,
    sites: Vec<Site>,
}

impl Side {
    fn read(target: &Target, args: &Args) -> Result<Self, Failure> {
        let query = Query {
            // Sizes choose changes, not rows.
            filter: args.filters.names(),
            by: By::Site,
            empty: false,
            cumulative: false,
            metadata: false,
            mappings: args.mmap,
        };
        let mut reading = target.read(&query)?;
        say_all(&reading.notes);
        if args.mmap && target.is_list() && reading.mappings.is_empty() {
            say(&format!("{} has no rows of memory outside of the heap", reading.name()));
        }
        let sites = [std::mem::take(&mut reading.sites), std::mem::take(&mut reading.mappings)];
        Ok(Self { reading, sites: sites.concat() })
    }

    /// Base name of the program, which its own rows may not have.
    fn main(&self) -> &str {
        base_name(&self.reading.snapshot.exe)
    }
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    // The parser does not know this conflict.
    if args.format() == Format::Folded && args.sort.is_some() {
        let what = "--sort cannot be combined with --format folded, whose stacks come by size";
        return Err(Failure::Trouble(what.to_owned()));
    }
    let [before, after] = [source::target(&args.before)?, source::target(&args.after)?];
    let [before, after] = [Side::read(&before, args)?, Side::read(&after, args)?];
    let mut diff = Diff::of(&before.sites, &after.sites);
    // All changes count, also those that are not printed.
    let growth = growth::find(&args.fail_on_growth, &diff, &before.sites, after.main());
    diff.sort(args.sort.map_or(Order::Size, Sort::order));
    let written = write(args, [&before, &after], &diff, &growth);
    // Growth is found even if the program that reads the rows stops early.
    growth.iter().for_each(|growth| say(&growth.text()));
    let code = written.map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    Ok(if growth.is_empty() { code } else { ExitCode::from(FOUND) })
}

fn write(args: &Args, sides: [&Side; 2], diff: &Diff, growth: &[Growth]) -> Result<(), Failure> {
    let mut out = BufWriter::new(io::stdout().lock());
    let rows = || args.shown(diff, args.lines.unwrap_or(usize::MAX)).0;
    match args.format() {
        Format::Json => write_json(&mut out, args, sides, diff, growth)?,
        Format::Jsonl => json::write_changes(&mut out, &rows())?,
        Format::Csv => csv::write_changes(&mut out, &rows())?,
        Format::Folded => write_folded(&mut out, args, sides)?,
        _ => write_table(&mut out, args, sides, diff)?,
    }
    Ok(out.flush()?)
}

impl Args {
    fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format.0 }
    }

    fn admits(&self, delta: i128) -> bool {
        self.filters.filter().admits_size(i64::try_from(delta.abs()).unwrap_or(i64::MAX))
    }

    /// The changes to print, and the sum of the others.
    fn shown(&self, diff: &Diff, most: usize) -> (Vec<Change>, LeftOut) {
        let (mut shown, mut out): (Vec<Change>, Vec<Change>) =
            diff.changes.iter().cloned().partition(|change| self.admits(change.delta().bytes));
        out.extend(shown.drain(shown.len().min(most)..));
        let delta = out.iter().map(Change::delta).sum();
        (shown, LeftOut { rows: out.len(), delta })
    }
}

fn write_table(
    out: &mut impl Write,
    args: &Args,
    sides: [&Side; 2],
    diff: &Diff,
) -> Result<(), Failure> {
    for (title, side, held) in [("before", sides[0], diff.before), ("after", sides[1], diff.after)]
    {
        let (name, size) = (side.reading.name(), report::size_of_sum(held.bytes));
        let name = printable(&name);
        write!(out, "{title:<7} {name}: {size} in {} live objects", held.calls)?;
        writeln!(out, "{}", if side.reading.filtered { ", by a filter" } else { "" })?;
    }
    writeln!(out)?;
    let changes: Vec<Change> =
        diff.changes.iter().filter(|of| args.admits(of.delta().bytes)).cloned().collect();
    report::write_diff(out, &changes, args.lines.unwrap_or(LINES))?;
    report::write_diff_totals(out, diff)?;
    Ok(())
}

fn write_folded(out: &mut impl Write, args: &Args, sides: [&Side; 2]) -> Result<(), Failure> {
    let [before, after] = sides.map(|side| Stacks::of(&side.sites, stacks::By::Name));
    let mut changes = folded_changes(&before, &after);
    changes.retain(|of| args.admits(of.after - of.before));
    let most = args.lines.unwrap_or(usize::MAX);
    Ok(changes.iter().take(most).try_for_each(|change| change.write(out))?)
}

/// The changes that are not among the rows.
#[derive(Serialize)]
struct LeftOut {
    rows: usize,
    delta: Held,
}

/// A source in JSON.
#[derive(Serialize)]
struct Source<'a> {
    name: &'a str,
    pid: Option<u32>,
    held: Held,
    notes: Vec<String>,
}

/// A difference in JSON.
#[derive(Serialize)]
struct Json<'a> {
    before: Source<'a>,
    after: Source<'a>,
    delta: Held,
    rows: Vec<Change>,
    left_out: LeftOut,
    growth: &'a [Growth],
}

fn write_json(
    out: &mut impl Write,
    args: &Args,
    sides: [&Side; 2],
    diff: &Diff,
    growth: &[Growth],
) -> Result<(), Failure> {
    let (rows, left_out) = args.shown(diff, args.lines.unwrap_or(usize::MAX));
    let [before, after] = [(sides[0], diff.before), (sides[1], diff.after)].map(|(side, held)| {
        let Reading { snapshot, notes, .. } = &side.reading;
        let notes = notes.iter().map(ToString::to_string).collect();
        Source { name: &snapshot.exe, pid: side.reading.pid(), held, notes }
    });
    json::write(out, &Json { before, after, delta: diff.delta(), rows, left_out, growth })?;
    Ok(())
}
