//! Run a command and learn of each of its processes what can only be seen from
//! inside: peak memory, and whose `malloc` it used.
//!
//! The processes are traced, but stop only to fork, to run another program and
//! to exit; between those nothing slows them. Threads are not traced.
//!
//! | stop | what is done |
//! |---|---|
//! | first stop of a new process | go on, without the signal |
//! | `PTRACE_EVENT_EXIT` | read the process, go on |
//! | other event | go on |
//! | delivery of a signal | go on, with the signal |

use super::link_map::malloc_provider;
use crate::machine::{kibibytes, value_of};
use std::collections::BTreeSet;
use std::fs::{read_link, read_to_string};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// What a process was when it ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its executable.
    pub(super) image: PathBuf,
    /// Its peak resident memory, as the program that it was last.
    pub(super) rss_bytes: u64,
    /// The object whose `malloc` it used.
    pub(super) malloc: Option<PathBuf>,
}

/// What a command did.
#[derive(Debug)]
pub(super) struct Traced {
    /// Its processes, in the order in which they ended.
    pub(super) processes: Vec<Ended>,
    /// From its start to the end of its first process.
    pub(super) elapsed: Duration,
    /// Status of its first process, as waitpid gives it.
    pub(super) status: i32,
}

/// A run that takes longer is killed.
pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// Run `command` to its end.
pub(super) fn run(command: &mut Command) -> io::Result<Traced> {
    // SAFETY: one system call between fork and exec, which allocates nothing.
    unsafe {
        command.pre_exec(|| {
            // A run never outlives its limit, nor this program.
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
        // Only this thread's children: another thread may trace a server.
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
    // SAFETY: a request about a stopped tracee; it takes numbers only.
    match unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

fn go_on(pid: i32, signal: i32) {
    // A tracee that was killed meanwhile needs no push.
    // SAFETY: as in `set_options`.
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
