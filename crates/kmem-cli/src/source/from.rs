//! Which books are meant: of a live process, or of what is left of a dead one.

use std::path::PathBuf;

/// Where books are read from.
#[derive(clap::Args)]
pub(crate) struct From {
    #[command(flatten)]
    pub(crate) one: One,
    /// With --core and --blackbox: the executable, when it is no longer where it was
    #[arg(long, value_name = "PATH", conflicts_with = "pid")]
    pub(crate) exe: Option<PathBuf>,
}

/// Exactly one of these.
#[derive(clap::Args)]
#[group(id = "source", required = true, multiple = false)]
pub(crate) struct One {
    /// Process to read
    #[arg(short, long)]
    pub(crate) pid: Option<u32>,
    /// Core file of a process to read
    #[arg(long, value_name = "FILE")]
    pub(crate) core: Option<PathBuf>,
    /// Black box of a process to read (KMEM_CONF=blackbox:FILE)
    #[arg(long, value_name = "FILE")]
    pub(crate) blackbox: Option<PathBuf>,
}

impl From {
    /// A live process, whose books change.
    pub(crate) fn is_live(&self) -> bool {
        self.one.pid.is_some()
    }
}
