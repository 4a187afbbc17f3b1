//! The report of `kmem run` after the command has ended.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use kmem_snapshot::blackbox::BlackBox;
use kmem_snapshot::books::{Accounting, Mappings};
use kmem_snapshot::escape::printable;
use kmem_snapshot::report;
use kmem_snapshot::sites::{self, Order, total};
use kmem_snapshot::symbols::Symbols;
use kmem_snapshot::{Note, Snapshot};

use crate::leaks;
use crate::untracked::untracked;

use super::boxes::Held;
use super::misuse;
use super::oom::Kills;
use super::peak;
use super::sections::{self, Choice, Program};
use super::watch::{Ended, LastReading};

/// The parts of a report that are wanted.
pub(super) struct Show {
    /// The programs.
    pub(super) choice: Choice,
    /// Most rows of a table.
    pub(super) lines: usize,
    /// True if memory outside of the heap is shown.
    pub(super) mmap: bool,
    /// True if leaks of the command's own process are shown.
    pub(super) leaks: bool,
    /// True if the user asked for a black box of the command.
    pub(super) has_own_box: bool,
}

/// Writes the report: the end of the command, and a section for each chosen program, that with most
/// memory first.
///
/// # Errors
///
/// The errors of the writer.
pub(super) fn write(
    mut out: &mut dyn Write,
    ended: &Ended,
    command: &str,
    show: &Show,
) -> io::Result<()> {
    let out = &mut out;
    let (choice, lines) = (&show.choice, show.lines);
    let known = ended.main.as_ref().and_then(|main| main.as_ref().ok()).map_or(0, most_held);
    let programs = sections::programs(&ended.boxes, (command, known));
    let (shown, rest) = sections::choose(programs, choice);
    let all = || shown.iter().chain(&rest);
    let own = all().find(|program| program.is_main).and_then(|program| program.held.first());
    writeln!(out, "\nkmem: {} (pid {}) {}", printable(command), ended.pid, how(ended, own))?;
    own.map_or(Ok(()), |held| misuse::write(out, held))?;
    own.map_or(Ok(()), |held| sections::write_refusals(out, held))?;
    let Kills { group, machine } = ended.kills;
    if group != 0 && !is_killed(ended) {
        let processes = report::counted(group, "process", "processes");
        writeln!(out, "kmem: the kernel's OOM killer ended {processes} of the control group")?;
    } else if group == 0 && machine != 0 && is_killed(ended) {
        writeln!(
            out,
            "kmem: the kernel's OOM killer was at work meanwhile, maybe on this process"
        )?;
    }
    let is_first = |program: &Program<'_>| all().next().is_some_and(|p| std::ptr::eq(p, program));
    for program in &shown {
        if !program.is_main {
            sections::write(out, program, lines, show.mmap)?;
            continue;
        }
        if !is_first(program) || shown.len() > 1 {
            let name = printable(program.name);
            writeln!(out, "\n{name} (pid {}), the command:", ended.pid)?;
        }
        write_main(out, ended, own.copied(), show)?;
    }
    if !shown.iter().any(|program| program.is_main) {
        match (&ended.main, own) {
            (Some(Err(e)), None) => {
                writeln!(out, "kmem: no exit report: {}", printable(&e.to_string()))?;
            }
            (None, None) => writeln!(out, "kmem: no exit report: {}", why_not(ended, show))?,
            _ => {}
        }
    }
    match choice {
        Choice::Only(_) if shown.is_empty() => writeln!(out, "kmem: no process of that name")?,
        Choice::Only(_) => {}
        Choice::All | Choice::Largest => sections::write_rest(out, &rest)?,
    }
    if show.leaks { write_leaks(out, ended, lines) } else { Ok(()) }
}

/// Writes the leaks of the command's own process.
fn write_leaks(out: &mut impl Write, ended: &Ended, lines: usize) -> io::Result<()> {
    match &ended.leaks {
        Some(Ok(found)) => {
            write!(out, "\nLeaks at exit: ")?;
            leaks::write(out, found, lines)?;
            found.notes.iter().try_for_each(|note| writeln!(out, "kmem: {note}"))
        }
        Some(Err(failure)) => {
            let why = failure.error.to_string();
            writeln!(out, "kmem: leaks were not looked for: {}", printable(&why))
        }
        None => writeln!(
            out,
            "kmem: leaks were not looked for: the command's own process made no exit report"
        ),
    }
}

/// Most live bytes that a process is known to have held.
fn most_held(reading: &LastReading) -> u64 {
    let peaks = reading.snapshot.books.iter().filter_map(|b| b.peak.as_ref());
    let bytes = peaks.flat_map(|peak| &peak.rows).map(|row| row.bytes);
    let bytes = bytes.fold(0, i64::saturating_add);
    reading.snapshot.accounting.tracked.max(u64::try_from(bytes).unwrap_or(0))
}

/// Writes the memory of the command's own process, by its last reading or its box.
fn write_main(
    out: &mut impl Write,
    ended: &Ended,
    own: Option<&Held>,
    show: &Show,
) -> io::Result<()> {
    match (&ended.main, own) {
        (Some(Ok(reading)), _) => write_reading(out, reading, own, show),
        (main, Some(held)) => {
            match main {
                Some(Err(e)) => writeln!(out, "kmem: {}", printable(&e.to_string()))?,
                None if ended.status.code().is_some() => writeln!(
                    out,
                    "kmem: the process became a program that cannot be preloaded, or ended by a \
                     raw exit system call; this is from before:"
                )?,
                _ => {}
            }
            sections::write_main(out, held, ended.time_ns, show.lines, show.mmap)
        }
        (Some(Err(e)), None) => {
            writeln!(out, "kmem: no exit report: {}", printable(&e.to_string()))
        }
        (None, None) => writeln!(out, "kmem: no exit report: {}", why_not(ended, show)),
    }
}

fn is_killed(ended: &Ended) -> bool {
    ended.status.signal() == Some(libc::SIGKILL)
}

/// The end of the command, in words. `own` is its box.
pub(super) fn how(ended: &Ended, own: Option<&&Held>) -> String {
    let Some(signal) = ended.status.signal() else { return status(ended.status) };
    let why = if is_killed(ended) && ended.kills.group != 0 {
        ": the kernel's OOM killer ended it"
    } else {
        match signal {
            libc::SIGABRT | libc::SIGSEGV if !own.is_some_and(|held| misuse::is_misuse(held)) => "",
            libc::SIGABRT => ": kmem ended it for a misuse of memory",
            libc::SIGSEGV => ": it misused memory",
            _ => "",
        }
    };
    format!("{}{why}", status(ended.status))
}

/// An exit status, in words.
pub(crate) fn status(of: ExitStatus) -> String {
    let signal = match (of.code(), of.signal()) {
        (Some(code), _) => return format!("exited with {code}"),
        (None, Some(signal)) => signal,
        (None, None) => return "ended".to_owned(),
    };
    match signal_name(signal) {
        "" => format!("ended by signal {signal}"),
        name => format!("ended by {name}"),
    }
}

fn signal_name(signal: i32) -> &'static str {
    match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        _ => "",
    }
}

fn why_not(ended: &Ended, show: &Show) -> &'static str {
    if ended.status.signal().is_some() && show.has_own_box {
        "a signal ended the process; read the black box that you named (kmem dump --blackbox FILE)"
    } else if ended.status.signal().is_some() {
        "a signal ended the process, and it left no black box"
    } else if ended.loaded {
        "libkmem was loaded, but the process ended without a report (a raw exit system call, or it \
         became a program that cannot be preloaded)"
    } else {
        "libkmem was not loaded (the dynamic loader refused it, or the process became a program \
         that cannot be preloaded), or the process ended by a raw exit system call"
    }
}

fn write_reading(
    out: &mut impl Write,
    reading: &LastReading,
    own: Option<&Held>,
    show: &Show,
) -> io::Result<()> {
    let (lines, mmap) = (show.lines, show.mmap);
    let snapshot = &reading.snapshot;
    let parts = snapshot.accounting.parts.filter(|_| mmap);
    let accounting = Accounting { parts, ..snapshot.accounting };
    for fault in snapshot.left_out() {
        writeln!(out, "kmem: {}; left out", printable(&fault))?;
    }
    if snapshot.never() {
        writeln!(
            out,
            "kmem: no sites: profiling is `never` (KMEM_CONF=mem_profiling:never); small objects \
             are part of unaccounted"
        )?;
        return report::write_accounting(out, &accounting);
    }
    let mut symbols = Symbols::new(&reading.modules);
    let peak = own.filter(|_| mmap).and_then(mapped_peak);
    match peak {
        Some(peak) => write_mapped_peak(out, snapshot, &peak, &mut symbols, lines)?,
        None => write_peak(out, snapshot, &mut symbols, lines)?,
    }
    if snapshot.torn() != 0 {
        writeln!(out, "kmem: {} slabs or page allocations could not be read", snapshot.torn())?;
    }
    if let Some(mappings) = snapshot.mappings.as_ref().filter(|_| mmap) {
        write_mappings(out, mappings, &mut symbols, lines)?;
    }
    for remark in snapshot.budget.remarks() {
        writeln!(out, "kmem: {}", printable(&remark))?;
    }
    writeln!(out)?;
    report::write_accounting(out, &accounting)?;
    match untracked(&accounting) {
        Some(warning) => writeln!(out, "kmem: {warning}"),
        None => Ok(()),
    }
}

/// Writes the heap at its peak, by the table of the process, and at the exit.
fn write_peak(
    out: &mut impl Write,
    snapshot: &Snapshot,
    symbols: &mut Symbols<'_>,
    lines: usize,
) -> io::Result<()> {
    let at_exit = sections::rows(snapshot, symbols, false);
    let peaks: Vec<_> = snapshot.books.iter().filter_map(|b| b.peak.as_ref()).collect();
    let mut at_peak = sites::resolve(peaks.iter().flat_map(|p| &p.rows), symbols);
    at_peak.sort_by(|a, b| Order::Size.compare(a, b));
    // The process records a peak at each 5 % of growth, so the exit may be above the last record.
    let peak_is_exit = !peaks.is_empty() && total(&at_peak).0 <= total(&at_exit).0;
    let highest = peaks.iter().copied().max_by_key(|peak| peak.highest.0);
    if peaks.is_empty() {
        writeln!(out, "\nAt the peak: not recorded")?;
    } else if !peak_is_exit {
        let pages: u64 = peaks.iter().map(|p| p.used_pages).fold(0, u64::saturating_add);
        let torn = if peaks.iter().any(|p| p.torn) { "; the table is torn" } else { "" };
        let used = report::size_u(pages.saturating_mul(4096));
        let sum = sections::sum(&at_peak);
        writeln!(out, "\nAt the peak: {sum} ({used} of pages in use{torn})")?;
        if let Some(peak) = highest {
            writeln!(out, "  {}", peak::highest(peak, false))?;
        }
        report::write_table(out, &at_peak, lines)?;
    }
    let too = if peak_is_exit { ", which was the peak" } else { "" };
    writeln!(out, "\nAt exit (not freed){too}: {}", sections::sum(&at_exit))?;
    if peak_is_exit && let Some(peak) = highest {
        writeln!(out, "  {}", peak::highest(peak, true))?;
    }
    report::write_table(out, &at_exit, lines)
}

/// The box of a process that held memory which it mapped itself, at the peak of both.
struct MappedPeak {
    of: BlackBox,
    snapshot: Snapshot,
}

/// The peak by the box of a process; none if it has no record of memory that the process mapped.
fn mapped_peak(own: &Held) -> Option<MappedPeak> {
    let of = BlackBox::open(&own.path).ok()?;
    let snapshot = of.own_at_peak()?;
    let mapped = snapshot.mappings.as_ref().map_or(0, Mappings::of_calls);
    (mapped != 0).then_some(MappedPeak { of, snapshot })
}

/// Writes the heap and the memory that the program mapped: at the peak of both, and at the exit. If
/// the exit is not the peak, mapped memory at the exit is among that outside of the heap alone.
fn write_mapped_peak(
    out: &mut impl Write,
    snapshot: &Snapshot,
    peak: &MappedPeak,
    symbols: &mut Symbols<'_>,
    lines: usize,
) -> io::Result<()> {
    let at_exit = sections::rows(snapshot, symbols, true);
    let at_peak = sections::rows(&peak.snapshot, symbols, true);
    if total(&at_peak).0 <= total(&at_exit).0 {
        let sum = sections::sum(&at_exit);
        writeln!(out, "\nAt exit (not freed), which was the peak: {sum}")?;
        let highest = peak::Moment::of(snapshot, true, "at the exit".to_owned(), "the exit");
        writeln!(out, "  {}", highest.line())?;
        report::write_table(out, &at_exit, lines)?;
        return sections::write_arenas(out, &at_exit);
    }
    let at = peak.of.peak().map_or(0, |moment| moment.time_ns);
    let at = peak::at(at, &peak.of);
    let highest = peak::Moment::of(&peak.snapshot, true, at, "that record");
    let used = report::size_u(highest.used);
    writeln!(out, "\nAt the peak: {} ({used} of pages in use)", sections::sum(&at_peak))?;
    writeln!(out, "  {}", highest.line())?;
    report::write_table(out, &at_peak, lines)?;
    sections::write_arenas(out, &at_peak)?;
    let at_exit: Vec<_> = at_exit.into_iter().filter(|site| site.mapped.is_none()).collect();
    writeln!(out, "\nAt exit (not freed): {}", sections::sum(&at_exit))?;
    report::write_table(out, &at_exit, lines)
}

/// Writes the memory outside of the heap.
fn write_mappings(
    out: &mut impl Write,
    of: &Mappings,
    symbols: &mut Symbols<'_>,
    lines: usize,
) -> io::Result<()> {
    let sites = sites::resolve_mappings(&of.rows, symbols, |_| true);
    sections::write_outside(out, " at exit", (of, sites), lines)?;
    for fault in &of.faults {
        writeln!(out, "kmem: {}", printable(fault))?;
    }
    if of.lost != 0 {
        writeln!(out, "kmem: {}", Note::MappingsLost(of.lost))?;
    }
    Ok(())
}
