//! Notes on a reading: facts that a user must know to read its rows.

use std::fmt;

use crate::blackbox::{Reason, time};
use crate::report::{size, size_u};

/// Most addresses of root blocks in one note.
const MAX_ROOTS: usize = 8;

/// One fact about a reading. It displays as one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A root block could not be followed, for this reason.
    LeftOut(String),
    /// The process has several copies of kmem.
    Copies {
        /// Pid of the process.
        pid: u32,
        /// Addresses of their root blocks.
        roots: Vec<u64>,
    },
    /// Profiling is off.
    ProfilingOff,
    /// The mappings of a live process are not known.
    NoMappings,
    /// Of memory outside of the heap, a black box has only that which the program mapped.
    NoMappingsInBox,
    /// Part of the mapped memory of which a black box does not tell what was in memory, in bytes.
    MappingsUncounted(u64),
    /// A core without the note that tells where the stack of the first thread is.
    NoStacks,
    /// This many mappings have no name, because the table of records was full.
    MappingsLost(u64),
    /// Arenas of a Python, in bytes, which are a large part of the memory.
    Arenas(u64),
    /// `pinned` of merged rows may be too large; see [`Pins`](crate::books::Pins).
    PinsInexact,
    /// This many groups changed while they were read, or make no sense.
    GroupsTorn(u64),
    /// Tags of groups are incomplete; see [`Holdings`](crate::books::Holdings).
    HoldingsInexact,
    /// This many slabs and page allocations changed while they were read.
    Torn(u64),
    /// This many slabs and page allocations are absent from the core, or make no sense.
    Absent(u64),
    /// The core was cut off.
    CutOff {
        /// The core file.
        path: String,
        /// Bytes of memory that are missing.
        missing: u64,
    },
    /// The process that a core shows.
    CoreOf {
        /// Its pid.
        pid: u32,
        /// Beginning of its command line, or its short name.
        command: String,
        /// Signal that ended it; 0 for none.
        signal: u32,
    },
    /// A core does not tell which pages were in memory.
    NoResidency {
        /// The core file.
        path: String,
    },
    /// Damage to a black box, the rest of which can be read.
    Damage {
        /// The black box.
        path: String,
        /// The damage.
        what: String,
    },
    /// A fact about a file that lists rows.
    Listed {
        /// The file.
        path: String,
        /// The fact.
        what: String,
    },
    /// The moment that a black box shows.
    Moment {
        /// Pid of the process.
        pid: u32,
        /// Its executable.
        exe: String,
        /// The moment.
        of: crate::blackbox::Moment,
    },
    /// Part of the live bytes that the rows of a black box name.
    Named {
        /// Bytes in its rows.
        bytes: u64,
        /// All live bytes.
        of: u64,
        /// Count of its rows.
        sites: usize,
    },
    /// The counters of a black box.
    Counters {
        /// Pid of the process.
        pid: u32,
        /// Its executable.
        exe: String,
        /// Its start, in nanoseconds since 1970.
        started_ns: u64,
    },
    /// Rows that have no names, and the file that would name most of them.
    Nameless {
        /// Bytes of all nameless rows.
        nameless: i64,
        /// Bytes of those in the module with most of them.
        bytes: i64,
        /// Path of the module.
        path: String,
        /// Path that its debug file would have.
        debug: String,
    },
    /// A part that the budget of the reading has no room for; see [`Budget`](crate::Budget).
    OverBudget(String),
    /// A file that is not, or may not be, the one that the process ran.
    Mismatch(String),
    /// A note on some of several processes.
    Of {
        /// Their pids.
        pids: Vec<u32>,
        /// The note.
        note: Box<Self>,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeftOut(why) => write!(f, "{why}; left out"),
            Self::Copies { pid, roots } => {
                let at = roots.iter().take(MAX_ROOTS).map(|root| format!("{root:#x}"));
                let (count, mut at) = (roots.len(), at.collect::<Vec<_>>().join(", "));
                if count > MAX_ROOTS {
                    at += ", ..";
                }
                write!(
                    f,
                    "{count} copies of kmem in process {pid}, at {at}; their books are added up"
                )
            }
            Self::ProfilingOff => {
                f.write_str("profiling is off: memory allocated meanwhile is not tagged")
            }
            Self::NoMappings => f.write_str(
                "mappings are not shown: which memory is mapped, and how much of it is resident, \
                 cannot be told here",
            ),
            Self::NoMappingsInBox => f.write_str(
                "a black box has rows of memory that the program mapped, but none of stacks, code \
                 and files",
            ),
            Self::MappingsUncounted(bytes) => write!(
                f,
                "{} of mapped memory were not counted: how much of them was in memory is not known",
                size_u(*bytes)
            ),
            Self::Arenas(bytes) => write!(
                f,
                "{} are arenas of Python, whose objects are not in the books; run it with \
                 PYTHONMALLOC=malloc",
                size_u(*bytes)
            ),
            Self::Nameless { nameless, bytes, path, debug } => write!(
                f,
                "{} are known by module and offset alone, {} of them in {path}; {debug} would \
                 name these",
                size(*nameless),
                size(*bytes)
            ),
            Self::NoStacks => {
                f.write_str("the core does not tell stacks: they are among the anonymous mappings")
            }
            Self::MappingsLost(count) => write!(
                f,
                "{count} calls that map memory found kmem's table of them full: their memory is in \
                 anonymous_mappings"
            ),
            Self::PinsInexact => f.write_str(
                "too many sets of sites share slabs: merged rows may pin less than is shown",
            ),
            Self::GroupsTorn(count) => write!(
                f,
                "{count} groups changed while they were read, or make no sense: their memory may \
                 be shown as the root's, or they may be shown below the root"
            ),
            Self::HoldingsInexact => f.write_str(
                "too many sites in too many groups: some memory of groups is shown as other \
                 sites",
            ),
            Self::Torn(count) => write!(
                f,
                "{count} slabs or page allocations changed while they were read, and are left out"
            ),
            Self::Absent(count) => write!(
                f,
                "{count} slabs or page allocations are not in the core or make no sense, and are \
                 left out"
            ),
            Self::Mismatch(what) | Self::OverBudget(what) => f.write_str(what),
            Self::Of { pids, note } => match pids[..] {
                [pid] => write!(f, "process {pid}: {note}"),
                _ => write!(f, "{} processes: {note}", pids.len()),
            },
            _ => self.on_file(f),
        }
    }
}

impl Note {
    /// Displays notes on a core file or a black box.
    fn on_file(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CutOff { path, missing } => write!(
                f,
                "{path}: the core was cut off: {} of memory that should be in it are not",
                size_u(*missing)
            ),
            Self::CoreOf { pid, command, signal } => {
                write!(f, "core of process {pid} ({command})")?;
                match signal {
                    0 => Ok(()),
                    signal => write!(f, ", ended by signal {signal}"),
                }
            }
            Self::NoResidency { path } => write!(
                f,
                "{path}: this core, as gdb writes it, does not tell which pages were in memory: \
                 resident is all memory in the file"
            ),
            Self::Damage { path, what } | Self::Listed { path, what } => {
                write!(f, "{path}: {what}")
            }
            Self::Moment { pid, exe, of } => {
                let what = match of.reason {
                    Reason::Peak => "peak",
                    Reason::OutOfMemory => "out of memory: the books",
                    Reason::Exit => "exit",
                    Reason::Time => "last record",
                    Reason::Fork => "start",
                    Reason::Misuse => "misuse of memory: the books",
                    Reason::Unknown => "a moment",
                };
                let (at, used, bytes) = (time(of.time_ns), size_u(of.used), size_u(of.bytes));
                let calls = of.calls;
                write!(f, "{what} of process {pid} ({exe}) at {at}: ")?;
                write!(f, "{used} in use, {bytes} in {calls} live objects")?;
                if of.mapped == 0 {
                    return Ok(());
                }
                let (resident, mapped) = (size_u(of.mapped_resident), size_u(of.mapped));
                write!(f, "; the program mapped {mapped}, {resident} of it in memory")
            }
            Self::Named { bytes, of, sites } => {
                let share = if *of == 0 { 100.0 } else { *bytes as f64 / *of as f64 * 100.0 };
                let (bytes, of) = (size_u(*bytes), size_u(*of));
                write!(f, "{bytes} of {of} live bytes ({share:.1} %) are of the {sites} sites ")?;
                f.write_str("that the record names; the rest is in other_sites")
            }
            Self::Counters { pid, exe, started_ns } => {
                let start = time(*started_ns);
                write!(f, "counters of process {pid} ({exe}) since its start at {start}")
            }
            _ => Ok(()),
        }
    }
}
