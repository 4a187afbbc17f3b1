//! A live process, from outside: who it is, what it maps, what its memory holds.
//!
//! Everything goes through `/proc/PID`, `process_vm_readv` and `process_vm_writev`: the process is
//! neither stopped nor traced. A pid can be given to another process while we read; [`Process::verify`]
//! compares start times, so a result is only shown when it came from one process.

mod maps;
mod memory;
mod pagemap;
mod smaps;
mod stat;

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

pub use maps::{Mapping, Maps};
pub use memory::{Memory, Span};
pub use pagemap::{PageMap, PageState};
pub use smaps::Smaps;

use crate::error::ReadError;

/// Most bytes read from one file of `/proc/PID`.
const MAX_PROC_FILE: u64 = 64 << 20;

/// A process by pid and start time.
#[derive(Debug, Clone)]
pub struct Process {
    pid: u32,
    start_time: u64,
}

impl Process {
    /// Opens the process `pid`.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`] when there is none.
    pub fn open(pid: u32) -> Result<Self, ReadError> {
        let start_time = stat::start_time(pid)?;
        Ok(Self { pid, start_time })
    }

    /// The pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time in clock ticks since boot: tells two processes of one pid apart.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Checks that the pid still belongs to the process that was opened.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`] or [`ReadError::Recycled`].
    pub fn verify(&self) -> Result<(), ReadError> {
        if stat::start_time(self.pid)? == self.start_time {
            Ok(())
        } else {
            Err(ReadError::Recycled { pid: self.pid })
        }
    }

    /// Path of a file in `/proc/PID`.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    /// A file of the process's own mount namespace, as seen from here.
    #[must_use]
    pub fn in_root(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix("/").unwrap_or(path);
        self.path("root").join(relative)
    }

    /// Name of the executable file, or else the process's name.
    #[must_use]
    pub fn exe(&self) -> String {
        match fs::read_link(self.path("exe")) {
            Ok(path) => path.to_string_lossy().into_owned(),
            Err(_) => self.comm(),
        }
    }

    /// The process's short name.
    #[must_use]
    pub fn comm(&self) -> String {
        let text = fs::read(self.path("comm")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_end();
        if text.is_empty() { "?".to_owned() } else { text.to_owned() }
    }

    /// What the process maps now.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone or may not be read.
    pub fn maps(&self) -> Result<Maps, ReadError> {
        Ok(Maps::parse(&self.read_file("maps")?))
    }

    /// Access to the memory of the process.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory::new(self.pid)
    }

    /// Resident memory in bytes.
    ///
    /// From `smaps_rollup`, which walks the page tables; `statm` lags behind by what each
    /// thread has not yet added up, and stands in where the former cannot be read.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone.
    pub fn resident(&self) -> Result<u64, ReadError> {
        if let Ok(text) = self.read_file("smaps_rollup")
            && let Some(bytes) = stat::smaps_rss(&text)
        {
            return Ok(bytes);
        }
        let text = self.read_file("statm")?;
        Ok(stat::statm_resident(&text).unwrap_or(0))
    }

    /// The page map, where it may be read. `seen` is an address whose page is in memory, as one is
    /// that was just read: a map that does not say so hides what it knows.
    #[must_use]
    pub fn pagemap(&self, seen: u64) -> Option<PageMap> {
        let map = PageMap::open(&self.path("pagemap"))?;
        map.resident(seen, 1).filter(|&bytes| bytes != 0)?;
        Some(map)
    }

    /// How much of each mapping is in memory, where that may be read.
    #[must_use]
    pub fn smaps(&self) -> Option<Smaps> {
        Smaps::parse(&self.read_file("smaps").ok()?)
    }

    /// The pid by which the process knows itself (differs inside a pid namespace).
    #[must_use]
    pub fn inner_pid(&self) -> u32 {
        self.read_file("status").ok().and_then(|text| stat::inner_pid(&text)).unwrap_or(self.pid)
    }

    /// A file of `/proc/PID` as text, bounded.
    ///
    /// # Errors
    ///
    /// Fails when the process is gone or may not be read.
    pub fn read_file(&self, name: &str) -> Result<String, ReadError> {
        let path = self.path(name);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_PROC_FILE).read_to_end(&mut bytes))
            .map_err(|e| ReadError::from_io(self.pid, &path.to_string_lossy(), e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
