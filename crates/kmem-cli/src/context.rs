//! `kmem context`: tells the callers of one call site apart in a running process.

mod choose;
mod outcome;

use std::io::{self, BufWriter, Write};
use std::time::Duration;

use kmem_snapshot::books::Profiling;
use kmem_snapshot::control::{MAX_DEPTH, Setting};
use kmem_snapshot::escape::printable;
use kmem_snapshot::reading::CallSite;
use kmem_snapshot::{Control, Target};

use crate::failure::{Failure, say, say_all};
use crate::process::Named;
use choose::{choose, name};
use outcome::Outcome;

/// Arguments of `kmem context`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Read or change the process with this number or this name
    #[arg(short, long, value_name = "PID|NAME")]
    pid: Named,
    /// Call site whose callers are told apart: FUNCTION, FILE:LINE, MODULE+0xOFFSET or tag:N.
    /// Without it the command prints the current setting
    site: Option<String>,
    /// Compare N calls of each chain of callers, the call site itself included
    #[arg(long, value_name = "N", default_value_t = 8,
          value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_DEPTH)))]
    depth: u32,
    /// Watch the call site for at most SECONDS, and say if nothing can be told apart
    #[arg(long, value_name = "SECONDS", default_value_t = 1, conflicts_with = "off",
          value_parser = clap::value_parser!(u64).range(0..=86400))]
    wait: u64,
    /// Stop telling the callers apart
    #[arg(long, conflicts_with = "depth")]
    off: bool,
}

pub(crate) fn main(args: &Args) -> Result<(), Failure> {
    let process = args.pid.open()?;
    let (pid, control) = (process.pid(), process.control()?);
    match &args.site {
        _ if args.off => end(pid, &control, args.site.as_deref()),
        Some(site) => begin(pid, &control, site, args),
        None => show(pid, &control),
    }
}

/// Starts to tell the callers of one call site apart.
fn begin(pid: u32, control: &Control, site: &str, args: &Args) -> Result<(), Failure> {
    let depth = args.depth;
    let callers = callers(pid)?;
    let caller = choose(&callers, site)?;
    let others = control.settings()?.into_iter().filter(|s| s.root != caller.root);
    // The setting names one site, even in a process with several copies of the library.
    for other in others.filter(|s| s.deep_tag != 0) {
        control.set_deep(other.root, 0, 0)?;
    }
    let before = outcome::read(pid, caller)?;
    control.set_deep(caller.root, caller.tag, depth)?;
    say(&format!("telling {depth} callers apart at {}", name(caller)));
    if args.wait != 0 {
        let patience = Duration::from_secs(args.wait);
        say(&outcome::watch(pid, caller, before, patience).text(pid, depth));
    }
    Ok(())
}

/// Stops to tell callers apart. A site that is named must be the one in the setting.
fn end(pid: u32, control: &Control, site: Option<&str>) -> Result<(), Failure> {
    let set: Vec<Setting> = control.settings()?.into_iter().filter(|s| s.deep_tag != 0).collect();
    // A site that holds nothing any more is in no row: a name that fits no row may mean it. A name
    // that fits another site is a mistake.
    if let Some(site) = site
        && let Ok(caller) = choose(&callers(pid)?, site)
        && !set.iter().any(|s| (s.root, s.deep_tag) == (caller.root, caller.tag))
    {
        let what = format!(
            "callers are not told apart at {}; `kmem context -p {pid}` shows where they are",
            name(caller)
        );
        return Err(Failure::Trouble(what));
    }
    if set.is_empty() {
        say("no call site is chosen to tell its callers apart");
    }
    let callers = callers(pid).unwrap_or_default();
    for setting in set {
        let at = |c: &&CallSite| (c.root, c.tag) == (setting.root, setting.deep_tag);
        if let Some(caller) = callers.iter().find(at)
            && let Ok(now) = outcome::read(pid, caller)
        {
            say(&Outcome::of(now, None).text(pid, setting.deep_depth));
        }
        control.set_deep(setting.root, 0, 0)?;
        say(&format!("callers are no longer told apart at tag:{}", setting.deep_tag));
    }
    Ok(())
}

/// Prints the settings of all copies of the library.
fn show(pid: u32, control: &Control) -> Result<(), Failure> {
    let settings = control.settings()?;
    let callers = if settings.iter().any(|s| s.deep_tag != 0) { callers(pid)? } else { Vec::new() };
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
        let at = |c: &&CallSite| (c.root, c.tag) == (setting.root, setting.deep_tag);
        let (tag, depth) = (setting.deep_tag, setting.deep_depth.max(1));
        match callers.iter().find(at) {
            _ if tag == 0 => writeln!(out, "context: off")?,
            Some(caller) => {
                writeln!(out, "context: {depth} callers at {}", printable(&name(caller)))?;
                say(&Outcome::of(outcome::read(pid, caller)?, None).text(pid, depth));
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
fn callers(pid: u32) -> Result<Vec<CallSite>, Failure> {
    let (sites, notes) = Target::Process(pid).call_sites()?;
    say_all(&notes);
    Ok(sites)
}
