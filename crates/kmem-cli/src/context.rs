//! `kmem context`: tells the callers of one call site apart, in a process that runs.

mod choose;

use std::io::{self, BufWriter, Write};

use kmem_snapshot::books::{Key, Profiling};
use kmem_snapshot::control::{MAX_DEPTH, Setting};
use kmem_snapshot::escape::printable;
use kmem_snapshot::symbols::{Modules, Symbols};
use kmem_snapshot::{Control, Process, Snapshot};

use crate::failure::{Failure, say};
use crate::source;
use choose::Caller;

/// Arguments of `kmem context`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Process to change
    #[arg(short, long)]
    pid: u32,
    /// Call site: FUNCTION, FILE:LINE, MODULE+0xOFFSET or tag:N; without it the present setting is
    /// printed
    site: Option<String>,
    /// Callers to tell apart, the call site itself included
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_DEPTH)))]
    depth: u32,
    /// Tell the callers apart no longer
    #[arg(long, conflicts_with = "depth")]
    off: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let process = Process::open(args.pid)?;
    let control = process.control()?;
    match &args.site {
        _ if args.off => end(&process, &control, args.site.as_deref()),
        Some(site) => begin(&process, &control, site, args.depth),
        None => show(&process, &control),
    }
}

/// Writes the setting of one call site.
fn begin(process: &Process, control: &Control, site: &str, depth: u32) -> Result<(), Failure> {
    let callers = callers(process, &source::snapshot(process)?);
    let caller = choose::choose(&callers, site)?;
    let others = control.settings()?.into_iter().filter(|s| s.root != caller.root);
    // There is one site, also where there are two copies of the library.
    for other in others.filter(|s| s.deep_tag != 0) {
        control.set_deep(other.root, 0, 0)?;
    }
    control.set_deep(caller.root, caller.tag, depth)?;
    say(&format!("telling {depth} callers apart at {caller}"));
    Ok(())
}

fn end(process: &Process, control: &Control, site: Option<&str>) -> Result<(), Failure> {
    let set: Vec<Setting> = control.settings()?.into_iter().filter(|s| s.deep_tag != 0).collect();
    // The site may hold nothing any more, and then it is in no row; that it was meant is certain
    // enough. Another one that is there was a mistake.
    if let Some(site) = site
        && let Ok(caller) = choose::choose(&callers(process, &source::snapshot(process)?), site)
        && !set.iter().any(|s| (s.root, s.deep_tag) == (caller.root, caller.tag))
    {
        return Err(Failure::Trouble(format!("callers are not told apart at {caller}")));
    }
    if set.is_empty() {
        say("callers are told apart at no chosen site");
    }
    for setting in set {
        control.set_deep(setting.root, 0, 0)?;
        say(&format!("callers are no longer told apart at tag:{}", setting.deep_tag));
    }
    Ok(())
}

fn show(process: &Process, control: &Control) -> Result<(), Failure> {
    let settings = control.settings()?;
    let callers = if settings.iter().any(|s| s.deep_tag != 0) {
        callers(process, &source::snapshot(process)?)
    } else {
        Vec::new()
    };
    let mut out = BufWriter::new(io::stdout().lock());
    for setting in &settings {
        if settings.len() > 1 {
            writeln!(out, "root: {:#x}", setting.root)?;
        }
        let profiling = match setting.profiling {
            Profiling::Off => "off",
            Profiling::On => "on",
            Profiling::Never => "never",
        };
        writeln!(out, "profiling: {profiling}")?;
        writeln!(out, "depth: {}", setting.depth.max(1))?;
        let at = |c: &&Caller| (c.root, c.tag) == (setting.root, setting.deep_tag);
        let (tag, depth) = (setting.deep_tag, setting.deep_depth.max(1));
        match callers.iter().find(at) {
            _ if tag == 0 => writeln!(out, "context: off")?,
            Some(caller) => {
                writeln!(out, "context: {depth} callers at {}", printable(&caller.to_string()))?;
            }
            None => {
                writeln!(out, "context: {depth} callers at tag:{tag}, which holds nothing now")?
            }
        }
    }
    out.flush()?;
    Ok(())
}

/// The call sites whose callers can be told apart, largest first.
fn callers(process: &Process, snapshot: &Snapshot) -> Vec<Caller> {
    let modules = Modules::open(process, &snapshot.maps, &snapshot.addresses());
    let mut symbols = Symbols::new(&modules);
    let rows = snapshot.books.iter().flat_map(|b| b.rows.iter().map(|row| (b.root, row)));
    let mut callers: Vec<Caller> = rows
        .filter_map(|(root, row)| {
            let Key::Caller(addr) = row.key else { return None };
            let (tag, bytes, calls) = (row.tag, row.bytes, row.calls);
            Some(Caller { root, tag, place: symbols.resolve(addr), bytes, calls })
        })
        .collect();
    callers.sort_by_key(|c| (std::cmp::Reverse(c.bytes), c.root, c.tag));
    callers
}
