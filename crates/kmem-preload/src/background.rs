//! The background thread (`KMEM_CONF=background_thread:1`): gives free memory back while the
//! program makes no calls. It is started with the program, and in each forked child. No call of the
//! allocator starts it, because the C library starts threads under locks that the caller of `free`
//! may hold.
//!
//! No signal of the program is delivered to the thread. It allocates nothing. When the main thread
//! exits, it ends, so that the process ends with the program's last thread.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;

use kmem_core::os::linux::syscall::syscall;
use kmem_core::os::{Console, Process};
use kmem_core::task::{self, Scope};
use kmem_core::units::ObjcgId;

use crate::process::next;
use crate::{KMEM, pthread};

/// Bytes of the thread's stack, of which it touches a few pages. The C library takes its
/// thread-local storage from them.
const STACK: usize = 512 << 10;

/// Reads the option.
pub(crate) fn start() {
    if KMEM.wants_background_thread() {
        start_thread();
        // SAFETY: the function is never unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(start_thread)) };
    }
}

/// Starts the thread. Its memory is billed to no caller and no group of the program.
extern "C" fn start_thread() {
    let platform = KMEM.platform();
    // In a forked child, this repairs the instance first.
    KMEM.await_tender();
    if platform.is_in_sandbox() || !platform.begin_tender() {
        return;
    }
    let group = task::replace_group(ObjcgId::ROOT);
    let scope = Scope::enter(kmem_core::static_tag!("background thread"));
    let started = create();
    drop(scope);
    task::replace_group(group);
    if !started {
        platform.end_tender();
        platform.print(b"kmem: no background thread: the system refuses to start it\n");
    }
}

fn create() -> bool {
    let mut attr = MaybeUninit::<libc::pthread_attr_t>::uninit();
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::<libc::sigset_t>::uninit());
    let mut thread = MaybeUninit::uninit();
    // SAFETY: each object is initialised by a call before it is read. `run` has the type of a
    // thread's function, which the C library calls with the argument.
    unsafe {
        if libc::pthread_attr_init(attr.as_mut_ptr()) != 0 {
            return false;
        }
        libc::pthread_attr_setstacksize(attr.as_mut_ptr(), STACK);
        libc::pthread_attr_setdetachstate(attr.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::sigfillset(all.as_mut_ptr());
        // A new thread has the mask of the one that creates it.
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
        let run: extern "C" fn(*mut c_void) -> *mut c_void = run;
        let create = pthread::create();
        let failed: c_int =
            create(thread.as_mut_ptr(), attr.as_ptr(), run as *mut c_void, null_mut());
        libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), null_mut());
        libc::pthread_attr_destroy(attr.as_mut_ptr());
        failed == 0
    }
}

/// The thread.
extern "C" fn run(_: *mut c_void) -> *mut c_void {
    let name = [libc::PR_SET_NAME as usize, c"kmem".as_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads the name.
    unsafe { syscall(libc::SYS_prctl, name) };
    let platform = KMEM.platform();
    while platform.has_tender() {
        match KMEM.tend() {
            Some(time) => platform.pause_tender(time),
            None => platform.rest_tender(),
        }
    }
    null_mut()
}

/// Exports `$name`, which ends the calling thread: first the background thread, if it is the main
/// one. Then it jumps to the C library's function. No frame of this library is on the stack when
/// that unwinds it.
macro_rules! ends_thread {
    ($($name:ident $next:ident $text:literal;)*) => {$(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        unsafe extern "C" fn $name(_result: *mut c_void) -> ! {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "push rdi",
                "call {next}",
                "pop rdi",
                "jmp rax",
                next = sym $next,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "stp x29, x30, [sp, #-32]!", "str x0, [sp, #16]",
                "bl {next}",
                "mov x9, x0", "ldr x0, [sp, #16]", "ldp x29, x30, [sp], #32",
                "br x9",
                next = sym $next,
            );
        }

        /// The C library's function.
        extern "C" fn $next() -> *mut c_void {
            static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
            end_with_main_thread();
            next(&NEXT, $text, missing as *mut c_void)
        }
    )*};
}

ends_thread! {
    pthread_exit next_pthread_exit c"pthread_exit";
    thrd_exit next_thrd_exit c"thrd_exit";
}

/// A C library without the function has no threads.
extern "C" fn missing() -> ! {
    KMEM.platform().fatal()
}

fn end_with_main_thread() {
    let platform = KMEM.platform();
    if !platform.has_tender() {
        return;
    }
    // SAFETY: the call takes no arguments.
    let thread = unsafe { syscall(libc::SYS_gettid, [0; 6]) };
    if thread == platform.process() as isize {
        platform.end_tender();
    }
}
