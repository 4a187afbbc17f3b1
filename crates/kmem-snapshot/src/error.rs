//! What can go wrong when a process, or what is left of one, is read, sorted by what the user can do about it.

use std::io;

/// Failure to read a process, or a file that it left.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such process, or it ended while it was read.
    #[error("no process {pid}: it has ended or never existed")]
    NoProcess {
        /// The process asked for.
        pid: u32,
    },
    /// The pid now belongs to another process.
    #[error("process {pid} ended while it was read, and its pid was given to another process")]
    Recycled {
        /// The process asked for.
        pid: u32,
    },
    /// The process runs without kmem.
    #[error("process {pid} ({exe}) is not instrumented: no mapping named kmem-root in it")]
    NotInstrumented {
        /// The process asked for.
        pid: u32,
        /// Its executable, or its name.
        exe: String,
    },
    /// The process loads no modules.
    #[error("process {pid} ({exe}) has no loader of modules: no mapping named kmem-modules in it")]
    NoLoader {
        /// The process asked for.
        pid: u32,
        /// Its executable, or its name.
        exe: String,
    },
    /// The process was started with `KMEM_CONF=mem_profiling:never`.
    #[error(
        "process {pid} keeps no books: its profiling is `never` (KMEM_CONF=mem_profiling:never)"
    )]
    ProfilingNever {
        /// The process asked for.
        pid: u32,
    },
    /// The kernel refused access to the process.
    #[error(
        "no permission for {what} of process {pid}: run as the same user or as root \
         (CAP_SYS_PTRACE); see also /proc/sys/kernel/yama/ptrace_scope"
    )]
    Permission {
        /// The process asked for.
        pid: u32,
        /// What was refused.
        what: String,
    },
    /// A file of the process could not be read.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Memory of the process could not be read.
    #[error("memory of process {pid} at {addr:#x}, {len} bytes: {source}")]
    Memory {
        /// The process asked for.
        pid: u32,
        /// First address of the range.
        addr: u64,
        /// Length of the range.
        len: usize,
        /// Why.
        source: io::Error,
    },
    /// A file that the user named cannot be opened or read.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A file that the user named is not what it should be, or is damaged.
    #[error("{path}: {what}")]
    BadFile {
        /// The file.
        path: String,
        /// What it is, or what is wrong with it and where.
        what: String,
    },
    /// A core file of a process without kmem.
    #[error(
        "{path}: process {pid} ({exe}) was not instrumented: no mapping named kmem-root in its core"
    )]
    CoreNotInstrumented {
        /// The core file.
        path: String,
        /// The process.
        pid: u32,
        /// Its executable, or its name.
        exe: String,
    },
    /// A black box without what was asked for.
    #[error("{path}: {what}")]
    NothingRecorded {
        /// The black box.
        path: String,
        /// What is not in it, and why.
        what: String,
    },
    /// Memory that is not in a core file.
    #[error(
        "{path}: {len} bytes of memory at {addr:#x} are not in the core: it was cut off, or \
         /proc/PID/coredump_filter left them out"
    )]
    NotInCore {
        /// The core file.
        path: String,
        /// First address that is absent.
        addr: u64,
        /// Bytes from there on that were wanted.
        len: usize,
    },
    /// What the process shows is not a root block this reader can follow.
    #[error("root block at {root:#x}: {what}")]
    BadBooks {
        /// Address of the root block.
        root: u64,
        /// The field that was wrong, its value, and what was expected.
        what: String,
    },
    /// What the process shows is not a board of modules that this reader can follow.
    #[error("board of modules at {at:#x}: {what}")]
    BadBoard {
        /// Its address.
        at: u64,
        /// The field that was wrong, its value, and what was expected.
        what: String,
    },
    /// There is no group of that name.
    #[error("process {pid} has no group {group}")]
    NoGroup {
        /// The process.
        pid: u32,
        /// Path of the group.
        group: String,
    },
    /// The root has no limits.
    #[error("/ is the root of the groups, which has no limits: operation not permitted")]
    RootGroup,
    /// A setting that was asked for is not possible.
    #[error("{0}")]
    BadSetting(String),
}

impl ReadError {
    /// Turns a failed system call on process `pid` into the error to report.
    #[must_use]
    pub fn from_io(pid: u32, path: &str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ESRCH) => Self::NoProcess { pid },
            Some(libc::EPERM | libc::EACCES) => Self::Permission { pid, what: path.to_owned() },
            Some(libc::ENOENT) if path.starts_with("/proc/") => Self::NoProcess { pid },
            _ => Self::Io { path: path.to_owned(), source },
        }
    }

    /// True when the thing to read is not there: no process, no file, no kmem in it, no books.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        match self {
            Self::NoProcess { .. }
            | Self::Recycled { .. }
            | Self::NotInstrumented { .. }
            | Self::NoLoader { .. }
            | Self::CoreNotInstrumented { .. }
            | Self::NothingRecorded { .. }
            | Self::NoGroup { .. }
            | Self::ProfilingNever { .. } => true,
            Self::File { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }

    /// True when the kernel refused, or would.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        match self {
            Self::Permission { .. } | Self::RootGroup => true,
            Self::File { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            _ => false,
        }
    }
}
