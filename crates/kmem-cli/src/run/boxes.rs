//! The private black boxes of the command's processes: one file for each, in a directory that is
//! removed at the end.
//!
//! A process writes its box while it runs. Of ended processes the boxes of the largest are kept.
//! Boxes of the others are counted by program and removed, since a build may have thousands.
//!
//! A process that allocates no more writes no record. So now and then, `follow` looks at the boxes
//! of running processes. It reads a process that used the CPU since, and wrote no record.
//!
//! ```text
//! PID-TIME.box   a program's box; of a process that became another by exec, all but the newest
//!                are those of programs before
//! N.ended        a program that has ended, or that its process is no longer
//! ```
//!
//! The number in the name, and that in the box, are of the process's own PID namespace. The box
//! also has the namespace and the start of the process, which tell processes apart.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kmem_snapshot::blackbox::{BlackBox, Head, Moment, head};
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
    /// PID namespace of this process; 0: not known.
    namespace: u64,
    /// By the path of the box.
    running: HashMap<PathBuf, Running>,
    kept: Vec<Held>,
    rest: BTreeMap<Image, Rest>,
    /// Number in the name of the next box of an ended process.
    next: u64,
    /// True if memory that programs mapped themselves counts.
    mmap: bool,
}

/// A process by its number and its PID namespace, and by its start in clock ticks since boot. Zero
/// stands for what is not known of the latter two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Identity {
    pid: u32,
    namespace: u64,
    start: u64,
}

impl Identity {
    /// That of a process whose number here is `pid`. It has another number in its own namespace.
    fn of(pid: u32) -> Self {
        match Process::open(pid) {
            Ok(process) => Self {
                pid: process.inner_pid(),
                namespace: process.pid_namespace().unwrap_or(0),
                start: process.start_time(),
            },
            Err(_) => Self { pid, namespace: 0, start: 0 },
        }
    }

    fn in_head(head: &Head) -> Self {
        Self { pid: head.pid, namespace: head.pid_namespace, start: head.start_ticks }
    }

    /// Returns whether both may be one process, as far as it is known.
    fn fits(&self, other: &Self) -> bool {
        let fits = |one: u64, other: u64| one == other || one == 0 || other == 0;
        self.pid == other.pid
            && fits(self.namespace, other.namespace)
            && fits(self.start, other.start)
    }
}

/// The box of a program in the directory.
struct There {
    path: PathBuf,
    /// The time in its name, in nanoseconds since 1970.
    made: u64,
    head: Head,
}

/// A program that processes ran: the path of its executable, and whether they became another
/// program by `exec`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Image {
    pub(crate) exe: String,
    pub(crate) is_former: bool,
}

/// A running process.
struct Running {
    /// Its number here, if it is known.
    pid: Option<u32>,
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

/// A program that has ended, or that its process is no longer, and most of the memory that it held.
pub(crate) struct Held {
    /// Number of its process here, if it is known.
    pub(crate) pid: Option<u32>,
    pub(crate) identity: Identity,
    /// Its executable.
    pub(crate) image: Image,
    /// Path of the executable that its process became by `exec`.
    pub(crate) became: Option<String>,
    /// Most live bytes, and bytes that it mapped itself, without those inherited from its parent.
    pub(crate) peak: u64,
    /// Its box.
    pub(crate) path: PathBuf,
    /// Its books after the last record in the box.
    pub(crate) read: Option<Read>,
}

impl Held {
    /// The number of its process, in words.
    pub(crate) fn pid(&self) -> String {
        match self.pid {
            Some(pid) => format!("pid {pid}"),
            None => format!("pid {} in its own namespace", self.identity.pid),
        }
    }
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
        let namespace = fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino());
        let (running, kept, rest) = (HashMap::new(), Vec::new(), BTreeMap::new());
        Self { dir, main: 0, namespace, running, kept, rest, next: 0, mmap }
    }

    /// The directory, for `KMEM_CONF`.
    pub(crate) fn directory(&self) -> Option<&Path> {
        self.dir.as_ref().map(Directory::path)
    }

    /// Sets the command's own process.
    pub(crate) fn set_main(&mut self, pid: u32) {
        self.main = pid;
    }

    /// Boxes whose names `is_wanted` accepts by their process numbers. Those of each process follow
    /// one another, the oldest first.
    fn there(&self, is_wanted: impl Fn(u32) -> bool) -> Vec<There> {
        let Some(dir) = self.directory() else { return Vec::new() };
        let files = fs::read_dir(dir).into_iter().flatten().flatten();
        let there = |file: fs::DirEntry| {
            let name = file.file_name();
            let (pid, made) = name.to_str()?.strip_suffix(".box")?.split_once('-')?;
            let (pid, made) = (pid.parse().ok()?, made.parse().ok()?);
            let path = file.path();
            is_wanted(pid).then_some(())?;
            Some(There { head: head(&path)?, path, made })
        };
        let mut all: Vec<There> = files.filter_map(there).collect();
        all.sort_by_key(|there| (Identity::in_head(&there.head), there.made));
        all
    }

    /// Boxes of a process by its number here, the oldest first.
    fn of(&self, pid: u32) -> Vec<There> {
        let identity = Identity::of(pid);
        let mut boxes = self.there(|inner| inner == identity.pid);
        boxes.retain(|there| identity.fits(&Identity::in_head(&there.head)));
        boxes
    }

    /// Reads processes that may have allocated since the last record in their box. Keeps the boxes
    /// of programs that their processes are no longer.
    pub(crate) fn follow(&mut self) {
        let boxes = self.there(|_| true);
        self.running.retain(|path, _| boxes.iter().any(|there| there.path == *path));
        let mut others = None;
        for process in by_process(&boxes) {
            let Some((now, before)) = process.split_last() else { continue };
            self.replaced(before, &now.head.exe);
            if !self.running.contains_key(&now.path) {
                let pid = self.number_of(&now.head, &mut others);
                self.running.insert(now.path.clone(), Running::new(pid, now.head.written));
            }
            if let Some(running) = self.running.get_mut(&now.path) {
                running.follow(now.head.written);
            }
        }
    }

    /// Number here of the process of a box. `others` is room for the processes of other namespaces.
    fn number_of(&self, head: &Head, others: &mut Option<HashMap<(u64, u32), u32>>) -> Option<u32> {
        if head.pid_namespace == self.namespace || head.pid_namespace == 0 {
            return Some(head.pid);
        }
        let others = others.get_or_insert_with(|| in_other_namespaces(self.namespace));
        others.get(&(head.pid_namespace, head.pid)).copied()
    }

    /// Return addresses in the record of the peak of a running process.
    pub(crate) fn addresses_at_peak(&self, pid: u32) -> Vec<u64> {
        let there = self.of(pid).pop().filter(|_| self.mmap);
        let of = there.and_then(|there| BlackBox::open(&there.path).ok());
        of.and_then(|of| of.own_at_peak()).map(|snapshot| snapshot.addresses()).unwrap_or_default()
    }

    /// Notes that a process ends. False: it has no box.
    pub(crate) fn ended(&mut self, pid: u32) -> bool {
        let boxes = self.of(pid);
        let Some((now, before)) = boxes.split_last() else { return false };
        self.replaced(before, &now.head.exe);
        self.keep(now, Some(pid), None)
    }

    /// Keeps the boxes of programs that a process was one after the other, before it became `exe`.
    fn replaced(&mut self, before: &[There], exe: &str) {
        let became = before.iter().skip(1).map(|there| there.head.exe.as_str()).chain([exe]);
        let mut others = None;
        for (there, became) in before.iter().zip(became) {
            let pid = self.running.get(&there.path).and_then(|running| running.pid);
            let pid = pid.or_else(|| self.number_of(&there.head, &mut others));
            self.keep(there, pid, Some(became));
        }
    }

    /// Keeps the box of a program that has ended, or that its process is no longer: it became
    /// another one then. `pid` is the number here. False: the box is not whole.
    fn keep(&mut self, there: &There, pid: Option<u32>, became: Option<&str>) -> bool {
        let Some(dir) = self.directory() else { return false };
        let kept = dir.join(format!("{}.ended", self.next));
        self.next += 1;
        if fs::rename(&there.path, &kept).is_err() {
            return false;
        }
        let read = self.running.remove(&there.path).and_then(|running| running.read);
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
        // A forked child that runs a program may have made a box in between.
        if became.is_some() && peak == 0 {
            let _ = fs::remove_file(&kept);
            return true;
        }
        self.kept.push(Held {
            pid,
            identity: Identity::in_head(&there.head),
            image: Image { exe: of.exe().to_owned(), is_former: became.is_some() },
            became: became.map(str::to_owned),
            peak,
            path: kept,
            read,
        });
        if self.kept.len() > KEPT {
            self.keep_largest();
        }
        true
    }

    /// Counts a process without a box, of which the most memory that it held is known.
    pub(crate) fn count(&mut self, exe: &str, peak: u64) {
        self.count_image(Image { exe: exe.to_owned(), is_former: false }, peak);
    }

    fn count_image(&mut self, image: Image, peak: u64) {
        let rest = self.rest.entry(image).or_default();
        rest.count += 1;
        rest.largest = rest.largest.max(peak);
        rest.sum = rest.sum.saturating_add(peak);
    }

    /// Returns whether a program is that of the command's own process at its end.
    pub(crate) fn is_main(&self, held: &Held) -> bool {
        held.pid == Some(self.main) && held.became.is_none()
    }

    fn keep_largest(&mut self) {
        self.kept.sort_by_key(|held| std::cmp::Reverse(held.peak));
        while self.kept.len() > KEPT {
            let Some(at) = self.kept.iter().rposition(|held| !self.is_main(held)) else { return };
            let held = self.kept.remove(at);
            let _ = fs::remove_file(&held.path);
            self.count_image(held.image, held.peak);
        }
    }

    /// Takes all processes with a box for ended.
    pub(crate) fn finish(&mut self) {
        let boxes = self.there(|_| true);
        let mut others = None;
        for process in by_process(&boxes) {
            let Some((now, before)) = process.split_last() else { continue };
            self.replaced(before, &now.head.exe);
            let pid = self.running.get(&now.path).and_then(|running| running.pid);
            let pid = pid.or_else(|| self.number_of(&now.head, &mut others));
            self.keep(now, pid, None);
        }
        self.keep_largest();
    }

    /// Ended programs with a box, after [`Self::finish`] by their memory, the largest first.
    pub(crate) fn kept(&self) -> &[Held] {
        &self.kept
    }

    /// Other ended programs.
    pub(crate) fn rest(&self) -> &BTreeMap<Image, Rest> {
        &self.rest
    }
}

impl Running {
    /// A process whose box has had `written` records.
    fn new(pid: Option<u32>, written: u32) -> Self {
        let now = Instant::now();
        Self { pid, written, since: now, cpu: None, next: now, read: None }
    }

    /// Reads the process if it may have allocated since the last record. Its box has had `written`
    /// records.
    fn follow(&mut self, written: u32) {
        let now = Instant::now();
        if self.written != written {
            (self.written, self.since, self.cpu, self.read) = (written, now, None, None);
            return;
        }
        let Some(pid) = self.pid else { return };
        let cpu = sys::cpu_time(pid);
        if now < self.next || now - self.since < QUIET || cpu == self.cpu {
            return;
        }
        self.cpu = cpu;
        let time_ns = now_ns();
        if let Ok(snapshot) = Process::open(pid).and_then(|process| Snapshot::take(&process)) {
            self.read = Some(Read { snapshot, time_ns });
        }
        self.next = now + now.elapsed() * SHARE;
    }
}

/// The boxes of each process, the oldest first. A process that could not tell when it began may
/// have the number of another one, so each of its boxes counts as a process.
fn by_process(boxes: &[There]) -> impl Iterator<Item = &[There]> {
    boxes.chunk_by(|a, b| {
        a.head.start_ticks != 0 && Identity::in_head(&a.head) == Identity::in_head(&b.head)
    })
}

/// Numbers here of the processes of other PID namespaces than `own`, by their namespaces and their
/// numbers there.
fn in_other_namespaces(own: u64) -> HashMap<(u64, u32), u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = pids.filter_map(|pid| {
        let process = Process::open(pid).ok()?;
        let namespace = process.pid_namespace().filter(|&namespace| namespace != own)?;
        Some(((namespace, process.inner_pid()), pid))
    });
    others.collect()
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
        fs::write(dir.join("1-2.box"), "").unwrap();
        assert!(boxes.there(|_| true).is_empty());
        boxes.finish();
        assert!(boxes.kept().is_empty() && boxes.rest().is_empty());
    }
}
