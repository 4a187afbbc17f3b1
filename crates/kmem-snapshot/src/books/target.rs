//! What books are read from: a live process, or a core file.

use std::borrow::Cow;

use crate::core_file::CoreFile;
use crate::error::ReadError;
use crate::memory::{Memory, Pages};
use crate::process::{Maps, Process};

/// A process, living or dead.
pub(super) enum Target<'a> {
    Live(&'a Process),
    Core(&'a CoreFile),
}

impl Target<'_> {
    pub(super) fn pid(&self) -> u32 {
        match self {
            Self::Live(process) => process.pid(),
            Self::Core(core) => core.pid(),
        }
    }

    pub(super) fn exe(&self) -> String {
        match self {
            Self::Live(process) => process.exe(),
            Self::Core(core) => core.exe().to_owned(),
        }
    }

    pub(super) fn comm(&self) -> String {
        match self {
            Self::Live(process) => process.comm(),
            Self::Core(core) => core.comm().to_owned(),
        }
    }

    pub(super) fn maps(&self) -> Result<Cow<'_, Maps>, ReadError> {
        match self {
            Self::Live(process) => process.maps().map(Cow::Owned),
            Self::Core(core) => Ok(Cow::Borrowed(core.maps())),
        }
    }

    pub(super) fn memory(&self) -> Memory {
        match self {
            Self::Live(process) => Memory::Live(process.memory()),
            Self::Core(core) => Memory::Core(core.memory().clone()),
        }
    }

    /// Which pages are in memory; `seen` is an address that was just read.
    pub(super) fn pages(&self, seen: u64) -> Option<Pages> {
        match self {
            Self::Live(process) => {
                let exact = process.pagemap(seen).map(Pages::Live);
                exact.or_else(|| process.smaps().map(Pages::Likely))
            }
            Self::Core(core) => Some(Pages::Core(core.memory().clone())),
        }
    }

    pub(super) fn resident(&self) -> Result<u64, ReadError> {
        match self {
            Self::Live(process) => process.resident(),
            Self::Core(core) => Ok(core.memory().resident()),
        }
    }

    /// Checks that it is still the same process; a dead one does not change.
    pub(super) fn verify(&self) -> Result<(), ReadError> {
        match self {
            Self::Live(process) => process.verify(),
            Self::Core(_) => Ok(()),
        }
    }

    /// The error for a process without kmem, unless it is no longer the same process.
    pub(super) fn not_instrumented(&self) -> Result<ReadError, ReadError> {
        self.verify()?;
        let (pid, exe) = (self.pid(), self.exe());
        Ok(match self {
            Self::Live(_) => ReadError::NotInstrumented { pid, exe },
            Self::Core(core) => {
                let path = core.path().to_string_lossy().into_owned();
                ReadError::CoreNotInstrumented { path, pid, exe }
            }
        })
    }
}
