//! Targets of a reading, and how each of them is opened.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::ReadFailure;
use crate::blackbox::{BlackBox, Counts};
use crate::books::{Buddyinfo, Profiling, Snapshot};
use crate::core_file::CoreFile;
use crate::error::{ALLOCINFO, ReadError};
use crate::kernel;
use crate::listed::{self, Kind, List};
use crate::notes::Note;
use crate::process::Process;
use crate::recording::At;
use crate::select::Selection;
use crate::sites::Origin;
use crate::symbols::{Kept, Modules, Place, Symbols};

/// Sources to name where the memory of a process is needed.
const WHOLE: &str = "a process with -p, or its core file with --core";

/// A process to read, alive or dead, or rows that others counted.
///
/// ```no_run
/// use kmem_snapshot::{Filter, Pattern, Query, Target};
///
/// let core = Target::Core { path: "core.1234".into(), exe: None };
/// let filter = Filter { function: vec![Pattern::new("load_*")], ..Filter::default() };
/// let reading = core.read(&Query { filter, ..Query::default() })?;
/// for note in &reading.notes {
///     eprintln!("{note}");
/// }
/// println!("{} rows", reading.sites.len());
/// # Ok::<(), kmem_snapshot::ReadFailure>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A live process, by pid.
    Process(u32),
    /// Live processes, which are chosen anew for each reading. Their rows are added up.
    Processes(Selection),
    /// A dead process, by its core file.
    Core {
        /// The core file.
        path: PathBuf,
        /// The executable, when it is no longer where it was.
        exe: Option<PathBuf>,
    },
    /// A process, alive or dead, by its black box.
    BlackBox {
        /// The black box.
        path: PathBuf,
        /// The executable, when it is no longer where it was.
        exe: Option<PathBuf>,
        /// Which of its records to read.
        when: When,
    },
    /// Rows that a file lists: allocinfo text of a kernel or of `kmem dump`, JSON of `kmem dump`,
    /// the log of a kernel.
    List(PathBuf),
    /// The list of a kernel's report on lack of memory, in its log.
    KernelLog {
        /// The log.
        path: PathBuf,
        /// Number of the list in the log, from 1; none for the last one.
        list: Option<NonZeroUsize>,
    },
    /// A recording.
    Recording {
        /// The recording.
        path: PathBuf,
        /// Which of its moments to read.
        at: At,
    },
    /// The kernel of this machine, by `/proc/allocinfo`.
    Kernel,
}

/// Record of a black box.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum When {
    /// The one that was written last.
    #[default]
    Newest,
    /// The one with most live bytes and memory mapped by the program.
    Peak,
}

/// A call site of one root block, not merged with others of its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallSite {
    /// Address of the root block.
    pub root: u64,
    /// Tag of the site.
    pub tag: u32,
    /// Return addresses, innermost first: of the wrappers that it goes through, if there are any,
    /// and of the call.
    pub addresses: Arc<[u64]>,
    /// Place of the call.
    pub place: Place,
    /// Live bytes.
    pub bytes: i64,
    /// Live objects.
    pub calls: u64,
}

/// Live objects of one call site, by its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ToldApart {
    /// Chains of callers that hold an object.
    pub chains: usize,
    /// Objects that they hold.
    pub objects: u64,
    /// Objects without a chain: from before callers were told apart, or where none can be found.
    pub alone: u64,
}

impl Snapshot {
    /// The callers of the call site with these return addresses, in the books of one root block.
    #[must_use]
    pub fn told_apart(&self, root: u64, addresses: &[u64]) -> ToldApart {
        let mut sum = ToldApart::default();
        let rows = self.books.iter().filter(|books| books.root == root).flat_map(|b| &b.rows);
        let mut known = BTreeSet::new();
        for row in rows.filter(|row| row.key.addresses().starts_with(addresses)) {
            if row.key.addresses().len() == addresses.len() {
                sum.alone = sum.alone.saturating_add(row.calls);
            } else if row.calls != 0 {
                sum.objects = sum.objects.saturating_add(row.calls);
                known.insert(row.tag);
            }
        }
        sum.chains = known.len();
        sum
    }
}

impl Target {
    /// The target that a file is, by its content.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when the file cannot be read, [`ReadError::BadFile`] when it is of no
    /// known kind.
    pub fn recognise(path: &Path) -> Result<Self, ReadError> {
        let path = path.to_owned();
        Ok(match listed::recognise(&path)? {
            Kind::Core => Self::Core { path, exe: None },
            Kind::BlackBox => Self::BlackBox { path, exe: None, when: When::Newest },
            Kind::Recording => Self::Recording { path, at: At::Last },
            Kind::Allocinfo | Kind::Json | Kind::Text => Self::List(path),
        })
    }

    /// True for live processes and for the kernel, whose books change.
    #[must_use]
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Process(_) | Self::Processes(_) | Self::Kernel)
    }

    /// True for rows by place alone, without the memory behind them.
    #[must_use]
    pub fn is_list(&self) -> bool {
        matches!(
            self,
            Self::List(_) | Self::KernelLog { .. } | Self::Recording { .. } | Self::Kernel
        )
    }

    /// Name of the file, or of the process by its pid.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Process(pid) => format!("process {pid}"),
            Self::Processes(selection) => format!("processes {selection}"),
            Self::Kernel => ALLOCINFO.to_owned(),
            Self::Core { path, .. }
            | Self::BlackBox { path, .. }
            | Self::KernelLog { path, .. }
            | Self::Recording { path, .. }
            | Self::List(path) => path.display().to_string(),
        }
    }

    /// The error for a question that the target cannot answer.
    pub(super) fn has_no(&self, what: &str) -> ReadError {
        let kind = match self {
            Self::Processes(_) => "the sum of several processes",
            _ if self.is_list() => "a list of call sites",
            _ => "a black box",
        };
        ReadError::BadSetting(format!("{}: {kind} has no {what}", self.name()))
    }

    /// Copies the books, without names.
    ///
    /// # Errors
    ///
    /// The errors of [`Target::read`].
    pub fn snapshot(&self) -> Result<(Snapshot, Vec<Note>), ReadFailure> {
        noted(|notes| {
            let snapshot = self.open(notes)?.1;
            notes.extend(over_budget(&snapshot));
            Ok(snapshot)
        })
    }

    /// Reads and names the call sites whose callers can be told apart, largest first.
    ///
    /// # Errors
    ///
    /// The errors of [`Target::read`].
    pub fn call_sites(&self) -> Result<(Vec<CallSite>, Vec<Note>), ReadFailure> {
        noted(|notes| {
            let (opened, snapshot) = self.open(notes)?;
            let modules = opened.modules(&snapshot, self.exe(), &mut Kept::default());
            let mut symbols = Symbols::new(&modules);
            let rows = snapshot.books.iter().flat_map(|b| b.rows.iter().map(|row| (b.root, row)));
            let mut sites: Vec<CallSite> = rows
                .filter_map(|(root, row)| {
                    let (addresses, place) = Origin::call_site(row, &mut symbols)?;
                    let (tag, bytes, calls) = (row.tag, row.bytes, row.calls);
                    Some(CallSite { root, tag, addresses, place, bytes, calls })
                })
                .collect();
            sites.sort_by_key(|site| (std::cmp::Reverse(site.bytes), site.root, site.tag));
            notes.extend(over_budget(&snapshot));
            Ok(sites)
        })
    }

    /// Reads the free blocks of pages per order, with or without books.
    ///
    /// # Errors
    ///
    /// The errors of [`Buddyinfo::take`] or [`Buddyinfo::of_core`];
    /// [`ReadError::NothingRecorded`] for a black box.
    pub fn buddyinfo(&self) -> Result<Buddyinfo, ReadError> {
        match self {
            Self::Process(pid) => Buddyinfo::take(&Process::open(*pid)?),
            Self::Core { path, .. } => Buddyinfo::of_core(&CoreFile::open(path)?),
            Self::BlackBox { path, .. } => Err(ReadError::NothingRecorded {
                path: path.to_string_lossy().into_owned(),
                what: format!("a black box has no memory: name {WHOLE}"),
            }),
            Self::Processes(_)
            | Self::List(_)
            | Self::KernelLog { .. }
            | Self::Recording { .. }
            | Self::Kernel => Err(self.has_no(&format!("free blocks of pages: name {WHOLE}"))),
        }
    }

    pub(super) fn exe(&self) -> Option<&Path> {
        match self {
            Self::Process(_)
            | Self::Processes(_)
            | Self::List(_)
            | Self::KernelLog { .. }
            | Self::Recording { .. }
            | Self::Kernel => None,
            Self::Core { exe, .. } | Self::BlackBox { exe, .. } => exe.as_deref(),
        }
    }

    /// Opens the target and copies its books.
    pub(super) fn open(&self, notes: &mut Vec<Note>) -> Result<(Opened, Snapshot), ReadError> {
        match self {
            Self::Process(pid) => {
                let process = Process::open(*pid)?;
                let snapshot = Snapshot::take(&process)?;
                note_books(&snapshot, Note::Torn, notes)?;
                Ok((Opened::Process(process), snapshot))
            }
            Self::Core { path, .. } => {
                let core = CoreFile::open(path)?;
                if core.missing() != 0 {
                    let (path, missing) = (path.display().to_string(), core.missing());
                    notes.push(Note::CutOff { path, missing });
                }
                let snapshot = Snapshot::of_core(&core)?;
                let command = if core.command().is_empty() { core.comm() } else { core.command() };
                let (pid, command, signal) = (core.pid(), command.to_owned(), core.signal());
                notes.push(Note::CoreOf { pid, command, signal });
                if !core.knows_resident() {
                    notes.push(Note::NoResidency { path: path.display().to_string() });
                }
                note_books(&snapshot, Note::Absent, notes)?;
                Ok((Opened::Core(core), snapshot))
            }
            Self::BlackBox { path, when, .. } => {
                let mut black_box = open_black_box(path, notes)?;
                if *when == When::Peak {
                    black_box = black_box.turned_to_peak();
                }
                let snapshot = black_box.snapshot()?;
                let of = black_box.moment().cloned().unwrap_or_default();
                let (pid, exe) = (black_box.pid(), black_box.exe().to_owned());
                notes.push(Note::Moment { pid, exe, of });
                Ok((Opened::BlackBox(black_box), snapshot))
            }
            Self::Processes(_)
            | Self::List(_)
            | Self::KernelLog { .. }
            | Self::Recording { .. }
            | Self::Kernel => Err(self.has_no(&format!("books: name {WHOLE}"))),
        }
    }

    /// Reads the rows of a list; none for a target with books.
    pub(super) fn list(&self, notes: &mut Vec<Note>) -> Option<Result<List, ReadError>> {
        match self {
            Self::List(path) => Some(List::open(path, notes)),
            Self::KernelLog { path, list } => Some(List::of_log(path, *list, notes)),
            Self::Recording { path, at } => Some(List::of_recording(path, *at, notes)),
            Self::Kernel => Some(kernel::read(notes)),
            Self::Process(_) | Self::Processes(_) | Self::Core { .. } | Self::BlackBox { .. } => {
                None
            }
        }
    }

    /// Opens the black box and copies its counters.
    pub(super) fn open_counters(
        &self,
        notes: &mut Vec<Note>,
    ) -> Result<(Opened, Snapshot, BTreeMap<u32, Counts>), ReadError> {
        let Self::BlackBox { path, .. } = self else {
            return Err(ReadError::BadSetting(
                "only a black box has counters: name one with --blackbox".to_owned(),
            ));
        };
        let black_box = open_black_box(path, notes)?;
        let (snapshot, counts) = black_box.counters()?;
        let (pid, exe) = (black_box.pid(), black_box.exe().to_owned());
        notes.push(Note::Counters { pid, exe, started_ns: black_box.started_ns() });
        Ok((Opened::BlackBox(black_box), snapshot, counts))
    }
}

/// An open target.
pub(super) enum Opened {
    Process(Process),
    Core(CoreFile),
    BlackBox(BlackBox),
}

impl Opened {
    /// Opens the files with call sites whose names were not kept.
    pub(super) fn modules(
        &self,
        snapshot: &Snapshot,
        exe: Option<&Path>,
        kept: &mut Kept,
    ) -> Modules {
        let (maps, addresses) = (&snapshot.maps, snapshot.addresses());
        match self {
            Self::Process(process) => {
                let addresses = kept.new_among(process, maps, &addresses);
                Modules::open(process, maps, &addresses, &snapshot.budget)
            }
            Self::Core(core) => Modules::of_core(core, &addresses, exe),
            Self::BlackBox(of) => Modules::of_box(of, maps, &addresses, exe, &snapshot.budget),
        }
    }
}

/// Runs `read`, and joins its result with the notes that it made.
pub(super) fn noted<T>(
    read: impl FnOnce(&mut Vec<Note>) -> Result<T, ReadError>,
) -> Result<(T, Vec<Note>), ReadFailure> {
    let mut notes = Vec::new();
    match read(&mut notes) {
        Ok(value) => Ok((value, notes)),
        Err(error) => Err(ReadFailure { error, notes }),
    }
}

/// Notes about the parts that the budget of the reading has no room for.
pub(crate) fn over_budget(snapshot: &Snapshot) -> impl Iterator<Item = Note> + use<> {
    snapshot.budget.remarks().into_iter().map(Note::OverBudget)
}

fn open_black_box(path: &Path, notes: &mut Vec<Note>) -> Result<BlackBox, ReadError> {
    let black_box = BlackBox::open(path)?;
    let damage =
        |what: &String| Note::Damage { path: path.display().to_string(), what: what.clone() };
    notes.extend(black_box.remarks().iter().map(damage));
    Ok(black_box)
}

/// Checks that there are books, and notes the faults in them. `torn` makes the note on slabs and
/// page allocations that could not be counted.
pub(crate) fn note_books(
    snapshot: &Snapshot,
    torn: impl Fn(u64) -> Note,
    notes: &mut Vec<Note>,
) -> Result<(), ReadError> {
    if snapshot.never() {
        return Err(ReadError::ProfilingNever { pid: snapshot.pid });
    }
    let books = &snapshot.books;
    notes.extend(snapshot.left_out().into_iter().map(Note::LeftOut));
    if books.len() > 1 {
        let roots = books.iter().map(|b| b.root).collect();
        notes.push(Note::Copies { pid: snapshot.pid, roots });
    }
    if books.iter().any(|b| b.profiling == Profiling::Off) {
        notes.push(Note::ProfilingOff);
    }
    if !books.iter().all(|b| b.pins.is_exact()) {
        notes.push(Note::PinsInexact);
    }
    let groups_torn: u64 = books.iter().map(|b| b.groups.torn).sum();
    if groups_torn != 0 {
        notes.push(Note::GroupsTorn(groups_torn));
    }
    if !books.iter().all(|b| b.holdings.is_exact()) {
        notes.push(Note::HoldingsInexact);
    }
    if snapshot.torn() != 0 {
        notes.push(torn(snapshot.torn()));
    }
    Ok(())
}
