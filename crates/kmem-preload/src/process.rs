//! Start and end of the process, `vfork`, `dlopen` and `dlclose`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use kmem_core::codetag::Caller;
use kmem_core::os::linux::call;

use crate::KMEM;

/// Runs when the library is loaded, so that the configuration is read and readers find the
/// root block even in a program that never allocates.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

/// Runs at exit, after the program's own exit handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn init() {
    // SAFETY: an allocation of ours, freed at once.
    unsafe { KMEM.free(KMEM.alloc(1, Caller::at(init as *const () as usize))) };
    crate::thread::start();
}

extern "C" fn fini() {
    last_call();
}

/// Writes the last record of the black box, and lets whoever started the program read the books
/// before they are gone: once.
fn last_call() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    KMEM.write_record(kmem_core::blackbox::reason::EXIT);
    if let Some(name) = KMEM.report_socket().get() {
        call::report(name);
    }
}

/// Exports `$name`, which ends the process without exit handlers: the last call comes first.
macro_rules! exits {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(status: c_int) -> ! {
            last_call();
            call::exit(status)
        }
    )*};
}

exits! { _exit _Exit }

/// `vfork`, with the arrays of all CPUs out of use until the child has gone on to another
/// program or ended; where that cannot be done, `fork`.
///
/// # Safety
/// As for vfork(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> libc::pid_t {
    // The child returns first and overwrites the stack, so the return address goes through the
    // system call in a register.
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "test al, al",
        "jz 4f",
        "pop rdi",
        "mov eax, {vfork}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jnz 2f",
        "ret",
        "2: push rax",
        "call {after}",
        "pop rax",
        "test rax, rax",
        "js 3f",
        "ret",
        "3: sub rsp, 8",
        "mov edi, eax",
        "call {failed}",
        "add rsp, 8",
        "ret",
        "4: sub rsp, 8",
        "call {fork}",
        "add rsp, 8",
        "ret",
        before = sym before_vfork,
        after = sym after_vfork,
        failed = sym failed,
        fork = sym libc::fork,
        vfork = const libc::SYS_vfork,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("b {fork}", fork = sym libc::fork);
}

#[cfg(target_arch = "x86_64")]
extern "C" fn before_vfork() -> bool {
    // The child must find that it is not the first to look.
    crate::thread::is_mine();
    KMEM.before_vfork()
}

#[cfg(target_arch = "x86_64")]
extern "C" fn after_vfork() {
    KMEM.after_vfork();
}

/// The end of a failed system call.
#[cfg(target_arch = "x86_64")]
extern "C" fn failed(ret: c_int) -> c_int {
    crate::errno::set(-ret);
    -1
}

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// `dlopen` without `RTLD_DEEPBIND`: a library bound to itself and its dependencies first would
/// get the C library's malloc and exchange pointers with ours.
///
/// # Safety
/// As for dlopen(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    // The C library looks at the caller's address (for RUNPATH and $ORIGIN), so this must not
    // be a call but a jump: resolve the real function, then go there with the same stack.
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rdi", "push rsi", "sub rsp, 8",
        "call {next}",
        "add rsp, 8", "pop rsi", "pop rdi",
        "and esi, {keep}",
        "jmp rax",
        next = sym next_dlopen,
        keep = const !libc::RTLD_DEEPBIND,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-32]!", "stp x0, x1, [sp, #16]",
        "bl {next}",
        "mov x9, x0", "ldp x0, x1, [sp, #16]", "ldp x29, x30, [sp], #32",
        "and w1, w1, {keep}",
        "br x9",
        next = sym next_dlopen,
        keep = const !libc::RTLD_DEEPBIND,
    );
}

/// The C library's `dlopen`.
extern "C" fn next_dlopen() -> Dlopen {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // SAFETY: the C library's function of that type, or ours.
    unsafe { core::mem::transmute::<*mut c_void, Dlopen>(next(&NEXT, c"dlopen", no_dlopen as _)) }
}

/// The next definition of a function behind this library's, looked up once; `instead` if there
/// is none.
pub(crate) fn next(known: &AtomicPtr<c_void>, name: &CStr, instead: *mut c_void) -> *mut c_void {
    let mut next = known.load(Ordering::Relaxed);
    if next.is_null() {
        // SAFETY: a NUL-terminated name.
        next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        if next.is_null() {
            next = instead;
        }
        known.store(next, Ordering::Relaxed);
    }
    next
}

unsafe extern "C" fn no_dlopen(_path: *const c_char, _flags: c_int) -> *mut c_void {
    core::ptr::null_mut()
}

/// Calls of `dlclose` under way.
static UNLOADING: AtomicU32 = AtomicU32::new(0);

/// Whether an object's destructors may run because it is unloaded. At exit they all run, and
/// nothing is wrong with what is live then.
pub(crate) fn is_unloading() -> bool {
    UNLOADING.load(Ordering::Relaxed) > 0
}

type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `dlclose`, which is what tells an object that is unloaded from the end of the program.
///
/// # Safety
/// As for dlclose(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(object: *mut c_void) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // SAFETY: the C library's function of that type, or ours.
    let next = unsafe {
        core::mem::transmute::<*mut c_void, Dlclose>(next(&NEXT, c"dlclose", no_dlclose as _))
    };
    UNLOADING.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    let result = unsafe { next(object) };
    UNLOADING.fetch_sub(1, Ordering::Relaxed);
    result
}

unsafe extern "C" fn no_dlclose(_object: *mut c_void) -> c_int {
    -1
}
