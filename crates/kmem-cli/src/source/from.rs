//! Which books are meant: of a live process, or of what is left of a dead one.

use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Where books are read from.
#[derive(clap::Args)]
pub(crate) struct From {
    #[command(flatten)]
    one: One,
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
    pid: Option<u32>,
    /// Core file of a process to read
    #[arg(long, value_name = "FILE")]
    core: Option<PathBuf>,
    /// Black box of a process to read (KMEM_CONF=blackbox:FILE)
    #[arg(long, value_name = "FILE")]
    blackbox: Option<PathBuf>,
}

/// Where the memory itself is needed: a process, or its core.
#[derive(clap::Args)]
#[group(id = "whole", required = true, multiple = false)]
pub(crate) struct Whole {
    /// Process to read
    #[arg(short, long)]
    pid: Option<u32>,
    /// Core file of a process to read
    #[arg(long, value_name = "FILE")]
    core: Option<PathBuf>,
}

impl Whole {
    /// What was given; the parser sees to it that it is one.
    pub(crate) fn source(&self) -> Result<Source<'_>, Failure> {
        match (self.pid, &self.core) {
            (Some(pid), _) => Ok(Source::Process(pid)),
            (_, Some(path)) => Ok(Source::Core(path)),
            _ => Err(Failure::Trouble("no process or core file is given".to_owned())),
        }
    }
}

/// What was given.
pub(crate) enum Source<'a> {
    Process(u32),
    Core(&'a Path),
    BlackBox(&'a Path),
}

impl One {
    /// What was given; the parser sees to it that it is one.
    pub(crate) fn source(&self) -> Result<Source<'_>, Failure> {
        match (self.pid, &self.core, &self.blackbox) {
            (Some(pid), ..) => Ok(Source::Process(pid)),
            (_, Some(path), _) => Ok(Source::Core(path)),
            (.., Some(path)) => Ok(Source::BlackBox(path)),
            _ => Err(Failure::Trouble("no process, core file or black box is given".to_owned())),
        }
    }
}

impl From {
    /// What was given.
    pub(crate) fn source(&self) -> Result<Source<'_>, Failure> {
        self.one.source()
    }

    /// A live process, whose books change.
    pub(crate) fn is_live(&self) -> bool {
        self.one.pid.is_some()
    }
}
