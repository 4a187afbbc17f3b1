//! Control groups of the watched processes: counters of their events, and memory pressure.
//!
//! | version | counters | told by the kernel |
//! |---|---|---|
//! | 2 | `memory.events`: high, max, oom, oom_kill | yes |
//! | 1 | `memory.oom_control`: oom_kill; `memory.failcnt`: max | no, they are read |

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::cause::{Cause, Occasion};
use super::pressure::Pressure;
use crate::cgroup;
use crate::failure::say;
use crate::run::oom;

/// Time in which a killed process ends. A later end has another cause.
const DYING: Duration = Duration::from_secs(30);
/// The pressure on the whole machine.
const MACHINE: &str = "/proc/pressure/memory";
/// Most bytes that are read of a file with counters.
const MAX_EVENTS: usize = 4096;
/// Names of counters, and the cause that the growth of each is.
const EVENTS: [(&str, Cause); 4] = [
    ("high", Cause::CgroupHigh),
    ("max", Cause::CgroupMax),
    ("oom", Cause::CgroupOom),
    ("oom_kill", Cause::CgroupOomKill),
];

/// Values of the counters in [`EVENTS`].
type Counters = [u64; EVENTS.len()];

/// The control groups of the watched processes, by the text of `/proc/PID/cgroup`.
pub(super) struct Groups {
    all: HashMap<String, Group>,
    /// By path: several groups may have the pressure of the machine.
    pressures: HashMap<PathBuf, Pressure>,
    stall: Duration,
    /// True when it was said that there is no pressure to be had.
    said: bool,
    /// Kills on the whole machine, when they were last read, and the time of the last new one.
    machine: (Option<u64>, Option<Instant>),
}

struct Group {
    /// The counters, where they are known.
    events: Option<Events>,
    pressure: Option<PathBuf>,
    /// Kills by the kernel that no end of a process has been matched with, and the time of the
    /// last one.
    kills: (u64, Instant),
}

struct Events {
    path: PathBuf,
    /// Of version 2: the file, which is waited for.
    file: Option<File>,
    counters: Counters,
}

/// A file to wait for, by POLLPRI.
pub(super) enum Waited<'a> {
    /// The counters of the group of this text.
    Events(&'a str, &'a File),
    /// The pressure in the file at this path.
    Pressure(&'a Path, &'a File),
}

impl Groups {
    pub(super) fn new(stall: Duration) -> Self {
        let (all, pressures) = (HashMap::new(), HashMap::new());
        Self { all, pressures, stall, said: false, machine: (oom::machine(), None) }
    }

    /// Adds the group that a text of `/proc/PID/cgroup` names, if it is new.
    pub(super) fn enter(&mut self, text: &str) {
        if self.all.contains_key(text) {
            return;
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let own = cgroup::unified(text, &mounts).map(|dir| dir.join("memory.pressure"));
        let pressure = own.into_iter().chain([MACHINE.into()]).find(|path| self.open(path));
        if pressure.is_none() && !self.said {
            self.said = true;
            say("the kernel tells of no memory pressure: no reports for that cause");
        }
        let events = cgroup::memory_file(text, &mounts).and_then(Events::open);
        let group = Group { events, pressure, kills: (0, Instant::now()) };
        self.all.insert(text.to_owned(), group);
    }

    /// Opens the pressure in a file, unless it is open.
    fn open(&mut self, path: &Path) -> bool {
        if !self.pressures.contains_key(path) {
            let Some(pressure) = Pressure::open(path, self.stall) else { return false };
            self.pressures.insert(path.to_owned(), pressure);
        }
        true
    }

    /// Drops the groups whose text is not wanted any more.
    pub(super) fn retain(&mut self, wanted: impl Fn(&str) -> bool) {
        self.all.retain(|text, _| wanted(text));
        let used = |path: &Path| self.all.values().any(|of| of.pressure.as_deref() == Some(path));
        self.pressures.retain(|path, _| used(path));
    }

    /// All files to wait for.
    pub(super) fn waited(&self) -> Vec<Waited<'_>> {
        let events = self.all.iter().filter_map(|(text, group)| {
            Some(Waited::Events(text, group.events.as_ref()?.file.as_ref()?))
        });
        let pressures = self.pressures.iter();
        let pressures = pressures.filter_map(|(path, of)| Some(Waited::Pressure(path, of.file()?)));
        events.chain(pressures).collect()
    }

    /// Texts of all groups.
    pub(super) fn texts(&self) -> Vec<String> {
        self.all.keys().cloned().collect()
    }

    /// Paths of the files that have no trigger and tell of pressure since the last call.
    pub(super) fn look_at_pressure(&mut self) -> Vec<PathBuf> {
        let all = self.pressures.iter_mut();
        all.filter_map(|(path, of)| of.look().then(|| path.clone())).collect()
    }

    /// True when the pressure of a group is that in the file at this path.
    pub(super) fn is_pressed(&self, text: &str, path: &Path) -> bool {
        self.all.get(text).is_some_and(|group| group.pressure.as_deref() == Some(path))
    }

    /// The occasion that the pressure in a file is.
    pub(super) fn pressed(&self, path: &Path) -> Occasion {
        let what = self.pressures.get(path).map(Pressure::what).unwrap_or_default();
        Occasion { cause: Cause::Pressure, what }
    }

    /// Stops waiting for the pressure in a file, whose group has gone.
    pub(super) fn forget(&mut self, path: &Path) {
        self.pressures.remove(path);
    }

    /// Reads the counters of a group. Returns their growth since the last call.
    pub(super) fn grown(&mut self, text: &str) -> Option<Occasion> {
        let group = self.all.get_mut(text)?;
        let events = group.events.as_mut()?;
        let Some(now) = events.read() else {
            // The group has been removed. Its file would be ready all the time.
            group.events = None;
            return None;
        };
        let before = std::mem::replace(&mut events.counters, now);
        let growth: Vec<(usize, u64)> = (0..EVENTS.len())
            .map(|at| (at, now[at].saturating_sub(before[at])))
            .filter(|&(_, more)| more != 0)
            .collect();
        if let Some(&(_, kills)) = growth.iter().find(|(at, _)| EVENTS[*at].0 == "oom_kill") {
            let (unmatched, at) = &mut group.kills;
            (*unmatched, *at) = (unmatched.saturating_add(kills), Instant::now());
        }
        let cause = growth.iter().map(|&(at, _)| EVENTS[at].1).max()?;
        let list: Vec<String> =
            growth.iter().map(|(at, more)| format!("{} by {more}", EVENTS[*at].0)).collect();
        let (list, path) = (list.join(", "), events.path.display());
        let what = format!("is in a control group whose counters grew: {list} ({path})");
        Some(Occasion { cause, what })
    }

    /// Returns whether the kernel killed a process of a group just before. A kill counts once.
    pub(super) fn take_kill(&mut self, text: &str) -> bool {
        let Some(Group { kills: (unmatched, at), .. }) = self.all.get_mut(text) else {
            return false;
        };
        let is_one = *unmatched != 0 && at.elapsed() < DYING;
        *unmatched = if is_one { *unmatched - 1 } else { 0 };
        is_one
    }

    /// Reads the kills on the whole machine.
    pub(super) fn look_at_machine(&mut self) {
        let (before, at) = &mut self.machine;
        let now = oom::machine();
        if now > *before {
            *at = Some(Instant::now());
        }
        *before = now;
    }

    /// Returns whether the kernel killed a process of the machine just before, which may be one of
    /// this group. False where the counters of the group tell.
    pub(super) fn may_be_killed(&mut self, text: &str) -> bool {
        if self.all.get(text).is_some_and(|group| group.events.is_some()) {
            return false;
        }
        self.look_at_machine();
        self.machine.1.is_some_and(|at| at.elapsed() < DYING)
    }
}

impl Events {
    fn open(path: PathBuf) -> Option<Self> {
        let is_told = path.ends_with("memory.events");
        let file = if is_told { Some(File::open(&path).ok()?) } else { None };
        let mut this = Self { path, file, counters: Counters::default() };
        this.counters = this.read()?;
        Some(this)
    }

    /// Reads the counters; none when the group is no longer there.
    fn read(&self) -> Option<Counters> {
        let Some(file) = &self.file else {
            let mut counters = parse(&fs::read_to_string(&self.path).ok()?);
            let failed = fs::read_to_string(self.path.with_file_name("memory.failcnt"));
            counters[1] = failed.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
            return Some(counters);
        };
        // Reading also makes the kernel tell of the next change.
        let mut bytes = [0; MAX_EVENTS];
        let len = file.read_at(&mut bytes, 0).ok()?;
        Some(parse(&String::from_utf8_lossy(&bytes[..len])))
    }
}

fn parse(text: &str) -> Counters {
    EVENTS.map(|(name, _)| {
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok();
        text.lines().find_map(of).unwrap_or(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(dir: &Path) -> Groups {
        let mut groups = Groups::new(Duration::from_millis(150));
        let events = Events::open(dir.join("memory.events"));
        let group = Group { events, pressure: None, kills: (0, Instant::now()) };
        groups.all.insert("0::/a\n".to_owned(), group);
        groups
    }

    #[test]
    fn the_growth_of_counters_is_an_occasion_with_its_gravest_cause() {
        let dir = kmem_testing::directory();
        let write = |text: &str| fs::write(dir.path().join("memory.events"), text).unwrap();
        write("low 0\nhigh 3\nmax 4\noom 0\noom_kill 0\noom_group_kill 0\n");
        let mut groups = groups(dir.path());
        assert_eq!(groups.grown("0::/a\n"), None);
        write("low 9\nhigh 5\nmax 4\noom 0\noom_kill 0\n");
        let occasion = groups.grown("0::/a\n").expect("growth");
        assert_eq!(occasion.cause, Cause::CgroupHigh);
        assert!(occasion.what.contains(": high by 2 ("), "{occasion:?}");
        assert!(!groups.take_kill("0::/a\n"));
        write("low 9\nhigh 5\nmax 8\noom 1\noom_kill 1\n");
        let occasion = groups.grown("0::/a\n").expect("growth");
        assert_eq!(occasion.cause, Cause::CgroupOomKill);
        assert!(occasion.what.contains(": max by 4, oom by 1, oom_kill by 1 ("), "{occasion:?}");
        assert_eq!(groups.grown("0::/a\n"), None);
        // One kill ended one process.
        assert_eq!([groups.take_kill("0::/a\n"), groups.take_kill("0::/a\n")], [true, false]);
    }

    #[test]
    fn the_counters_of_version_1_come_from_two_files() {
        let dir = kmem_testing::directory();
        fs::write(dir.path().join("memory.oom_control"), "under_oom 0\noom_kill 2\n").unwrap();
        fs::write(dir.path().join("memory.failcnt"), "17\n").unwrap();
        let events = Events::open(dir.path().join("memory.oom_control")).expect("counters");
        assert_eq!(events.counters, [0, 17, 0, 2]);
    }

    #[test]
    fn a_group_that_was_removed_is_not_waited_for() {
        let dir = kmem_testing::directory();
        fs::write(dir.path().join("memory.oom_control"), "oom_kill 2\n").unwrap();
        let mut groups = groups(dir.path());
        let events = Events::open(dir.path().join("memory.oom_control"));
        groups.all.get_mut("0::/a\n").unwrap().events = events;
        fs::remove_file(dir.path().join("memory.oom_control")).unwrap();
        assert_eq!(groups.grown("0::/a\n"), None);
        assert!(groups.waited().is_empty() && groups.all["0::/a\n"].events.is_none());
        // A kill anywhere on the machine may have been of this group, until time has passed.
        groups.machine = (Some(0), None);
        assert_eq!(groups.may_be_killed("0::/a\n"), oom::machine() > Some(0));
        groups.machine = (Some(u64::MAX), Instant::now().checked_sub(DYING));
        assert!(!groups.may_be_killed("0::/a\n"));
    }
}
