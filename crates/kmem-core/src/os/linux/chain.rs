//! Handlers of the faults of a thread. They pass on what is not theirs to the action before. A
//! handler that the program installs later replaces them.
//!
//! Context: they run between any two instructions.

use core::ffi::{c_int, c_void};
use core::ptr::{from_ref, null};
use core::sync::atomic::{AtomicUsize, Ordering};

use super::syscall::sys;

pub(super) type Handler = extern "C-unwind" fn(c_int, &libc::siginfo_t, *mut c_void);

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

/// The handler of a signal, and the action before it.
pub(super) struct Chain {
    signal: c_int,
    /// Handler of the action before, and its flags.
    before: [AtomicUsize; 2],
}

impl Chain {
    /// No handler of a signal.
    pub(super) const fn new(signal: c_int) -> Self {
        Self { signal, before: [AtomicUsize::new(libc::SIG_DFL), AtomicUsize::new(0)] }
    }

    /// Installs a handler, which may run at once. False: the kernel refused.
    pub(super) fn install(&self, handler: Handler) -> bool {
        let installed = self.act(None).and_then(|before| {
            self.remember(&before);
            self.act(Some(&instead_of(&before, handler)))
        });
        installed.as_ref().inspect(|before| self.remember(before)).is_some()
    }

    /// Sets the action of the signal, if there is a new one. Returns the action before; `None` if
    /// the kernel refuses.
    fn act(&self, new: Option<&Action>) -> Option<Action> {
        let mut before = Action::default();
        let new = new.map_or(null(), from_ref);
        // SAFETY: the kernel reads `new` and writes `before`. The handler of a new action is one
        // of this library, or was that of the program.
        let done = unsafe { sys!(libc::SYS_rt_sigaction, self.signal, new, &raw mut before, 8) };
        (done == 0).then_some(before)
    }

    fn remember(&self, before: &Action) {
        self.before[1].store(before.flags, Ordering::Relaxed);
        self.before[0].store(before.handler, Ordering::Release);
    }

    /// Passes a signal that is not the library's on to the action before.
    pub(super) fn pass_on(&self, info: &libc::siginfo_t, context: *mut c_void) {
        let is_fault = address(info).is_some();
        let handler = self.before[0].load(Ordering::Acquire);
        match handler {
            libc::SIG_IGN if !is_fault => {}
            libc::SIG_DFL | libc::SIG_IGN => {
                self.act(Some(&Action { handler, ..Action::default() }));
                // The instruction repeats its fault, which now ends the program.
                if !is_fault {
                    // SAFETY: the kernel reads `info`; the signal goes to the calling thread.
                    unsafe {
                        let (pid, tid) = (sys!(libc::SYS_getpid), sys!(libc::SYS_gettid));
                        sys!(libc::SYS_rt_tgsigqueueinfo, pid, tid, self.signal, from_ref(info));
                    }
                }
            }
            handler => {
                if self.before[1].load(Ordering::Relaxed) & libc::SA_RESETHAND as usize != 0 {
                    self.before[0].store(libc::SIG_DFL, Ordering::Relaxed);
                }
                // SAFETY: the handler that the program installed. The kernel, too, gives three
                // arguments to handlers with and without SA_SIGINFO.
                let handler = unsafe { core::mem::transmute::<usize, Handler>(handler) };
                handler(self.signal, info, context);
            }
        }
    }
}

/// Address of a fault. `None`: a process sent the signal, or the machine has bad memory that no
/// instruction has used.
pub(super) fn address(info: &libc::siginfo_t) -> Option<usize> {
    let is_fault = info.si_code > 0 && info.si_code != libc::BUS_MCEERR_AO;
    // SAFETY: a fault has an address.
    is_fault.then(|| unsafe { info.si_addr() } as usize)
}

/// Action with a handler of this library, and with flags and mask for the handler before, which it
/// calls. It runs on the signal stack, for other stacks may be small.
fn instead_of(before: &Action, handler: Handler) -> Action {
    let kept = match before.handler {
        libc::SIG_DFL | libc::SIG_IGN => libc::SA_RESTART as usize,
        _ => before.flags & !(libc::SA_RESETHAND as usize),
    };
    #[cfg(target_arch = "x86_64")]
    let restorer = sigaction_restorer as *const () as usize + 1;
    #[cfg(not(target_arch = "x86_64"))]
    let restorer = 0;
    let flags = kept | libc::SA_SIGINFO as usize | libc::SA_ONSTACK as usize | SA_RESTORER;
    Action { handler: handler as *const () as usize, flags, restorer, mask: before.mask }
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
