//! Faults in the part of a file that the process accesses as memory. The kernel raises SIGBUS where
//! the file was cut off, or where the disk is full. The handler maps memory there, so that the
//! program goes on, and passes all other faults to the action before.
//!
//! Context: the handler runs between any two instructions. It makes system calls only, and leaves
//! `errno` as it is.

use core::ffi::{c_int, c_void};
use core::ptr::{from_ref, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

use super::chain::{Chain, address};
use super::diagnose;
use super::memory::PROT_RW;
use super::syscall::sys;
use crate::os::SharedFile;

/// The file with a part that is guarded.
static GUARDED: AtomicPtr<SharedFile> = AtomicPtr::new(null_mut());
/// The handler of SIGBUS, and the action before it.
static SIGBUS: Chain = Chain::new(libc::SIGBUS);

/// Lets the program survive a fault in the part of `file` that it accesses as memory. A handler
/// that the program installs later replaces this one.
///
/// # Errors
/// The reason why the part cannot be guarded, as text for a diagnostic.
pub(super) fn guard(file: &'static SharedFile) -> Result<(), &'static str> {
    let ours = from_ref(file).cast_mut();
    if GUARDED.compare_exchange(null_mut(), ours, Ordering::Release, Ordering::Relaxed).is_err() {
        return Err("the process has one with counters already");
    }
    if SIGBUS.install(on_sigbus) {
        Ok(())
    } else {
        Err("the kernel does not let the process handle SIGBUS")
    }
}

/// The handler of SIGBUS.
extern "C-unwind" fn on_sigbus(_: c_int, info: &libc::siginfo_t, context: *mut c_void) {
    if !address(info).is_some_and(replace) {
        SIGBUS.pass_on(info, context);
    }
}

/// Maps memory in the place of the guarded part if the address `at` lies in it. Returns whether it
/// did.
fn replace(at: usize) -> bool {
    // SAFETY: null, or a file that lives as long as the process.
    let Some(file) = (unsafe { GUARDED.load(Ordering::Acquire).as_ref() }) else { return false };
    let (start, bytes) = (file.direct(), file.direct_bytes.load(Ordering::Relaxed));
    if !(start..start + bytes).contains(&at) {
        return false;
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the mapping of the part, by the invariant. All accesses to it are atomic additions,
    // whose results nothing in the process needs.
    let now = unsafe { sys!(libc::SYS_mmap, start, bytes, PROT_RW, flags, usize::MAX, 0) };
    let done = now == start as isize;
    if done && file.is_first_failure() {
        diagnose::print(SharedFile::FAILURE);
    }
    done
}
