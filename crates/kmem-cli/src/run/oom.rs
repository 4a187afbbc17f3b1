//! Kills by the kernel's OOM killer, by the counters of memory control groups and of the machine.

use std::fs;
use std::path::PathBuf;

use crate::cgroup::memory_file;

/// Counters of kills, with their values when they were first read.
pub(crate) struct OomWatch {
    /// Files of control groups that the command has been in.
    groups: Vec<(PathBuf, u64)>,
    /// The last text of `/proc/PID/cgroup` whose group is among them.
    last: String,
    /// Kills on the whole machine.
    machine: Option<u64>,
}

/// Kills since the start of a watch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kills {
    /// In control groups of the command.
    pub(crate) group: u64,
    /// On the machine, those in control groups included.
    pub(crate) machine: u64,
}

impl OomWatch {
    /// Reads the counters of this process's control group, in which the command starts.
    pub(crate) fn start() -> Self {
        let mut watch = Self { groups: Vec::new(), last: String::new(), machine: machine() };
        watch.follow("self");
        watch
    }

    /// Adds the control group of a process, if it is a new one.
    pub(crate) fn follow(&mut self, pid: &str) {
        let Ok(groups) = fs::read_to_string(format!("/proc/{pid}/cgroup")) else { return };
        self.enter(groups, || fs::read_to_string("/proc/self/mountinfo").ok());
    }

    /// Adds the control group that a text of `/proc/PID/cgroup` names. `mounts` is called only if
    /// the text is new: a machine may have thousands of mounts, and the command is looked at often.
    fn enter(&mut self, groups: String, mounts: impl FnOnce() -> Option<String>) {
        if groups == self.last {
            return;
        }
        let Some(path) = mounts().and_then(|mounts| memory_file(&groups, &mounts)) else { return };
        if !self.groups.iter().any(|(known, _)| *known == path) {
            let Some(kills) = kills(&path) else { return };
            // Kills on the machine during the watch may be of this group.
            let before = kills.saturating_sub(self.machine_kills());
            self.groups.push((path, before));
        }
        self.last = groups;
    }

    /// Kills since each counter was first read.
    pub(crate) fn kills(&self) -> Kills {
        let groups = self.groups.iter().map(|(path, before)| since(*before, kills(path)));
        // A group's counter includes those below it, so the largest one has them all.
        Kills { group: groups.max().unwrap_or(0), machine: self.machine_kills() }
    }

    fn machine_kills(&self) -> u64 {
        self.machine.map_or(0, |before| since(before, machine()))
    }
}

fn since(before: u64, now: Option<u64>) -> u64 {
    now.unwrap_or(before).saturating_sub(before)
}

/// Kills on the machine since it started.
pub(crate) fn machine() -> Option<u64> {
    kills(&PathBuf::from("/proc/vmstat"))
}

/// The number in the line `oom_kill` of a file.
fn kills(path: &PathBuf) -> Option<u64> {
    value(&fs::read_to_string(path).ok()?)
}

fn value(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_when_the_command_enters_a_group() {
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().display();
        let mounts = format!("30 1 0:26 / {point} rw - cgroup2 cgroup2 rw\n");
        let mut watch = OomWatch { groups: Vec::new(), last: String::new(), machine: None };
        let mut enter = |group: &str| {
            let mut reads = 0;
            watch.enter(format!("0::/{group}\n"), || {
                reads += 1;
                Some(mounts.clone())
            });
            (reads, watch.groups.len())
        };
        // A group without counters is looked for again.
        assert_eq!([enter("a"), enter("a")], [(1, 0), (1, 0)]);
        for group in ["a", "b"] {
            fs::create_dir(dir.path().join(group)).unwrap();
            fs::write(dir.path().join(group).join("memory.events"), "oom_kill 1\n").unwrap();
        }
        assert_eq!([enter("a"), enter("a"), enter("b")], [(1, 1), (0, 1), (1, 2)]);
        assert_eq!([enter("b"), enter("a")], [(0, 2), (1, 2)]);
    }

    #[test]
    fn the_counter_is_the_line_of_that_name() {
        assert_eq!(value("low 0\noom 3\noom_kill 2\noom_group_kill 7\n"), Some(2));
        assert_eq!(value("oom_kill_disable 0\nunder_oom 0\noom_kill 5"), Some(5));
        assert_eq!(value("oom 3\n"), None);
    }
}
