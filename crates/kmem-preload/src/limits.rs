//! Limits that the program sets for itself. A limit of address space counts what the heap reserved,
//! so the heap gives back what it does not use.

use core::ffi::{c_int, c_uint};

use kmem_core::os::Process;
use kmem_core::os::linux::syscall::syscall;
use libc::{pid_t, rlimit};

use crate::{KMEM, errno};

/// `prlimit(2)` without the C library. A forked child may call it before `exec`. Then a search for
/// the C library's function could wait for a lock.
///
/// # Safety
/// As for prlimit(2).
unsafe fn set_limit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    let given = [pid as usize, resource as usize, new as usize, old as usize, 0, 0];
    // SAFETY: the kernel checks the arguments. It writes to `old`, by the contract.
    let result = unsafe { syscall(libc::SYS_prlimit64, given) };
    if result < 0 {
        errno::set(-result as c_int);
        return -1;
    }
    if resource == libc::RLIMIT_AS
        && (pid == 0 || pid as u32 == KMEM.platform().process())
        // SAFETY: null, or a limit that the kernel has just read.
        && let Some(new) = unsafe { new.as_ref() }
        && new.rlim_cur != libc::RLIM_INFINITY
    {
        KMEM.spare_space(new.rlim_cur as usize);
    }
    0
}

/// `setrlimit(2)`; gives address space back if that is what the limit counts.
///
/// # Safety
/// As for setrlimit(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit(resource: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: the same contract.
    unsafe { set_limit(0, resource, new, core::ptr::null_mut()) }
}

/// [`setrlimit`] by its name for large files.
///
/// # Safety
/// As for setrlimit(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn setrlimit64(resource: c_uint, new: *const rlimit) -> c_int {
    // SAFETY: the same contract.
    unsafe { set_limit(0, resource, new, core::ptr::null_mut()) }
}

/// `prlimit(2)`; gives address space back if that is what the limit counts.
///
/// # Safety
/// As for prlimit(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { set_limit(pid, resource, new, old) }
}

/// [`prlimit`] by its name for large files.
///
/// # Safety
/// As for prlimit(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn prlimit64(
    pid: pid_t,
    resource: c_uint,
    new: *const rlimit,
    old: *mut rlimit,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { set_limit(pid, resource, new, old) }
}
