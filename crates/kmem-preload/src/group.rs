//! Groups, as `kmem/group.h` declares them. Errors are negative error numbers; no function sets
//! `errno`.

use core::ffi::{c_char, c_int, c_void};

use kmem_core::memcg::{GroupError, GroupId, Shrink, Shrinker};
use kmem_core::os::linux::Linux;
use kmem_core::task;
use kmem_core::units::ObjcgId;
use kmem_core::{Group, GroupKinds, GroupStat};
use kmem_layout::group::Limit;
use kmem_layout::group::{MAX_GROUP_DEPTH, MAX_GROUP_NAME, group_event};

use crate::{KMEM, errno, scope, thread};

/// A positive error number.
struct Errno(c_int);

impl From<GroupError> for Errno {
    fn from(error: GroupError) -> Self {
        Self(match error {
            GroupError::BadName => libc::EINVAL,
            GroupError::Exists => libc::EEXIST,
            GroupError::Full => libc::ENOSPC,
            GroupError::TooDeep => libc::ELOOP,
            // Without books there is no root either.
            GroupError::NotFound if KMEM.group(GroupId::ROOT).is_err() => libc::ENOTSUP,
            GroupError::NotFound => libc::ESRCH,
            GroupError::HasChildren => libc::EBUSY,
            GroupError::IsRoot => libc::EPERM,
            GroupError::NoBooks => libc::ENOTSUP,
            GroupError::NoMemory => libc::ENOMEM,
            GroupError::InShrinker => libc::EDEADLK,
        })
    }
}

/// Turns a result into that of a C function: the value, or the negative error number.
fn answer<T: Into<i64>>(result: Result<T, Errno>) -> i64 {
    match result {
        Ok(value) => value.into(),
        Err(Errno(error)) => -i64::from(error),
    }
}

/// Turns a result into that of a C function: 0, or the negative error number.
fn done(result: Result<(), Errno>) -> c_int {
    // An error number fits.
    answer(result.map(|()| 0)) as c_int
}

/// Does `work`, which has no cancellation point, without cancellation of the calling thread. A
/// thread that is cancelled while it holds the lock of the table would keep all others from
/// creating groups.
pub(crate) fn uncancelled<T>(work: impl FnOnce() -> T) -> T {
    unsafe extern "C" {
        safe fn pthread_setcanceltype(kind: c_int, old: &mut c_int) -> c_int;
    }
    /// `PTHREAD_CANCEL_DEFERRED` of glibc. Its handler of cancellations looks at the type only: a
    /// state of `PTHREAD_CANCEL_DISABLE` may come too late.
    const DEFERRED: c_int = 0;
    let (mut before, mut deferred) = (DEFERRED, DEFERRED);
    pthread_setcanceltype(DEFERRED, &mut before);
    let done = work();
    pthread_setcanceltype(before, &mut deferred);
    done
}

/// One more than the largest number of a group.
const NUMBERS_END: u64 = 1 << (ObjcgId::BITS + 30);
/// One more than the largest number of an entry, which a group has without its generation.
const ENTRIES_END: u32 = 1 << ObjcgId::BITS;

/// Checks the number of a group.
///
/// # Errors
/// `EINVAL`: no group can have the number.
fn id(number: i64) -> Result<GroupId, Errno> {
    let number = u64::try_from(number).unwrap_or(0);
    if (GroupId::ROOT.0..NUMBERS_END).contains(&number) {
        Ok(GroupId(number))
    } else {
        Err(Errno(libc::EINVAL))
    }
}

/// Pins the group of a number, so that it stays while it is used.
///
/// # Errors
/// `EINVAL`: no group can have the number; `ESRCH`: the group was deleted.
fn living(number: i64) -> Result<Group<Linux>, Errno> {
    Ok(KMEM.group(id(number)?)?)
}

/// A text without its zero byte, cut off after `most + 1` bytes.
///
/// # Errors
/// `EFAULT`: `text` is null.
///
/// # Safety
/// `text` is null or a C string.
unsafe fn bytes<'a>(text: *const c_char, most: usize) -> Result<&'a [u8], Errno> {
    if text.is_null() {
        return Err(Errno(libc::EFAULT));
    }
    // SAFETY: the same contract.
    Ok(unsafe { core::slice::from_raw_parts(text.cast(), libc::strnlen(text, most + 1)) })
}

/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_create(parent: i64, name: *const c_char) -> i64 {
    let create = || {
        // SAFETY: the same contract.
        let name = unsafe { bytes(name, MAX_GROUP_NAME) }?;
        Ok(KMEM.group_create(id(parent)?, name)?.0 as i64)
    };
    answer(uncancelled(create))
}

/// # Safety
/// `path` is null or a C string.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_find(path: *const c_char) -> i64 {
    const MOST: usize = (MAX_GROUP_NAME + 1) * MAX_GROUP_DEPTH as usize;
    let find = || {
        // SAFETY: the same contract.
        let path = unsafe { bytes(path, MOST) }?;
        // An instance without books finds the root, too: check for books first.
        KMEM.group(GroupId::ROOT)?;
        Ok(KMEM.group_at(path)?.0 as i64)
    };
    answer(uncancelled(find))
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_delete(group: i64) -> c_int {
    done(uncancelled(|| Ok(KMEM.group_delete(id(group)?)?)))
}

/// # Safety
/// `name` is null or has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_name(group: i64, name: *mut c_char, room: usize) -> c_int {
    let copy = || {
        let group = living(group)?;
        let mut buffer = [0; MAX_GROUP_NAME];
        let text = KMEM.group_name(group.id(), &mut buffer)?;
        if name.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        if text.len() >= room {
            return Err(Errno(libc::ERANGE));
        }
        // SAFETY: by the contract `name` has `room` bytes: more than the text.
        unsafe {
            name.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len());
            name.add(text.len()).write(0);
        }
        Ok(text.len() as i64)
    };
    answer(copy()) as c_int
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_parent(group: i64) -> i64 {
    let parent = || Ok(KMEM.group_parent(living(group)?.id())?.map_or(0, |id| id.0 as i64));
    answer(parent())
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_dying() -> c_int {
    answer(KMEM.group(GroupId::ROOT).map(|_| KMEM.group_dying() as i64).map_err(Errno::from))
        as c_int
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_set(group: i64, limit: c_int, bytes: u64) -> c_int {
    let set = || {
        let group = living(group)?;
        let limit = match limit {
            0 => Limit::Max,
            1 => Limit::High,
            2 => Limit::Low,
            _ => return Err(Errno(libc::EINVAL)),
        };
        Ok(KMEM.group_set(group.id(), limit, bytes)?)
    };
    done(set())
}

/// `struct kmem_group_stat`.
#[repr(C)]
struct Stat {
    size: u64,
    current: u64,
    own: u64,
    reserved: u64,
    cached: u64,
    peak: u64,
    max: u64,
    high: u64,
    low: u64,
    /// Counts, indexed by [`group_event`].
    events: [u64; group_event::COUNT],
    over_limit: u64,
}

const _: () = assert!(size_of::<Stat>() == 14 * 8);

impl From<GroupStat> for Stat {
    fn from(stat: GroupStat) -> Self {
        let GroupStat { current, own, reserved, cached, peak, max, high, low, events, over_limit } =
            stat;
        let (size, over_limit) = (size_of::<Self>() as u64, over_limit.into());
        Self { size, current, own, reserved, cached, peak, max, high, low, events, over_limit }
    }
}

/// Fills in a structure that begins with its size in bytes. One version exists so far.
///
/// # Safety
/// `out` is null, or valid for reading a size and for writing as many bytes as that says.
unsafe fn fill<T>(
    group: i64,
    out: *mut T,
    of: impl FnOnce(GroupId) -> Result<T, GroupError>,
) -> c_int {
    let fill = || {
        let group = living(group)?;
        if out.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: the same contract.
        if unsafe { out.cast::<u64>().read() } != size_of::<T>() as u64 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: by the contract `out` is as long as its size says: a `T`.
        unsafe { out.write(of(group.id())?) };
        Ok(())
    };
    done(fill())
}

/// # Safety
/// See [`fill`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_stat(group: i64, out: *mut Stat) -> c_int {
    // SAFETY: the same contract.
    unsafe { fill(group, out, |id| KMEM.group_stat(id).map(Stat::from)) }
}

/// `struct kmem_group_kinds`.
#[repr(C)]
struct Kinds {
    size: u64,
    slab: u64,
    pages: u64,
    vmalloc: u64,
    percpu: u64,
}

impl From<GroupKinds> for Kinds {
    fn from(kinds: GroupKinds) -> Self {
        let GroupKinds { slab, pages, vmalloc, percpu } = kinds;
        Self { size: size_of::<Self>() as u64, slab, pages, vmalloc, percpu }
    }
}

/// # Safety
/// See [`fill`].
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_kinds(group: i64, out: *mut Kinds) -> c_int {
    // SAFETY: the same contract.
    unsafe { fill(group, out, |id| KMEM.group_kinds(id).map(Kinds::from)) }
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_reset_peak(group: i64) -> c_int {
    done(living(group).and_then(|group| Ok(KMEM.group_reset_peak(group.id())?)))
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_notify(group: i64, eventfd: c_int) -> c_int {
    let notify = || {
        let group = living(group)?;
        let fd = if eventfd == -1 { None } else { Some(open(eventfd)?) };
        Ok(KMEM.group_notify(group.id(), fd)?)
    };
    done(notify())
}

/// Checks that a file descriptor is open. Keeps `errno`.
///
/// # Errors
/// `EBADF`: it is not.
fn open(fd: c_int) -> Result<u32, Errno> {
    let before = errno::get();
    // SAFETY: F_GETFD takes no pointer.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    errno::set(before);
    u32::try_from(fd).ok().filter(|_| flags >= 0).ok_or(Errno(libc::EBADF))
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_enter(group: i64) -> i64 {
    let enter = || {
        let id = id(group)?;
        thread::mind_name();
        Ok(scope::enter(id)? as i64)
    };
    answer(uncancelled(enter))
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_leave(token: i64) -> c_int {
    let is_left = uncancelled(|| u64::try_from(token).is_ok_and(scope::leave));
    done(if is_left { Ok(()) } else { Err(Errno(libc::EINVAL)) })
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_pin(group: i64) -> c_int {
    done(uncancelled(|| Ok(KMEM.group_pin(id(group)?)?)))
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_unpin(group: i64) -> c_int {
    done(uncancelled(|| Ok(KMEM.group_unpin(id(group)?)?)))
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_switch(group: i64) -> i64 {
    if thread::is_renamed() {
        return switch_renamed(group);
    }
    // A group before has no generation, unlike the number of a group.
    if let Some(before) = u32::try_from(group).ok().filter(|&before| before < ENTRIES_END) {
        return task::replace_group(ObjcgId(before)).0.into();
    }
    match KMEM.group_switch(GroupId(group.cast_unsigned())) {
        Some(before) => before.0.into(),
        None => switch_slow(group),
    }
}

/// [`kmem_group_switch`] of a thread that has a new name.
#[cold]
#[inline(never)]
fn switch_renamed(group: i64) -> i64 {
    thread::mind_name();
    kmem_group_switch(group)
}

/// [`kmem_group_switch`] to a group that is not found: says why, or starts the allocator before.
#[cold]
#[inline(never)]
fn switch_slow(group: i64) -> i64 {
    let switch = || {
        let id = id(group)?;
        KMEM.group(GroupId::ROOT)?;
        Ok(KMEM.group_switch(id).ok_or(GroupError::NotFound)?.0)
    };
    answer(switch())
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_current() -> i64 {
    let current = || {
        KMEM.group(GroupId::ROOT)?;
        thread::mind_name();
        Ok(KMEM.group_current().0 as i64)
    };
    answer(current())
}

/// # Safety
/// `at` is null or a live allocation.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_of(at: *mut u8) -> i64 {
    let of = || {
        KMEM.group(GroupId::ROOT)?;
        if at.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the same contract.
        Ok(unsafe { KMEM.group_of_allocation(at) }.0 as i64)
    };
    answer(of())
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_of_address(at: *const u8) -> i64 {
    let of = || {
        KMEM.group(GroupId::ROOT)?;
        let group = KMEM.group_of_address(at).ok_or(Errno(libc::ENOENT))?;
        Ok(group.0 as i64)
    };
    answer(of())
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_try_charge(group: i64, bytes: u64) -> c_int {
    done(id(group).and_then(|id| Ok(KMEM.group_try_charge(id, bytes)?)))
}

#[unsafe(no_mangle)]
extern "C" fn kmem_group_uncharge(group: i64, bytes: u64) -> c_int {
    // A deleted group can be found as long as bytes are reserved in it.
    let uncharge = || match KMEM.group_uncharge(id(group)?, bytes) {
        Ok(()) => Ok(()),
        Err(_) => living(group).and(Err(Errno(libc::EINVAL))),
    };
    done(uncharge())
}

/// # Safety
/// `shrink` may be called with `data` on any thread until the shrinker is removed; `out` is null or
/// valid for writing.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_add_shrinker(
    group: i64,
    shrink: Option<Shrink>,
    data: *mut c_void,
    out: *mut *const Shrinker,
) -> c_int {
    let add = || {
        let group = living(group)?;
        let Some(shrink) = shrink.filter(|_| !out.is_null()) else {
            return Err(Errno(libc::EFAULT));
        };
        // SAFETY: the same contract.
        unsafe { *out = KMEM.shrinker_add(group.id(), shrink, data)? };
        Ok(())
    };
    done(add())
}

/// # Safety
/// `shrinker` is null, or was added and not removed.
#[unsafe(no_mangle)]
unsafe extern "C" fn kmem_group_remove_shrinker(shrinker: Option<&'static Shrinker>) -> c_int {
    let remove = || Ok(KMEM.shrinker_remove(shrinker.ok_or(Errno(libc::EFAULT))?)?);
    done(remove())
}
