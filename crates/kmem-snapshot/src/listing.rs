//! The processes of the machine that run under kmem.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::books::Snapshot;
use crate::error::ReadError;
use crate::process::{Process, check_proc};

/// A process that runs under kmem.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The process.
    pub process: Process,
    /// Its short name (`/proc/PID/comm`).
    pub comm: String,
    /// Path of its executable, or its short name.
    pub exe: String,
}

/// The processes of the machine that run under kmem, by pid.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// These processes.
    pub processes: Vec<Listed>,
    /// Number of processes whose mappings the caller may not read.
    pub hidden: usize,
}

impl Listing {
    /// Looks at all processes. Those that end meanwhile are left out.
    ///
    /// # Errors
    ///
    /// The error of reading the directory `/proc`, or that it is of another pid namespace.
    pub fn take() -> io::Result<Self> {
        check_proc().map_err(io::Error::other)?;
        let mut listing = Self::default();
        for process in all()? {
            match process.maps() {
                Ok(maps) if Snapshot::is_in(&maps) => {
                    let (comm, exe) = (process.comm(), process.exe());
                    listing.processes.push(Listed { process, comm, exe });
                }
                Err(error) if error.is_permission() => listing.hidden += 1,
                Ok(_) | Err(_) => {}
            }
        }
        Ok(listing)
    }

    /// The processes whose short name, or whose executable's name, is `name`.
    #[must_use]
    pub fn named(&self, name: &str) -> Vec<&Listed> {
        self.processes.iter().filter(|listed| listed.is_called(name)).collect()
    }
}

impl Listed {
    /// True for its short name, and for the name of its executable.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        is_called(name, &self.comm, &self.exe)
    }
}

/// The lowest pid of a process with this short name, or whose executable has this name, with or
/// without kmem.
#[must_use]
pub fn any_named(name: &str) -> Option<u32> {
    let processes = all().ok()?;
    let found = processes.iter().find(|of| is_called(name, &of.comm(), &of.exe()));
    found.map(Process::pid)
}

/// The kernel cuts a short name off behind 15 bytes.
fn is_called(name: &str, comm: &str, exe: &str) -> bool {
    let file = Path::new(exe).file_name().map(|file| file.to_string_lossy());
    comm == name || file.is_some_and(|file| file == name)
}

/// All processes, by pid.
fn all() -> io::Result<Vec<Process>> {
    let mut pids: Vec<u32> = fs::read_dir("/proc")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    pids.sort_unstable();
    Ok(pids.into_iter().filter_map(|pid| Process::open(pid).ok()).collect())
}

impl Process {
    /// Time since the process started.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoProcess`] when `/proc/uptime` cannot be read.
    pub fn age(&self) -> Result<Duration, ReadError> {
        let text = fs::read_to_string("/proc/uptime")
            .map_err(|e| ReadError::from_io(self.pid(), "/proc/uptime", e))?;
        let uptime: f64 = text.split(' ').next().and_then(|t| t.parse().ok()).unwrap_or(0.0);
        // Linux counts the start time in hundredths of a second on all machines (USER_HZ).
        let age = uptime - self.start_time() as f64 / 100.0;
        Ok(Duration::from_secs_f64(age.max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::{any_named, is_called};

    #[test]
    fn a_process_is_called_by_its_short_name_or_by_its_executable() {
        assert!(is_called("redis-server", "redis-server", "/usr/bin/redis-check-rdb"));
        assert!(is_called(
            "a-very-long-name-of-a-file",
            "a-very-long-nam",
            "/a-very-long-name-of-a-file"
        ));
        assert!(!is_called("redis", "redis-server", "/usr/bin/redis-server"));
    }

    #[test]
    fn this_process_has_an_age_and_is_found_by_name() {
        let this = crate::Process::open(std::process::id()).expect("this process");
        assert!(this.age().expect("its age") < std::time::Duration::from_secs(3600));
        assert!(any_named(&this.comm()).is_some());
    }
}
