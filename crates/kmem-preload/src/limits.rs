//! Limits that the program sets for itself. A limit of address space counts what the heap reserved,
//! so the heap gives back what it does not use.

use core::ffi::{c_int, c_uint};

use kmem_core::os::Process;
use kmem_core::os::linux::syscall::syscall;
use libc::{pid_t, rlimit};

use crate::{KMEM, errno};

/// `prlimit(2)`; gives address space back if that is what it limits. It does without the C library:
/// a forked child may call it before `exec`, and a search for the C library's function could wait.
///
/// # Safety
/// As for prlimit(2).
unsafe fn set_limit(pid: pid_t, resource: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    let given = [pid as usize, resource as usize, new as usize, old as usize, 0, 0];
    // SAFETY: the kernel checks the arguments. It writes to `old`, by the contract.
    let result = unsafe { syscall(libc::SYS_prlimit64, given) };
    if result < 0 {
        return errno::failed(result) as c_int;
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

/// Exports `setrlimit(2)` by its names, of which one is that for large files.
macro_rules! set_own {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for setrlimit(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(resource: c_uint, new: *const rlimit) -> c_int {
            // SAFETY: the same contract.
            unsafe { set_limit(0, resource, new, core::ptr::null_mut()) }
        }
    )*};
}

/// Exports `prlimit(2)` by its names, of which one is that for large files.
macro_rules! set_any {
    ($($name:ident)*) => {$(
        /// # Safety
        /// As for prlimit(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            pid: pid_t,
            resource: c_uint,
            new: *const rlimit,
            old: *mut rlimit,
        ) -> c_int {
            // SAFETY: the same contract.
            unsafe { set_limit(pid, resource, new, old) }
        }
    )*};
}

set_own! { setrlimit setrlimit64 }
set_any! { prlimit prlimit64 }
