//! Scopes of a task without an operating system: a group with a limit and a shrinker, a tag, and
//! requests that a group may refuse.

use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::heap::kmem;
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::{Caller, Limit, StaticTag, fallible, static_tag};
use machine::{line, serial};

/// Objects that the shrinker may free, and their number.
static CACHE: [AtomicUsize; 1024] = [const { AtomicUsize::new(0) }; 1024];
static CACHED: AtomicUsize = AtomicUsize::new(0);
/// Calls of the shrinker that have not returned, the most of these at a time, and all calls.
static DEPTH: AtomicUsize = AtomicUsize::new(0);
static DEEPEST: AtomicUsize = AtomicUsize::new(0);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// Bytes of an object of the cache, and what it costs: its size class and its extension word.
const OBJECT: usize = 1000;
const COST: usize = 1024 + 4;
const MAX: u64 = 256 << 10;

fn cached() -> &'static StaticTag {
    static_tag!("cached")
}

/// Frees objects of the cache. It allocates in the group that is at its limit.
fn shrink(bytes: usize) -> usize {
    let depth = DEPTH.fetch_add(1, Ordering::Relaxed) + 1;
    DEEPEST.fetch_max(depth, Ordering::Relaxed);
    CALLS.fetch_add(1, Ordering::Relaxed);
    if depth > 100 {
        line!("the shrinker was called within itself");
        serial::exit(5);
    }
    let note = kmem().alloc(OBJECT, Caller::tagged(cached()).here());
    let mut freed = 0;
    while freed < bytes && CACHED.load(Ordering::Relaxed) > 0 {
        drop_one();
        freed += COST;
    }
    // SAFETY: null, or allocated above and used no longer.
    unsafe { kmem().free(note) };
    DEPTH.fetch_sub(1, Ordering::Relaxed);
    freed
}
static SHRINK: fn(usize) -> usize = shrink;

fn drop_one() {
    let last = CACHED.fetch_sub(1, Ordering::Relaxed) - 1;
    // SAFETY: a live object of the cache, which only this task uses.
    unsafe { kmem().free(CACHE[last].load(Ordering::Relaxed) as *mut u8) };
}

/// Works in scopes. Returns the bytes of a vector that stays, under a tag of its own.
pub(crate) fn work() -> usize {
    match in_groups() {
        Ok(()) => line!("check groups 1 1"),
        Err(why) => line!("check groups {why:?} 1"),
    }
    let _scope = kmem_core::tag!("scope");
    let vector = Vec::<u8>::with_capacity(5000);
    // SAFETY: a live allocation.
    let bytes = unsafe { kmem().usable_size(vector.as_ptr().cast_mut()) };
    core::mem::forget(vector);
    line!("expect scope {bytes} 1");
    bytes
}

fn in_groups() -> Result<(), GroupError> {
    let root = kmem().group(GroupId::ROOT)?;
    let group = root.create("scoped")?;
    group.set(Limit::Max, Some(MAX))?;
    group.add_shrinker(&SHRINK)?;
    let scope = group.enter();
    let mut refused = 0;
    for _ in 0..1000 {
        let at = kmem().alloc(OBJECT, Caller::tagged(cached()).here());
        refused += usize::from(at.is_null());
        CACHE[CACHED.fetch_add(1, Ordering::Relaxed)].store(at as usize, Ordering::Relaxed);
    }
    line!("check group-of-the-other-task {} 0", crate::group_of_second());
    crate::devices::interrupt_the_scope();
    drop(scope);
    // Without a task word, the root pays, and nothing calls the shrinker.
    line!("check refused {refused} 0");
    line!("check shrinker-is-called {} 1", u8::from(CALLS.load(Ordering::Relaxed) > 0));
    line!("check shrinker-depth {} 1", DEEPEST.load(Ordering::Relaxed));
    line!("check limit {} 1", u8::from(group.stat().current <= MAX));
    let objects = CACHED.load(Ordering::Relaxed);
    line!("expect cached {} {objects}", objects * 1024);
    line!("expect-group scoped {}", objects * COST);
    // kmem's own, on the books, too.
    line!("expect shrinker 48 1");

    // A group without a shrinker, at its limit.
    let full = root.create("full")?;
    full.set(Limit::Max, Some(16 << 10))?;
    let scope = full.enter();
    let reserves = || Vec::<u8>::new().try_reserve_exact(64 << 10).is_ok();
    line!("check goes-above-the-limit {} 1", u8::from(reserves()));
    line!("check refused-where-it-may {} 1", u8::from(!fallible(reserves)));
    drop(scope);
    line!("check full {} 0", full.stat().current);
    full.delete()
}

/// Frees the cache.
pub(crate) fn give_back() {
    while CACHED.load(Ordering::Relaxed) > 0 {
        drop_one();
    }
}
