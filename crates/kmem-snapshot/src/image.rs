//! A process that is alive, or the core file of a dead one. The books are read from either in one
//! way.

use std::borrow::Cow;

use crate::budget::Budget;
use crate::core_file::CoreFile;
use crate::error::ReadError;
use crate::maps::{Mapping, Maps, Resident};
use crate::memory::{Memory, Pages, robust_list};
use crate::process::Process;

/// A process to read books from: alive, or dead and dumped.
pub(crate) enum Image<'a> {
    Live(&'a Process),
    Core(&'a CoreFile),
}

impl Image<'_> {
    pub(crate) fn pid(&self) -> u32 {
        match self {
            Self::Live(process) => process.pid(),
            Self::Core(core) => core.pid(),
        }
    }

    pub(crate) fn exe(&self) -> String {
        match self {
            Self::Live(process) => process.exe(),
            Self::Core(core) => core.exe().to_owned(),
        }
    }

    pub(crate) fn comm(&self) -> String {
        match self {
            Self::Live(process) => process.comm(),
            Self::Core(core) => core.comm().to_owned(),
        }
    }

    pub(crate) fn maps(&self) -> Result<Cow<'_, Maps>, ReadError> {
        match self {
            Self::Live(process) => process.maps().map(Cow::Owned),
            Self::Core(core) => Ok(Cow::Borrowed(core.maps())),
        }
    }

    pub(crate) fn memory(&self) -> Memory {
        match self {
            Self::Live(process) => Memory::Live(process.memory()),
            Self::Core(core) => Memory::Core(core.memory().clone()),
        }
    }

    /// Which pages are resident. `resident` is an address that was just read.
    pub(crate) fn pages(&self, resident: u64) -> Option<Pages> {
        match self {
            Self::Live(process) => {
                let exact = process.pagemap(resident).map(Pages::Live);
                exact.or_else(|| process.smaps().map(Pages::Likely))
            }
            Self::Core(core) if core.knows_resident() => Some(Pages::Core(core.memory().clone())),
            Self::Core(_) => None,
        }
    }

    /// The mappings with the resident bytes of each; of a core, the bytes in the file. None where
    /// that is not known.
    pub(crate) fn residents(&self) -> Option<Vec<Resident>> {
        match self {
            Self::Live(process) => process.residents(),
            Self::Core(core) => {
                let resident = |mapping: &Mapping| {
                    let mut resident = 0_u64;
                    core.memory().present(mapping.start, mapping.end - mapping.start, |part| {
                        let (from, to) = (part.start.max(mapping.start), part.end.min(mapping.end));
                        resident = resident.saturating_add(to.saturating_sub(from));
                    });
                    Resident { mapping: mapping.clone(), resident }
                };
                Some(core.maps().all().iter().map(resident).collect())
            }
        }
    }

    /// Addresses in the descriptors of threads besides the first, which lie at the upper ends of
    /// their stacks.
    pub(crate) fn thread_stacks(&self) -> Vec<u64> {
        match self {
            Self::Live(process) => {
                process.other_threads().into_iter().filter_map(robust_list).collect()
            }
            Self::Core(core) => core.thread_stacks(),
        }
    }

    /// Bytes of the page tables; none of a core.
    pub(crate) fn page_tables(&self) -> Option<u64> {
        match self {
            Self::Live(process) => process.page_tables(),
            Self::Core(_) => None,
        }
    }

    /// The budget of the reading.
    pub(crate) fn budget(&self) -> Budget {
        match self {
            Self::Live(_) => Budget::default(),
            Self::Core(core) => core.budget().clone(),
        }
    }

    /// Resident memory in bytes; of a core, the memory that is in the file.
    pub(crate) fn resident(&self) -> Result<u64, ReadError> {
        match self {
            Self::Live(process) => process.resident(),
            Self::Core(core) => Ok(core.memory().resident()),
        }
    }

    /// Checks that the pid still belongs to the process. A dead process does not change.
    pub(crate) fn verify(&self) -> Result<(), ReadError> {
        match self {
            Self::Live(process) => process.verify(),
            Self::Core(_) => Ok(()),
        }
    }

    /// The error for a process without kmem; fails when the process has ended meanwhile.
    pub(crate) fn not_instrumented(&self) -> Result<ReadError, ReadError> {
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
