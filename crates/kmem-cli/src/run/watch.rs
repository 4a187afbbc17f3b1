//! Watches the command from its start to its end.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use kmem_snapshot::symbols::Modules;
use kmem_snapshot::{Process, ReadError, Snapshot};

use super::exit_socket::{ExitSocket, Exiting};
use super::sys::{self, Signals};

/// Signals passed on to the command.
const FORWARDED: [libc::c_int; 6] =
    [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
/// `si_code` of signals that the kernel sends, such as on Ctrl-C. The kernel sends them to the
/// whole foreground group, so the command has them already.
const SI_KERNEL: i32 = 0x80;
/// Interval between looks at the command's mappings until the library is in them.
const LOOK: Duration = Duration::from_millis(20);
/// Most other processes kept by name.
const MAX_OTHERS: usize = 20;

/// The books of a process just before it exited, and its opened modules.
pub(crate) struct LastReading {
    pub(crate) snapshot: Snapshot,
    pub(crate) modules: Modules,
}

/// Another process of the command's tree, just before it exited.
pub(crate) struct Other {
    pub(crate) pid: u32,
    pub(crate) comm: String,
    /// Live bytes at exit.
    pub(crate) tracked: u64,
    /// Pages in use at the peak.
    pub(crate) peak_pages: Option<u64>,
}

impl Other {
    /// Most memory that it is known to have held, in bytes.
    pub(crate) fn weight(&self) -> u64 {
        self.peak_pages.unwrap_or(0).saturating_mul(4096).max(self.tracked)
    }
}

/// The end of the command.
pub(crate) struct Ended {
    pub(crate) pid: u32,
    pub(crate) status: ExitStatus,
    /// The command's own process; none when it ended without a report, an error when it reported
    /// its exit and could not be read.
    pub(crate) main: Option<Result<LastReading, ReadError>>,
    pub(crate) others: Vec<Other>,
    /// Count of other processes that are not in `others`.
    pub(crate) more_others: u64,
    /// True when the library was in the command's process.
    pub(crate) loaded: bool,
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

struct Watch {
    child: Child,
    socket: ExitSocket,
    signals: Signals,
    main: Option<Result<LastReading, ReadError>>,
    others: Vec<Other>,
    more_others: u64,
    loaded: bool,
}

/// Runs the command to its end.
///
/// # Errors
///
/// The errors of starting the command, of `poll`, and of the socket.
pub(crate) fn run(mut command: Command, socket: ExitSocket) -> io::Result<Ended> {
    let mut caught = FORWARDED.to_vec();
    caught.push(libc::SIGCHLD);
    let signals = sys::signals(&caught)?;
    signals.unblock_in(&mut command);
    let watch = Watch {
        child: command.spawn()?,
        socket,
        signals,
        main: None,
        others: Vec::new(),
        more_others: 0,
        loaded: false,
    };
    watch.watch()
}

impl Watch {
    fn watch(mut self) -> io::Result<Ended> {
        let status = loop {
            let patience = if self.loaded { Duration::from_secs(3600) } else { LOOK };
            let ready = sys::poll(&[self.signals.fd.as_raw_fd(), self.socket.fd()], patience)?;
            if ready[1]
                && let Some(exiting) = self.socket.next()?
            {
                self.exiting(exiting);
            }
            if ready[0] {
                self.forward_signals()?;
            }
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if !self.loaded {
                self.look();
            }
        };
        // Children that exit at this time may still wait for the reply.
        while sys::poll(&[self.socket.fd()], Duration::ZERO)?[0] {
            if let Some(exiting) = self.socket.next()? {
                self.exiting(exiting);
            }
        }
        // The socket is closed before the report is written. A reader of the report that waits does
        // not keep processes that outlive the command from their end.
        drop(self.socket);
        Ok(Ended {
            pid: self.child.id(),
            status,
            main: self.main,
            others: self.others,
            more_others: self.more_others,
            loaded: self.loaded,
        })
    }

    fn look(&mut self) {
        if let Ok(process) = Process::open(self.child.id())
            && let Ok(maps) = process.maps()
        {
            self.loaded = Snapshot::is_in(&maps);
        }
    }

    /// Copies the books of a process that is about to exit, and then lets it exit. Names are read
    /// from its modules later.
    fn exiting(&mut self, exiting: Exiting) {
        if exiting.pid == self.child.id() {
            self.loaded = true;
            self.main = Some(read(exiting.pid));
        } else {
            self.other(exiting.pid);
        }
        exiting.release();
    }

    /// Keeps the totals of another process, when it is among the largest.
    fn other(&mut self, pid: u32) {
        if let Ok(snapshot) = Process::open(pid).and_then(|p| Snapshot::take(&p)) {
            let peaks = snapshot.books.iter().filter_map(|b| b.peak.as_ref());
            self.others.push(Other {
                pid,
                tracked: snapshot.accounting.tracked,
                peak_pages: peaks.map(|p| p.used_pages).reduce(u64::saturating_add),
                comm: snapshot.comm,
            });
        } else {
            self.more_others += 1;
        }
        if self.others.len() > MAX_OTHERS {
            self.others.sort_by_key(|other| std::cmp::Reverse(other.weight()));
            self.others.truncate(MAX_OTHERS);
            self.more_others += 1;
        }
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

fn read(pid: u32) -> Result<LastReading, ReadError> {
    let process = Process::open(pid)?;
    let snapshot = Snapshot::take(&process)?;
    let modules = Modules::open(&process, &snapshot.maps, &snapshot.addresses(), &snapshot.budget);
    Ok(LastReading { snapshot, modules })
}
