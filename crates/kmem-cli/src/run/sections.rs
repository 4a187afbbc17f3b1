//! Parts of the report of `kmem run`: processes, grouped by program.
//!
//! The weight of a process is the most memory that it held of its own: live bytes, and bytes in
//! memory that it mapped itself. A forked child has a record of what it inherited, made at its
//! first allocation. That memory is its parent's: it is taken out of the child's rows and of its
//! weight.
//!
//! A process that became another program by `exec` held the memory of one, then of the other. The
//! earlier one is a program by itself. It is not counted among processes.

use std::collections::HashMap;
use std::io::{self, Write};

use kmem_snapshot::blackbox::{BlackBox, Moment, Reason};
use kmem_snapshot::books::Mappings;
use kmem_snapshot::escape::printable;
use kmem_snapshot::program::base_name;
use kmem_snapshot::report::{self, size, size_u};
use kmem_snapshot::sites::{self, Order, total};
use kmem_snapshot::symbols::{Modules, Symbols};
use kmem_snapshot::{Pattern, Site, Snapshot};

use crate::untracked::untracked_then;

use super::boxes::{Boxes, Held, Identity, Image, Rest};
use super::misuse;
use super::peak as peaks;

/// A program that held one in this many parts of the memory, or more, has a section.
const SHARE: u64 = 20;
/// Bytes in one process from which a program that it is no longer may have a section. A shell that
/// only starts another program stays below.
const LEAST_FORMER: u64 = 1 << 20;
/// Most names in the line about all other programs.
const NAMES: usize = 6;

/// The programs to show.
pub(crate) enum Choice {
    /// Those that held most.
    Largest,
    /// All.
    All,
    /// Those whose base name matches.
    Only(Pattern),
}

/// Processes of one program. The command's own process is a program by itself.
pub(crate) struct Program<'a> {
    pub(crate) name: &'a str,
    pub(crate) is_main: bool,
    /// True if its processes became other programs by `exec`.
    is_former: bool,
    /// Processes with a box, the largest first.
    pub(crate) held: Vec<&'a Held>,
    /// Processes without one.
    rest: Rest,
    /// Most memory of each process, added up, in bytes.
    weight: u64,
}

impl<'a> Program<'a> {
    fn new(name: &'a str, is_main: bool) -> Self {
        let (held, rest) = (Vec::new(), Rest::default());
        Self { name, is_main, is_former: false, held, rest, weight: 0 }
    }

    fn of(image: &'a Image) -> Self {
        Self { is_former: image.is_former, ..Self::new(base_name(&image.exe), false) }
    }

    fn count(&self) -> u64 {
        let counted = self.rest.count + self.held.len() as u64;
        if self.is_main { counted.max(1) } else { counted }
    }

    fn largest(&self) -> u64 {
        let known = if self.is_main { self.weight } else { self.rest.largest };
        self.held.iter().map(|held| held.peak).fold(known, u64::max)
    }
}

/// The programs of a command.
pub(crate) struct Programs<'a> {
    /// That with most memory first.
    all: Vec<Program<'a>>,
    /// Most memory of each process, added up, in bytes.
    sum: u64,
}

/// Groups the processes of a command by program. `main` is the number of the command's own process,
/// its name, and the memory that it is known to have held, in bytes.
pub(crate) fn programs<'a>(boxes: &'a Boxes, main: (&'a str, u64)) -> Programs<'a> {
    let (name, known) = main;
    let mut own = Program { weight: known, ..Program::new(base_name(name), true) };
    let mut others: HashMap<&Image, Program<'_>> = HashMap::new();
    let mut processes: HashMap<Identity, u64> = HashMap::new();
    for held in boxes.kept() {
        let most = processes.entry(held.identity).or_default();
        *most = held.peak.max(*most);
        // The number may have been given out again.
        if boxes.is_main(held) && own.held.is_empty() {
            own.name = base_name(&held.image.exe);
            own.weight = own.weight.max(held.peak);
            own.held.push(held);
            *most = own.weight.max(*most);
            continue;
        }
        let program = others.entry(&held.image).or_insert_with(|| Program::of(&held.image));
        program.weight = program.weight.saturating_add(held.peak);
        program.held.push(held);
    }
    let mut sum = if own.held.is_empty() { known } else { 0 };
    for (image, rest) in boxes.rest() {
        let program = others.entry(image).or_insert_with(|| Program::of(image));
        program.weight = program.weight.saturating_add(rest.sum);
        program.rest = *rest;
        // A process that was several programs counts once, for the last one.
        sum = sum.saturating_add(if image.is_former { 0 } else { rest.sum });
    }
    sum = processes.into_values().fold(sum, u64::saturating_add);
    let mut all: Vec<_> = others.into_values().chain([own]).collect();
    let key = |of: &Program<'a>| (of.weight, of.is_main, of.is_former);
    all.sort_by(|a, b| key(b).cmp(&key(a)).then(a.name.cmp(b.name)));
    Programs { all, sum }
}

/// Splits programs into those to show, and those to count.
pub(crate) fn choose<'a>(
    programs: Programs<'a>,
    choice: &Choice,
) -> (Vec<Program<'a>>, Vec<Program<'a>>) {
    let Programs { all, sum } = programs;
    all.into_iter().partition(|program| match choice {
        Choice::All => true,
        Choice::Only(pattern) => pattern.matches(program.name),
        Choice::Largest => match program.weight {
            0 => program.is_main && sum == 0,
            _ if program.is_former && program.largest() < LEAST_FORMER => false,
            weight => weight >= sum / SHARE,
        },
    })
}

/// Writes the section of a program that is not the command's own process.
///
/// # Errors
///
/// The errors of the writer.
pub(crate) fn write(
    out: &mut impl Write,
    program: &Program<'_>,
    lines: usize,
    mmap: bool,
) -> io::Result<()> {
    let name = printable(program.name);
    let (weight, largest) = (size_u(program.weight), size_u(program.largest()));
    match (program.count(), program.held.first()) {
        (1, Some(held)) => {
            let before = held.became.as_ref().map(|exe| {
                let exe = printable(exe);
                format!(", before it became {exe} by exec")
            });
            let before = before.unwrap_or_default();
            writeln!(out, "\n{name} ({}){before}: {weight} at its peak", held.pid())?;
        }
        (count, _) if program.is_former => {
            writeln!(
                out,
                "\n{name} ({count} runs that ended by exec): {weight}, each at its peak; at most \
                 {largest} in one"
            )?;
        }
        (count, _) => {
            writeln!(
                out,
                "\n{name} ({count} processes): {weight}, each at its peak; at most {largest} in one"
            )?;
        }
    }
    for held in &program.held {
        misuse::write(out, held)?;
        write_refusals(out, held)?;
    }
    let mut merged: Vec<Site> = Vec::new();
    let mut known = HashMap::new();
    let mut inherited = 0;
    for held in &program.held {
        let Ok(of) = BlackBox::open(&held.path) else { continue };
        let before = |moment: &Moment| if mmap { moment.held() } else { moment.bytes };
        inherited = of.inherited().map_or(0, before).max(inherited);
        for site in at_peak(held, &of, mmap) {
            let name = (site.origin.function().to_owned(), site.origin.location());
            let key = (name, site.mapped.is_some());
            let at = *known.entry(key).or_insert(merged.len());
            match merged.get_mut(at) {
                Some(sum) => {
                    sum.bytes = sum.bytes.saturating_add(site.bytes);
                    sum.calls = sum.calls.saturating_add(site.calls);
                    sum.chains.extend(site.chains);
                }
                None => merged.push(site),
            }
        }
    }
    merged.sort_by(|a, b| Order::Size.compare(a, b));
    report::write_table(out, &merged, lines)?;
    write_arenas(out, &merged)?;
    if let Some(warning) = program.held.first().and_then(|held| untracked(held, mmap)) {
        let one = if program.held.len() == 1 { "" } else { "in the largest process, " };
        writeln!(out, "kmem: {one}{warning}")?;
    }
    if inherited != 0 {
        let inherited = size_u(inherited);
        writeln!(out, "  (up to {inherited} inherited by fork count for the parent)")?;
    }
    if program.rest.count != 0 && !program.held.is_empty() {
        let (count, largest) = (program.rest.count, size_u(program.rest.largest));
        writeln!(out, "  (without {count} of them, which held at most {largest} each)")?;
    }
    Ok(())
}

/// Writes the memory of the command's own process by its box: at its peak, and at the last record.
/// `time_ns` is the time of its end. `mmap`: with memory that it mapped itself.
///
/// # Errors
///
/// The errors of the writer.
pub(crate) fn write_main(
    out: &mut impl Write,
    held: &Held,
    time_ns: u64,
    lines: usize,
    mmap: bool,
) -> io::Result<()> {
    let Ok(of) = BlackBox::open(&held.path) else {
        return writeln!(out, "kmem: its black box cannot be read");
    };
    for remark in of.remarks() {
        writeln!(out, "kmem: {}", printable(remark))?;
    }
    let Some(moment) = of.moment() else {
        return writeln!(out, "kmem: no record: it had allocated too little, or ended too soon");
    };
    let named = |snapshot: &Snapshot| named(snapshot, &of, mmap);
    let (peak_of, recorded) = (of.own_at_peak(), of.own());
    let (last_of, last_ns, sites) = match &held.read {
        Some(read) => (Some(&read.snapshot), read.time_ns, "that reading"),
        None => (recorded.as_ref(), moment.time_ns, "that record"),
    };
    let peak = peak_of.as_ref().map(named).unwrap_or_default();
    let last = last_of.map(named).unwrap_or_default();
    let peak_is_last = total(&peak).0 <= total(&last).0;
    let is_exit = moment.reason == Reason::Exit && last_ns == moment.time_ns;
    let highest = |snapshot: &Snapshot, time_ns: u64, sites: &'static str| {
        let highest = peaks::Moment::of(snapshot, mmap, peaks::at(time_ns, &of), sites);
        if is_exit { highest } else { highest.of_killed() }
    };
    if let (Some(snapshot), Some(moment), false) = (&peak_of, of.peak(), peak_is_last) {
        let highest = highest(snapshot, moment.time_ns, "that record");
        let used = size_u(highest.used);
        writeln!(out, "\nAt the peak: {} ({used} of pages in use)", sum(&peak))?;
        writeln!(out, "  {}", highest.line())?;
        report::write_table(out, &peak, lines)?;
    }
    let too = if peak_is_last { ", which was the peak" } else { "" };
    let when = when(is_exit, last_ns, time_ns);
    writeln!(out, "\n{when} (not freed){too}: {}", sum(&last))?;
    if let (Some(snapshot), true) = (last_of, peak_is_last) {
        writeln!(out, "  {}", highest(snapshot, last_ns, sites).line())?;
    }
    report::write_table(out, &last, lines)?;
    write_arenas(out, if peak_is_last { &last } else { &peak })?;
    let figures = match &held.read {
        Some(read) => figures_of(&read.snapshot),
        None => figures_at(moment),
    };
    match untracked_then(figures, mmap) {
        Some(warning) => writeln!(out, "kmem: {warning}"),
        None => Ok(()),
    }
}

/// Writes a note on the arenas of a Python, if they are a large part of the rows.
pub(super) fn write_arenas(out: &mut impl Write, sites: &[Site]) -> io::Result<()> {
    match sites::large_arenas(sites) {
        Some(note) => writeln!(out, "kmem: {note}"),
        None => Ok(()),
    }
}

/// Bytes of a record: live, of the process in memory, and of those that the program mapped.
fn figures_at(of: &Moment) -> (u64, u64, u64) {
    (of.bytes, of.resident, of.mapped_resident)
}

/// [`figures_at`] of a reading.
fn figures_of(snapshot: &Snapshot) -> (u64, u64, u64) {
    let mapped = snapshot.mappings.as_ref().map_or(0, Mappings::of_calls);
    (snapshot.accounting.tracked, snapshot.accounting.resident, mapped)
}

/// A warning where little of the memory of a process was tracked at its peak.
fn untracked(held: &Held, mmap: bool) -> Option<String> {
    let of = BlackBox::open(&held.path).ok()?;
    untracked_then(figures_at(of.peak()?), mmap)
}

/// Names the moment of the last rows, in nanoseconds since 1970, before the end at `time_ns`.
fn when(is_exit: bool, last_ns: u64, time_ns: u64) -> String {
    if is_exit {
        return "At exit".to_owned();
    }
    let before = time_ns.saturating_sub(last_ns) as f64 / 1e9;
    format!("At the last record, {before:.1} s before the end")
}

/// Writes a line about each of the first call sites of a process whose requests were refused.
///
/// # Errors
///
/// The errors of the writer.
pub(crate) fn write_refusals(out: &mut impl Write, held: &Held) -> io::Result<()> {
    let Ok(of) = BlackBox::open(&held.path) else { return Ok(()) };
    let refusals = of.refusals();
    let Some(snapshot) = of.own().filter(|_| !refusals.is_empty()) else { return Ok(()) };
    let addresses = refusals.iter().flat_map(|refusal| refusal.row.key.addresses());
    let addresses: Vec<u64> = addresses.copied().collect();
    let modules = Modules::of_box(&of, &snapshot.maps, &addresses, None, &snapshot.budget);
    let mut symbols = Symbols::new(&modules);
    let is_exit = of.moment().is_some_and(|moment| moment.reason == Reason::Exit);
    let more = if is_exit { "" } else { " or more" };
    for refusal in &refusals {
        let Some(site) = sites::resolve([&refusal.row], &mut symbols).pop() else { continue };
        let bytes = size_u(refusal.bytes);
        let what = match refusal.row.calls {
            1 => format!("a request for {bytes} was refused"),
            count => format!("{count}{more} requests were refused, the last for {bytes}"),
        };
        let why = match refusal.at_max.as_deref() {
            None => "there was no memory".to_owned(),
            Some("/") => "a group was at its max".to_owned(),
            Some(path) => format!("the group {path} was at its max"),
        };
        let function = report::short(site.origin.function());
        let place = format!("{function} at {}", site.origin.location());
        writeln!(out, "kmem: {what} in {}: {}", printable(&place), printable(&why))?;
    }
    Ok(())
}

/// Writes one line about the programs that have no section.
///
/// # Errors
///
/// The errors of the writer.
pub(crate) fn write_rest(out: &mut impl Write, rest: &[Program<'_>]) -> io::Result<()> {
    // Programs that their processes are no longer are no processes.
    let rest = || rest.iter().filter(|program| !program.is_former);
    let count: u64 = rest().map(Program::count).sum();
    if count == 0 {
        return Ok(());
    }
    let mut names: Vec<(&str, u64)> = Vec::new();
    for program in rest() {
        match names.iter_mut().find(|(name, _)| *name == program.name) {
            Some((_, count)) => *count += program.count(),
            None => names.push((program.name, program.count())),
        }
    }
    let more = if names.len() > NAMES { ", .." } else { "" };
    let names = names.iter().take(NAMES).map(|&(name, count)| match count {
        1 => printable(name).to_string(),
        _ => format!("{} ({count})", printable(name)),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    let largest = size_u(rest().map(Program::largest).max().unwrap_or(0));
    let (what, each) = if count == 1 { ("process", "") } else { ("processes", " each") };
    writeln!(out, "\nand {count} smaller {what}: {names}{more} held at most {largest}{each}")
}

/// Rows of a process at its peak. A reading that was made after the last record may hold more.
fn at_peak(held: &Held, of: &BlackBox, mmap: bool) -> Vec<Site> {
    let recorded = of.own_at_peak();
    let bytes = |snapshot: &Snapshot| {
        let heap = u64::try_from(snapshot.totals().0).unwrap_or(0);
        let mapped = snapshot.mappings.as_ref().filter(|_| mmap);
        heap.saturating_add(mapped.map_or(0, Mappings::of_calls))
    };
    match &held.read {
        Some(read) if bytes(&read.snapshot) > recorded.as_ref().map_or(0, bytes) => {
            named(&read.snapshot, of, mmap)
        }
        _ => recorded.map(|snapshot| named(&snapshot, of, mmap)).unwrap_or_default(),
    }
}

/// Names the rows of a snapshot, by the files that its process had mapped.
fn named(snapshot: &Snapshot, of: &BlackBox, mmap: bool) -> Vec<Site> {
    let (maps, addresses) = (&snapshot.maps, snapshot.addresses());
    let modules = Modules::of_box(of, maps, &addresses, None, &snapshot.budget);
    rows(snapshot, &mut Symbols::new(&modules), mmap)
}

/// Named rows of a snapshot, the largest first: of the heap, and with `mmap` of memory that calls
/// of the program mapped.
pub(super) fn rows(snapshot: &Snapshot, symbols: &mut Symbols<'_>, mmap: bool) -> Vec<Site> {
    let of_heap = snapshot.books.iter().flat_map(|books| &books.rows);
    let mut sites = sites::resolve(of_heap, symbols);
    if let Some(mappings) = snapshot.mappings.as_ref().filter(|_| mmap) {
        let of_calls = mappings.rows.iter().filter(|row| row.owner.site().is_some());
        let mapped = sites::resolve_mappings(of_calls, symbols, |_| true);
        sites.extend(mapped.into_iter().filter(|site| site.bytes != 0));
    }
    sites.sort_by(|a, b| Order::Size.compare(a, b));
    sites
}

/// Writes the memory outside of the heap, with its rows; `when` follows the heading.
///
/// # Errors
///
/// The errors of the writer.
pub(crate) fn write_outside(
    out: &mut impl Write,
    when: &str,
    (of, mut sites): (&Mappings, Vec<Site>),
    lines: usize,
) -> io::Result<()> {
    // Pages of the kernel that no process has in its memory: [vvar], [vsyscall].
    sites.retain(|site| site.bytes != 0 || !site.origin.location().starts_with('['));
    sites.sort_by(|a, b| Order::Size.compare(a, b));
    let mapped = sites.iter().filter_map(|site| site.mapped).fold(0, u64::saturating_add);
    let (resident, mapped) = (size_u(of.parts.total()), size_u(mapped));
    writeln!(out, "\nOutside of the heap{when}: {resident} resident of {mapped} mapped")?;
    report::write_mapping_table(out, &sites, lines)
}

/// The sum of rows: of the heap, and of memory that the program mapped.
pub(crate) fn sum(sites: &[Site]) -> String {
    let (mapped, heap): (Vec<&Site>, Vec<&Site>) =
        sites.iter().partition(|site| site.mapped.is_some());
    let bytes = |sites: &[&Site]| sites.iter().map(|site| site.bytes).fold(0, i64::saturating_add);
    let calls = heap.iter().map(|site| site.calls).fold(0, u64::saturating_add);
    let heap = format!("{} in {calls} objects", size(bytes(&heap)));
    match bytes(&mapped) {
        0 => heap,
        mapped => format!("{heap}, and {} mapped by the program", size(mapped)),
    }
}
