//! The loop: which processes are watched, when each is read, and what is waited for.
//!
//! The end of a process comes first, then control groups, then a process to take up, then one
//! reading. So a reading delays the rest by its own length at most.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kmem_snapshot::output::Format;
use kmem_snapshot::{ReadFailure, Reading, Selection};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Args;
use super::cause::{Cause, Occasion};
use super::groups::{Groups, Waited};
use super::report::Report;
use super::shelf::{Name, Shelf};
use super::subject::Subject;
use crate::failure::{Failure, say};
use crate::run::boxes::now_ns;
use crate::run::exit_report;
use crate::run::sys::{self, Signals};

/// Pause after a reading, in times of the reading, as for a recording.
const PAUSE: u32 = 3;
/// Longest time between two looks at what does not tell of itself.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a look at all processes of the machine, in times of the look, and the longest one.
const LOOK_PAUSE: u32 = 20;
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Most messages that are remembered, so that each is said once.
const MAX_SAID: usize = 1000;

/// A watch under way.
pub(super) struct Watcher {
    /// Names and control groups. Numbers of processes are taken up at the start alone.
    selection: Selection,
    /// True when no process can be added later.
    is_closed: bool,
    subjects: Vec<Subject>,
    /// Numbers of processes to take up, one at a time: their first reading may take seconds.
    found: Vec<u32>,
    groups: Groups,
    desk: Desk,
    signals: Signals,
    interval: Duration,
    again: Duration,
    every: Option<Duration>,
    most: usize,
    /// Time for the next look at counters and pressure that the kernel does not tell of.
    look: Instant,
    /// Time for the next look at the processes of the machine.
    next_search: Instant,
    /// Time before which there is no reading.
    rest: Instant,
    said: BTreeSet<String>,
}

/// The writing of reports.
struct Desk {
    shelf: Shelf,
    format: Option<Format>,
    lines: Option<usize>,
    /// Reports that could not be written.
    lost: usize,
}

/// An event that was waited for.
enum Event {
    Stop,
    /// A process has ended, by its number.
    Ended(u32),
    /// Counters of a group have changed.
    Group(String),
    /// There is pressure. False: its file is no longer good.
    Pressure(PathBuf, bool),
}

impl Watcher {
    /// Opens the processes that are named by their numbers, and takes up the others.
    ///
    /// # Errors
    ///
    /// [`Failure`] when a process that is named by its number cannot be read.
    pub(super) fn begin(args: &Args, shelf: Shelf) -> Result<Self, Failure> {
        let signals = sys::ends()?;
        raise_limit();
        let mut selection = args.chosen.selection();
        let pids = std::mem::take(&mut selection.pids);
        let is_closed =
            !selection.all && selection.names.is_empty() && selection.cgroups.is_empty();
        let now = Instant::now();
        let mut this = Self {
            selection,
            is_closed,
            subjects: Vec::new(),
            found: Vec::new(),
            groups: Groups::new(args.pressure),
            desk: Desk {
                shelf,
                format: args.format.map(|format| format.0),
                lines: args.lines,
                lost: 0,
            },
            signals,
            interval: args.interval,
            again: args.again,
            every: args.every,
            most: args.processes.get().max(pids.len()),
            look: now,
            next_search: now,
            rest: now,
            said: BTreeSet::new(),
        };
        for pid in pids {
            if this.subjects.iter().all(|subject| subject.pid() != pid) {
                this.take_up(pid)?;
            }
        }
        Ok(this)
    }

    /// Watches until a signal, or until all processes have ended that there can be.
    ///
    /// # Errors
    ///
    /// [`Failure`] when it cannot wait, or when a report could not be written.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        if !self.is_closed {
            self.search();
            if self.subjects.is_empty() && self.found.is_empty() {
                say("watching: no process is chosen yet");
            }
        }
        'watch: while !(self.is_closed && self.subjects.is_empty()) {
            let events = self.wait().map_err(|e| Failure::Trouble(format!("cannot wait: {e}")))?;
            for event in events {
                match event {
                    Event::Stop => break 'watch,
                    Event::Ended(pid) => self.ended(pid),
                    Event::Group(text) => self.group_changed(&text),
                    Event::Pressure(path, true) => self.pressed(&path),
                    Event::Pressure(path, false) => self.groups.forget(&path),
                }
            }
            if Instant::now() >= self.look {
                self.look_around();
            }
            self.take_up_next();
            self.read_one();
        }
        match self.desk.lost {
            0 => Ok(()),
            lost => Err(Failure::Trouble(format!("{lost} reports could not be written"))),
        }
    }

    /// Waits for the next event or the next reading. The ends of processes come first.
    fn wait(&self) -> io::Result<Vec<Event>> {
        let now = Instant::now();
        let reading = self.subjects.iter().map(|of| of.next.max(self.rest)).min();
        let next = reading.map_or(self.look, |reading| reading.min(self.look));
        let has_more = !self.found.is_empty();
        let patience = if has_more { Duration::ZERO } else { next.saturating_duration_since(now) };
        let timeout = Timespec::try_from(patience).ok();
        let waited = self.groups.waited();
        let mut fds = vec![PollFd::new(&self.signals.fd, PollFlags::IN)];
        let ends = self.subjects.iter().filter_map(|of| Some((of.pid(), of.pidfd.as_ref()?)));
        let ends: Vec<_> = ends.collect();
        fds.extend(ends.iter().map(|(_, pidfd)| PollFd::new(*pidfd, PollFlags::IN)));
        fds.extend(waited.iter().map(|waited| {
            let (Waited::Events(_, file) | Waited::Pressure(_, file)) = waited;
            PollFd::new(*file, PollFlags::PRI)
        }));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let mut events = Vec::new();
        let mut ready = fds.iter().map(PollFd::revents);
        if ready.next().is_some_and(|flags| !flags.is_empty()) {
            events.push(Event::Stop);
        }
        for ((pid, _), flags) in ends.iter().zip(ready.by_ref()) {
            if !flags.is_empty() {
                events.push(Event::Ended(*pid));
            }
        }
        for (waited, flags) in waited.iter().zip(ready) {
            match waited {
                _ if flags.is_empty() => {}
                Waited::Events(text, _) => events.push(Event::Group((*text).to_owned())),
                Waited::Pressure(path, _) => {
                    let is_good = !flags.intersects(PollFlags::ERR | PollFlags::NVAL);
                    events.push(Event::Pressure((*path).to_owned(), is_good));
                }
            }
        }
        Ok(events)
    }

    /// Reads a process for the first time, and watches it from now on.
    fn take_up(&mut self, pid: u32) -> Result<(), ReadFailure> {
        let begun = Instant::now();
        let mut subject = Subject::open(pid)?;
        subject.next = begun + self.interval;
        subject.next_kept = self.every.map(|every| begun + every);
        self.rest = Instant::now() + begun.elapsed() * PAUSE;
        self.groups.enter(&subject.group);
        say(&format!("watching {}", subject.last.reading.name()));
        self.subjects.push(subject);
        Ok(())
    }

    /// Looks at what does not tell of itself: new processes, and counters that have to be read.
    fn look_around(&mut self) {
        let now = Instant::now();
        self.look = now + self.interval.min(LOOK);
        if !self.is_closed && now >= self.next_search {
            self.search();
        }
        self.groups.look_at_machine();
        for path in self.groups.look_at_pressure() {
            self.pressed(&path);
        }
        for text in self.groups.texts() {
            self.group_changed(&text);
        }
        self.drop_groups();
    }

    /// Finds processes that are chosen and new.
    fn search(&mut self) {
        let begun = Instant::now();
        let chosen = self.selection.processes();
        self.next_search = Instant::now() + (begun.elapsed() * LOOK_PAUSE).min(LONGEST_PAUSE);
        let chosen = match chosen {
            Ok(chosen) => chosen,
            Err(error) => return self.say_once(error.to_string()),
        };
        self.found = chosen;
        // The last one is taken up first.
        self.found.reverse();
        self.found.retain(|&pid| self.subjects.iter().all(|subject| subject.pid() != pid));
    }

    /// Takes up a process that was found.
    fn take_up_next(&mut self) {
        let Some(pid) = self.found.pop() else { return };
        if self.subjects.len() >= self.most {
            let most = self.most;
            self.found.clear();
            return self.say_once(format!(
                "more than {most} processes are chosen, and {most} are watched: see --processes"
            ));
        }
        if let Err(failure) = self.take_up(pid) {
            self.failed(&failure);
        }
    }

    /// Reads the process whose reading is due, if there is one.
    fn read_one(&mut self) {
        let now = Instant::now();
        let all = self.subjects.iter().enumerate();
        let Some((at, _)) = all.min_by_key(|(_, of)| of.next) else { return };
        if now < self.rest.max(self.subjects[at].next) {
            return;
        }
        let read = self.read(at);
        self.subjects[at].next = (self.subjects[at].next + self.interval).max(now);
        match read {
            Ok(occasion) => {
                if let Some(occasion) = occasion {
                    self.report_at(at, &occasion);
                }
                self.keep(at);
            }
            Err(failure) => self.unreadable(at, &failure),
        }
    }

    /// Writes the books that were just read, if the time for it has come.
    fn keep(&mut self, at: usize) {
        let (now, subject) = (Instant::now(), &mut self.subjects[at]);
        let (Some(every), Some(due)) = (self.every, subject.next_kept) else { return };
        if now >= due {
            subject.next_kept = Some((due + every).max(now));
            let occasion = Occasion { cause: Cause::Interval, what: "is running".to_owned() };
            self.desk.write(&self.subjects[at], None, &occasion, 0);
        }
    }

    /// Reads a process, and pauses then.
    fn read(&mut self, at: usize) -> Result<Option<Occasion>, ReadFailure> {
        let begun = Instant::now();
        let read = self.subjects[at].read();
        self.rest = Instant::now() + begun.elapsed() * PAUSE;
        let group = self.subjects[at].group.clone();
        self.groups.enter(&group);
        read
    }

    /// A reading has failed. The end of a process without a descriptor is known from that.
    fn unreadable(&mut self, at: usize, failure: &ReadFailure) {
        let has_ended = self.subjects[at].pidfd.is_none() && failure.error.is_absent();
        if has_ended {
            self.ended(self.subjects[at].pid());
        } else {
            self.failed(failure);
        }
    }

    /// Says why a process cannot be read. One that is starting or ending is absent.
    fn failed(&mut self, failure: &ReadFailure) {
        if !failure.error.is_absent() {
            self.say_once(failure.error.to_string());
        }
    }

    fn say_once(&mut self, text: String) {
        if !self.said.contains(&text) {
            say(&text);
            if self.said.len() >= MAX_SAID {
                self.said.clear();
            }
            self.said.insert(text);
        }
    }

    /// Reports the last books of a process that has ended.
    fn ended(&mut self, pid: u32) {
        let Some(at) = self.subjects.iter().position(|subject| subject.pid() == pid) else {
            return;
        };
        let mut subject = self.subjects.remove(at);
        let group = subject.group.clone();
        // The kernel counts a kill before it ends the process.
        let grown = self.groups.grown(&group);
        let kill = self.groups.take_kill(&group);
        let on_machine = self.groups.may_be_killed(&group);
        let status = subject.status();
        let cause = Cause::of_end(status, kill);
        let how = status.map_or_else(|| "ended".to_owned(), exit_report::status);
        let is_killed = status.and_then(|status| status.signal()) == Some(libc::SIGKILL);
        let why = match cause {
            Cause::OomKill => ": the kernel's OOM killer ended it",
            Cause::Signal if on_machine && is_killed => {
                "; the kernel's OOM killer was at work meanwhile, maybe on this process"
            }
            _ => "",
        };
        let record = subject.newer_record();
        let occasion = Occasion { cause, what: format!("{how}{why}") };
        self.desk.write(&subject, record.as_ref(), &occasion, 0);
        if let Some(occasion) = grown {
            self.report_where(&occasion, |_, subject| subject.group == group);
        }
        self.drop_groups();
    }

    /// Drops control groups that no watched process is in.
    fn drop_groups(&mut self) {
        let subjects = &self.subjects;
        self.groups.retain(|text| subjects.iter().any(|subject| subject.group == text));
    }

    /// Reports the processes of a control group whose counters have grown.
    fn group_changed(&mut self, text: &str) {
        if let Some(occasion) = self.groups.grown(text) {
            self.report_where(&occasion, |_, subject| subject.group == text);
        }
    }

    /// Reports the processes for which the pressure in a file counts.
    fn pressed(&mut self, path: &Path) {
        let occasion = self.groups.pressed(path);
        self.report_where(&occasion, |groups, subject| groups.is_pressed(&subject.group, path));
    }

    /// Reports some processes, with new books of each. One that is ending has another report soon.
    fn report_where(&mut self, occasion: &Occasion, wanted: impl Fn(&Groups, &Subject) -> bool) {
        for at in 0..self.subjects.len() {
            let subject = &self.subjects[at];
            if wanted(&self.groups, subject) && !subject.is_ending() {
                self.report_at(at, occasion);
            }
        }
    }

    /// Reports a process that is still there, unless its last report of that cause is recent.
    fn report_at(&mut self, at: usize, occasion: &Occasion) {
        let reported = &mut self.subjects[at].reported;
        let Some(more) = reported.admit(occasion.cause, self.again) else { return };
        let mut other = None;
        // Books with new events of groups have just been read.
        if occasion.cause != Cause::GroupHigh {
            match self.read(at) {
                Ok(high) => other = high,
                Err(failure) => self.failed(&failure),
            }
        }
        self.desk.write(&self.subjects[at], None, occasion, more);
        if let Some(other) = other {
            self.report_at(at, &other);
        }
    }
}

impl Desk {
    /// Writes a report, and says where it is.
    fn write(
        &mut self,
        subject: &Subject,
        record: Option<&(Reading, u64)>,
        occasion: &Occasion,
        more: u64,
    ) {
        let (time_ns, last, lines) = (now_ns(), &subject.last, self.lines);
        let report = Report { occasion, time_ns, more, last, record, lines };
        let mut content = Vec::new();
        let written = match self.format {
            Some(format) => report.write_rows(&mut content, format),
            None => report.write(&mut content),
        };
        let name = Name {
            process: &last.reading.snapshot.comm,
            pid: subject.pid(),
            time_ns,
            cause: occasion.cause,
            service: subject.service(),
            host: &last.reading.provenance.host,
            build: subject.build(),
        };
        let put = written.and_then(|()| self.shelf.put(&name, &content));
        match put {
            Ok(path) => say(&format!("{}: {}", path.display(), report.title())),
            Err(error) => {
                self.lost += 1;
                say(&format!("no report that {}: {error}", report.title()));
            }
        }
    }
}

/// Lets this process open as many files as it may: some for each process and control group.
fn raise_limit() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Without more, a few processes can be watched all the same.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
