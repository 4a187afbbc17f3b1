//! The private black boxes of the command's processes: one file for each, in a directory that is
//! removed at the end.
//!
//! A process writes its box while it runs. Of ended processes the boxes of the largest are kept.
//! Boxes of the others are counted by program and removed, since a build may have thousands.
//!
//! A process that allocates no more writes no record. So now and then, `follow` looks at the boxes
//! of running processes. It reads a process that used the CPU since, and wrote no record.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kmem_snapshot::blackbox::{BlackBox, Moment, written};
use kmem_snapshot::books::Mappings;
use kmem_snapshot::{Process, Snapshot};

use super::directory::Directory;
use super::sys;

/// Most boxes of ended processes that are kept.
const KEPT: usize = 64;
/// Time without a record after which a process is read.
const QUIET: Duration = Duration::from_millis(350);
/// Readings of a process take at most one in this many parts of the time.
const SHARE: u32 = 20;

/// The directory of the boxes.
pub(crate) struct Boxes {
    /// The directory; none where it could not be made.
    dir: Option<Directory>,
    /// The command's own process, whose box is always kept.
    main: u32,
    running: HashMap<u32, Running>,
    kept: Vec<Held>,
    rest: BTreeMap<String, Rest>,
    /// Number in the name of the next box of an ended process.
    next: u64,
    /// True if memory that programs mapped themselves counts.
    mmap: bool,
}

/// A running process.
struct Running {
    /// Number of records in its box, and the time at which that was new.
    written: u32,
    since: Instant,
    /// CPU time at the last reading, and the time for the next one.
    cpu: Option<Duration>,
    next: Instant,
    read: Option<Read>,
}

/// The books of a running process.
pub(crate) struct Read {
    pub(crate) snapshot: Snapshot,
    /// Time of the reading, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
}

/// A process that has ended, and most of the memory that it held.
pub(crate) struct Held {
    pub(crate) pid: u32,
    /// Path of its executable.
    pub(crate) exe: String,
    /// Most live bytes, and bytes that it mapped itself, without those inherited from its parent.
    pub(crate) peak: u64,
    /// Its box.
    pub(crate) path: PathBuf,
    /// Its books after the last record in the box.
    pub(crate) read: Option<Read>,
}

/// Ended processes of a program that are not kept one by one.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rest {
    pub(crate) count: u64,
    /// Most memory that one of them held, and the sum over all, in bytes.
    pub(crate) largest: u64,
    pub(crate) sum: u64,
}

impl Boxes {
    /// Makes a private directory, in memory if there is such a file system. `mmap`: memory that
    /// programs mapped themselves counts.
    pub(crate) fn make(mmap: bool) -> Self {
        let dir = Directory::make();
        let (running, kept, rest) = (HashMap::new(), Vec::new(), BTreeMap::new());
        Self { dir, main: 0, running, kept, rest, next: 0, mmap }
    }

    /// The directory, for `KMEM_CONF`.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.dir.as_ref().map(Directory::path)
    }

    /// Sets the command's own process.
    pub(crate) fn set_main(&mut self, pid: u32) {
        self.main = pid;
    }

    /// Box of a running process, if it has one.
    fn of(&self, pid: u32) -> Option<PathBuf> {
        let path = self.directory()?.join(format!("{pid}.box"));
        path.exists().then_some(path)
    }

    /// Running processes with a box.
    fn pids(&self) -> Vec<u32> {
        let Some(dir) = self.directory() else { return Vec::new() };
        let files = fs::read_dir(dir).into_iter().flatten().flatten();
        let pid = |name: &std::ffi::OsStr| name.to_str()?.strip_suffix(".box")?.parse::<u32>().ok();
        files.filter_map(|file| pid(&file.file_name())).collect()
    }

    /// Reads processes that may have allocated since the last record in their box.
    pub(crate) fn follow(&mut self) {
        let pids = self.pids();
        self.running.retain(|pid, _| pids.contains(pid));
        for pid in pids {
            let Some(path) = self.of(pid) else { continue };
            let Some(count) = written(&path) else { continue };
            let now = Instant::now();
            let fresh = Running { written: count, since: now, cpu: None, next: now, read: None };
            let running = self.running.entry(pid).or_insert(fresh);
            if running.written != count {
                (running.written, running.since, running.cpu) = (count, now, None);
                running.read = None;
                continue;
            }
            let cpu = sys::cpu_time(pid);
            if now < running.next || now - running.since < QUIET || cpu == running.cpu {
                continue;
            }
            running.cpu = cpu;
            let time_ns = now_ns();
            if let Ok(snapshot) = Process::open(pid).and_then(|process| Snapshot::take(&process)) {
                running.read = Some(Read { snapshot, time_ns });
            }
            running.next = now + now.elapsed() * SHARE;
        }
    }

    /// Return addresses in the record of the peak of a running process.
    pub(crate) fn addresses_at_peak(&self, pid: u32) -> Vec<u64> {
        let path = self.of(pid).filter(|_| self.mmap);
        let of = path.and_then(|path| BlackBox::open(&path).ok());
        of.and_then(|of| of.own_at_peak()).map(|snapshot| snapshot.addresses()).unwrap_or_default()
    }

    /// Notes that a process ends, and frees the name of its box for the next process of its number.
    /// False: it has no box.
    pub(crate) fn ended(&mut self, pid: u32) -> bool {
        let (Some(path), Some(dir)) = (self.of(pid), self.directory()) else { return false };
        let kept = dir.join(format!("{}.ended", self.next));
        self.next += 1;
        if fs::rename(&path, &kept).is_err() {
            return false;
        }
        let read = self.running.remove(&pid).and_then(|running| running.read);
        // A box that was never whole says nothing, not even whose it was.
        let Ok(of) = BlackBox::open(&kept) else { return false };
        let held = |moment: &Moment| if self.mmap { moment.held() } else { moment.bytes };
        let inherited = of.inherited().map_or(0, held);
        let mut peak = of.peak().map_or(0, |moment| held(moment).saturating_sub(inherited));
        // A record may be newer than a reading.
        let is_last = |read: &Read| of.moment().is_none_or(|last| last.time_ns < read.time_ns);
        let mut read = read.filter(is_last);
        if let Some(read) = &mut read {
            of.take_inherited_out(&mut read.snapshot);
            let heap = u64::try_from(read.snapshot.totals().0).unwrap_or(0);
            let mapped = read.snapshot.mappings.as_ref().filter(|_| self.mmap);
            peak = peak.max(heap.saturating_add(mapped.map_or(0, Mappings::of_calls)));
        }
        let exe = of.exe().to_owned();
        self.kept.push(Held { pid, exe, peak, path: kept, read });
        if self.kept.len() > KEPT {
            self.keep_largest();
        }
        true
    }

    /// Counts a process without a box, of which the most memory that it held is known.
    pub(crate) fn count(&mut self, exe: &str, peak: u64) {
        let rest = self.rest.entry(exe.to_owned()).or_default();
        rest.count += 1;
        rest.largest = rest.largest.max(peak);
        rest.sum = rest.sum.saturating_add(peak);
    }

    fn keep_largest(&mut self) {
        self.kept.sort_by_key(|held| std::cmp::Reverse(held.peak));
        while self.kept.len() > KEPT {
            let is_other = |held: &Held| held.pid != self.main;
            let Some(at) = self.kept.iter().rposition(is_other) else { return };
            let held = self.kept.remove(at);
            let _ = fs::remove_file(&held.path);
            self.count(&held.exe, held.peak);
        }
    }

    /// Takes all processes with a box for ended.
    pub(crate) fn finish(&mut self) {
        for pid in self.pids() {
            self.ended(pid);
        }
        self.keep_largest();
    }

    /// Ended processes with a box, after [`Self::finish`] by their memory, the largest first.
    pub(crate) fn kept(&self) -> &[Held] {
        &self.kept
    }

    /// Other ended processes, by the paths of their programs.
    pub(crate) fn rest(&self) -> &BTreeMap<String, Rest> {
        &self.rest
    }
}

/// Nanoseconds since 1970.
pub(crate) fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_boxes_of_processes_are_left_out() {
        let mut boxes = Boxes::make(true);
        let dir = boxes.directory().expect("a directory").to_owned();
        fs::write(dir.join("1.box"), "no box").unwrap();
        fs::write(dir.join("x.box"), "").unwrap();
        assert_eq!(boxes.pids(), [1]);
        boxes.finish();
        assert!(boxes.kept().is_empty() && boxes.rest().is_empty());
    }
}
