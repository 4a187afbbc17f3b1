//! What can go wrong when a process is read, sorted by what the user can do about it.

use std::io;

/// Failure to read a process.
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
    /// What the process shows is not a root block this reader can follow.
    #[error("root block at {root:#x}: {what}")]
    BadBooks {
        /// Address of the root block.
        root: u64,
        /// The field that was wrong, its value, and what was expected.
        what: String,
    },
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

    /// True when the thing to read is not there: no process, no kmem in it, no books.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            Self::NoProcess { .. }
                | Self::Recycled { .. }
                | Self::NotInstrumented { .. }
                | Self::ProfilingNever { .. }
        )
    }

    /// True when the kernel refused.
    #[must_use]
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Permission { .. })
    }
}
