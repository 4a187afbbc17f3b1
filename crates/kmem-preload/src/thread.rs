//! A group per thread, by its name, for programs that know nothing of groups
//! (`KMEM_CONF=group-by:thread-name`).
//!
//! ```text
//! pthread_create, thrd_create --> begin, on the new thread: the name it starts with ---.
//! prctl(PR_SET_NAME), pthread_setname_np --> wanted (a word of the named thread) ------+--> its group
//!                                                                                      |
//! malloc and its relatives, on a thread that others named: look at `wanted` -----------'
//! ```
//!
//! A thread is in its group as in a scope that began before all others, so it has the group pinned;
//! that ends in the last round of its thread-specific destructors. Within scopes of its own it stays
//! where it is, and goes over to another name's group when they end. Groups are found again by name, and
//! none is deleted; when there are as many as there can be, threads of new names work for the root.
//!
//! What is exported here does nothing but the C library's work where the option is not given.

use core::ffi::{c_char, c_int, c_ulong, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use kmem_core::codetag::{Caller, scope};
use kmem_core::conf::GroupBy;
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::Platform;
use kmem_core::os::linux::syscall::syscall;
use kmem_core::units::ObjcgId;

use crate::process::next;
use crate::{KMEM, errno};

/// Whether the option is given, and can be had.
static ON: AtomicBool = AtomicBool::new(false);
/// Its destructor leaves the thread's group.
static KEY: AtomicU32 = AtomicU32::new(0);
/// The process whose memory this is, in a page that a forked child finds zeroed; see [`is_mine`].
static OWNER: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// Most bytes of a thread's name, and a zero byte.
const NAME: usize = 16;
/// Rounds of thread-specific destructors, see `PTHREAD_DESTRUCTOR_ITERATIONS`.
const ROUNDS: usize = 4;

/// What there is of each thread, zero at first.
#[repr(C)]
struct Thread {
    /// The group of the name it was given last, if it did not go over to it yet.
    wanted: AtomicU64,
    /// The group it works in outside of scopes of its own.
    named: AtomicU32,
}

const _: () = assert!(size_of::<Thread>() == 16);

core::arch::global_asm!(
    ".pushsection .tbss.kmem_thread, \"awT\", %nobits",
    ".balign 8",
    ".hidden kmem_thread",
    ".globl kmem_thread",
    ".type kmem_thread, %object",
    ".size kmem_thread, 16",
    "kmem_thread: .zero 16",
    ".popsection",
);

/// This thread's.
#[inline(always)]
fn this() -> &'static Thread {
    let at: *const Thread;
    // SAFETY: computes an address.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {0}, fs:[0]", "add {0}, [rip + kmem_thread@GOTTPOFF]", out(reg) at,
            options(nostack, readonly));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mrs {0}, tpidr_el0", "adrp {1}, :gottprel:kmem_thread",
            "ldr {1}, [{1}, :gottprel_lo12:kmem_thread]", "add {0}, {0}, {1}",
            out(reg) at, out(reg) _, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: there while the thread is, and only atomics.
    unsafe { &*at }
}

/// Another thread's. glibc's `pthread_t` is an address in the block that static thread-local storage is
/// a part of, so what lies between them is the same in all threads.
///
/// # Safety
/// The thread has not ended.
unsafe fn of<'a>(thread: libc::pthread_t) -> &'a Thread {
    // SAFETY: always there.
    let own = unsafe { libc::pthread_self() } as usize;
    let distance = (this() as *const Thread as usize).wrapping_sub(own);
    // SAFETY: the caller's promise.
    unsafe { &*((thread as usize).wrapping_add(distance) as *const Thread) }
}

/// Begins, if the option is given: the main thread is the first.
pub(crate) fn start() {
    if KMEM.group_by() != GroupBy::ThreadName {
        return;
    }
    let platform = KMEM.platform();
    let mut key = 0;
    // SAFETY: `leave` is of the type wanted.
    let failed = unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } != 0;
    if KMEM.group(GroupId::ROOT).is_err() || failed {
        platform.print(b"kmem: KMEM_CONF: no group-by without books (mem_profiling:never)\n");
        return;
    }
    KEY.store(key, Ordering::Relaxed);
    const PAGE: usize = 4096;
    if let Some(page) = platform.reserve(PAGE, PAGE) {
        // SAFETY: our own fresh reservation.
        if unsafe { platform.commit(page, PAGE) && platform.wipe_on_fork(page, PAGE) } {
            OWNER.store(page.as_ptr().cast(), Ordering::Relaxed);
        }
    }
    ON.store(true, Ordering::Relaxed);
    is_mine();
    adopt();
}

/// Whether this process is not a child of `vfork`, which has the memory of its parent, the thread's own
/// included: what it is called must not move its parent.
pub(crate) fn is_mine() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner.is_null() {
        return true;
    }
    let me = u64::from(KMEM.platform().process());
    // SAFETY: never given back. The first to look in a process or a forked child puts its number there.
    let found = unsafe { &*owner }.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
    found.is_ok_and(|_| true) || found == Err(me)
}

/// Puts a thread that has no group yet into that of its name.
fn adopt() {
    let this = this();
    let id = named(&name());
    let entered = KMEM.group_enter(id).map(|_| id).unwrap_or(GroupId::ROOT);
    this.named.store(entered.objcg().0, Ordering::Relaxed);
    // SAFETY: a key of ours.
    unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), 1 as *const c_void) };
}

/// The thread-specific destructor: what other destructors allocate is the group's, but in the last round.
unsafe extern "C" fn leave(round: *mut c_void) {
    let round = round as usize;
    if round < ROUNDS {
        let next = (round + 1) as *const c_void;
        // SAFETY: a key of ours.
        unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), next) };
        return;
    }
    let named = ObjcgId(this().named.load(Ordering::Relaxed));
    // A scope that the thread did not leave.
    if scope::group() != named {
        KMEM.group_leave(named);
    }
    KMEM.group_leave(ObjcgId::ROOT);
    this().named.store(ObjcgId::ROOT.0, Ordering::Relaxed);
}

/// The key of a call that returns to `ret`; the thread goes over to the group of its name first if others gave it one.
#[inline(always)]
pub(crate) fn key(ret: usize) -> usize {
    mind_name();
    scope::caller(ret)
}

/// Goes over to the group of the thread's name, if it was given another one.
#[inline(always)]
pub(crate) fn mind_name() {
    if this().wanted.load(Ordering::Relaxed) != 0 {
        go_over();
    }
}

#[cold]
#[inline(never)]
fn go_over() {
    let this = this();
    if scope::group().0 != this.named.load(Ordering::Relaxed) {
        return;
    }
    let wanted = GroupId(this.wanted.swap(0, Ordering::Acquire));
    KMEM.group_leave(ObjcgId::ROOT);
    // It may have been deleted. The root is always there.
    let entered = if KMEM.group_enter(wanted).is_ok() { wanted } else { GroupId::ROOT };
    if entered == GroupId::ROOT && wanted != GroupId::ROOT {
        let _ = KMEM.group_enter(GroupId::ROOT);
    }
    this.named.store(entered.objcg().0, Ordering::Relaxed);
}

/// The calling thread was named.
fn renamed() {
    if ON.load(Ordering::Relaxed) && is_mine() {
        this().wanted.store(named(&name()).0, Ordering::Release);
        mind_name();
    }
}

/// The name of the calling thread.
fn name() -> [u8; NAME] {
    let mut name = [0; NAME];
    let args = [libc::PR_GET_NAME as usize, name.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: writes so many bytes.
    unsafe { syscall(libc::SYS_prctl, args) };
    name
}

/// The group of a name, up to its zero byte, made if there is none; the root if that cannot be.
fn named(name: &[u8]) -> GroupId {
    let mut room = [0; NAME];
    let name = valid(name, &mut room);
    loop {
        if let Ok(id) = KMEM.group_find(GroupId::ROOT, name) {
            return id;
        }
        match KMEM.group_create(GroupId::ROOT, name) {
            Ok(id) => return id,
            // Another thread was faster.
            Err(GroupError::Exists) => {}
            Err(_) => return GroupId::ROOT,
        }
    }
}

/// A thread's name as a group's: `_` for what a group's cannot have, and for control characters.
fn valid<'a>(name: &[u8], room: &'a mut [u8; NAME]) -> &'a [u8] {
    let name = name.split(|&b| b == 0).next().unwrap_or_default();
    let mut len = 0;
    for chunk in name[..name.len().min(NAME)].utf8_chunks() {
        let good =
            chunk.valid().bytes().map(|b| if b == b'/' || b.is_ascii_control() { b'_' } else { b });
        for b in good.chain(chunk.invalid().iter().map(|_| b'_')) {
            room[len] = b;
            len += 1;
        }
    }
    if matches!(&room[..len], b"" | b"." | b"..") {
        len = len.max(1);
        room[..len].fill(b'_');
    }
    &room[..len]
}

/// What a thread is to do.
#[repr(C)]
struct Work {
    function: *mut c_void,
    argument: *mut c_void,
}

/// The start of a thread: joins its group, and then goes on to its function as if it had begun there.
#[unsafe(naked)]
unsafe extern "C" fn begin(work: *mut c_void) -> *mut c_void {
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "sub rsp, 8", "call {joined}", "add rsp, 8", "mov rdi, rdx", "jmp rax", joined = sym joined);
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "stp x29, x30, [sp, #-16]!", "bl {joined}", "ldp x29, x30, [sp], #16",
        "mov x9, x0", "mov x0, x1", "br x9", joined = sym joined);
}

/// # Safety
/// `work` is from [`packed`], and given up.
unsafe extern "C" fn joined(work: *mut Work) -> Work {
    adopt();
    // SAFETY: the caller's promise.
    unsafe {
        let copy = work.read();
        KMEM.free(work.cast());
        copy
    }
}

/// A thread's function and argument in one; null if there is no memory.
fn packed(function: *mut c_void, argument: *mut c_void) -> *mut Work {
    let caller = Caller::tagged(kmem_core::static_tag!("thread start"));
    let work = KMEM.alloc(size_of::<Work>(), caller).cast::<Work>();
    if !work.is_null() {
        // SAFETY: fresh memory of that size.
        unsafe { work.write(Work { function, argument }) };
    }
    work
}

/// Starts a thread by `create`, which is told what its function and argument are to be, so that it joins its group.
/// `none` is the answer if there is no memory.
fn joining(
    function: *mut c_void,
    argument: *mut c_void,
    none: c_int,
    create: impl FnOnce(*mut c_void, *mut c_void) -> c_int,
) -> c_int {
    if !ON.load(Ordering::Relaxed) {
        return create(function, argument);
    }
    let work = packed(function, argument);
    if work.is_null() {
        return none;
    }
    let failed = create(begin as *mut c_void, work.cast());
    if failed != 0 {
        // SAFETY: there is no thread that has it.
        unsafe { KMEM.free(work.cast()) };
    }
    failed
}

type PthreadCreate = unsafe extern "C" fn(
    *mut libc::pthread_t,
    *const libc::pthread_attr_t,
    *mut c_void,
    *mut c_void,
) -> c_int;

/// # Safety
/// As for `pthread_create(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attr: *const libc::pthread_attr_t,
    function: *mut c_void,
    argument: *mut c_void,
) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    unsafe extern "C" fn missing(
        _: *mut libc::pthread_t,
        _: *const libc::pthread_attr_t,
        _: *mut c_void,
        _: *mut c_void,
    ) -> c_int {
        libc::EAGAIN
    }
    // SAFETY: the C library's function of that type, or ours.
    let next = unsafe {
        let missing: PthreadCreate = missing;
        transmute::<*mut c_void, PthreadCreate>(next(&NEXT, c"pthread_create", missing as _))
    };
    joining(function, argument, libc::EAGAIN, |function, argument| {
        // SAFETY: the caller's promise; a function and its argument.
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
    // SAFETY: the C library's function of that type, or ours.
    let next = unsafe {
        let missing: ThrdCreate = missing;
        transmute::<*mut c_void, ThrdCreate>(next(&NEXT, c"thrd_create", missing as _))
    };
    joining(function, argument, NO_MEMORY, |function, argument| {
        // SAFETY: the caller's promise; a function (whose result is in the same register) and its argument.
        unsafe { next(thread, function, argument) }
    })
}

type Setname = unsafe extern "C" fn(libc::pthread_t, *const c_char) -> c_int;

/// # Safety
/// As for `pthread_setname_np(3)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_setname_np(thread: libc::pthread_t, name: *const c_char) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
    unsafe extern "C" fn missing(_: libc::pthread_t, _: *const c_char) -> c_int {
        libc::ENOSYS
    }
    // SAFETY: the C library's function of that type, or ours; the caller's promise.
    let failed = unsafe {
        let missing: Setname = missing;
        let next = next(&NEXT, c"pthread_setname_np", missing as _);
        transmute::<*mut c_void, Setname>(next)(thread, name)
    };
    if failed != 0 || !ON.load(Ordering::Relaxed) {
        return failed;
    }
    // SAFETY: always there.
    if thread == unsafe { libc::pthread_self() } {
        renamed();
    } else if is_mine() {
        // SAFETY: a C string that is short enough, or the C library had refused it; a thread that is there, as
        // the caller promised.
        unsafe {
            let name = core::slice::from_raw_parts(name.cast(), libc::strnlen(name, NAME));
            of(thread).wanted.store(named(name).0, Ordering::Release);
        }
    }
    0
}

/// # Safety
/// As for `prctl(2)`.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    let args = [option as usize, a as usize, b as usize, c as usize, d as usize, 0];
    // SAFETY: the caller's promise.
    let result = unsafe { syscall(libc::SYS_prctl, args) };
    if result < 0 {
        errno::set(-result as c_int);
        return -1;
    }
    if option == libc::PR_SET_NAME {
        renamed();
    }
    result as c_int
}
