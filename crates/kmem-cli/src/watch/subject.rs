//! A watched process: its last books, its black box, and how it ended.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use kmem_layout::group::group_event;
use kmem_snapshot::blackbox::LiveBox;
use kmem_snapshot::maps::unmarked;
use kmem_snapshot::symbols::Kept;
use kmem_snapshot::{Process, Query, ReadFailure, Reading, Snapshot, Target, When};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::cause::{Cause, Occasion};
use crate::run::sys;

/// Most groups that are named in one sentence.
const MAX_NAMES: usize = 4;

/// A watched process.
pub(super) struct Subject {
    process: Process,
    /// It is ready when the process has ended. None where the kernel has no such descriptors.
    pub(super) pidfd: Option<OwnedFd>,
    /// Names of its call sites.
    kept: Kept,
    pub(super) last: Read,
    /// Text of `/proc/PID/cgroup`.
    pub(super) group: String,
    black_box: Option<LiveBox>,
    /// Files that were looked at for the black box.
    looked_at: Vec<(u64, u64)>,
    /// Time for the next reading.
    pub(super) next: Instant,
    /// Time from which on a reading is written for [`Cause::Interval`].
    pub(super) next_kept: Option<Instant>,
    pub(super) reported: Reports,
}

/// The books of a process.
pub(super) struct Read {
    pub(super) reading: Reading,
    /// Events of groups that were above their `high`, by path.
    highs: BTreeMap<String, u64>,
}

/// The last reports about a process.
#[derive(Default)]
pub(super) struct Reports(HashMap<Cause, Reported>);

/// The last report of a cause.
struct Reported {
    at: Instant,
    /// Occasions since then that were not reported.
    more: u64,
}

impl Subject {
    /// Takes up a process, and reads it for the first time.
    ///
    /// # Errors
    ///
    /// Those of [`Target::read_again`].
    pub(super) fn open(pid: u32) -> Result<Self, ReadFailure> {
        let process = Process::open(pid)?;
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        // The reading checks that the number was not given to another process meanwhile.
        let pidfd = number.and_then(|number| pidfd_open(number, PidfdFlags::empty()).ok());
        // A process that is ending has left its group. It has its memory until then.
        let group = process.read_file("cgroup").unwrap_or_default();
        let mut kept = Kept::default();
        let last = Read::take(&process, &mut kept)?;
        let mut this = Self {
            process,
            pidfd,
            kept,
            last,
            group,
            black_box: None,
            looked_at: Vec::new(),
            next: Instant::now(),
            next_kept: None,
            reported: Reports::default(),
        };
        this.find_box();
        Ok(this)
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Name of its service: that of its unit of systemd, or its own.
    pub(super) fn service(&self) -> &str {
        unit(&self.group).unwrap_or(&self.last.reading.snapshot.comm)
    }

    /// Build id of its executable; none if it has none.
    pub(super) fn build(&self) -> Option<&str> {
        let reading = &self.last.reading;
        let (path, _) = unmarked(&reading.snapshot.exe);
        reading.provenance.build_ids.get(path).map(String::as_str)
    }

    /// Reads the books. Returns the occasion that events of groups are.
    ///
    /// # Errors
    ///
    /// Those of [`Target::read_again`]. The books from before are kept then.
    pub(super) fn read(&mut self) -> Result<Option<Occasion>, ReadFailure> {
        // In this order, as when it was taken up.
        let group = self.process.read_file("cgroup");
        let new = Read::take(&self.process, &mut self.kept)?;
        // The kernel may take memory away from a process that it kills before that has ended.
        if new.live() < self.last.live() && self.is_ending() {
            return Ok(None);
        }
        let occasion = grown(&self.last.highs, &new.highs);
        self.last = new;
        self.find_box();
        self.group = group.unwrap_or_default();
        Ok(occasion)
    }

    /// True when the process is being killed, or has been.
    pub(super) fn is_ending(&self) -> bool {
        is_ending(&self.process)
    }

    /// Looks for the black box, when the process has mapped other files.
    fn find_box(&mut self) {
        let maps = &self.last.reading.snapshot.maps;
        let key = LiveBox::key(maps);
        if key != self.looked_at {
            // The one from before is good as long as its record is newer than the books.
            self.black_box = LiveBox::find(&self.process, maps).or(self.black_box.take());
            self.looked_at = key;
        }
    }

    /// The newest record of the black box, with its time, if it is newer than the last books.
    pub(super) fn newer_record(&mut self) -> Option<(Reading, u64)> {
        let black_box = self.black_box.as_ref()?;
        let record_ns = black_box.moment()?.time_ns;
        if self.last.time_ns() >= record_ns {
            return None;
        }
        let target = Target::BlackBox { path: black_box.path(), exe: None, when: When::Newest };
        let query = Query { mappings: true, ..Query::default() };
        // Call sites have the names that they had while the process was there.
        let reading = target.read_again(&query, &mut self.kept).ok()?;
        let time_ns = reading.moment.as_ref().map_or(record_ns, |moment| moment.time_ns);
        Some((reading, time_ns))
    }

    /// Status of the process, which has ended. None where it cannot be known.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        // Its parent may not have waited for it yet, or may have done so.
        let stat = self.process.read_file("stat").ok().filter(|_| self.process.verify().is_ok());
        let raw = stat.as_deref().and_then(exit_code);
        let zombie = raw.map(ExitStatus::from_raw);
        self.pidfd.as_ref().and_then(sys::exit_status).or(zombie)
    }
}

impl Reports {
    /// Returns whether a report of a cause is due, and how many occasions were passed over since
    /// the last one. None: it is too early, so this occasion is passed over.
    pub(super) fn admit(&mut self, cause: Cause, again: Duration) -> Option<u64> {
        let now = Instant::now();
        match self.0.get_mut(&cause) {
            Some(last) if now - last.at < again => {
                last.more += 1;
                None
            }
            last => {
                let more = last.map_or(0, |last| last.more);
                self.0.insert(cause, Reported { at: now, more: 0 });
                Some(more)
            }
        }
    }
}

impl Read {
    fn take(process: &Process, kept: &mut Kept) -> Result<Self, ReadFailure> {
        let query = Query { mappings: true, ..Query::default() };
        let reading = Target::Process(process.pid()).read_again(&query, kept)?;
        process.verify()?;
        let highs = highs(&reading.snapshot);
        Ok(Self { reading, highs })
    }

    /// Time at which it began, in nanoseconds since 1970.
    pub(super) fn time_ns(&self) -> u64 {
        self.reading.snapshot.time_ns
    }

    /// Live bytes.
    fn live(&self) -> i64 {
        self.reading.totals().0
    }
}

/// The service in the text of `/proc/PID/cgroup`. That of a user's systemd is none.
fn unit(group: &str) -> Option<&str> {
    let parts = group.lines().filter_map(|line| line.rsplit(':').next()).flat_map(|path| {
        let parts = path.rsplit('/');
        parts.filter_map(|part| part.strip_suffix(".service"))
    });
    parts.into_iter().find(|name| !name.is_empty() && !name.starts_with("user@"))
}

/// True when a process is being killed, or has been.
fn is_ending(process: &Process) -> bool {
    let text = |name| process.read_file(name).unwrap_or_default();
    is_exiting(&text("stat")) || has_pending_kill(&text("status"))
}

/// Flags in field 9 of `/proc/PID/stat`: `PF_EXITING`, and `PF_SIGNALED` for a deadly signal.
fn is_exiting(stat: &str) -> bool {
    const FLAGS: u64 = 0x4 | 0x400;
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace());
    let flags = fields.and_then(|mut fields| fields.nth(6)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & FLAGS != 0)
}

/// True when SIGKILL is pending in the text of `/proc/PID/status`.
fn has_pending_kill(status: &str) -> bool {
    let masks = ["SigPnd:", "ShdPnd:"].map(|name| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    });
    (masks[0] | masks[1]) >> (libc::SIGKILL - 1) & 1 != 0
}

/// Field 52 of `/proc/PID/stat` of a process that has ended. A reader without rights would see 0,
/// but could not have read the memory of the process before.
fn exit_code(stat: &str) -> Option<i32> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let code = fields.nth(48)?.parse().ok()?;
    (state == "Z").then_some(code)
}

/// Events of groups above their `high`, by path, in all copies of the library together.
fn highs(snapshot: &Snapshot) -> BTreeMap<String, u64> {
    let mut all: BTreeMap<String, u64> = BTreeMap::new();
    for books in &snapshot.books {
        for (at, group) in books.groups.all().iter().enumerate() {
            let count = group.events[group_event::HIGH];
            if count != 0 {
                let sum = all.entry(books.groups.path(at)).or_default();
                *sum = sum.saturating_add(count);
            }
        }
    }
    all
}

/// The occasion that the growth of events is.
fn grown(before: &BTreeMap<String, u64>, now: &BTreeMap<String, u64>) -> Option<Occasion> {
    let more = now.iter().filter_map(|(path, &count)| {
        let more = count.saturating_sub(before.get(path).copied().unwrap_or(0));
        (more != 0).then(|| format!("{path} ({more} times)"))
    });
    let mut names: Vec<String> = more.collect();
    let rest = names.len().saturating_sub(MAX_NAMES);
    names.truncate(MAX_NAMES);
    if rest != 0 {
        names.push(format!("{rest} more"));
    }
    let what = format!("has groups above their high: {}", names.join(", "));
    (!names.is_empty()).then_some(Occasion { cause: Cause::GroupHigh, what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_code_is_that_of_an_ended_process() {
        let stat = |state: &str, code: &str| {
            let fields = "1 ".repeat(48);
            format!("12 (a) b) {state} {fields}{code}\n")
        };
        assert_eq!(exit_code(&stat("Z", "9")), Some(9));
        assert_eq!(exit_code(&stat("S", "9")), None);
        assert_eq!(exit_code(&stat("Z", "0")), Some(0));
        assert_eq!(exit_code("12 (a) Z 1 2"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert_eq!(own.rsplit_once(')').unwrap().1.split_ascii_whitespace().count(), 50);
    }

    #[test]
    fn a_process_that_is_being_killed_is_known() {
        let stat = |flags: u64| format!("12 (a) b) S 1 2 3 4 5 {flags} 7 8\n");
        assert_eq!([0x40_0000, 0x4, 0x400].map(|f| is_exiting(&stat(f))), [false, true, true]);
        assert!(is_exiting(""), "it is gone");
        let status = |pending: &str| format!("Name:\ta\nSigPnd:\t{pending}\nShdPnd:\t0\n");
        assert!(has_pending_kill(&status("0000000000000100")));
        assert!(!has_pending_kill(&status("0000000000000200")));
        let this = Process::open(std::process::id()).unwrap();
        assert!(!is_ending(&this));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        child.wait().unwrap();
        assert!(is_ending(&process));
    }

    #[test]
    fn the_service_is_the_innermost_unit_of_systemd() {
        let user = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(unit("0::/system.slice/web.service\n"), Some("web"));
        assert_eq!(unit("0::/system.slice/web.service/workers\n"), Some("web"));
        assert_eq!(unit("4:memory:/\n1:name=systemd:/system.slice/a@1.service\n"), Some("a@1"));
        assert_eq!(unit(&format!("0::{user}/app.slice/player.service\n")), Some("player"));
        assert_eq!(unit(&format!("0::{user}/session.slice\n")), None);
        assert_eq!(unit("0::/\n"), None);
        assert_eq!(unit(""), None);
    }

    #[test]
    fn growing_events_of_groups_are_an_occasion() {
        let of = |all: &[(&str, u64)]| -> BTreeMap<String, u64> {
            all.iter().map(|&(path, count)| (path.to_owned(), count)).collect()
        };
        let before = of(&[("/a", 3), ("/b", 1)]);
        assert_eq!(grown(&before, &before), None);
        let occasion = grown(&before, &of(&[("/a", 5), ("/b", 1), ("/c", 1)])).unwrap();
        assert_eq!(occasion.what, "has groups above their high: /a (2 times), /c (1 times)");
        let many: Vec<String> = (0..9).map(|n| format!("/{n}")).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|path| (path.as_str(), 1)).collect();
        let what = grown(&of(&[]), &of(&many)).unwrap().what;
        assert!(what.ends_with("/3 (1 times), 5 more"), "{what}");
    }

    #[test]
    fn occasions_within_the_time_are_counted_and_not_reported() {
        let mut reports = Reports::default();
        let hour = Duration::from_secs(3600);
        assert_eq!(reports.admit(Cause::Pressure, hour), Some(0));
        assert_eq!(reports.admit(Cause::Pressure, hour), None);
        assert_eq!(reports.admit(Cause::CgroupHigh, hour), Some(0));
        assert_eq!(reports.admit(Cause::Pressure, Duration::ZERO), Some(1));
        assert_eq!(reports.admit(Cause::Pressure, Duration::ZERO), Some(0));
    }
}
