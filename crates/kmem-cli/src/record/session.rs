//! A recording under way: its pace, its progress on a terminal, and its end.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kmem_snapshot::report::{size, size_u};
use kmem_snapshot::{Process, ReadError, ReadFailure, Recorder};

use crate::failure::{Failure, say};
use crate::run::{Ended, Follow, LastReading};

/// Pause after a reading, in times of the reading. A program that does nothing but allocate and
/// free is slower while it is read, so most of its time has no reading.
const PAUSE: u32 = 3;
/// Time between two lines of progress.
const PROGRESS: Duration = Duration::from_millis(500);

/// A recording under way.
pub(crate) struct Session {
    recorder: Recorder,
    path: PathBuf,
    every: Duration,
    time: Option<Duration>,
    begun: Instant,
    next: Instant,
    /// Sum of the times of all readings.
    cost: Duration,
    shown: Option<Instant>,
    /// Why no more is recorded, though the process runs.
    trouble: Option<ReadError>,
}

impl Session {
    /// Begins a recording in a file.
    pub(crate) fn begin(
        path: &Path,
        every: Duration,
        time: Option<Duration>,
    ) -> Result<Self, Failure> {
        let now = Instant::now();
        Ok(Self {
            recorder: Recorder::create(path, every)?,
            path: path.to_owned(),
            every,
            time,
            begun: now,
            next: now,
            cost: Duration::ZERO,
            shown: None,
            trouble: None,
        })
    }

    /// Moments in the recording.
    pub(crate) fn moments(&self) -> u64 {
        self.recorder.moments()
    }

    /// Time until the next reading.
    pub(crate) fn due(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Time that is left for the recording.
    pub(crate) fn left(&self, begun: Instant) -> Duration {
        self.time.map_or(Duration::MAX, |time| time.saturating_sub(begun.elapsed()))
    }

    /// True when the time that the user gave is over.
    pub(crate) fn is_over(&self, begun: Instant) -> bool {
        self.left(begun).is_zero()
    }

    /// Reads once. The next reading is due after the interval, and after a pause in proportion to
    /// this reading.
    pub(crate) fn turn(
        &mut self,
        read: impl FnOnce(&mut Recorder) -> Result<(), ReadFailure>,
    ) -> Result<(), ReadFailure> {
        let begun = Instant::now();
        read(&mut self.recorder)?;
        let (now, cost) = (Instant::now(), begun.elapsed());
        self.cost += cost;
        self.next = (self.next + self.every).max(now + cost * PAUSE);
        self.recorder.name(now + self.due() / 2);
        self.show();
        Ok(())
    }

    fn show(&mut self) {
        let now = Instant::now();
        let is_due = self.shown.is_none_or(|shown| now - shown >= PROGRESS);
        if !is_due || !io::stderr().is_terminal() {
            return;
        }
        self.shown = Some(now);
        let of = &self.recorder;
        let (seconds, moments) = (self.begun.elapsed().as_secs_f64(), of.moments());
        let (live, written) = (size(of.live()), size_u(of.written()));
        let _ = write!(
            io::stderr(),
            "\r\x1b[Kkmem: {seconds:.1} s, {moments} moments, {live} live; the recording has \
             {written}"
        );
    }

    /// Ends the recording without a message. `how` says how the process ended.
    pub(crate) fn close(self, how: &str) -> Result<(), Failure> {
        if self.shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        Ok(self.recorder.end(how)?)
    }

    /// Ends the recording. `how` says how the process ended.
    pub(crate) fn end(self, how: &str) -> Result<(), Failure> {
        let Self { recorder, path, every, begun, cost, shown, trouble, .. } = self;
        if shown.is_some() {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
        let (moments, seconds) = (recorder.moments(), begun.elapsed().as_secs_f64());
        recorder.end(how)?;
        let written = std::fs::metadata(&path).map_or(0, |of| of.len());
        let path = path.display();
        if moments == 0 {
            let nothing = || {
                Failure::Trouble(format!(
                    "nothing is recorded in {path}: the process ended too early; start it with \
                     `kmem record -o FILE -- CMD`"
                ))
            };
            return Err(trouble.map_or_else(nothing, Failure::from));
        }
        say(&format!(
            "recorded {moments} moments in {seconds:.1} s: {path}, {}; see `kmem report {path}`",
            size_u(written)
        ));
        let count = u32::try_from(moments).unwrap_or(u32::MAX);
        let took = cost / count;
        if took > every / 2 {
            say(&format!(
                "a reading took {:.0} ms, so there are fewer moments than one in {:.0} ms",
                took.as_secs_f64() * 1e3,
                every.as_secs_f64() * 1e3
            ));
        }
        trouble.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Ends the recording of a command that has ended, with its code. A process that a signal
    /// ended has left its last record in a black box.
    pub(crate) fn end_of(mut self, ended: Ended) -> Result<ExitCode, Failure> {
        let code = ended.code();
        let how = ended.how();
        self.after(&ended);
        if self.moments() == 0 && !ended.loaded {
            say("libkmem was not loaded, or the process ended before it could be read");
        }
        let failed = self.end(&how).map_err(Failure::report).err();
        Ok(failed.filter(|_| code == 0).unwrap_or(ExitCode::from(code)))
    }

    /// Records the last record of a process that left no books.
    pub(crate) fn after(&mut self, ended: &Ended) {
        if let Some(target) = ended.last_record().filter(|_| ended.main.is_none())
            && let Err(failure) = self.recorder.read(&target)
        {
            self.trouble = Some(failure.error);
        }
    }
}

impl Follow for Session {
    fn due(&self) -> Duration {
        if self.trouble.is_some() || self.is_over(self.begun) {
            return Duration::MAX;
        }
        Self::due(self)
    }

    fn read(&mut self, pid: u32) {
        let read = self.turn(|recorder| Ok(recorder.process(&Process::open(pid)?)?));
        match read {
            Ok(()) => {}
            // A process that has just been started is not complete, and one that ends is absent.
            Err(ReadFailure { error: ReadError::File { path, source }, .. })
                if self.path.as_os_str() == path.as_str() =>
            {
                say(&format!("{path}: {source}; nothing more is recorded"));
                self.trouble = Some(ReadError::File { path, source });
            }
            Err(_) => self.next = Instant::now() + self.every.min(Duration::from_millis(100)),
        }
    }

    fn last(&mut self, reading: &LastReading) {
        if self.trouble.is_some() || self.is_over(self.begun) {
            return;
        }
        let pid = reading.snapshot.pid;
        let taken = Process::open(pid)
            .and_then(|process| self.recorder.snapshot(&process, &reading.snapshot));
        self.trouble = taken.err();
    }
}
