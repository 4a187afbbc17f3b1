//! `kmem leaks`: live objects to which no pointer leads.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use kmem_snapshot::escape::printable;
use kmem_snapshot::leaks::Leaks;
use kmem_snapshot::sites::{Site, total};
use kmem_snapshot::{output, report};
use serde_json::json;

use crate::failure::{FOUND, Failure, say, say_all};
use crate::process::Named;

/// Arguments of `kmem leaks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Look at the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Named,
    /// Print at most N rows per table
    #[arg(short = 'n', long, value_name = "N", default_value_t = 20)]
    lines: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode, Failure> {
    let leaks = Leaks::find(args.pid.pid()?)?;
    say_all(&leaks.notes);
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        let (direct, indirect) = (total(&leaks.direct), total(&leaks.indirect));
        let rows = |of: &[Site]| of.iter().map(|site| json!(site)).collect::<Vec<_>>();
        let json = json!({
            "name": leaks.name,
            "bytes": leaks.all.0,
            "calls": leaks.all.1,
            "stopped_seconds": leaks.stopped.as_secs_f64(),
            "direct": { "bytes": direct.0, "calls": direct.1, "rows": rows(&leaks.direct) },
            "indirect": { "bytes": indirect.0, "calls": indirect.1, "rows": rows(&leaks.indirect) },
        });
        output::json::write_pretty(&mut out, &json)?;
    } else {
        write(&mut out, &leaks, args.lines)?;
    }
    out.flush()?;
    say(&format!("the process was stopped for {:.1} ms", leaks.stopped.as_secs_f64() * 1e3));
    Ok(if leaks.direct.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
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
