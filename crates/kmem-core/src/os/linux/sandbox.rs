//! Sandboxes: filters that end the process at a system call that is not on their list
//! (`seccomp(2)`).
//!
//! Such lists are made for the C library's allocator. So in a sandbox kmem makes the system calls
//! that this allocator makes, and no other: `mmap`, `munmap`, `mprotect`, `mremap`, `madvise` and
//! `futex`. (Messages take `write`, an abort takes those of `abort(3)`.) What the kernel would have
//! to be asked then is asked at the entry. What has no such call is left out:
//!
//! | left out                         | effect                                              |
//! |----------------------------------|-----------------------------------------------------|
//! | barriers on other CPUs           | free memory on arrays of others stays there         |
//! | changes of limits                | those of the entry hold                             |
//! | the node of a CPU                | new memory is of the first node                     |
//! | reading memory that may be gone  | chains of callers have one frame on other stacks    |
//! | bounds of a thread's stack       | the same on its own, if it asks in the sandbox      |
//! | files, sockets, shared memory    | no mappings in messages; no report; no `vmap`       |
//!
//! Context: any, signal handlers included.

use super::memory::{UNKNOWN_MEMORY, limit};
use super::{Linux, start};
use crate::os::Cpus;
use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// State of the process: in a sandbox or not, and the answers of the kernel from before.
pub(super) struct Sandbox {
    /// Calls of [`Linux::enter_sandbox`] less those of [`Linux::stay_outside`].
    entered: AtomicU32,
    answers: [AtomicUsize; ANSWERS],
}

/// A question to the kernel whose answer a sandbox keeps.
#[derive(Clone, Copy)]
pub(super) enum Question {
    /// Soft limit of the address space, in bytes.
    AddressSpace,
    /// Soft limit of private memory, in bytes.
    Data,
    /// Most mappings of the process.
    Mappings,
    /// Highest number of a CPU plus one.
    PossibleCpus,
    /// Memory backed with huge pages, see [`start::huge_pages`].
    HugePages,
}

/// Number of questions.
const ANSWERS: usize = 5;

impl Question {
    const ALL: [Self; ANSWERS] =
        [Self::AddressSpace, Self::Data, Self::Mappings, Self::PossibleCpus, Self::HugePages];

    /// Asks the kernel.
    fn ask(self, linux: &Linux) -> usize {
        match self {
            Self::AddressSpace => limit(libc::RLIMIT_AS),
            Self::Data => limit(libc::RLIMIT_DATA),
            Self::Mappings => start::max_mappings(),
            Self::PossibleCpus => start::possible_cpus().max(linux.cpus()) as usize,
            Self::HugePages => start::huge_pages() as usize,
        }
    }
}

impl Sandbox {
    pub(super) const fn new() -> Self {
        Self { entered: AtomicU32::new(0), answers: [const { AtomicUsize::new(0) }; ANSWERS] }
    }
}

impl Linux {
    /// Notes that the process is about to enter a sandbox. Keeps the answers that it needs there.
    pub fn enter_sandbox(&self) {
        if !self.is_in_sandbox() {
            self.cpus();
            self.keep_answers();
        }
        self.sandbox.entered.fetch_add(1, Ordering::Release);
    }

    /// Notes, before any other call, that the process was started in a sandbox. Asks only by calls
    /// that the C library makes when it starts a program.
    pub(super) fn enter_at_start(&self) {
        self.cpus.store(start::possible_cpus().max(1), Ordering::Relaxed);
        self.memory.store(UNKNOWN_MEMORY, Ordering::Relaxed);
        self.keep_answers();
        self.sandbox.entered.fetch_add(1, Ordering::Release);
    }

    fn keep_answers(&self) {
        self.nodes();
        self.machine_memory();
        for question in Question::ALL {
            let answer = question.ask(self);
            self.sandbox.answers[question as usize].store(answer, Ordering::Relaxed);
        }
    }

    /// Notes that the kernel refused the sandbox of an [`Self::enter_sandbox`].
    pub fn stay_outside(&self) {
        self.sandbox.entered.fetch_sub(1, Ordering::Release);
    }

    /// Returns whether the process is in a sandbox, or may be in a moment.
    #[inline]
    pub fn is_in_sandbox(&self) -> bool {
        // Acquire pairs with the release in `enter_sandbox`, so the answers are there.
        self.sandbox.entered.load(Ordering::Acquire) != 0
    }

    /// Answer of the kernel: in a sandbox that of its entry.
    pub(super) fn answer(&self, question: Question) -> usize {
        if self.is_in_sandbox() {
            self.sandbox.answers[question as usize].load(Ordering::Relaxed)
        } else {
            question.ask(self)
        }
    }
}
