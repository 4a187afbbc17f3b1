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
    let (direct, indirect) = (total(&leaks.direct), total(&leaks.indirect));
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
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
        let (size, name) = (report::size(leaks.all.0), printable(&leaks.name));
        writeln!(out, "{name}: {size} in {} live objects", leaks.all.1)?;
        let what = "Direct: no pointer leads to them";
        table(&mut out, what, direct, &leaks.direct, args.lines)?;
        let what = "Indirect: only leaked objects lead to them";
        table(&mut out, what, indirect, &leaks.indirect, args.lines)?;
        if direct.1 == 0 {
            writeln!(out, "\nno leaks: pointers lead to all of them")?;
        }
    }
    out.flush()?;
    say(&format!("the process was stopped for {:.1} ms", leaks.stopped.as_secs_f64() * 1e3));
    Ok(if direct.1 == 0 { ExitCode::SUCCESS } else { ExitCode::from(FOUND) })
}

fn table(
    out: &mut impl Write,
    what: &str,
    (bytes, calls): (i64, u64),
    rows: &[Site],
    lines: usize,
) -> io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{what}: {} in {calls} objects", report::size(bytes))?;
    report::write_table(out, rows, lines)
}
