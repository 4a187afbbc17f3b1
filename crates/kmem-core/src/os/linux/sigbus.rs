//! Faults in the part of a file that the process accesses as memory. The kernel raises SIGBUS where
//! the file was cut off, or where the disk is full. The handler maps memory there, so that the
//! program goes on, and passes all other faults to the action before.
//!
//! Context: the handler runs between any two instructions. It makes system calls only, and leaves
//! `errno` as it is.

use core::ffi::{c_int, c_void};
use core::ptr::{from_ref, null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use super::diagnose;
use super::memory::PROT_RW;
use super::syscall::sys;
use crate::os::SharedFile;

type Handler = extern "C-unwind" fn(c_int, &libc::siginfo_t, *mut c_void);

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    /// Address of the handler, `SIG_DFL` or `SIG_IGN`.
    handler: usize,
    flags: usize,
    restorer: usize,
    mask: u64,
}

/// The kernel takes the restorer only with this flag.
#[cfg(target_arch = "x86_64")]
const SA_RESTORER: usize = 0x0400_0000;
/// The kernel has a restorer of its own.
#[cfg(not(target_arch = "x86_64"))]
const SA_RESTORER: usize = 0;

/// The file with a part that is guarded.
static GUARDED: AtomicPtr<SharedFile> = AtomicPtr::new(null_mut());
/// Handler of the action before, and its flags.
static BEFORE: [AtomicUsize; 2] = [AtomicUsize::new(libc::SIG_DFL), AtomicUsize::new(0)];

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
    // The handler may run as soon as it is installed.
    act(None)
        .and_then(|before| {
            remember(&before);
            act(Some(&instead_of(&before)))
        })
        .map(|before| remember(&before))
        .ok_or("the kernel does not let the process handle SIGBUS")
}

/// Sets the action of SIGBUS, if there is a new one. Returns the action before; `None` if the
/// kernel refuses.
fn act(new: Option<&Action>) -> Option<Action> {
    let mut before = Action::default();
    let new = new.map_or(null(), from_ref);
    // SAFETY: the kernel reads `new` and writes `before`. The handler of a new action is
    // `on_sigbus`, or was that of the program.
    let done = unsafe { sys!(libc::SYS_rt_sigaction, libc::SIGBUS, new, &raw mut before, 8) };
    (done == 0).then_some(before)
}

fn remember(before: &Action) {
    BEFORE[1].store(before.flags, Ordering::Relaxed);
    BEFORE[0].store(before.handler, Ordering::Release);
}

/// Action with the handler of this module, and with flags and mask for the handler before, which it
/// calls. It runs on the signal stack, for other stacks may be small.
fn instead_of(before: &Action) -> Action {
    let kept = match before.handler {
        libc::SIG_DFL | libc::SIG_IGN => libc::SA_RESTART as usize,
        _ => before.flags & !(libc::SA_RESETHAND as usize),
    };
    #[cfg(target_arch = "x86_64")]
    let restorer = sigaction_restorer as *const () as usize + 1;
    #[cfg(not(target_arch = "x86_64"))]
    let restorer = 0;
    let flags = kept | libc::SA_SIGINFO as usize | libc::SA_ONSTACK as usize | SA_RESTORER;
    Action { handler: on_sigbus as *const () as usize, flags, restorer, mask: before.mask }
}

/// A byte, then the code that a signal handler returns to: the system call `rt_sigreturn`.
/// Unwinders know these two instructions, if no unwind table covers them or the byte before. gdb
/// looks for `sigaction` in the name, too.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C" fn sigaction_restorer() {
    core::arch::naked_asm!(
        "nop",
        "mov rax, {rt_sigreturn}",
        "syscall",
        rt_sigreturn = const libc::SYS_rt_sigreturn,
    );
}

/// The handler of SIGBUS.
extern "C-unwind" fn on_sigbus(signal: c_int, info: &libc::siginfo_t, context: *mut c_void) {
    // Otherwise a process sent it, or the machine has bad memory that no instruction has used.
    let is_fault = info.si_code > 0 && info.si_code != libc::BUS_MCEERR_AO;
    // SAFETY: a fault has an address.
    if is_fault && replace(unsafe { info.si_addr() } as usize) {
        return;
    }
    let handler = BEFORE[0].load(Ordering::Acquire);
    match handler {
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            act(Some(&Action { handler, ..Action::default() }));
            // The instruction repeats its fault, which now ends the program.
            if !is_fault {
                // SAFETY: the kernel reads `info`; the signal goes to the calling thread.
                unsafe {
                    let (pid, tid) = (sys!(libc::SYS_getpid), sys!(libc::SYS_gettid));
                    sys!(libc::SYS_rt_tgsigqueueinfo, pid, tid, signal, from_ref(info));
                }
            }
        }
        handler => {
            if BEFORE[1].load(Ordering::Relaxed) & libc::SA_RESETHAND as usize != 0 {
                BEFORE[0].store(libc::SIG_DFL, Ordering::Relaxed);
            }
            // SAFETY: the handler that the program installed. The kernel, too, gives three
            // arguments to handlers with and without SA_SIGINFO.
            unsafe { core::mem::transmute::<usize, Handler>(handler)(signal, info, context) };
        }
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
