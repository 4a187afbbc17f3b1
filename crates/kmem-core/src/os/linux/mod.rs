//! The platform on Linux: raw system calls, glibc's rseq registration, limits of the process.
//!
//! Context: any, signal handlers included.

use crate::sync::{AtomicU32, AtomicUsize};

use accessible::Accessible;
use marks::Marks;
use own::Own;
use sandbox::Sandbox;
use tender::Tender;
use vdso::ClockFunction;

mod accessible;
pub mod call;
mod calls;
mod cgroup;
mod chain;
mod configuration;
mod cpus;
mod descriptor;
pub mod diagnose;
mod file;
mod functions;
mod marks;
mod memory;
mod nodes;
mod objects;
mod own;
mod owner;
mod path;
mod probes;
mod process;
mod sandbox;
mod sigbus;
mod sigsegv;
mod stack;
pub mod start;
pub mod syscall;
pub mod tender;
pub(crate) mod thread_word;
mod vdso;

/// The Linux platform. It holds only answers of the kernel, and the places of special
/// memory.
pub struct Linux {
    /// Number of CPU slots; 0 until the kernel was asked.
    cpus: AtomicU32,
    /// The machine's nodes.
    topology: nodes::Topology,
    /// Bytes of memory and swap of the machine; 0 until the kernel was asked.
    memory: AtomicUsize,
    /// Bytes that the process's control groups may have; 0 until the kernel was asked.
    group_memory: AtomicUsize,
    /// Begin of the memory that [`crate::os::Memory::share`] made; 0: there is none. Decommitting
    /// it takes `MADV_REMOVE`.
    shared: AtomicUsize,
    /// End of that memory.
    shared_end: AtomicUsize,
    /// Reservations that need no commit.
    accessible: Accessible,
    /// Pages that fault without a mapping of their own.
    marks: Marks,
    /// All reservations.
    own: Own,
    /// An address above all frames of the main thread; 0: not looked for, 1: not known.
    main_stack_end: AtomicUsize,
    /// Thread pointer of the main thread, if it was the first to ask for its stack.
    main_thread: AtomicUsize,
    clock: ClockFunction,
    sandbox: Sandbox,
    tender: Tender,
}

impl Linux {
    /// A platform that has not asked the kernel for anything yet.
    pub const fn new() -> Self {
        Self {
            cpus: AtomicU32::new(0),
            topology: nodes::Topology::new(),
            memory: AtomicUsize::new(0),
            group_memory: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
            shared_end: AtomicUsize::new(0),
            accessible: Accessible::new(),
            marks: Marks::new(),
            own: Own::new(),
            main_stack_end: AtomicUsize::new(0),
            main_thread: AtomicUsize::new(0),
            clock: ClockFunction::new(),
            sandbox: Sandbox::new(),
            tender: Tender::new(),
        }
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}
