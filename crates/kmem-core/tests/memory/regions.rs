//! The platform of a kernel. Regions of memory are added at run time. Doors lead to its clock, its
//! entropy, its console and its configuration.

use std::alloc::{Layout, alloc_zeroed};
use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use kmem_core::os::regions::{Doors, MAX_REGIONS, Regions};
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Instance};

use crate::instance::{fatal, leaked, print};

const MIB: usize = 1 << 20;
/// Bytes of the region of an instance that is made several times.
const ROOM: usize = 64 * MIB;
/// Bytes of the objects that fill regions.
const LARGE: usize = 64 << 10;
const DOORS: Doors = Doors { print, fatal, ..Doors::NONE };
const QUIET: Caller = Caller::NOBODY.quietly();

/// Zeroed memory that is never freed.
fn memory(bytes: usize) -> *mut u8 {
    let layout = Layout::from_size_align(bytes, 4096).expect("a layout");
    // SAFETY: the size is not zero.
    let at = unsafe { alloc_zeroed(layout) };
    assert!(!at.is_null());
    at
}

/// Adds a region of fresh memory. Returns its addresses.
fn add(regions: &Regions, bytes: usize) -> Range<usize> {
    let at = memory(bytes);
    // SAFETY: fresh and zeroed; the regions alone use it, and it is never freed.
    assert!(unsafe { regions.add(at, bytes) });
    at as usize..at as usize + bytes
}

/// Allocates until there is no memory. Returns the addresses.
fn fill(kmem: &'static Instance<Regions>) -> Vec<usize> {
    let next = || Some(kmem.alloc(LARGE, QUIET) as usize).filter(|&at| at != 0);
    std::iter::from_fn(next).collect()
}

fn free(kmem: &'static Instance<Regions>, objects: Vec<usize>) {
    for at in objects {
        // SAFETY: a live allocation, which is used no longer.
        unsafe { kmem.free(at as *mut u8) };
    }
}

#[test]
fn memory_that_is_added_at_run_time_serves_when_the_first_is_full() {
    let kmem = leaked(Regions::new(2, DOORS));
    let first = add(kmem.platform(), 32 * MIB);
    let early = fill(kmem);
    assert!(early.len() * LARGE > 16 * MIB && early.iter().all(|at| first.contains(at)));
    let second = add(kmem.platform(), 32 * MIB);
    let late = fill(kmem);
    assert!(late.len() * LARGE > 16 * MIB, "{} objects", late.len());
    let inside = |at: &usize| first.contains(at) || second.contains(at);
    assert!(late.iter().all(inside));
    let count = early.len() + late.len();
    let all: BTreeSet<_> = early.iter().chain(&late).collect();
    assert_eq!(all.len(), count, "each object has memory of its own");
    assert_eq!(kmem.validate(), Ok(()));
    free(kmem, early);
    free(kmem, late);
    kmem.drain();
    assert_eq!((kmem.validate(), kmem.stats().used), (Ok(()), 0));
    let again = fill(kmem);
    assert!(again.len() >= count - 8, "{} of {count}", again.len());
}

#[test]
fn small_regions_serve_together() {
    let kmem = leaked(Regions::new(2, DOORS).with_most(80 * MIB));
    for _ in 0..10 {
        add(kmem.platform(), 8 * MIB);
        // Too short for any table or page.
        add(kmem.platform(), 100);
    }
    let objects = fill(kmem);
    assert!(objects.len() * LARGE > 40 * MIB, "{} objects", objects.len());
    assert_eq!(kmem.validate(), Ok(()));
    free(kmem, objects);
}

#[test]
fn a_region_more_than_there_is_room_for_stays_the_callers() {
    let regions = Regions::new(1, DOORS);
    (0..MAX_REGIONS).for_each(|_| _ = add(&regions, 4096));
    let at = memory(4096);
    // SAFETY: fresh and zeroed; it is never freed.
    assert!(!unsafe { regions.add(at, 4096) });
    // SAFETY: a range that wraps around is refused, and nothing is read or written.
    assert!(!unsafe { Regions::new(1, DOORS).add(at, usize::MAX) });
}

/// Addresses that an instance with a number for entropy allocates first. All instances are at the
/// same place, over the same memory.
fn order(
    place: *mut MaybeUninit<Instance<Regions>>,
    at: *mut u8,
    entropy: fn() -> u64,
    allocate: impl Fn(&'static Instance<Regions>) -> *mut u8,
) -> Vec<usize> {
    let regions = Regions::new(1, Doors { entropy, configuration: "shuffle:1", ..DOORS });
    // SAFETY: the test alone uses both, and no object of an earlier instance is used any more. The
    // place is never freed.
    let kmem: &'static Instance<Regions> = unsafe {
        at.write_bytes(0, ROOM);
        regions.add(at, ROOM);
        (*place).write(Instance::over(regions))
    };
    (0..40).map(|_| allocate(kmem) as usize).collect()
}

#[test]
fn the_order_of_objects_and_blocks_follows_from_the_entropy_of_the_kernel() {
    let place = Box::into_raw(Box::new_uninit());
    let at = memory(ROOM);
    let order = |entropy, pages: Option<Order>| {
        order(place, at, entropy, |kmem| match pages {
            Some(order) => kmem.alloc_pages(order, Gfp::KERNEL, QUIET),
            None => kmem.alloc(64, QUIET),
        })
    };
    // Objects, and blocks of each order.
    for of in std::iter::once(None).chain((0..=8).map(|order| Some(Order(order)))) {
        let first = order(|| 1, of);
        assert!(first.iter().all(|&at| at != 0));
        assert_eq!(first, order(|| 1, of), "{of:?}");
        assert_ne!(first, order(|| 2, of), "{of:?}");
        assert!(!first.is_sorted(), "shuffled, by the configuration of the kernel: {of:?}");
    }
}

/// Changes page tables, as a kernel does.
///
/// # Safety
/// The caller alone uses the pages.
unsafe fn protect(at: *mut u8, bytes: usize, accessible: bool) -> bool {
    let access = if accessible { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_NONE };
    // SAFETY: pages of the test's region that the caller alone uses, by the contract.
    unsafe { libc::mprotect(at.cast(), bytes, access) == 0 }
}

#[test]
fn areas_have_guards_where_a_kernel_changes_page_tables_and_grow_over_them() {
    const PAGE: usize = 4096;
    let kmem = leaked(Regions::new(1, Doors { protect: Some(protect), ..DOORS }));
    add(kmem.platform(), 64 * MIB);
    let at = kmem.vmalloc(25 * PAGE, Gfp::KERNEL, QUIET);
    assert_eq!(kmem.vmalloc_stats().guards, 1);
    // SAFETY: a live area, which is used no longer where it was if it moves.
    let grown = unsafe {
        at.write_bytes(7, 25 * PAGE);
        kmem.vrealloc(at, 74 * PAGE, Gfp::ZERO, QUIET)
    };
    assert_eq!((grown, kmem.vmalloc_stats().guards), (at, 1), "it grows in place");
    // SAFETY: a live area of that length.
    let bytes = unsafe { std::slice::from_raw_parts(grown, 74 * PAGE) };
    let (old, new) = bytes.split_at(25 * PAGE);
    assert!(old.iter().all(|&byte| byte == 7) && new.iter().all(|&byte| byte == 0));
    // SAFETY: a live area, which is used no longer.
    unsafe { kmem.vfree(grown) };
    assert_eq!(kmem.validate(), Ok(()));
}

#[test]
fn faults_of_the_configuration_go_to_the_console() {
    static SAID: Mutex<String> = Mutex::new(String::new());
    fn print(text: &[u8]) {
        SAID.lock().expect("a lock").push_str(&String::from_utf8_lossy(text));
    }
    let configuration = "shuffle:1,nonsense:1";
    let kmem = leaked(Regions::new(1, Doors { print, configuration, ..DOORS }));
    add(kmem.platform(), 16 * MIB);
    assert!(!kmem.alloc(1, QUIET).is_null());
    let said = SAID.lock().expect("a lock").clone();
    assert!(said.contains("nonsense") && !said.contains("shuffle"), "{said}");
}

#[test]
fn reports_wait_by_the_clock_of_the_kernel() {
    static NOW: AtomicU64 = AtomicU64::new(100_000);
    static REPORTS: AtomicU64 = AtomicU64::new(0);
    fn print(text: &[u8]) {
        let is_report = String::from_utf8_lossy(text).contains("out of memory");
        REPORTS.fetch_add(u64::from(is_report), Ordering::Relaxed);
    }
    fn now_ms() -> u64 {
        NOW.load(Ordering::Relaxed)
    }
    let kmem = leaked(Regions::new(1, Doors { print, now_ms, ..DOORS }));
    add(kmem.platform(), 16 * MIB);
    let held = fill(kmem);
    let reports_after = |ms| {
        NOW.fetch_add(ms, Ordering::Relaxed);
        assert!(kmem.alloc(LARGE, Caller::NOBODY).is_null());
        REPORTS.load(Ordering::Relaxed)
    };
    assert_eq!(reports_after(0), 1);
    assert_eq!(reports_after(1000), 1);
    assert_eq!(reports_after(6000), 2);
    free(kmem, held);
}

#[test]
fn where_calls_are_not_known_a_free_without_a_tag_is_told_once_for_each_size() {
    static SAID: Mutex<String> = Mutex::new(String::new());
    fn print(text: &[u8]) {
        SAID.lock().expect("a lock").push_str(&String::from_utf8_lossy(text));
    }
    let kmem = leaked(Regions::new(1, Doors { print, configuration: "debug:1", ..DOORS }));
    add(kmem.platform(), 16 * MIB);
    for size in [64, 100, 64, 100] {
        let at = kmem.alloc(size, QUIET);
        // SAFETY: a live allocation, which is used no longer.
        unsafe { kmem.free(at) };
    }
    let said = SAID.lock().expect("a lock").clone();
    let frees = said.lines().filter(|line| line.contains("a free without a reference: 0x"));
    let sizes: Vec<_> = frees.map(|line| line.split_once(", ").expect("a size").1).collect();
    assert_eq!(sizes, ["64 bytes", "112 bytes"], "{said}");
}
