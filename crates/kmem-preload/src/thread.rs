//! A group per thread, by the thread's name (`KMEM_CONF=group-by:thread-name`), for programs that
//! do not use groups themselves.
//!
//! ```text
//! pthread_create, thrd_create --> begin, on the new thread: its creator's name ---.
//! prctl(PR_SET_NAME), pthread_setname_np --> `wanted` of the named thread --------+--> its group
//!                                                                                 |
//! malloc functions, on a thread that another thread named: read `wanted` ---------'
//! ```
//!
//! A new thread has the name of the thread that creates it, and the names that are set are
//! arguments. So names take no system call, which a sandbox could forbid. Only that of the main
//! thread is read, at the start.
//!
//! The group of its name is the thread's outermost scope, which pins the group. The scope ends in
//! the last round of the thread's destructors. A thread that is renamed inside scopes of its own
//! changes groups when they end.
//!
//! Groups are looked up by name and never deleted. When no more groups can be made, threads with
//! new names are in the root group.
//!
//! [`crate::pthread`] intercepts the functions that start and name threads.

use core::ffi::{c_char, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use kmem_core::conf::GroupBy;
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::linux::start::read_file;
use kmem_core::os::{Console, Memory, Process};
use kmem_core::task;
use kmem_core::units::ObjcgId;

use crate::KMEM;

/// True if the option is given and supported.
static ON: AtomicBool = AtomicBool::new(false);
/// The thread-specific key whose destructor, [`leave`], leaves the thread's group.
static KEY: AtomicU32 = AtomicU32::new(0);
/// The number of the process that owns this memory, in a page that `fork` zeroes in the child. Null
/// without such a page: see [`is_mine`].
static OWNER: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// Bytes of the longest name of a thread, with its zero byte.
pub(crate) const NAME: usize = 16;
/// Rounds of thread-specific destructors: `PTHREAD_DESTRUCTOR_ITERATIONS`.
const ROUNDS: usize = 4;

/// State of a thread, initially zero.
#[repr(C)]
struct Thread {
    /// The group of its latest name, until the thread enters it; then 0.
    wanted: AtomicU64,
    /// The group it is in outside of its own scopes; 0 for the root.
    named: AtomicU64,
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

/// The state of the calling thread.
#[inline(always)]
fn this() -> &'static Thread {
    let at: *const Thread;
    // SAFETY: computes an address from the thread pointer.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        core::arch::asm!("mov {0}, fs:[0]", "add {0}, [rip + kmem_thread@GOTTPOFF]", out(reg) at,
            options(nostack, readonly));
        #[cfg(target_arch = "aarch64")]
        core::arch::asm!("mrs {0}, tpidr_el0", "adrp {1}, :gottprel:kmem_thread",
            "ldr {1}, [{1}, :gottprel_lo12:kmem_thread]", "add {0}, {0}, {1}",
            out(reg) at, out(reg) _, options(nostack, readonly, preserves_flags));
    }
    // SAFETY: the address of static thread-local storage, which lives as long as the thread; all
    // fields are atomics.
    unsafe { &*at }
}

/// The state of another thread. glibc's `pthread_t` is an address in the block of static
/// thread-local storage. So the distance between the two is the same in all threads.
///
/// # Safety
/// The thread has not ended.
unsafe fn of<'a>(thread: libc::pthread_t) -> &'a Thread {
    // SAFETY: has no precondition.
    let own = unsafe { libc::pthread_self() } as usize;
    let distance = (this() as *const Thread as usize).wrapping_sub(own);
    // SAFETY: by the contract the thread's block exists; all fields are atomics.
    unsafe { &*((thread as usize).wrapping_add(distance) as *const Thread) }
}

/// Sets groups by thread name up, if the option is given, and puts the main thread into its group.
pub(crate) fn start() {
    if KMEM.group_by() != GroupBy::ThreadName {
        return;
    }
    let platform = KMEM.platform();
    let mut key = 0;
    // SAFETY: `key` is valid for writing, and `leave` is never unloaded.
    let failed = unsafe { libc::pthread_key_create(&raw mut key, Some(leave)) } != 0;
    if KMEM.group(GroupId::ROOT).is_err() || failed {
        platform.print(b"kmem: configuration: no group-by without books (needs groups:always)\n");
        return;
    }
    KEY.store(key, Ordering::Relaxed);
    const PAGE: usize = 4096;
    if let Some(page) = platform.reserve(PAGE, PAGE) {
        // SAFETY: a fresh reservation that no other code uses.
        if unsafe { platform.commit(page, PAGE) && platform.wipe_on_fork(page, PAGE) } {
            OWNER.store(page.as_ptr().cast(), Ordering::Relaxed);
        }
    }
    ON.store(true, Ordering::Relaxed);
    is_mine();
    let mut name = [0; NAME];
    let len = read_file(c"/proc/self/comm", &mut name);
    adopt(named(name[..len].strip_suffix(b"\n").unwrap_or(&name[..len])));
}

/// Returns whether the calling process owns this memory. False in a child of `vfork`, which shares
/// the thread-local storage of its parent. A name given in the child must not change the parent's
/// group.
pub(crate) fn is_mine() -> bool {
    let owner = OWNER.load(Ordering::Relaxed);
    // In a sandbox kmem does not ask for the process, and makes no child of `vfork`.
    if owner.is_null() || KMEM.platform().is_in_sandbox() {
        return true;
    }
    let me = u64::from(KMEM.platform().process());
    // The first call in a process or a forked child stores the process number.
    // SAFETY: a page that is never unmapped.
    let found = unsafe { &*owner }.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
    found.is_ok() || found == Err(me)
}

/// The group of the calling thread's name, which the threads that it creates inherit.
pub(crate) fn group() -> GroupId {
    let this = this();
    match (this.wanted.load(Ordering::Acquire), this.named.load(Ordering::Relaxed)) {
        (0, 0) => GroupId::ROOT,
        (0, named) => GroupId(named),
        (wanted, _) => GroupId(wanted),
    }
}

/// Puts the calling thread, which has no group yet, into the group of its name.
pub(crate) fn adopt(id: GroupId) {
    let this = this();
    let entered = KMEM.group_enter(id).map(|_| id).unwrap_or(GroupId::ROOT);
    this.named.store(entered.0, Ordering::Relaxed);
    // SAFETY: `KEY` holds a key that is never deleted.
    unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), round(1)) };
}

/// The value of [`KEY`]: the number of the next round of destructors.
fn round(number: usize) -> *const c_void {
    core::ptr::without_provenance(number)
}

/// The thread-specific destructor. It leaves the group in the last round only, so the group pays
/// for allocations by other destructors in the rounds before.
unsafe extern "C" fn leave(last: *mut c_void) {
    let now = last as usize;
    if now < ROUNDS {
        // SAFETY: `KEY` holds a key that is never deleted.
        unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), round(now + 1)) };
        return;
    }
    let named = GroupId(this().named.load(Ordering::Relaxed)).objcg();
    // The thread ended inside a scope.
    if task::group() != named {
        KMEM.group_leave(named);
    }
    KMEM.group_leave(ObjcgId::ROOT);
    this().named.store(0, Ordering::Relaxed);
}

/// The key of a call that returns to `ret`. If another thread renamed this one, it enters the group
/// of the new name first.
#[inline(always)]
pub(crate) fn key(ret: usize) -> usize {
    mind_name();
    key_here(ret)
}

/// [`key`] in the group that the thread is in, whatever its name.
#[inline(always)]
pub(crate) fn key_here(ret: usize) -> usize {
    task::caller_in_frame(ret, |ret| KMEM.key_in_frame(ret))
}

/// [`key`] of a thread that runs no interpreter.
#[inline(always)]
pub(crate) fn key_of_code(ret: usize) -> usize {
    mind_name();
    task::caller(ret)
}

/// Enters the group of the thread's name, if the thread was renamed.
#[inline(always)]
pub(crate) fn mind_name() {
    if is_renamed() {
        go_over();
    }
}

/// Returns whether the thread has a new name, whose group it has not entered.
#[inline(always)]
pub(crate) fn is_renamed() -> bool {
    this().wanted.load(Ordering::Relaxed) != 0
}

/// Enters the group of the thread's new name, unless the thread is inside a scope of its own.
#[cold]
#[inline(never)]
fn go_over() {
    let this = this();
    if task::group() != GroupId(this.named.load(Ordering::Relaxed)).objcg() {
        return;
    }
    let wanted = GroupId(this.wanted.swap(0, Ordering::Acquire));
    KMEM.group_leave(ObjcgId::ROOT);
    // The program may have deleted the group; the root always exists.
    let entered = if KMEM.group_enter(wanted).is_ok() { wanted } else { GroupId::ROOT };
    if entered == GroupId::ROOT && wanted != GroupId::ROOT {
        let _ = KMEM.group_enter(GroupId::ROOT);
    }
    this.named.store(entered.0, Ordering::Relaxed);
}

/// Returns whether threads are put into the groups of their names.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Called after the calling thread was renamed to `name`.
pub(crate) fn renamed(name: &[u8]) {
    if is_on() && is_mine() {
        this().wanted.store(named(name).0, Ordering::Release);
        mind_name();
    }
}

/// Called after `thread`, another thread, was renamed to `name`.
///
/// # Safety
/// The thread has not ended.
pub(crate) unsafe fn other_renamed(thread: libc::pthread_t, name: &[u8]) {
    if is_on() && is_mine() {
        // SAFETY: the same contract.
        unsafe { of(thread) }.wanted.store(named(name).0, Ordering::Release);
    }
}

/// The name at an address: up to the bytes that the kernel keeps of it.
///
/// # Safety
/// A C string begins there.
pub(crate) unsafe fn name_at<'a>(name: *const c_char) -> &'a [u8] {
    // SAFETY: by the contract a C string.
    unsafe { core::slice::from_raw_parts(name.cast(), libc::strnlen(name, NAME - 1)) }
}

/// Finds or creates the group of a name, which ends at a zero byte. The root, if it cannot be
/// created.
fn named(name: &[u8]) -> GroupId {
    let mut room = [0; NAME];
    let name = valid(name, &mut room);
    loop {
        if let Ok(id) = KMEM.group_find(GroupId::ROOT, name) {
            return id;
        }
        match KMEM.group_create(GroupId::ROOT, name) {
            Ok(id) => return id,
            // Another thread created it in the meantime: look again.
            Err(GroupError::Exists) => {}
            Err(_) => return GroupId::ROOT,
        }
    }
}

/// Turns a thread's name into a group's: `_` replaces control characters and bytes that a group's
/// name cannot have.
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
