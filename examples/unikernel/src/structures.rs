//! Areas, pools, hash tables and per-CPU variables without an operating system; and callers in the
//! upper half of the address space, where kernels are.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::heap::{KMEM, kmem};
use kmem_core::memcg::GroupId;
use kmem_core::os::regions::Regions;
use kmem_core::rhashtable::Parameters;
use kmem_core::units::Gfp;
use kmem_core::{Caller, Elements, Limit, Mempool, StaticTag, static_tag};
use machine::{boot, interrupts, line};

kmem_core::define_per_cpu! {
    /// Elements that were found.
    static FOUND: u64 => KMEM, Regions;
}

/// Objects that were allocated by code and tags in the upper half.
static HIGH: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// The area, which stays.
static AREA: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn work() {
    line!("check area {} 1", u8::from(area()));
    line!("check pool {} 1", u8::from(pool().is_some()));
    line!("check table {} 1", u8::from(table().is_some()));
    line!("check found {} 667", FOUND.sum());
    line!("expect FOUND 16 1");
    high();
}

/// Allocates 100 bytes as Rust's collections do. It returns to this function.
#[inline(never)]
fn allocate() -> usize {
    // SAFETY: the layout has bytes.
    let at = unsafe { GlobalAlloc::alloc(kmem(), Layout::new::<[u8; 100]>()) };
    // Used after the call, which is no jump therefore.
    core::hint::black_box(at) as usize
}

/// Calls and static tags at their addresses in the upper half.
fn high() {
    let tag: *const StaticTag = static_tag!("high");
    // SAFETY: all memory is at these addresses, too.
    let (tag, allocate) = unsafe {
        let far = core::mem::transmute::<usize, fn() -> usize>(
            allocate as fn() -> usize as usize + boot::HIGH,
        );
        (&*tag.wrapping_byte_add(boot::HIGH), far)
    };
    HIGH[0].store(kmem().alloc(100, Caller::tagged(tag)) as usize, Ordering::Relaxed);
    line!("expect high 112 1");
    // Without the tag of the task, the call is the call site.
    // SAFETY: no tag is put back below that was unloaded.
    unsafe {
        let before = kmem_core::task::replace_tag(0);
        HIGH[1].store(allocate(), Ordering::Relaxed);
        kmem_core::task::replace_tag(before);
    }
    line!("expect unknown 112 1");
    line!(
        "check high-memory {} 0",
        HIGH.iter().filter(|at| at.load(Ordering::Relaxed) == 0).count()
    );
}

/// An area that grows keeps its contents, and the new part reads as zero. A page behind it faults.
fn area() -> bool {
    let tag = static_tag!("area");
    let caller = Caller::tagged(tag);
    let at = kmem().vmalloc(100_000, Gfp::KERNEL, caller);
    if at.is_null() {
        return false;
    }
    // SAFETY: the area alone is written and read, within its length.
    let (at, kept) = unsafe {
        at.write_bytes(0x5a, 100_000);
        let new = kmem().vrealloc(at, 300_000, Gfp::ZERO, caller);
        if new.is_null() {
            return false;
        }
        let bytes = core::slice::from_raw_parts(new, 300_000);
        let old = bytes[..100_000].iter().all(|&byte| byte == 0x5a);
        (new, old && bytes[102_400..].iter().all(|&byte| byte == 0))
    };
    AREA.store(at as usize, Ordering::Relaxed);
    let end = at as usize + 300_000usize.next_multiple_of(4096);
    line!("check last-page {} 0", interrupts::probe(end - 1));
    line!("check guard-page {} -1", interrupts::probe(end));
    // SAFETY: live.
    line!("expect area {} 1", unsafe { kmem().usable_size(at) });
    kept
}

/// A pool, and one of its elements that the interrupt handler is to free; 0 for none.
static POOL: AtomicUsize = AtomicUsize::new(0);
static LENT: AtomicUsize = AtomicUsize::new(0);
/// Times that the task waited.
static WAITS: AtomicUsize = AtomicUsize::new(0);

/// The kernel's wait: for the next interrupt.
pub(crate) fn give_way() {
    WAITS.fetch_add(1, Ordering::Relaxed);
    interrupts::wait();
}

/// Frees the element that was lent to the interrupt handler, when the task waits for it.
pub(crate) fn free_lent() {
    if WAITS.load(Ordering::Relaxed) == 0 {
        return;
    }
    let Some(element) = NonNull::new(LENT.swap(0, Ordering::Acquire) as *mut u8) else { return };
    // SAFETY: the pool lives while an element is lent; it is freed once.
    unsafe { (*(POOL.load(Ordering::Relaxed) as *const Mempool<Regions>)).free(element) };
}

/// A pool serves from its reserve where its group is refused memory, and is full again afterwards.
/// A request waits for an element that an interrupt handler frees.
fn pool() -> Option<()> {
    const RESERVE: usize = 8;
    let caller = Caller::tagged(static_tag!("pool"));
    let pool = kmem().mempool_create(RESERVE as u32, Elements::Kmalloc(200), caller).ok()?;
    let group = kmem().group(GroupId::ROOT).ok()?.create("pool").ok()?;
    group.set(Limit::Max, Some(0)).ok()?;
    let scope = group.enter();
    let taken: [_; RESERVE] = core::array::from_fn(|_| pool.alloc(Gfp::NOWAIT, caller.here()));
    let more = pool.alloc(Gfp::NOWAIT, caller.here());
    let served = taken.iter().flatten().count();
    POOL.store(&raw const pool as usize, Ordering::Relaxed);
    let mut taken = taken;
    let lent = taken[0].take()?;
    WAITS.store(0, Ordering::Relaxed);
    LENT.store(lent.as_ptr() as usize, Ordering::Release);
    taken[0] = pool.alloc(Gfp::KERNEL, caller.here());
    line!("check waited {} 1", u8::from(WAITS.load(Ordering::Relaxed) > 0));
    line!("check served-after-the-wait {} 1", u8::from(taken[0].is_some()));
    drop(scope);
    for element in taken.into_iter().flatten() {
        // SAFETY: an element of the pool, used no longer.
        unsafe { pool.free(element) };
    }
    let whole = served == RESERVE && more.is_none() && pool.reserved() as usize == RESERVE;
    (whole && pool.validate().is_ok() && group.delete().is_ok()).then_some(())
}

/// A table that grows and shrinks.
fn table() -> Option<()> {
    let caller = Caller::tagged(static_tag!("table"));
    let table = kmem().rhashtable::<u64, u64>(Parameters::default(), caller)?;
    for key in 0..2000 {
        table.insert(key, key * key, caller).ok()?;
    }
    let removed = (0..2000).filter(|key| key % 3 != 0 && table.remove(key)).count();
    for key in 0..2000 {
        if table.read().get(&key) == Some(&(key * key)) {
            FOUND.add(1);
        }
    }
    (removed == 1333 && table.len() == 667 && table.validate().is_ok()).then_some(())
}

/// Frees the area and the objects.
pub(crate) fn give_back() {
    for at in &HIGH {
        // SAFETY: null or live, given up.
        unsafe { kmem().free(at.load(Ordering::Relaxed) as *mut u8) };
    }
    // SAFETY: null or live, given up.
    unsafe { kmem().vfree(AREA.load(Ordering::Relaxed) as *mut u8) };
}
