//! Watches the command from its start to its end.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use kmem_snapshot::leaks::Leaks;
use kmem_snapshot::symbols::Modules;
use kmem_snapshot::{Process, ReadError, ReadFailure, Snapshot};

use super::boxes::{Boxes, now_ns};
use super::exit_socket::{ExitSocket, Exiting};
use super::oom::{Kills, OomWatch};
use super::sys::{self, Signals};

/// Signals passed on to the command.
const FORWARDED: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
/// `si_code` of signals that the kernel sends, such as on Ctrl-C. The kernel sends them to the
/// whole foreground group, so the command has them already.
const SI_KERNEL: i32 = 0x80;
/// Interval between looks at the command's mappings until the library is in them.
const LOOK: Duration = Duration::from_millis(20);
/// Interval between looks at the boxes of running processes.
const FOLLOW: Duration = Duration::from_millis(400);
/// Time in which a command is watched closely.
const EARLY: Duration = Duration::from_secs(1);

/// The books of a process just before it exited, and its opened modules.
pub(crate) struct LastReading {
    pub(crate) snapshot: Snapshot,
    pub(crate) modules: Modules,
}

/// The end of the command.
pub(crate) struct Ended {
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    /// The command's own process; none when it ended without a report, an error when it reported
    /// its exit and could not be read.
    pub(crate) main: Option<Result<LastReading, ReadError>>,
    /// True when the library was in the command's process.
    pub(crate) loaded: bool,
    /// Time of the end, in nanoseconds since 1970.
    pub(crate) time_ns: u64,
    /// Kills by the kernel's OOM killer meanwhile.
    pub(crate) kills: Kills,
    /// The boxes of the command and of its children.
    pub(crate) boxes: Boxes,
    /// Leaks of the command's own process when it exited, if they were asked for.
    pub(crate) leaks: Option<Result<Leaks, ReadFailure>>,
}

impl Ended {
    /// Exit code, as a shell forms it.
    pub(crate) fn code(&self) -> u8 {
        let code = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => code,
            (None, Some(signal)) => 128 + signal,
            (None, None) => 2,
        };
        u8::try_from(code & 0xff).unwrap_or(2)
    }
}

/// Reads the command's own process while it runs.
pub(crate) trait Follow {
    /// Time until the next reading.
    fn due(&self) -> Duration;
    /// Reads the process, if it can be read yet.
    fn read(&mut self, pid: u32);
    /// Takes the books just before the process exits.
    fn last(&mut self, reading: &LastReading);
}

/// Work on the command's own process, beside keeping its books when it exits.
#[derive(Default)]
pub(crate) struct Wants<'a> {
    /// Reads it while it runs.
    pub(crate) follow: Option<&'a mut dyn Follow>,
    /// True if leaks are looked for when it exits.
    pub(crate) leaks: bool,
}

struct Watch<'a> {
    wants: Wants<'a>,
    leaks: Option<Result<Leaks, ReadFailure>>,
    child: Child,
    socket: ExitSocket,
    signals: Signals,
    main: Option<Result<LastReading, ReadError>>,
    loaded: bool,
    boxes: Boxes,
    oom: OomWatch,
    started: Instant,
    /// Time for the next look at the boxes.
    follow: Instant,
}

/// Runs the command to its end.
///
/// # Errors
///
/// The errors of starting the command, of `poll`, and of the socket.
pub(crate) fn run(
    mut command: Command,
    socket: ExitSocket,
    boxes: Boxes,
    wants: Wants<'_>,
) -> io::Result<Ended> {
    let mut caught = FORWARDED.to_vec();
    caught.push(libc::SIGCHLD);
    let signals = sys::signals(&caught)?;
    signals.unblock_in(&mut command);
    let oom = OomWatch::start();
    let mut watch = Watch {
        wants,
        leaks: None,
        child: command.spawn()?,
        socket,
        signals,
        main: None,
        loaded: false,
        boxes,
        oom,
        started: Instant::now(),
        follow: Instant::now() + FOLLOW,
    };
    watch.boxes.set_main(watch.child.id());
    watch.watch()
}

impl Watch<'_> {
    fn watch(mut self) -> io::Result<Ended> {
        let status = loop {
            let next = self.follow.saturating_duration_since(Instant::now());
            // A command that enters a control group does so early.
            let is_early = self.started.elapsed() < EARLY;
            let patience = if self.loaded && !is_early { next } else { LOOK };
            let due = self.wants.follow.as_ref().map(|follow| follow.due());
            let patience = due.map_or(patience, |due| patience.min(due));
            let ready = sys::poll(&[self.signals.fd.as_raw_fd(), self.socket.fd()], patience)?;
            if ready[1]
                && let Some(exiting) = self.socket.next()?
            {
                self.exiting(exiting);
            }
            if ready[0] {
                self.forward_signals()?;
                // A command that has ended still has its control group.
                self.oom.follow(&self.child.id().to_string());
            }
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if is_early {
                self.oom.follow(&self.child.id().to_string());
            }
            if !self.loaded {
                self.look();
            }
            if self.loaded
                && let Some(follow) = &mut self.wants.follow
                && follow.due().is_zero()
            {
                follow.read(self.child.id());
            }
            if Instant::now() >= self.follow {
                self.oom.follow(&self.child.id().to_string());
                self.boxes.follow();
                self.follow = Instant::now() + FOLLOW;
            }
        };
        let time_ns = now_ns();
        let kills = self.oom.kills();
        // Children that exit at this time may still wait for the reply.
        while sys::poll(&[self.socket.fd()], Duration::ZERO)?[0] {
            if let Some(exiting) = self.socket.next()? {
                self.exiting(exiting);
            }
        }
        // The socket is closed before the report is written. A reader of the report that waits does
        // not keep processes that outlive the command from their end.
        drop(self.socket);
        self.boxes.finish();
        Ok(Ended {
            pid: self.child.id(),
            status,
            main: self.main,
            loaded: self.loaded,
            time_ns,
            kills,
            boxes: self.boxes,
            leaks: self.leaks,
        })
    }

    fn look(&mut self) {
        if let Ok(process) = Process::open(self.child.id())
            && let Ok(maps) = process.maps()
        {
            self.loaded = Snapshot::is_in(&maps);
        }
    }

    /// Keeps the memory of a process that is about to exit, and then lets it exit. The books of the
    /// command's own process are copied from its memory. Names are read from its modules later.
    fn exiting(&mut self, exiting: Exiting) {
        if exiting.pid == self.child.id() {
            self.loaded = true;
            let peak = self.boxes.addresses_at_peak(exiting.pid);
            let reading = read(exiting.pid, &peak);
            // Nothing is read after this: the process only takes itself apart.
            if let (Some(follow), Ok(reading)) = (self.wants.follow.take(), &reading) {
                follow.last(reading);
            }
            self.main = Some(reading);
            if self.wants.leaks {
                self.leaks = Some(Leaks::find(exiting.pid));
            }
            self.boxes.ended(exiting.pid);
        } else if !self.boxes.ended(exiting.pid) {
            self.without_box(exiting.pid);
        }
        exiting.release();
    }

    /// Counts a process without a box. A child that allocated nothing after its fork has none.
    fn without_box(&mut self, pid: u32) {
        let Ok(process) = Process::open(pid) else { return };
        let mut held = 0;
        if self.boxes.directory().is_none()
            && let Ok(snapshot) = Snapshot::take(&process)
        {
            let peaks = snapshot.books.iter().filter_map(|b| b.peak.as_ref());
            let bytes = peaks.flat_map(|peak| &peak.rows).map(|row| row.bytes);
            let bytes = bytes.fold(0, i64::saturating_add);
            held = snapshot.accounting.tracked.max(u64::try_from(bytes).unwrap_or(0));
        }
        self.boxes.count(&process.exe(), held);
    }

    fn forward_signals(&mut self) -> io::Result<()> {
        let mut file = File::from(self.signals.fd.try_clone()?);
        // `struct signalfd_siginfo`: the signal's number at 0, its code at 8.
        let mut info = [0; 128];
        while matches!(file.read(&mut info), Ok(128)) {
            let word = |at: usize| info[at..].first_chunk().map_or(0, |b| i32::from_ne_bytes(*b));
            let (signal, code) = (word(0), word(8));
            if signal != libc::SIGCHLD && code != SI_KERNEL {
                // The child has not been waited for, so the pid is its own.
                sys::kill(self.child.id(), signal);
            }
        }
        Ok(())
    }
}

/// Reads the books of a process, and opens the modules that they name, and those of `peak`.
fn read(pid: u32, peak: &[u64]) -> Result<LastReading, ReadError> {
    let process = Process::open(pid)?;
    let snapshot = Snapshot::take(&process)?;
    let addresses = [&snapshot.addresses(), peak].concat();
    let modules = Modules::open(&process, &snapshot.maps, &addresses, &snapshot.budget);
    Ok(LastReading { snapshot, modules })
}
