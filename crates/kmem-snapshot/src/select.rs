//! A choice of processes: by pid, by name, by control group.

use std::fmt;

use crate::error::ReadError;
use crate::listing::{Listed, Listing};
use crate::process::Process;

/// Choice of processes, and of the kernel. A process is chosen if one of the conditions holds.
///
/// Names and control groups are looked for anew each time, among the processes under kmem.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Processes with these numbers.
    pub pids: Vec<u32>,
    /// Processes with these short names, or names of executables.
    pub names: Vec<String>,
    /// Processes in these control groups or below them, by paths from the root of the hierarchy.
    pub cgroups: Vec<String>,
    /// All processes under kmem.
    pub all: bool,
    /// The kernel of this machine.
    pub kernel: bool,
}

impl fmt::Display for Selection {
    /// Displays the choice of processes, as a part of a sentence behind "process".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = self.pids.iter().map(|pid| format!("with the number {pid}"));
        let names = self.names.iter().map(|name| format!("called {name}"));
        let cgroups = self.cgroups.iter().map(|path| format!("in the control group {path}"));
        let all = self.all.then(|| "of this machine".to_owned());
        let choice: Vec<String> = numbers.chain(names).chain(cgroups).chain(all).collect();
        f.write_str(&choice.join(" or "))
    }
}

impl Selection {
    /// The calling process alone.
    #[must_use]
    pub fn this_process() -> Self {
        Self { pids: vec![std::process::id()], ..Self::default() }
    }

    /// True when the kernel is chosen.
    pub(crate) fn has_kernel(&self) -> bool {
        self.kernel
    }

    /// The processes that are chosen now, by pid, each once. Those named by their numbers come
    /// first, whether they are there or not.
    ///
    /// # Errors
    ///
    /// [`ReadError::Io`] when `/proc` cannot be read.
    pub fn processes(&self) -> Result<Vec<u32>, ReadError> {
        let mut chosen: Vec<u32> = Vec::new();
        let mut add = |pid: u32| {
            if !chosen.contains(&pid) {
                chosen.push(pid);
            }
        };
        self.pids.iter().copied().for_each(&mut add);
        if self.all || !self.names.is_empty() || !self.cgroups.is_empty() {
            let listing = Listing::take()
                .map_err(|source| ReadError::Io { path: "/proc".to_owned(), source })?;
            let wanted = listing.processes.iter().filter(|listed| self.wants(listed));
            wanted.map(|listed| listed.process.pid()).for_each(&mut add);
        }
        Ok(chosen)
    }

    fn wants(&self, listed: &Listed) -> bool {
        self.all
            || self.names.iter().any(|name| listed.is_called(name))
            || !self.cgroups.is_empty() && self.is_in_cgroup(&listed.process)
    }

    fn is_in_cgroup(&self, process: &Process) -> bool {
        let text = process.read_file("cgroup").unwrap_or_default();
        // `0::/path`, or `NUMBER:CONTROLLERS:/path` of version 1.
        let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.any(|path| self.cgroups.iter().any(|wanted| is_within(path, wanted)))
    }
}

/// True for the path of a control group, and of those below it.
fn is_within(path: &str, wanted: &str) -> bool {
    let wanted = wanted.strip_prefix("/sys/fs/cgroup").unwrap_or(wanted).trim_matches('/');
    let path = path.trim_matches('/');
    let rest = path.strip_prefix(wanted);
    wanted.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::is_within;

    #[test]
    fn a_control_group_has_itself_and_those_below() {
        for wanted in ["/a/b", "a/b/", "/sys/fs/cgroup/a/b", "/"] {
            assert!(is_within("/a/b", wanted) && is_within("/a/b/c", wanted), "{wanted}");
        }
        assert!(!is_within("/a/bc", "/a/b") && !is_within("/a", "/a/b"));
    }
}
