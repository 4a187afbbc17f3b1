//! Accesses that the hardware refused. If one was meant for a block of an instance, the instance
//! says which, before the signal ends the program or goes to its handler.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::chain::{Chain, address};
use crate::os::{AccessReport, RefusedAccess};

/// The handler of SIGSEGV, and the action before it.
static SIGSEGV: Chain = Chain::new(libc::SIGSEGV);
/// The value for the reports; 0: nothing is reported.
static TOLD: AtomicUsize = AtomicUsize::new(0);

/// Reports refused accesses from now on. The first call of the process wins.
pub(super) fn report_to<R: AccessReport>(value: usize) {
    if TOLD.compare_exchange(0, value, Ordering::Release, Ordering::Relaxed).is_ok() {
        SIGSEGV.install(on_sigsegv::<R>);
    }
}

/// The handler of SIGSEGV.
extern "C-unwind" fn on_sigsegv<R: AccessReport>(
    _: c_int,
    info: &libc::siginfo_t,
    context: *mut c_void,
) {
    if let Some(at) = address(info) {
        let (instruction, is_write) = instruction(context);
        R::report(TOLD.load(Ordering::Acquire), RefusedAccess { at, instruction, is_write });
    }
    SIGSEGV.pass_on(info, context);
}

/// Address of the instruction that was interrupted, and if known whether it writes.
fn instruction(context: *mut c_void) -> (usize, Option<bool>) {
    // SAFETY: the kernel passes the context of the thread to the handler.
    let context = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    {
        // Bit 1 of the error code of a page fault.
        let error = context.gregs[libc::REG_ERR as usize];
        (context.gregs[libc::REG_RIP as usize] as usize, Some(error & 2 != 0))
    }
    #[cfg(target_arch = "aarch64")]
    {
        (context.pc as usize, None)
    }
}
