//! System calls that the standard library does not offer: the only unsafe code of the command.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::failure::Failure;

/// Converts a result of -1 into the error of the call.
fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Takes ownership of a descriptor that a system call has just made.
fn own(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: `check` passed, so the kernel has just opened `fd`, and no other value owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Opens a packet socket that listens at an abstract name, given without its leading NUL (unix(7)).
pub(super) fn listen(name: &str) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: `socket` takes no pointers.
    let socket = own(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: `sockaddr_un` is an integer and an array of integers, for which zero is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if name.len() + 1 > address.sun_path.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    // SAFETY: `bind` reads `len` bytes. `address` outlives the call and has as many: `sun_path`
    // was checked to have room for the name.
    check(unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len as libc::socklen_t)
    })?;
    // SAFETY: `listen` takes no pointers.
    check(unsafe { libc::listen(socket.as_raw_fd(), 1024) })?;
    Ok(socket)
}

/// Accepts the next connection; none when no peer waits.
pub(super) fn accept(socket: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    // SAFETY: `accept4` writes no address through null pointers.
    let fd = unsafe {
        libc::accept4(
            socket.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC,
        )
    };
    match own(fd) {
        Ok(connection) => Ok(Some(connection)),
        Err(e)
            if matches!(
                e.kind(),
                io::ErrorKind::WouldBlock
                    | io::ErrorKind::ConnectionAborted
                    | io::ErrorKind::Interrupted
            ) =>
        {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// Pid and user of the process that connected, from the kernel (`SO_PEERCRED`).
pub(super) fn peer(connection: &OwnedFd) -> io::Result<(u32, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `getsockopt` writes at most `len` bytes to `credentials`, which has as many, and the
    // length to `len`. Both are borrowed mutably for the call.
    check(unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut len,
        )
    })?;
    Ok((u32::try_from(credentials.pid).unwrap_or(0), credentials.uid))
}

/// Receives one packet, and waits for it no longer than `patience`. Returns its length in bytes.
pub(super) fn receive(
    connection: &OwnedFd,
    into: &mut [u8],
    patience: Duration,
) -> io::Result<usize> {
    if !poll(&[connection.as_raw_fd()], patience)?[0] {
        return Err(io::ErrorKind::TimedOut.into());
    }
    // SAFETY: `recv` writes at most `into.len()` bytes to `into`, which is borrowed mutably.
    let len = unsafe {
        libc::recv(connection.as_raw_fd(), into.as_mut_ptr().cast(), into.len(), libc::MSG_DONTWAIT)
    };
    usize::try_from(len).map_err(|_| io::Error::last_os_error())
}

/// Sends one packet without waiting. A peer that has closed its end is no error.
pub(super) fn send(connection: &OwnedFd, bytes: &[u8]) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: `send` reads `bytes.len()` bytes of `bytes`, which is borrowed for the call.
    let _ =
        unsafe { libc::send(connection.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
}

/// Signals that are blocked in this process and read from a descriptor (signalfd(2)).
pub(crate) struct Signals {
    pub(crate) fd: OwnedFd,
    /// The signal mask from before.
    before: libc::sigset_t,
}

/// Signals by which a user ends a command that did not start the process it looks at.
const ENDS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Blocks the signals by which a user ends a command, and opens a descriptor to read them from.
pub(crate) fn ends() -> Result<Signals, Failure> {
    signals(&ENDS).map_err(|error| Failure::Trouble(format!("cannot wait for signals: {error}")))
}

/// Blocks signals, and opens a descriptor to read them from.
pub(super) fn signals(numbers: &[libc::c_int]) -> io::Result<Signals> {
    // SAFETY: `sigset_t` is an array of integers, for which zero is valid; `sigemptyset` also
    // initializes `set`. Both sets outlive the calls that borrow them.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for &number in numbers {
            libc::sigaddset(&raw mut set, number);
        }
        check(libc::sigprocmask(libc::SIG_BLOCK, &raw const set, &raw mut before))?;
        let fd = own(libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
        Ok(Signals { fd, before })
    }
}

impl Signals {
    /// Makes `command` start with the signal mask from before.
    pub(super) fn unblock_in(&self, command: &mut Command) {
        let before = self.before;
        let restore = move || {
            // SAFETY: `before` outlives the call. `sigprocmask` writes no old mask through a null
            // pointer.
            check(unsafe {
                libc::sigprocmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut())
            })?;
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec, where only async-signal-safe functions
        // may be called. `restore` calls `sigprocmask`, which is one, and allocates nothing: the
        // error that it returns holds a number only.
        unsafe { command.pre_exec(restore) };
    }
}

/// Waits for any of the descriptors, no longer than `patience`. Returns, for each, whether it can
/// be read.
pub(crate) fn poll(fds: &[RawFd], patience: Duration) -> io::Result<Vec<bool>> {
    let mut list: Vec<libc::pollfd> =
        fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
    let timeout = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `poll` writes to the `list.len()` entries of `list`, which is borrowed mutably.
    let result =
        check(unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, timeout) });
    match result {
        Ok(_) => Ok(list.iter().map(|entry| entry.revents != 0).collect()),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(vec![false; fds.len()]),
        Err(e) => Err(e),
    }
}

/// Sends a signal to a child that has not been waited for, so that its pid is its own.
pub(super) fn kill(pid: u32, signal: i32) {
    // SAFETY: `kill` takes no pointers.
    let _ = unsafe { libc::kill(pid.cast_signed(), signal) };
}

/// CPU time that all threads of a process have used. None when there is no such process.
pub(super) fn cpu_time(pid: u32) -> Option<Duration> {
    // The clock of a process's scheduled time, as clock_getcpuclockid(3) forms its number.
    let clock = (!pid.cast_signed()).wrapping_shl(3) | 2;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `clock_gettime` writes one `timespec`, which is borrowed mutably for the call.
    check(unsafe { libc::clock_gettime(clock, &raw mut time) }).ok()?;
    let (seconds, nanos) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    Some(Duration::new(seconds, nanos))
}

/// Exit status of a process that has been waited for, by its pidfd. None before, where the kernel
/// keeps no such status (before Linux 6.15), and where it may not be known.
pub(crate) fn exit_status(pidfd: &OwnedFd) -> Option<ExitStatus> {
    /// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
    const GET_INFO: libc::c_ulong = 3 << 30 | (size_of::<Info>() as libc::c_ulong) << 16 | 0xff0b;
    /// `PIDFD_INFO_EXIT`.
    const EXIT: u64 = 1 << 3;
    /// The first version of `struct pidfd_info`.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    let mut info = Info { mask: EXIT, ..Info::default() };
    // SAFETY: the size of `Info` is in the request, so the kernel reads and writes that many bytes
    // of `info`, which is borrowed mutably. Any bytes are valid for its integers.
    check(unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, &raw mut info) }).ok()?;
    (info.mask & EXIT != 0).then(|| ExitStatus::from_raw(info.exit_code))
}

/// Effective user and group of this process.
pub(super) fn effective_ids() -> (u32, u32) {
    // SAFETY: `geteuid` and `getegid` take no pointers and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// True when this process may execute the file.
pub(super) fn may_execute(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: `faccessat` reads a C string; `path` is one and outlives the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

/// True when the file has capabilities (capabilities(7)).
pub(super) fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    let name = c"security.capability";
    // SAFETY: `getxattr` reads two C strings, which outlive the call. With a size of 0 it writes no
    // value.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}
