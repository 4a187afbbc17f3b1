//! Functions of the C library that start and name threads. They put threads into the groups of
//! their names ([`thread`]); without that option they only call the C library.

use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::AtomicPtr;

use kmem_core::memcg::GroupId;
use kmem_core::request::Caller;

use crate::process::next;
use crate::{KMEM, thread};

/// The function of a new thread and its argument.
#[repr(C)]
struct Work {
    function: *mut c_void,
    argument: *mut c_void,
}

/// [`Work`], and the group of the thread that creates the new one.
struct Start {
    work: Work,
    group: GroupId,
}

/// The start of a new thread: enters its group, then jumps to its function. No frame of this
/// library is on the thread's stack when the thread exits or is cancelled.
#[unsafe(naked)]
unsafe extern "C" fn begin(work: *mut c_void) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "sub rsp, 8", "call {joined}", "add rsp, 8",
        "mov rdi, rdx", "jmp rax", joined = sym joined);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!", "bl {joined}", "ldp x29, x30, [sp], #16",
        "mov x9, x0", "mov x0, x1", "br x9", joined = sym joined);
}

/// Enters the group of the calling thread's name. Frees `start` and returns its work, in two
/// registers.
///
/// # Safety
/// `start` is from [`packed`], and no other code uses it.
unsafe extern "C" fn joined(start: *mut Start) -> Work {
    // SAFETY: the contract: a live allocation that holds a `Start`.
    let Start { work, group } = unsafe { start.read() };
    thread::adopt(group);
    // SAFETY: the contract: no other code uses it.
    unsafe { KMEM.free(start.cast()) };
    work
}

/// Allocates a [`Start`]. Null if there is no memory.
fn packed(function: *mut c_void, argument: *mut c_void) -> *mut Start {
    let caller = Caller::tagged(kmem_core::static_tag!("thread start"));
    let start = KMEM.alloc(size_of::<Start>(), caller).cast::<Start>();
    if !start.is_null() {
        let work = Work { function, argument };
        // SAFETY: fresh memory of that size.
        unsafe { start.write(Start { work, group: thread::group() }) };
    }
    start
}

/// Starts a thread that enters its group before it calls `function`. `create` starts it with the
/// function and the argument that it gets. Returns the result of `create`, or `none` if there is no
/// memory.
fn joining(
    function: *mut c_void,
    argument: *mut c_void,
    none: c_int,
    create: impl FnOnce(*mut c_void, *mut c_void) -> c_int,
) -> c_int {
    if !thread::is_on() {
        return create(function, argument);
    }
    let work = packed(function, argument);
    if work.is_null() {
        return none;
    }
    let failed = create(begin as *mut c_void, work.cast());
    if failed != 0 {
        // SAFETY: allocated above; no thread was started, so none uses it.
        unsafe { KMEM.free(work.cast()) };
    }
    failed
}

pub(crate) type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// The C library's `pthread_create`, or a function of that type that fails.
pub(crate) fn create() -> PthreadCreate {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    unsafe extern "C" fn missing(
        _: *mut libc::pthread_t,
        _: *const libc::pthread_attr_t,
        _: *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        libc::EAGAIN
    }
    // SAFETY: the C library's `pthread_create` or `missing`, both of that type.
    unsafe {
        let missing: PthreadCreate = missing;
        transmute::<*mut c_void, PthreadCreate>(next(&NEXT, c"pthread_create", missing as _))
    }
}

/// # Safety
/// As for `pthread_create(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    function: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let next = create();
    joining(function, argument, libc::EAGAIN, |function, argument| {
        // SAFETY: the same contract; `joining` gives a function that takes the argument.
        unsafe { next(thread, attr, function, argument) }
    })
}

type ThrdCreate = unsafe extern "C" fn(*mut c_ulong, *mut c_void, *mut c_void) -> c_int;

/// # Safety
/// As for `thrd_create(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn thrd_create(
    thread: *mut c_ulong,
    function: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    const ERROR: c_int = 2;
    const NO_MEMORY: c_int = 3;
    unsafe extern "C" fn missing(_: *mut c_ulong, _: *mut c_void, _: *mut c_void) -> c_int {
        ERROR
    }
    // SAFETY: the C library's `thrd_create` or `missing`, both of that type.
    let next = unsafe {
        let missing: ThrdCreate = missing;
        transmute::<*mut c_void, ThrdCreate>(next(&NEXT, c"thrd_create", missing as _))
    };
    joining(function, argument, NO_MEMORY, |function, argument| {
        // SAFETY: the same contract; `joining` gives a function that takes the argument. Its result
        // is in the register that an `int` is returned in.
        unsafe { next(thread, function, argument) }
    })
}

type Setname = unsafe extern "C" fn(libc::pthread_t, *const c_char) -> c_int;

/// # Safety
/// As for `pthread_setname_np(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_setname_np(to: libc::pthread_t, name: *const c_char) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    unsafe extern "C" fn missing(_: libc::pthread_t, _: *const c_char) -> c_int {
        libc::ENOSYS
    }
    // SAFETY: the C library's `pthread_setname_np` or `missing`, both of that type; for the call
    // the same contract.
    let failed = unsafe {
        let missing: Setname = missing;
        let next = next(&NEXT, c"pthread_setname_np", missing as _);
        transmute::<*mut c_void, Setname>(next)(to, name)
    };
    if failed == 0 {
        // SAFETY: by the contract a C string and a thread that has not ended.
        unsafe {
            let name = thread::name_at(name);
            if to == libc::pthread_self() {
                thread::renamed(name);
            } else {
                thread::other_renamed(to, name);
            }
        }
    }
    failed
}
