//! Errors of reading a process, its core file or its black box.

use std::time::Duration;
use std::{fmt, io};

use crate::budget::OverBudget;

/// The books of the kernel.
pub(crate) const ALLOCINFO: &str = "/proc/allocinfo";

/// Reason for which the books of the kernel cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// The kernel has none.
    Absent,
    /// Profiling is off, and was when memory was allocated.
    Off,
    /// The user may not read them.
    Permission,
    /// A container hides them.
    Masked,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => {
                "there is no such file: this kernel was built without memory allocation \
                 profiling, which needs Linux 6.10 and CONFIG_MEM_ALLOC_PROFILING"
            }
            Self::Off => {
                "memory allocation profiling of the kernel is off: boot with \
                 sysctl.vm.mem_profiling=1"
            }
            Self::Permission => "permission denied: only root may read it",
            Self::Masked => {
                "hidden by a container: another file is mounted over it, or /proc shows processes \
                 alone (subset=pid); read it outside of the container"
            }
        })
    }
}

/// Failure to read a process, or a file that it left.
///
/// [`ReadError::is_absent`] and [`ReadError::is_permission`] sort the errors by their remedy.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// No process has this pid, or the process ended while it was read.
    #[error("no process {pid}: it has ended or never existed; `kmem ls` lists those under kmem")]
    NoProcess {
        /// Pid of the process.
        pid: u32,
    },
    /// `/proc` is that of another pid namespace, where numbers are of other processes.
    #[error(
        "/proc is that of another pid namespace, where numbers are of other processes: mount that \
         of this one (mount -t proc proc /proc, or unshare --mount-proc)"
    )]
    OtherProc,
    /// The pid now belongs to another process.
    #[error(
        "process {pid} ended while it was read, and its pid was given to another process; \
         `kmem ls` lists those under kmem"
    )]
    Recycled {
        /// Pid of the process.
        pid: u32,
    },
    /// The process runs without kmem.
    #[error(
        "process {pid} ({exe}) runs without kmem: start it with `kmem run -- CMD`, or with \
         LD_PRELOAD=libkmem.so"
    )]
    NotInstrumented {
        /// Pid of the process.
        pid: u32,
        /// Its executable, or its short name.
        exe: String,
    },
    /// The process has no loader of modules.
    #[error(
        "process {pid} ({exe}) has no loader of modules: no mapping named kmem-modules in it. \
         `kmem modload` starts a process with one"
    )]
    NoLoader {
        /// Pid of the process.
        pid: u32,
        /// Its executable, or its short name.
        exe: String,
    },
    /// The process was started with `KMEM_CONF=mem_profiling:never`.
    #[error(
        "process {pid} keeps no books: its profiling is `never` (KMEM_CONF=mem_profiling:never). \
         Start it without that option"
    )]
    ProfilingNever {
        /// Pid of the process.
        pid: u32,
    },
    /// The kernel refused access to the process.
    #[error(
        "no permission for {what} of process {pid}: run as the same user or as root \
         (CAP_SYS_PTRACE); see also /proc/sys/kernel/yama/ptrace_scope"
    )]
    Permission {
        /// Pid of the process.
        pid: u32,
        /// The file of `/proc/PID`, or `memory`.
        what: String,
    },
    /// A file of the process could not be read.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Memory of the process could not be read or written.
    #[error(
        "memory of process {pid} at {addr:#x}, {len} bytes: {source}; try again: the process may \
         have unmapped it meanwhile"
    )]
    Memory {
        /// Pid of the process.
        pid: u32,
        /// First address of the range.
        addr: u64,
        /// Length of the range, in bytes.
        len: usize,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file that the user named cannot be opened or read.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A file that the user named has the wrong format, or is damaged.
    #[error("{path}: {what}")]
    BadFile {
        /// Path of the file.
        path: String,
        /// Its format, or the damage and its place.
        what: String,
    },
    /// The core file is of a process without kmem.
    #[error(
        "{path}: process {pid} ({exe}) was not instrumented: no mapping named kmem-root in its \
         core. Start it with `kmem run`"
    )]
    CoreNotInstrumented {
        /// Path of the core file.
        path: String,
        /// Pid of the process.
        pid: u32,
        /// Its executable, or its short name.
        exe: String,
    },
    /// The black box does not have the data that the caller asks for.
    #[error("{path}: {what}")]
    NothingRecorded {
        /// Path of the black box.
        path: String,
        /// The absent data, and the reason.
        what: String,
    },
    /// Memory is absent from the core file.
    #[error(
        "{path}: {len} bytes of memory at {addr:#x} are not in the core: it was cut off, or \
         /proc/PID/coredump_filter left them out. \
         Set that to 0x33, and `ulimit -c unlimited`, before the program starts"
    )]
    NotInCore {
        /// Path of the core file.
        path: String,
        /// First address that is absent.
        addr: u64,
        /// Count of bytes wanted from there on.
        len: usize,
    },
    /// The books of the kernel cannot be read.
    #[error("{ALLOCINFO}: {why}")]
    NoAllocinfo {
        /// The reason.
        why: Missing,
    },
    /// The process has mapped its root block and not yet written it.
    #[error("root block at {root:#x}: the process is still starting; try again")]
    NotReady {
        /// Address of the root block.
        root: u64,
    },
    /// The root block cannot be followed.
    #[error("root block at {root:#x}: {what}; read it with the `kmem` of the library's release")]
    BadBooks {
        /// Address of the root block.
        root: u64,
        /// The wrong field, its value, and the expected value.
        what: String,
    },
    /// The tables of a root block do not fit in what is left of the budget.
    #[error(
        "root block at {root:#x}: its tables are {over}; read it with the `kmem` of the \
         library's release"
    )]
    TooLarge {
        /// Address of the root block.
        root: u64,
        /// The part of the budget that is used up.
        over: OverBudget,
    },
    /// The board of modules cannot be followed.
    #[error("board of modules at {at:#x}: {what}; read it with the `kmem` of the loader's release")]
    BadBoard {
        /// Address of the board.
        at: u64,
        /// The wrong field, its value, and the expected value.
        what: String,
    },
    /// No process under kmem is one of those that were chosen.
    #[error(
        "no process {choice} runs under kmem, or it is another user's; `kmem ls` lists those that \
         do"
    )]
    NoneChosen {
        /// The choice.
        choice: String,
    },
    /// No group has this path.
    #[error("process {pid} has no group {group}; `kmem group ls -p {pid}` lists its groups")]
    NoGroup {
        /// Pid of the process.
        pid: u32,
        /// Path of the group.
        group: String,
    },
    /// The process refuses to make or to delete a group.
    #[error("{group}: {why}")]
    GroupRefused {
        /// Path of the group.
        group: String,
        /// The reason.
        why: &'static str,
    },
    /// The process did not allocate in time, so it did not serve a request.
    #[error(
        "process {pid} allocated nothing for {patience:?}, so nothing has changed; try again while \
         it is busy, or with a longer --wait"
    )]
    NotServed {
        /// Pid of the process.
        pid: u32,
        /// Time that the writer waited.
        patience: Duration,
    },
    /// The caller sets a limit of the root of the groups, which has none.
    #[error(
        "/ is the root of the groups, which has no limits and stays: operation not permitted; \
         name a group below it"
    )]
    RootGroup,
    /// The caller asks for a setting that is not possible.
    #[error("{0}")]
    BadSetting(String),
}

impl ReadError {
    /// Converts the error of a system call on process `pid` and on a file of it.
    #[must_use]
    pub fn from_io(pid: u32, path: &str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ESRCH) => Self::NoProcess { pid },
            Some(libc::EPERM | libc::EACCES) => Self::Permission { pid, what: path.to_owned() },
            Some(libc::ENOENT) if path.starts_with("/proc/") => Self::NoProcess { pid },
            _ => Self::Io { path: path.to_owned(), source },
        }
    }

    /// True for a process that was under kmem, when it has ended, or is starting another program.
    pub(crate) fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::NoProcess { .. }
                | Self::Recycled { .. }
                | Self::NotInstrumented { .. }
                | Self::NotReady { .. }
        )
    }

    /// True when the source is absent: no process, no file, no kmem in it, no books, none yet.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::NoProcess { .. }
            | Self::Recycled { .. }
            | Self::NotReady { .. }
            | Self::NotInstrumented { .. }
            | Self::NoLoader { .. }
            | Self::CoreNotInstrumented { .. }
            | Self::NothingRecorded { .. }
            | Self::NoGroup { .. }
            | Self::NoneChosen { .. }
            | Self::ProfilingNever { .. } => true,
            Self::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            Self::NoAllocinfo { why } => *why != Missing::Permission,
            _ => false,
        }
    }

    /// True when the kernel refuses the operation, or would.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Permission { .. } | Self::RootGroup => true,
            Self::File { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Self::NoAllocinfo { why } => *why == Missing::Permission,
            _ => false,
        }
    }
}
