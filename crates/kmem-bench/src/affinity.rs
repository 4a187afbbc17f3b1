//! The CPUs that the workloads run on.

use std::mem::{size_of, zeroed};

/// The CPUs this thread may run on, in ascending order.
pub(crate) fn allowed() -> Vec<usize> {
    // SAFETY: `cpu_set_t` is a plain bit array, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    // SAFETY: `set` is writable and its size is passed along.
    let failed = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) } != 0;
    if failed {
        return vec![0];
    }
    let limit = libc::CPU_SETSIZE as usize;
    // SAFETY: every `cpu` is below CPU_SETSIZE, so the macro reads inside `set`.
    (0..limit).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Lets the calling thread run only on `cpus`. A failure is ignored: it only costs precision.
pub(crate) fn pin(cpus: &[usize]) {
    // SAFETY: `cpu_set_t` is a plain bit array, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { zeroed() };
    for &cpu in cpus {
        // SAFETY: `allowed` gave only numbers below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is readable and its size is passed along.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set) };
}

/// The CPUs for the workloads: the second one for one thread, since the first one usually serves
/// the interrupts; the first two for two threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// CPU of a single thread.
    pub(crate) single: usize,
    /// CPUs of two threads. Equal on a machine with one CPU.
    pub(crate) pair: [usize; 2],
}

impl Places {
    /// Chooses among `cpus`, which the process may use.
    pub(crate) fn among(cpus: &[usize]) -> Self {
        let first = cpus.first().copied().unwrap_or(0);
        let second = cpus.get(1).copied().unwrap_or(first);
        Self { single: second, pair: [first, second] }
    }
}

#[cfg(test)]
mod tests {
    use super::Places;

    #[test]
    fn one_cpu_serves_both_threads() {
        let one = Places::among(&[3]);
        assert_eq!((one.single, one.pair), (3, [3, 3]));
        let two = Places::among(&[0, 5, 6]);
        assert_eq!((two.single, two.pair), (5, [0, 5]));
    }
}
