//! All threads of a process stopped, with their registers.
//!
//! The threads are seized (ptrace(2)), not sent signals. When this process ends in any way, the
//! kernel lets go of them, and they go on. A signal that was about to be delivered is delivered
//! then. A process that was stopped before stays stopped.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::unistd::Pid;

use crate::error::ReadError;
use crate::memory::{Change, change_of_thread, detach};
use crate::process::Process;

/// Most rounds in which new threads are looked for.
const ROUNDS: usize = 100;
/// Longest time that the threads have to stop, while those that did wait for the others.
const LIMIT: Duration = Duration::from_secs(2);
/// Longest pause between two looks at the threads.
const PAUSE: Duration = Duration::from_millis(1);

/// A thread that is traced.
#[derive(Debug, Clone, Copy)]
enum Thread {
    /// It was told to stop.
    Seized,
    /// It stands still.
    Stopped {
        /// Signal to deliver when it goes on; 0: none.
        signal: i32,
        stack_pointer: u64,
    },
}

/// Stopped threads, which go on when the value is dropped. A thread that did not stop in time is
/// let go when this process ends.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    /// By number.
    threads: BTreeMap<i32, Thread>,
    words: Vec<u64>,
}

impl Stopped {
    /// Stops all threads.
    ///
    /// # Errors
    ///
    /// [`ReadError::Permission`] when a thread may not be traced, or another tracer has it;
    /// [`ReadError::NoProcess`]; [`ReadError::BadSetting`] when a thread does not stop in 2 s.
    pub(super) fn all_of(process: &Process) -> Result<Self, ReadError> {
        let pid = process.pid();
        let deadline = Instant::now() + LIMIT;
        let mut this = Self::default();
        for _ in 0..ROUNDS {
            // Threads that were not stopped yet may have started others.
            let mut is_new = false;
            for tid in process.threads() {
                let Ok(tid) = i32::try_from(tid) else { continue };
                is_new |= !this.threads.contains_key(&tid) && this.seize(process, tid)?;
            }
            if !is_new {
                process.verify()?;
                return Ok(this);
            }
            this.wait(process, deadline)?;
        }
        Err(ReadError::BadSetting(format!(
            "process {pid} starts threads faster than they stop; try again"
        )))
    }

    /// Tells a thread to stop. Returns false for one that has ended.
    fn seize(&mut self, process: &Process, tid: i32) -> Result<bool, ReadError> {
        let thread = Pid::from_raw(tid);
        match ptrace::seize(thread, Options::empty()) {
            Ok(()) => {}
            Err(Errno::ESRCH | Errno::EPERM) if state(process, tid).is_none() => return Ok(false),
            Err(Errno::ESRCH) => return Ok(true),
            Err(errno) => return Err(ReadError::from_io(process.pid(), "ptrace", errno.into())),
        }
        self.threads.insert(tid, Thread::Seized);
        // The thread may have ended since, which the wait tells.
        let _ = ptrace::interrupt(thread);
        Ok(true)
    }

    /// Waits until all threads stand still that were told to.
    fn wait(&mut self, process: &Process, deadline: Instant) -> Result<(), ReadError> {
        let mut pause = Duration::from_micros(10);
        loop {
            let seized = self.threads.iter().filter(|(_, of)| matches!(of, Thread::Seized));
            let waiting: Vec<i32> = seized.map(|(tid, _)| *tid).collect();
            let mut late = None;
            for tid in waiting {
                match change_of_thread(tid) {
                    Change::Stopped(signal) => self.stopped(process, tid, signal),
                    Change::Ended => drop(self.threads.remove(&tid)),
                    // The first thread of a process that ends before others is not waited for.
                    Change::None => match state(process, tid) {
                        None => drop(self.threads.remove(&tid)),
                        Some(state) => late = Some((tid, state)),
                    },
                }
            }
            let Some((tid, state)) = late else { return Ok(()) };
            if Instant::now() >= deadline {
                return Err(ReadError::BadSetting(format!(
                    "thread {tid} of process {} did not stop within {} seconds (state {state}): it \
                     waits in the kernel, as in vfork or for a file of the network; the process \
                     goes on; try again when that wait is over",
                    process.pid(),
                    LIMIT.as_secs()
                )));
            }
            sleep(pause);
            pause = PAUSE.min(pause * 2);
        }
    }

    /// Notes a thread that stands still.
    fn stopped(&mut self, process: &Process, tid: i32, signal: i32) {
        // The number was given to a thread of another process before it was seized.
        if state(process, tid).is_none() {
            detach(tid, signal);
            self.threads.remove(&tid);
            return;
        }
        let stack_pointer = self.registers(Pid::from_raw(tid)).unwrap_or(0);
        self.threads.insert(tid, Thread::Stopped { signal, stack_pointer });
    }

    /// Keeps the registers of a stopped thread, and returns its stack pointer.
    #[cfg(target_arch = "x86_64")]
    fn registers(&mut self, thread: Pid) -> Option<u64> {
        let of = ptrace::getregs(thread).ok()?;
        self.words.extend([
            of.rax,
            of.rbx,
            of.rcx,
            of.rdx,
            of.rsi,
            of.rdi,
            of.rbp,
            of.rsp,
            of.r8,
            of.r9,
            of.r10,
            of.r11,
            of.r12,
            of.r13,
            of.r14,
            of.r15,
            of.orig_rax,
            of.fs_base,
            of.gs_base,
        ]);
        Some(of.rsp)
    }

    #[cfg(target_arch = "aarch64")]
    fn registers(&mut self, thread: Pid) -> Option<u64> {
        let of = ptrace::getregs(thread).ok()?;
        self.words.extend(of.regs);
        self.words.push(of.sp);
        Some(of.sp)
    }

    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn registers(&mut self, _: Pid) -> Option<u64> {
        None
    }

    /// Registers of all threads.
    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    /// Stack pointers of all threads.
    pub(super) fn stack_pointers(&self) -> Vec<u64> {
        let of = |thread: &Thread| match *thread {
            Thread::Stopped { stack_pointer, .. } if stack_pointer != 0 => Some(stack_pointer),
            _ => None,
        };
        self.threads.values().filter_map(of).collect()
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for (&tid, &thread) in &self.threads {
            match thread {
                Thread::Stopped { signal, .. } => detach(tid, signal),
                // It may have stopped since.
                Thread::Seized => {
                    if let Change::Stopped(signal) = change_of_thread(tid) {
                        detach(tid, signal);
                    }
                }
            }
        }
    }
}

/// State of a thread of the process, as `S` for one that sleeps. None for one that has ended.
fn state(process: &Process, tid: i32) -> Option<char> {
    let stat = process.read_file(&format!("task/{tid}/stat")).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next()?;
    (!matches!(state, 'Z' | 'X')).then_some(state)
}
