//! Runs a command under ptrace, and finds the peak memory and the `malloc` of each of its
//! processes.
//!
//! The processes stop only to fork, to run another program and to exit, and are not slowed down
//! otherwise. Threads are not traced.
//!
//! | stop                        | action                         |
//! |-----------------------------|--------------------------------|
//! | first stop of a new process | continue it, without a signal  |
//! | `PTRACE_EVENT_EXIT`         | read the process, continue it  |
//! | other event                 | continue it                    |
//! | delivery of a signal        | continue it, with the signal   |

use super::link_map::malloc_provider;
use crate::machine::{kibibytes, value_of};
use std::collections::BTreeSet;
use std::fs::{read_link, read_to_string};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The state of a process at its end.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its executable.
    pub(super) image: PathBuf,
    /// Peak resident memory of the program that it ran last.
    pub(super) rss_bytes: u64,
    /// The object that provided its `malloc`.
    pub(super) malloc: Option<PathBuf>,
}

/// The result of a command.
#[derive(Debug)]
pub(super) struct Traced {
    /// Its processes, in the order of their ends.
    pub(super) processes: Vec<Ended>,
    /// Time from its start to the end of its first process.
    pub(super) elapsed: Duration,
    /// Status of its first process, as returned by waitpid.
    pub(super) status: i32,
}

/// Time limit of a run, which is killed then.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Runs `command` to its end.
pub(super) fn run(command: &mut Command) -> io::Result<Traced> {
    // SAFETY: one system call between fork and exec, which allocates nothing.
    unsafe {
        command.pre_exec(|| {
            // The alarm kills the process at the limit.
            libc::alarm(LIMIT.as_secs() as u32);
            match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            }
        })
    };
    let start = Instant::now();
    let child = command.spawn()?;
    let root = child.id() as i32;
    let mut traced = Traced { processes: Vec::new(), elapsed: Duration::ZERO, status: 0 };
    let mut known = BTreeSet::new();
    loop {
        let mut status = 0;
        // Waits for children of this thread only, because another thread may trace a server.
        // SAFETY: `status` is writable.
        let pid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL | libc::__WNOTHREAD) };
        if pid < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::ECHILD) => return Ok(traced),
                _ => return Err(error),
            }
        }
        if !libc::WIFSTOPPED(status) {
            if pid == root {
                traced.elapsed = start.elapsed();
                traced.status = status;
            }
            continue;
        }
        let mut signal = libc::WSTOPSIG(status);
        if known.insert(pid) {
            set_options(pid)?;
            signal = 0;
        } else if status >> 16 != 0 {
            if status >> 16 == libc::PTRACE_EVENT_EXIT {
                traced.processes.extend(inspect(pid));
            }
            signal = 0;
        }
        go_on(pid, signal);
    }
}

fn set_options(pid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_EXITKILL
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACEEXIT
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK;
    // SAFETY: a request about a stopped tracee, which takes numbers only.
    match unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn go_on(pid: i32, signal: i32) {
    // Fails if the tracee was killed, which is ignored.
    // SAFETY: a request about a stopped tracee, which takes numbers only.
    unsafe { libc::ptrace(libc::PTRACE_CONT, pid, 0, signal) };
}

fn inspect(pid: i32) -> Option<Ended> {
    let status = read_to_string(format!("/proc/{pid}/status")).ok()?;
    Some(Ended {
        image: read_link(format!("/proc/{pid}/exe")).ok()?,
        rss_bytes: value_of(&status, "VmHWM").and_then(|value| kibibytes(&value))?,
        malloc: malloc_provider(pid),
    })
}

#[cfg(test)]
mod tests {
    use super::run;
    use std::process::Command;

    #[test]
    fn every_process_of_a_command_is_seen() {
        let mut command = Command::new("sh");
        command.args(["-c", "ls /proc/version >/dev/null; exit 3"]);
        let traced = run(&mut command).unwrap();
        assert_eq!(libc::WEXITSTATUS(traced.status), 3);
        assert_eq!(traced.processes.len(), 2);
        for process in &traced.processes {
            let malloc = process.malloc.as_ref().unwrap();
            assert!(malloc.to_string_lossy().contains("libc.so"), "{process:?}");
            assert!(process.rss_bytes > 1 << 16, "{process:?}");
        }
        let image = traced.processes[0].image.to_string_lossy().into_owned();
        assert!(image.ends_with("/ls") || image.contains("coreutils"), "{image}");
    }
}
