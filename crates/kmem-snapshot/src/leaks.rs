//! Leaks: live objects to which no pointer leads.
//!
//! ```text
//! stopped  all threads of a process stopped, with their registers
//! roots    memory outside of the heap that may hold pointers
//! reach    objects by address, and what words lead to
//! ```
//!
//! The process is stopped while it is read. Every aligned word of the roots counts as a pointer if
//! it is an address within a live object. So does every word of an object that was reached. A
//! number that looks like an address hides a leak. A pointer that is stored in another form, as by
//! its exclusive or with another, makes one up.
//!
//! LLVM's LeakSanitizer does the same inside of the process (its design document). As there, a
//! leak is *indirect* when another leaked object leads to it.

mod reach;
mod roots;
mod stopped;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::books::{SiteRow, Snapshot};
use crate::error::ReadError;
use crate::memory::PageMap;
use crate::notes::Note;
use crate::process::Process;
use crate::reading::{ReadFailure, Reading, note_books, note_of_process, over_budget};
use crate::sites::{Site, resolve};
use crate::symbols::{Modules, Symbols};
use reach::{Reach, State};
use stopped::Stopped;

/// Most bytes outside of the heap that are looked at. A process may map one file many times.
const MAX_ROOTS: u64 = 256 << 30;

/// Leaks of a process, by call site.
#[derive(Debug)]
pub struct Leaks {
    /// Objects to which no pointer leads, the largest rows first.
    pub direct: Vec<Site>,
    /// Objects to which pointers in leaked objects alone lead.
    pub indirect: Vec<Site>,
    /// Live bytes and objects that were looked at.
    pub all: (i64, u64),
    /// Time for which the process was stopped.
    pub stopped: Duration,
    /// Name of the process.
    pub name: String,
    /// Facts that a user must know to read the rows.
    pub notes: Vec<Note>,
    /// The direct leaks as a reading, which every format of rows or stacks can show.
    pub reading: Reading,
}

impl Leaks {
    /// Stops a process, looks for leaks, and lets it go on. If the caller is killed meanwhile, the
    /// kernel lets the process go on.
    ///
    /// # Errors
    ///
    /// - The errors of [`Snapshot::take`].
    /// - [`ReadError::Permission`]: the process may not be traced, or another tracer has it.
    /// - [`ReadError::BadSetting`]: not all of its objects can be read, or fit in the budget.
    pub fn find(pid: u32) -> Result<Self, ReadFailure> {
        let process = Process::open(pid)?;
        let start = Instant::now();
        let stopped = Stopped::all_of(&process)?;
        let snapshot = Snapshot::with_objects(&process)?;
        let touched = snapshot.books.first().and_then(|books| process.pagemap(books.root));
        let reach = look(&process, &snapshot, &stopped, touched.as_ref())?;
        drop(stopped);
        let stopped = start.elapsed();
        Ok(Self::named(&process, snapshot, &reach, stopped)?)
    }

    fn named(
        process: &Process,
        snapshot: Snapshot,
        reach: &Reach<'_>,
        stopped: Duration,
    ) -> Result<Self, ReadError> {
        let modules =
            Modules::open(process, &snapshot.maps, &snapshot.addresses(), &snapshot.budget);
        let mut symbols = Symbols::new(&modules);
        let mut rows = |state| {
            let mut sites = resolve(&rows(&snapshot, reach, state), &mut symbols);
            sites.sort_by(|a, b| crate::sites::Order::Size.compare(a, b));
            sites
        };
        let (direct, indirect) = (rows(State::Direct), rows(State::Indirect));
        let mut notes = Vec::new();
        note_books(&snapshot, Note::Torn, &mut notes)?;
        notes.extend(over_budget(&snapshot));
        let leaked = direct.iter().chain(&indirect);
        notes.extend(note_of_process(leaked, &snapshot.maps, modules.build_ids()));
        let (all, name) = (snapshot.totals(), format!("{} (pid {})", snapshot.exe, snapshot.pid));
        let reading = Reading::of_rows(snapshot, direct.clone(), modules.build_ids());
        Ok(Self { direct, indirect, all, stopped, name, notes, reading })
    }
}

/// Finds the objects that are reached.
fn look<'a>(
    process: &Process,
    snapshot: &Snapshot,
    stopped: &Stopped,
    touched: Option<&'a PageMap>,
) -> Result<Reach<'a>, ReadError> {
    // An object that is not known hides those that only it leads to.
    if let Some(over) = snapshot.budget.remarks().first() {
        let pid = snapshot.pid;
        let what = format!("{over}; `kmem top -p {pid}` shows what holds memory");
        return Err(ReadError::BadSetting(what));
    }
    let known: usize = snapshot.books.iter().map(|books| books.objects.len()).sum();
    if known as u64 != snapshot.totals().1 || snapshot.torn() != 0 {
        let (pid, all) = (snapshot.pid, snapshot.totals().1);
        let what =
            format!("only {known} of {all} objects of process {pid} can be looked at; try again");
        return Err(ReadError::BadSetting(what));
    }
    let mut reach = Reach::new(
        process.memory(),
        touched,
        snapshot.books.iter().map(|books| &books.objects[..]),
    );
    for &word in stopped.words() {
        reach.word(word);
    }
    let parts = roots::parts(process, snapshot, &stopped.stack_pointers(), touched);
    if parts.iter().map(|part| part.end - part.start).fold(0, u64::saturating_add) > MAX_ROOTS {
        let pid = snapshot.pid;
        let what = format!(
            "process {pid} has mapped more than 256 GiB that may hold pointers; \
             `kmem top -p {pid}` shows what holds memory"
        );
        return Err(ReadError::BadSetting(what));
    }
    for part in parts {
        reach.scan(part)?;
    }
    reach.follow(State::Reached, None)?;
    reach.leaks()?;
    process.verify()?;
    Ok(reach)
}

/// Rows of the objects in a state.
fn rows(snapshot: &Snapshot, reach: &Reach<'_>, state: State) -> Vec<SiteRow> {
    let mut sums: BTreeMap<(usize, u32), (i64, u64)> = BTreeMap::new();
    for (books, tag, bytes) in reach.in_state(state) {
        let sum = sums.entry((books, tag)).or_default();
        sum.0 = sum.0.saturating_add(i64::try_from(bytes).unwrap_or(i64::MAX));
        sum.1 += 1;
    }
    let row = |((at, tag), (bytes, calls)): ((usize, u32), (i64, u64))| {
        let rows = &snapshot.books[at].rows;
        let known = rows.binary_search_by_key(&tag, |row| row.tag).ok();
        let key = known.map(|at| rows[at].key.clone()).unwrap_or_default();
        SiteRow { tag, key, bytes, calls }
    };
    sums.into_iter().map(row).collect()
}
