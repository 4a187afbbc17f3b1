//! Start and end of the process, `vfork`, `dlopen` and `dlclose`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use kmem_core::os::Process;
use kmem_core::os::linux::call;
use kmem_core::os::linux::start::read_file;
use kmem_core::request::Caller;

use crate::KMEM;

/// Runs when the library is loaded. Even in a program that never allocates, the configuration is
/// read and readers find the root block.
#[used]
#[unsafe(link_section = ".init_array")]
static INIT: extern "C" fn() = init;

/// Runs at exit, after the program's own exit handlers.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINI: extern "C" fn() = fini;

extern "C" fn init() {
    // SAFETY: a fresh allocation that no other code uses.
    unsafe { KMEM.free(KMEM.alloc(1, Caller::at(init as *const () as usize))) };
    crate::mapping::start();
    crate::thread::start();
    crate::background::start();
    crate::sanitizer::tell();
}

extern "C" fn fini() {
    if !is_vfork_child() {
        // SAFETY: `exit` must not be called inside `malloc`, as from a signal handler.
        unsafe { KMEM.check_at_exit(is_only_thread) };
    }
    last_call();
}

/// Returns whether the process is known to have one thread.
fn is_only_thread() -> bool {
    let mut text = [0; 512];
    if KMEM.platform().is_in_sandbox() {
        return false;
    }
    let len = read_file(c"/proc/self/stat", &mut text);
    // proc_pid_stat(5): the name of the program, in parentheses, is the second field. The number of
    // threads is the 20th.
    let fields = text[..len].rsplit(|&byte| byte == b')').next().unwrap_or(&[]);
    fields.split(|&byte| byte == b' ').nth(18) == Some(b"1")
}

/// Writes the last record of the black box, and lets `kmem run` read the books before the process
/// ends. Later calls do nothing, and so do those of a child of `vfork`: the books are its parent's.
fn last_call() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if is_vfork_child() || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    KMEM.write_record(kmem_layout::blackbox::reason::EXIT);
    if let Some(name) = KMEM.report_socket().get()
        && !KMEM.platform().is_in_sandbox()
    {
        call::report(name);
    }
}

/// Exports `$name`, which ends the process without exit handlers, after [`last_call`].
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

/// `vfork(2)`, with the arrays of all CPUs out of use until the child runs another program or ends.
/// If they cannot be put out of use, and on aarch64, it is `fork(2)`.
///
/// # Safety
/// As for vfork(2).
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn vfork() -> libc::pid_t {
    // The child returns first and overwrites the stack, so a register holds the return address
    // during the system call.
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
        "mov rdi, rax",
        "call {failed}",
        "add rsp, 8",
        "ret",
        "4: sub rsp, 8",
        "call {fork}",
        "add rsp, 8",
        "ret",
        before = sym before_vfork,
        after = sym after_vfork,
        failed = sym crate::errno::failed,
        fork = sym libc::fork,
        vfork = const libc::SYS_vfork,
    );
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!("b {fork}", fork = sym libc::fork);
}

/// Number of calls of `vfork` whose child shares this memory.
static VFORKS: AtomicU32 = AtomicU32::new(0);
/// Number of the process that made them.
static VFORK_PARENT: AtomicU32 = AtomicU32::new(0);

/// Returns whether the calling process is a child of `vfork`, which shares its parent's memory. So
/// is a process that another thread forked meanwhile.
fn is_vfork_child() -> bool {
    VFORKS.load(Ordering::Relaxed) > 0
        && VFORK_PARENT.load(Ordering::Relaxed) != KMEM.platform().process()
}

#[cfg(target_arch = "x86_64")]
extern "C" fn before_vfork() -> bool {
    // Writes the parent's process number before the child can write its own.
    crate::thread::is_mine();
    let done = KMEM.before_vfork();
    if done {
        VFORK_PARENT.store(KMEM.platform().process(), Ordering::Relaxed);
        VFORKS.fetch_add(1, Ordering::Relaxed);
    }
    done
}

#[cfg(target_arch = "x86_64")]
extern "C" fn after_vfork() {
    VFORKS.fetch_sub(1, Ordering::Relaxed);
    KMEM.after_vfork();
}

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// `dlopen(3)` without `RTLD_DEEPBIND`. With that flag a library would be bound to the C library's
/// malloc, and would exchange pointers with code bound to this one.
///
/// # Safety
/// As for dlopen(3).
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void {
    // The C library uses the return address to find RUNPATH and $ORIGIN. So the stack must be the
    // caller's: find the C library's function, then jump to it.
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
    // SAFETY: the C library's `dlopen` or `no_dlopen`, both of that type.
    unsafe { core::mem::transmute::<*mut c_void, Dlopen>(next(&NEXT, c"dlopen", no_dlopen as _)) }
}

/// Finds the definition of a function behind this library in the search order, else `instead`.
/// `known` keeps the result.
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

/// Number of calls of `dlclose` under way.
static UNLOADING: AtomicU32 = AtomicU32::new(0);

/// Returns whether an object's destructors may run because `dlclose` unloads it. At exit the
/// destructors of all objects run, and live allocations are no mistake.
pub(crate) fn is_unloading() -> bool {
    UNLOADING.load(Ordering::Relaxed) > 0
}

type Dlclose = unsafe extern "C" fn(*mut c_void) -> c_int;

/// `dlclose(3)`, counted while it runs: see [`is_unloading`].
///
/// # Safety
/// As for dlclose(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn dlclose(object: *mut c_void) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    // SAFETY: the C library's `dlclose` or `no_dlclose`, both of that type.
    let next = unsafe {
        core::mem::transmute::<*mut c_void, Dlclose>(next(&NEXT, c"dlclose", no_dlclose as _))
    };
    UNLOADING.fetch_add(1, Ordering::Relaxed);
    KMEM.begin_unload();
    // SAFETY: the same contract.
    let result = unsafe { next(object) };
    KMEM.end_unload();
    UNLOADING.fetch_sub(1, Ordering::Relaxed);
    result
}

unsafe extern "C" fn no_dlclose(_object: *mut c_void) -> c_int {
    -1
}
