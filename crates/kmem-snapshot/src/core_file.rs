//! The ELF core file of a dead process.
//!
//! ```text
//! header     ELF header -> program headers: PT_NOTE, PT_LOAD[]
//! notes      NT_PRPSINFO, NT_PRSTATUS, NT_AUXV, NT_FILE: identity, mapped files
//! mappings   PT_LOAD[] + NT_FILE -> Maps, as /proc/PID/maps had them
//! segments   PT_LOAD[] -> memory
//! ```
//!
//! The file may have tens of gigabytes, and more or fewer than its headers say. The reader reads
//! headers and notes, and by position the memory that its caller wants. All of it draws on one
//! [`Budget`].
//!
//! Formats: core(5), elf(5); `fs/binfmt_elf.c` and `include/uapi/linux/elfcore.h` in Linux.

mod header;
mod mappings;
mod notes;
mod segments;

use std::path::{Path, PathBuf};

pub(crate) use header::other_file;
pub use segments::CoreMemory;

use crate::budget::Budget;
use crate::error::ReadError;
use crate::maps::Maps;
use crate::process::open_regular;
use notes::Notes;

/// A core file, opened.
#[derive(Debug)]
pub struct CoreFile {
    path: PathBuf,
    memory: CoreMemory,
    maps: Maps,
    notes: Notes,
    exe: String,
    missing: u64,
    knows_resident: bool,
    budget: Budget,
}

impl CoreFile {
    /// Opens a core file and reads its headers and notes.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when it cannot be opened; [`ReadError::BadFile`] when it is no core
    /// file, or its headers contradict each other.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let name = path.to_string_lossy().into_owned();
        let failed = |source| ReadError::File { path: name.clone(), source };
        let bad = |what| ReadError::BadFile { path: name.clone(), what };
        let (file, metadata) = open_regular(path, 0).map_err(failed)?;
        let len = metadata.len();
        let budget = Budget::default();
        let headers = header::read(&file, len).map_err(bad)?;
        let notes = Notes::read(&file, len, &headers, &budget).map_err(bad)?;
        let memory = CoreMemory::new(file, len, &name, &headers, &notes.files).map_err(bad)?;
        let maps = mappings::maps(&headers, &notes);
        let exe = executable(&notes, &maps, &memory);
        let missing = memory.missing();
        let (path, knows_resident) = (path.to_owned(), !headers.has_sections);
        Ok(Self { path, memory, maps, notes, exe, missing, knows_resident, budget })
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Pid of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.notes.pid
    }

    /// Path of the executable: the mapped file that holds the program headers, or the path given
    /// to `execve`, or the short name.
    #[must_use]
    pub fn exe(&self) -> &str {
        &self.exe
    }

    /// Short name of the process.
    #[must_use]
    pub fn comm(&self) -> &str {
        &self.notes.comm
    }

    /// Beginning of the command line; a core keeps 80 bytes.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.notes.command
    }

    /// Signal that ended the process; 0 when `gcore` copied it alive.
    #[must_use]
    pub fn signal(&self) -> u32 {
        self.notes.signal
    }

    /// Mappings of the process.
    #[must_use]
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Addresses near the upper ends of the stacks of threads besides the first.
    pub(crate) fn thread_stacks(&self) -> Vec<u64> {
        self.notes.other_threads()
    }

    /// True when the stack of the first thread is known.
    pub(crate) fn names_stack(&self) -> bool {
        self.maps.all().iter().any(|mapping| mapping.path == mappings::STACK)
    }

    /// Memory of the process, as far as it was dumped.
    #[must_use]
    pub fn memory(&self) -> &CoreMemory {
        &self.memory
    }

    /// True when the file tells which pages were in memory: they are no holes of it. gdb also
    /// writes pages that the process never touched.
    #[must_use]
    pub fn knows_resident(&self) -> bool {
        self.knows_resident
    }

    /// The budget of reading it, with remarks about what it has no room for.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Bytes of memory that the headers announce and the file does not have, because it was cut
    /// off.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }
}

/// Path of the executable, as `/proc/PID/exe` had it where that is known.
fn executable(notes: &Notes, maps: &Maps, memory: &CoreMemory) -> String {
    // AT_PHDR and AT_ENTRY lie in the executable.
    for addr in [notes.program_headers, notes.entry] {
        if let Some(mapping) = maps.find(addr)
            && mapping.is_file()
        {
            let deleted = if mapping.deleted { " (deleted)" } else { "" };
            return format!("{}{deleted}", mapping.path);
        }
    }
    let mut name = vec![0; 4096];
    let at = notes.exec_name;
    // The string is near the end of the stack: read up to the end of the mapping.
    let there = maps.find(at).map_or(0, |m| (m.end - at).min(4096));
    let there = usize::try_from(there).unwrap_or(0);
    name.truncate(there);
    if there != 0 && memory.read(at, &mut name).is_ok() {
        let name = name.split(|&b| b == 0).next().unwrap_or_default();
        if !name.is_empty() {
            return String::from_utf8_lossy(name).into_owned();
        }
    }
    notes.comm.clone()
}
