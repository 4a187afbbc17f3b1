//! Caches with a constructor keep their free objects constructed; pages come in bulk.

use crate::instance::{
    Simulated, after_faults, books, budget, case, forked, lines, run_child, said_by_child, started,
    until_null,
};
use kmem_core::units::{Gfp, Order};
use kmem_core::{Cache, CacheFlags, Caller, Kmem};
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

const OWNER: Caller = Caller::at(0x5_0000);
const USER: Caller = Caller::at(0x6_0000);

static CONSTRUCTED: AtomicUsize = AtomicUsize::new(0);

/// Fills an object of 200 bytes.
unsafe extern "C" fn construct(object: *mut c_void) {
    CONSTRUCTED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: an object of 200 bytes.
    unsafe { object.cast::<u8>().write_bytes(0x5a, 200) };
}

fn constructed() -> usize {
    CONSTRUCTED.load(Ordering::Relaxed)
}

fn is_constructed(object: *mut u8) -> bool {
    // SAFETY: a live object of 200 bytes.
    unsafe { std::slice::from_raw_parts(object, 200) }.iter().all(|&byte| byte == 0x5a)
}

fn cache(a: &'static Kmem) -> (NonNull<Cache>, &'static Cache) {
    let cache = a.cache_create(b"things", 200, 0, Some(construct), OWNER).expect("memory");
    // SAFETY: it lives until it is destroyed, and is not used afterwards.
    (cache, unsafe { cache.as_ref() })
}

fn take(a: &'static Kmem, cache: &Cache, count: usize) -> Vec<*mut u8> {
    let one = || a.cache_alloc(cache, Gfp::KERNEL, USER);
    let all: Vec<_> = std::iter::repeat_with(one).take(count).collect();
    assert!(all.iter().all(|&object| !object.is_null() && is_constructed(object)));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), count);
    all
}

fn give(a: &'static Kmem, cache: &Cache, all: Vec<*mut u8>) {
    // SAFETY: live objects of the cache, given up.
    all.into_iter().for_each(|object| unsafe { a.cache_free(cache, object) });
}

static A: Kmem = Kmem::new();

/// Every case is a process of its own, with the constructor's count and a configuration.
fn run_case(case: &str) {
    let (handle, things) = cache(&A);
    match case {
        "once" => {
            for _ in 0..10 {
                let all = take(&A, things, 100);
                assert_eq!((constructed(), things.live()), (100, 100));
                give(&A, things, all);
                // A free object is billed to no line.
                assert_eq!(books(&A).keys().collect::<Vec<_>>(), [&0x5_0000]);
                A.drain();
                assert_eq!(A.validate(), Ok(()));
            }
            assert!(A.cache_shrink(things));
            give(&A, things, take(&A, things, 100));
            assert_eq!(constructed(), 200);
        }
        "many" => {
            // More than the cache keeps: the rest goes to the heap.
            for _ in 0..3 {
                give(&A, things, take(&A, things, 5000));
                A.drain();
                assert_eq!(A.validate(), Ok(()));
            }
            assert!((10_000..15_000).contains(&constructed()), "{}", constructed());
        }
        "threads" => {
            let thread = || (0..2000).for_each(|i| give(&A, things, take(&A, things, i % 60)));
            std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(thread))));
            assert_eq!(things.live(), 0);
            // Four threads with up to 59 objects each fit into what the cache keeps. A thread that
            // finds nothing while others move objects constructs another one.
            assert!(constructed() < 2000, "{}", constructed());
        }
        "child" => {
            give(&A, things, take(&A, things, 50));
            // SAFETY: the child uses the instance alone, and does not panic.
            let good = unsafe {
                forked(|| {
                    // The objects that the parent kept are free memory here.
                    let other = A.alloc(200, USER);
                    let mine: Vec<_> =
                        (0..200).map(|_| A.cache_alloc(things, Gfp::KERNEL, USER)).collect();
                    let distinct = mine.iter().chain([&other]).collect::<BTreeSet<_>>().len();
                    let whole = mine.iter().all(|&object| is_constructed(object));
                    mine.iter().for_each(|&object| A.cache_free(things, object));
                    A.free(other);
                    A.drain();
                    distinct == 201 && whole && constructed() == 250 && A.validate() == Ok(())
                })
            };
            assert!(good);
            give(&A, things, take(&A, things, 50));
            assert_eq!(constructed(), 50);
        }
        "twice" => {
            let object = take(&A, things, 1)[0];
            give(&A, things, vec![object]);
            give(&A, things, vec![object]);
        }
        "zeroed" => {
            assert!(A.cache_alloc(things, Gfp::ZERO, USER).is_null());
            assert!(A.cache_alloc(things, Gfp::ZERO, USER).is_null());
            assert!(A.cache_alloc_node(things, Gfp::ZERO, Some(0), USER).is_null());
            assert_eq!((constructed(), things.live()), (0, 0));
        }
        other => panic!("no case {other}"),
    }
    // SAFETY: a live cache, which is used no longer.
    assert!(unsafe { A.cache_destroy(handle) });
    A.drain();
    assert_eq!(A.validate(), Ok(()));
    assert!(books(&A).is_empty());
    assert_eq!(A.stats().objects, 0);
}

#[test]
fn child() {
    if let Some(case) = case() {
        run_case(&case);
    }
}

/// Lines that kmem printed in a case that succeeded.
fn said(conf: &str, case: &str) -> Vec<String> {
    said_by_child(child, conf, case)
}

#[test]
fn a_constructor_runs_once_for_each_object() {
    for case in ["once", "many", "threads"] {
        for conf in ["", "rseq:off", "init_on_alloc:1,init_on_free:1"] {
            assert_eq!(said(conf, case), [""; 0], "{case}");
        }
    }
}

#[test]
fn a_forked_child_begins_without_constructed_objects() {
    assert_eq!(said("", "child"), [""; 0]);
    assert_eq!(said("rseq:off", "child"), [""; 0]);
}

#[test]
fn a_constructed_object_that_is_freed_twice_is_found() {
    let output = run_child(child, "", "twice");
    assert_eq!(output.status.signal(), Some(6));
    assert!(lines(&output)[0].starts_with("kmem: double free: 0x"), "{output:?}");
}

#[test]
fn zeroed_objects_of_a_cache_with_a_constructor_are_refused_and_reported_once() {
    let line = "kmem: zeroed objects of the cache things are refused: it has a constructor";
    assert_eq!(said("", "zeroed"), [line]);
    assert_eq!(said("check_caches:1", "zeroed"), [line]);
}

#[test]
fn flags_choose_the_alignment_and_unknown_ones_are_refused() {
    static A: Kmem = Kmem::new();
    let make = |size, flags| A.cache_create_with(b"flags", (size, 0), flags, None, OWNER);
    for (size, align) in [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (100, 64)] {
        let cache = make(size, CacheFlags::HWCACHE_ALIGN).expect("memory");
        // SAFETY: it is never destroyed.
        let cache = unsafe { cache.as_ref() };
        for _ in 0..20 {
            let object = A.cache_alloc(cache, Gfp::KERNEL, USER);
            assert!((object as usize).is_multiple_of(align), "{size} {object:?}");
        }
    }
    assert!(make(100, CacheFlags::ACCOUNT).is_some());
    assert!(make(100, CacheFlags(0x8_0000)).is_none());
    assert!(make(100, CacheFlags(1)).is_none());
}

#[test]
fn pages_in_bulk_are_one_operation() {
    static A: Kmem = Kmem::new();
    let one = A.alloc(1, USER);
    let before = A.stats().used;
    let mut pages = [null_mut(); 100];
    assert_eq!(A.alloc_pages_bulk(Gfp::KERNEL, &mut pages, USER), 100);
    // Nothing was taken but these pages: one by one, the last refill of the CPU leaves some.
    assert_eq!(A.stats().used - before, 100 << 12);
    assert_eq!(pages.iter().collect::<BTreeSet<_>>().len(), 100);
    assert_eq!(books(&A)[&0x6_0000], ((100 << 12) + 16, 101));
    // SAFETY: live pages and an object, given up.
    unsafe {
        pages.iter().for_each(|&page| A.free_pages(page, Order(0)));
        A.free(one);
    }
    A.drain();
    assert_eq!((A.validate(), A.stats().used), (Ok(()), 0));
}

/// A cache is made or refused as a whole, and works once the fault has passed.
#[test]
fn any_one_call_may_fail() {
    unsafe extern "C" fn build(object: *mut c_void) {
        // SAFETY: an object of 9000 bytes.
        unsafe { object.cast::<u8>().write_bytes(0x5a, 9000) };
    }
    let work = |a: &'static Simulated| -> usize {
        let mut served = 0;
        for ctor in [None, Some(build as unsafe extern "C" fn(_))] {
            let Some(handle) = a.cache_create(b"things", 9000, 64, ctor, OWNER) else { continue };
            // SAFETY: it lives until it is destroyed, and is not used afterwards.
            let cache = unsafe { handle.as_ref() };
            for _ in 0..2 {
                let mut all = [null_mut(); 300];
                for (i, at) in all.iter_mut().enumerate() {
                    a.platform().run_on(i as u32 / 150);
                    *at = a.cache_alloc(cache, Gfp::KERNEL, USER.quietly());
                }
                let held: Vec<_> = all.into_iter().filter(|at| !at.is_null()).collect();
                served += held.len();
                assert_eq!(cache.live(), held.len() as u64);
                assert_eq!(held.iter().collect::<BTreeSet<_>>().len(), held.len());
                for at in held {
                    // SAFETY: a live object of 9000 bytes, given up.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(at, 9000);
                        assert!(ctor.is_none() || bytes.iter().all(|&byte| byte == 0x5a));
                        a.cache_free(cache, at);
                    }
                }
                let mut all = [null_mut(); 300];
                let one = || a.cache_alloc(cache, Gfp::KERNEL, USER.quietly());
                // SAFETY: a live object that was taken just now.
                let got = a.all_or_none(&mut all, one, |at| unsafe { a.cache_free(cache, at) });
                assert_eq!(cache.live(), got as u64);
                // SAFETY: live objects, given up.
                all[..got].iter().for_each(|&at| unsafe { a.cache_free(cache, at) });
                a.cache_shrink(cache);
            }
            // SAFETY: a live cache, which is used no longer.
            assert!(unsafe { a.cache_destroy(handle) });
        }
        served
    };
    let fresh = || started(budget(16 << 20, 2));
    let a = fresh();
    a.platform().fail(u64::MAX, u64::MAX);
    assert_eq!(work(a), 1200);
    let calls = a.platform().calls();
    assert!(calls > 10, "{calls} calls");
    let mut refused = 0;
    for from in 1..=calls {
        for to in [from + 1, u64::MAX] {
            let a = after_faults(fresh(), from..to, |a| refused += 1200 - work(a));
            assert_eq!(work(a), 1200, "the fault at call {from} did not pass");
            assert!(books(a).is_empty());
            assert_eq!((a.validate(), a.stats().objects), (Ok(()), 0));
        }
    }
    assert!(refused > 0);
}

/// Caches that cannot be made take no memory, and objects that are there are not lost.
#[test]
fn without_memory_there_is_no_cache_and_its_objects_stay() {
    let a = started(budget(16 << 20, 2));
    let make = || a.cache_create(b"more", 200, 0, Some(construct), OWNER.quietly());
    let handle = make().expect("memory");
    // SAFETY: it lives until it is destroyed, and is not used afterwards.
    let cache = unsafe { handle.as_ref() };
    a.platform().fail(1, u64::MAX);
    let held = until_null(|| a.cache_alloc(cache, Gfp::KERNEL, USER.quietly()));
    let filler = until_null(|| a.alloc(20_000, USER.quietly()));
    let small = until_null(|| a.alloc(6000, USER.quietly()));
    let made: Vec<_> = std::iter::from_fn(make).collect();
    assert!(make().is_none() && held.iter().all(|&object| is_constructed(object)));
    assert_eq!(cache.live(), held.len() as u64);
    // SAFETY: all live, given up.
    unsafe {
        held.into_iter().for_each(|object| a.cache_free(cache, object));
        filler.into_iter().chain(small).for_each(|at| a.free(at));
        made.into_iter().chain([handle]).for_each(|cache| assert!(a.cache_destroy(cache)));
    }
    assert!(books(a).is_empty());
    assert_eq!((a.validate(), a.stats().objects), (Ok(()), 0));
}
