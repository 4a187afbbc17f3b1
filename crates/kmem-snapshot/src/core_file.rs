//! A process after its death: an ELF core file.
//!
//! ```text
//! header     ELF header -> program headers: PT_NOTE, PT_LOAD[]
//! notes      NT_PRPSINFO, NT_PRSTATUS, NT_AUXV, NT_FILE: who it was, which files it mapped
//! mappings   PT_LOAD[] + NT_FILE -> Maps, as /proc/PID/maps had them
//! segments   PT_LOAD[] -> memory
//! ```
//!
//! The file may be tens of gigabytes, and larger than it says or smaller: nothing is read but
//! headers, notes and the memory asked for, by position.

mod header;
mod mappings;
mod notes;
mod segments;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

pub use segments::CoreMemory;

use crate::error::ReadError;
use crate::process::Maps;
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
}

impl CoreFile {
    /// Opens a core file and reads its headers and notes.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when it cannot be opened, [`ReadError::BadFile`] when it is no core
    /// file, or one that says impossible things.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let name = path.to_string_lossy().into_owned();
        let failed = |source| ReadError::File { path: name.clone(), source };
        let bad = |what| ReadError::BadFile { path: name.clone(), what };
        let (file, len) = open_regular(path).map_err(failed)?;
        let headers = header::read(&file, len).map_err(bad)?;
        let notes = Notes::read(&file, len, &headers).map_err(bad)?;
        let memory = CoreMemory::new(file, len, &name, &headers, &notes.files).map_err(bad)?;
        let maps = mappings::maps(&headers, &notes);
        let exe = executable(&notes, &maps, &memory);
        let missing = memory.missing();
        Ok(Self { path: path.to_owned(), memory, maps, notes, exe, missing })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The pid the process had.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.notes.pid
    }

    /// The executable: the mapped file that holds the program's headers, else the path given
    /// to `execve`, else the short name.
    #[must_use]
    pub fn exe(&self) -> &str {
        &self.exe
    }

    /// The short name.
    #[must_use]
    pub fn comm(&self) -> &str {
        &self.notes.comm
    }

    /// The beginning of the command line, as far as the core keeps it (80 bytes).
    #[must_use]
    pub fn command(&self) -> &str {
        &self.notes.command
    }

    /// The signal that ended the process; 0 when it was copied alive (`gcore`).
    #[must_use]
    pub fn signal(&self) -> u32 {
        self.notes.signal
    }

    /// What the process mapped.
    #[must_use]
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// The memory that was dumped.
    #[must_use]
    pub fn memory(&self) -> &CoreMemory {
        &self.memory
    }

    /// Bytes that the headers promise and the file does not have: it was cut off.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.missing
    }
}

/// Opens a regular file without waiting for a FIFO; its length is that of this moment.
pub(crate) fn open_regular(path: &Path) -> std::io::Result<(File, u64)> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, metadata.len()))
}

/// Name of the executable, in the words of `/proc/PID/exe` where they are known.
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
    // The string ends near the end of the stack, so as much as there is.
    let there = maps.find(at).map_or(0, |m| (m.end - at).min(4096));
    let there = usize::try_from(there).unwrap_or(0);
    if there != 0 && memory.read(at, &mut name[..there]).is_ok() {
        let name = name.split(|&b| b == 0).next().unwrap_or_default();
        if !name.is_empty() {
            return String::from_utf8_lossy(name).into_owned();
        }
    }
    notes.comm.clone()
}
