//! A live process as `/proc/PID` shows it: identity, mappings, resident memory.
//!
//! The process is neither stopped nor traced. The kernel may give its pid to another process
//! between two reads. [`Process::verify`] compares start times, so a caller that verifies last
//! knows that everything came from one process.
//!
//! Formats: proc(5); `Documentation/filesystems/proc.rst` in Linux.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use kmem_layout::root::ZERO_FILE;

use crate::error::ReadError;
use crate::maps::{Maps, PAGE, Resident, Smaps, kib};

/// Most threads whose stacks are looked for.
pub(crate) const MAX_THREADS: usize = 1 << 16;
/// Most bytes read from one file of `/proc/PID`.
const MAX_PROC_FILE: u64 = 64 << 20;

/// A process, by pid and start time.
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
    /// [`ReadError::NoProcess`] when no process has this pid, [`ReadError::OtherProc`] when `/proc`
    /// has the processes of another pid namespace.
    pub fn open(pid: u32) -> Result<Self, ReadError> {
        check_proc()?;
        Ok(Self { pid, start_time: start_time(pid)? })
    }

    /// The pid.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Start time in clock ticks since boot. It tells two processes of one pid apart.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.start_time
    }

    /// Checks that the pid still belongs to the process that was opened.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`] when the process has ended, [`ReadError::Recycled`] when its pid
    /// belongs to another process.
    pub fn verify(&self) -> Result<(), ReadError> {
        if start_time(self.pid)? == self.start_time {
            Ok(())
        } else {
            Err(ReadError::Recycled { pid: self.pid })
        }
    }

    /// Path of `file` in `/proc/PID`.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{file}", self.pid))
    }

    /// Path here of a file that the process knows as `path` in its own root directory.
    #[must_use]
    pub fn in_root(&self, path: &Path) -> PathBuf {
        let relative = path.strip_prefix("/").unwrap_or(path);
        self.path("root").join(relative)
    }

    /// Path of the executable, or the short name where the kernel does not show the path.
    #[must_use]
    pub fn exe(&self) -> String {
        match fs::read_link(self.path("exe")) {
            Ok(path) => path.to_string_lossy().into_owned(),
            Err(_) => self.comm(),
        }
    }

    /// Short name (`/proc/PID/comm`), or `?`.
    #[must_use]
    pub fn comm(&self) -> String {
        let text = fs::read(self.path("comm")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let text = text.trim_end();
        if text.is_empty() { "?".to_owned() } else { text.to_owned() }
    }

    /// Reads the current mappings.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`] when the process has ended, [`ReadError::Permission`] when the
    /// caller may not read it.
    pub fn maps(&self) -> Result<Maps, ReadError> {
        // A page of a FUSE file that has this name in another namespace may never come.
        let device = || {
            let path = Path::new(ZERO_FILE.to_str().ok()?);
            let of = fs::metadata(path).ok()?;
            Some(((rustix::fs::major(of.dev()), rustix::fs::minor(of.dev())), of.ino()))
        };
        Ok(Maps::parse(&self.read_file("maps")?).with_zeroes_of(device))
    }

    /// Reads the resident memory, in bytes.
    ///
    /// `smaps_rollup` walks the page tables and is exact. `statm` replaces it where the caller
    /// may not read it, and misses the pages that threads have not yet added to the sum.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`] when the process has ended.
    pub fn resident(&self) -> Result<u64, ReadError> {
        if let Ok(text) = self.read_file("smaps_rollup")
            && let Some(bytes) = smaps_rss(&text)
        {
            return Ok(bytes);
        }
        let text = self.read_file("statm")?;
        Ok(statm_resident(&text).unwrap_or(0))
    }

    /// Reads the resident bytes of each mapping; none where the caller may not read `smaps`.
    #[must_use]
    pub fn smaps(&self) -> Option<Smaps> {
        Smaps::parse(&self.read_file("smaps").ok()?)
    }

    /// Reads the mappings with the resident bytes of each; none where the caller may not.
    pub(crate) fn residents(&self) -> Option<Vec<Resident>> {
        let all = Resident::parse(&self.read_file("smaps").ok()?);
        (!all.is_empty()).then_some(all)
    }

    /// Reads the bytes of the page tables, which are not resident memory of the process.
    pub(crate) fn page_tables(&self) -> Option<u64> {
        let text = self.read_file("status").ok()?;
        text.lines().find_map(|l| l.strip_prefix("VmPTE:")).and_then(kib)
    }

    /// Numbers of the threads besides the first, [`MAX_THREADS`] at most.
    pub(crate) fn other_threads(&self) -> Vec<u32> {
        let tasks = fs::read_dir(self.path("task")).into_iter().flatten().flatten();
        let numbers = tasks.filter_map(|task| task.file_name().to_str()?.parse().ok());
        numbers.filter(|&tid| tid != self.pid).take(MAX_THREADS).collect()
    }

    /// Numbers of all threads, [`MAX_THREADS`] at most besides the first.
    pub(crate) fn threads(&self) -> Vec<u32> {
        let mut threads = self.other_threads();
        threads.push(self.pid);
        threads
    }

    /// Pid of the process in its own pid namespace.
    #[must_use]
    pub fn inner_pid(&self) -> u32 {
        self.read_file("status").ok().and_then(|text| inner_pid(&text)).unwrap_or(self.pid)
    }

    /// Inode of the pid namespace of the process; none where the caller may not know it.
    #[must_use]
    pub fn pid_namespace(&self) -> Option<u64> {
        fs::metadata(self.path("ns/pid")).ok().map(|namespace| namespace.ino())
    }

    /// Reads a file of `/proc/PID` as text, 64 MiB at most.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`] when the process has ended, [`ReadError::Permission`] when the
    /// caller may not read the file.
    pub fn read_file(&self, name: &str) -> Result<String, ReadError> {
        let path = self.path(name);
        let mut bytes = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_PROC_FILE).read_to_end(&mut bytes))
            .map_err(|e| ReadError::from_io(self.pid, &path.to_string_lossy(), e))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Checks that `/proc` has the numbers of this process's pid namespace. System calls take those.
///
/// # Errors
///
/// [`ReadError::OtherProc`] when it does not.
pub(crate) fn check_proc() -> Result<(), ReadError> {
    static IS_OTHER: OnceLock<bool> = OnceLock::new();
    // Without `/proc` there are errors that say so.
    let is_other = || {
        let own = fs::read_link("/proc/self").ok();
        own.is_some_and(|own| own.as_os_str() != std::process::id().to_string().as_str())
    };
    if *IS_OTHER.get_or_init(is_other) { Err(ReadError::OtherProc) } else { Ok(()) }
}

/// Opens a regular file for reading, without waiting for the writer of a FIFO. `flags` are added
/// to those of `open`. Also returns the file's metadata.
///
/// # Errors
///
/// Errors of `open` and `fstat`; `InvalidInput` when the file is not a regular one.
pub(crate) fn open_regular(path: &Path, flags: i32) -> io::Result<(File, Metadata)> {
    let mut options = OpenOptions::new();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK | flags).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok((file, metadata))
}

/// Field 22 of `/proc/PID/stat`: start time in clock ticks since boot.
fn start_time(pid: u32) -> Result<u64, ReadError> {
    let path = format!("/proc/{pid}/stat");
    let bytes = fs::read(&path).map_err(|e| ReadError::from_io(pid, &path, e))?;
    parse_start_time(&String::from_utf8_lossy(&bytes)).ok_or(ReadError::NoProcess { pid })
}

/// Counts fields from the last `)`: the name in field 2 may hold spaces and parentheses.
fn parse_start_time(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Resident bytes from `/proc/PID/statm`.
fn statm_resident(statm: &str) -> Option<u64> {
    let pages: u64 = statm.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(PAGE)
}

/// Resident bytes from `/proc/PID/smaps_rollup`.
fn smaps_rss(smaps: &str) -> Option<u64> {
    smaps.lines().find_map(|l| l.strip_prefix("Rss:")).and_then(kib)
}

/// Last field of `NSpid:` in `/proc/PID/status`: the pid in the innermost namespace.
fn inner_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().last()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn start_time_survives_odd_names() {
        let tail = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(parse_start_time(&format!("12 (a) b) {tail}")), Some(777));
        assert_eq!(parse_start_time("12 (x"), None);
        assert_eq!(parse_start_time("12 (x) S 1"), None);
        assert!(start_time(std::process::id()).is_ok());
        assert!(matches!(start_time(0x7fff_fff0), Err(ReadError::NoProcess { .. })));
    }

    #[test]
    fn resident_fields() {
        assert_eq!(statm_resident("5 3 1 0 0 0 0\n"), Some(12288));
        assert_eq!(statm_resident("5"), None);
        assert_eq!(statm_resident("5 18446744073709551615"), None);
        assert_eq!(smaps_rss("55-77 ---p\nRss:       1848 kB\nPss: 1 kB\n"), Some(1848 * 1024));
        assert_eq!(smaps_rss("Rss: x kB"), None);
        assert_eq!(inner_pid("Name: a\nNSpid:\t100\t7\n"), Some(7));
    }

    #[test]
    fn only_regular_files() {
        assert!(open_regular(Path::new("/dev/zero"), 0).is_err());
        assert!(open_regular(Path::new("/"), 0).is_err());
        assert!(open_regular(Path::new("/proc/self/exe"), 0).is_ok());
    }
}
