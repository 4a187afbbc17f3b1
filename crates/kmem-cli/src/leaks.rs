//! `kmem leaks`: live objects to which no pointer leads.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use kmem_snapshot::escape::printable;
use kmem_snapshot::leaks::Leaks;
use kmem_snapshot::output::{Choice, Format};
use kmem_snapshot::sites::{Site, total};
use kmem_snapshot::{output, report};
use serde_json::json;

use crate::destination::Destination;
use crate::failure::{FOUND, Failure, say, say_all};
use crate::format::{self, Named};
use crate::process;

/// Rows of a table, without `-n`.
const LINES: usize = 20;

/// Arguments of `kmem leaks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Look at the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: process::Named,
    /// Print at most N rows or stacks; without this option, 20 rows per table and all else
    #[arg(short = 'n', long, value_name = "N")]
    lines: Option<usize>,
    /// Choose the format; all but table and json have the direct leaks alone
    #[arg(long, value_enum, default_value = "table")]
    format: Named,
    /// Short form of --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let format = if args.json { Format::Json } else { args.format.0 };
    // A destination that cannot be had leaves the process alone.
    let to = format::open(format, None, Destination::Stdout)?;
    let leaks = Leaks::find(args.pid.pid()?)?;
    say_all(&leaks.notes);
    match format {
        Format::Json => write_json(&leaks, args.lines.unwrap_or(usize::MAX))?,
        Format::Table => {
            let mut out = BufWriter::new(io::stdout().lock());
            write(&mut out, &leaks, args.lines.unwrap_or(LINES))?;
            out.flush()?;
        }
        _ => {
            let choice = Choice { lines: args.lines, ..Choice::default() };
            to.write(|out| output::write(out, format, &leaks.reading, &choice))?;
        }
    }
    say(&format!("the process was stopped for {:.1} ms", leaks.stopped.as_secs_f64() * 1e3));
    Ok(if leaks.direct.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn write_json(leaks: &Leaks, lines: usize) -> io::Result<()> {
    let (direct, indirect) = (total(&leaks.direct), total(&leaks.indirect));
    let rows = |of: &[Site]| of.iter().take(lines).map(|site| json!(site)).collect::<Vec<_>>();
    let json = json!({
        "name": leaks.name,
        "bytes": leaks.all.0,
        "calls": leaks.all.1,
        "stopped_seconds": leaks.stopped.as_secs_f64(),
        "direct": { "bytes": direct.0, "calls": direct.1, "rows": rows(&leaks.direct) },
        "indirect": { "bytes": indirect.0, "calls": indirect.1, "rows": rows(&leaks.indirect) },
    });
    let mut out = BufWriter::new(io::stdout().lock());
    output::json::write_pretty(&mut out, &json)?;
    out.flush()
}

/// Writes the leaks of a process for people, with at most `lines` rows in a table.
///
/// # Errors
///
/// The errors of the writer.
pub(crate) fn write(out: &mut impl Write, leaks: &Leaks, lines: usize) -> io::Result<()> {
    let (size, name) = (report::size(leaks.all.0), printable(&leaks.name));
    writeln!(out, "{name}: {size} in {} live objects", leaks.all.1)?;
    table(out, "Direct: no pointer leads to them", &leaks.direct, lines)?;
    table(out, "Indirect: only leaked objects lead to them", &leaks.indirect, lines)?;
    if leaks.direct.is_empty() {
        writeln!(out, "\nno leaks: pointers lead to all of them")?;
    }
    Ok(())
}

fn table(out: &mut impl Write, what: &str, rows: &[Site], lines: usize) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let (bytes, calls) = total(rows);
    writeln!(out, "\n{what}: {} in {calls} objects", report::size(bytes))?;
    report::write_table(out, rows, lines)
}
