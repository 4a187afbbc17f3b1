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
//! [`crate::pthread`] has what tells us of threads and their names.

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use kmem_core::codetag::scope;
use kmem_core::conf::GroupBy;
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::Platform;
use kmem_core::os::linux::syscall::syscall;
use kmem_core::units::ObjcgId;

use crate::KMEM;

/// Whether the option is given, and can be had.
static ON: AtomicBool = AtomicBool::new(false);
/// Its destructor leaves the thread's group.
static KEY: AtomicU32 = AtomicU32::new(0);
/// The process whose memory this is, in a page that a forked child finds zeroed; see [`is_mine`].
static OWNER: AtomicPtr<AtomicU64> = AtomicPtr::new(null_mut());

/// Most bytes of a thread's name, and a zero byte.
pub(crate) const NAME: usize = 16;
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
    found.is_ok() || found == Err(me)
}

/// Puts a thread that has no group yet into that of its name.
pub(crate) fn adopt() {
    let this = this();
    let id = named(&name());
    let entered = KMEM.group_enter(id).map(|_| id).unwrap_or(GroupId::ROOT);
    this.named.store(entered.objcg().0, Ordering::Relaxed);
    // SAFETY: a key of ours.
    unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), round(1)) };
}

/// What a thread has under the key: the round of destructors that comes next.
fn round(number: usize) -> *const c_void {
    core::ptr::without_provenance(number)
}

/// The thread-specific destructor: what other destructors allocate is the group's, but in the last round.
unsafe extern "C" fn leave(last: *mut c_void) {
    let now = last as usize;
    if now < ROUNDS {
        // SAFETY: a key of ours.
        unsafe { libc::pthread_setspecific(KEY.load(Ordering::Relaxed), round(now + 1)) };
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

/// Whether threads are to be in the groups of their names.
pub(crate) fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// The calling thread was named.
pub(crate) fn renamed() {
    if is_on() && is_mine() {
        this().wanted.store(named(&name()).0, Ordering::Release);
        mind_name();
    }
}

/// Another thread was.
///
/// # Safety
/// It has not ended.
pub(crate) unsafe fn other_renamed(thread: libc::pthread_t, name: &[u8]) {
    if is_on() && is_mine() {
        // SAFETY: the caller's promise.
        unsafe { of(thread) }.wanted.store(named(name).0, Ordering::Release);
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
