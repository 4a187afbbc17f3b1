//! CPUs of Linux, and barriers across CPUs.

use super::sandbox::Question;
use super::syscall::sys;
use super::{Linux, nodes, start};
use crate::os::Cpus;
use crate::sync::Ordering;

const MEMBARRIER_PRIVATE_EXPEDITED: i32 = 1 << 3;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED: i32 = 1 << 4;
const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 7;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: i32 = 1 << 8;

impl Linux {
    /// Number of CPUs that the process may run on.
    pub(super) fn cpus(&self) -> u32 {
        let known = self.cpus.load(Ordering::Relaxed);
        if known != 0 { known } else { self.count_cpus() }
    }

    /// Asks the kernel for the number of CPUs. Not inlined: the mask takes 1 KiB of stack.
    #[cold]
    #[inline(never)]
    fn count_cpus(&self) -> u32 {
        let mut mask = [0u64; 128];
        // SAFETY: the kernel writes at most the given length into `mask`.
        let got =
            unsafe { sys!(libc::SYS_sched_getaffinity, 0, size_of_val(&mask), mask.as_mut_ptr()) };
        let count = mask.iter().map(|w| w.count_ones()).sum::<u32>();
        let cpus = if got > 0 && count > 0 { count } else { 1 };
        self.cpus.store(cpus, Ordering::Relaxed);
        cpus
    }
}

impl Cpus for Linux {
    fn possible_cpus(&self) -> u32 {
        self.answer(Question::PossibleCpus) as u32
    }

    fn slot_hint(&self) -> u32 {
        // Thread control blocks are at least a page apart.
        let tp = start::thread_pointer() >> 12;
        (tp.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u32 % self.cpus()
    }

    fn thread(&self) -> u32 {
        // The bits that differ: see `slot_hint`.
        ((start::thread_pointer() >> 12) as u32).max(1)
    }

    fn nodes(&self) -> u32 {
        self.topology.nodes()
    }

    fn node(&self) -> u32 {
        let cpu = start::rseq_cpu();
        if self.is_in_sandbox() {
            return self.topology.known(cpu).unwrap_or(0);
        }
        self.topology.node_of(cpu)
    }

    fn distances(&self, from: u32, to: &mut [u8]) {
        nodes::distances(from, to);
    }

    fn rseq_offset(&self) -> Option<isize> {
        start::glibc_rseq_offset()
    }

    fn fence_cpus(&self) -> bool {
        if self.is_in_sandbox() {
            return false;
        }
        // The kernel serves registered processes only, and remembers them: the first call mostly
        // succeeds.
        // SAFETY: membarrier touches no memory.
        unsafe {
            if sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0 {
                return true;
            }
            sys!(libc::SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0
                && sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED_RSEQ, 0, 0) == 0
        }
    }

    fn barrier(&self) -> bool {
        if self.is_in_sandbox() {
            return false;
        }
        // SAFETY: membarrier touches no memory.
        unsafe {
            sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) == 0
                || sys!(libc::SYS_membarrier, MEMBARRIER_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0
                    && sys!(libc::SYS_membarrier, MEMBARRIER_PRIVATE_EXPEDITED, 0, 0) == 0
        }
    }
}
