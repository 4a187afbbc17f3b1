//! Threads that stay on one CPU.

/// Lets a thread run on one CPU only. Thread 0 is the calling thread. False: the system refused.
pub(crate) fn pin(thread: libc::pid_t, cpu: usize) -> bool {
    // SAFETY: all zero is an empty set; the system reads it only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) == 0
    }
}
