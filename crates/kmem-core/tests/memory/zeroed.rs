//! `init_on_alloc` and `init_on_free` in the interface for Rust: no old contents in any memory.

use crate::instance::{case, forked, group, run_child};
use kmem_core::units::Gfp;
use kmem_core::{Caller, Elements, Kmem};
use std::alloc::{GlobalAlloc, Layout};

static A: Kmem = Kmem::new();
const USER: Caller = Caller::at(0x6_0000);
const DIRT: u8 = 0xA5;
const SIZES: [usize; 9] = [8, 16, 64, 100, 1024, 5000, 32_768, 100_000, 4 << 20];

/// Bytes of a live allocation.
fn bytes(at: *mut u8, size: usize) -> &'static mut [u8] {
    assert!(!at.is_null());
    // SAFETY: live memory of that size, which this test alone uses.
    unsafe { std::slice::from_raw_parts_mut(at, size) }
}

fn old(at: *mut u8, size: usize) -> usize {
    bytes(at, size).iter().filter(|&&byte| byte != 0).count()
}

/// Number of old bytes in memory of `take`, after memory with contents went to `give`.
fn through(size: usize, take: impl Fn() -> *mut u8, give: impl Fn(*mut u8)) -> usize {
    let mut found = 0;
    for _ in 0..2 {
        let all: Vec<_> = (0..3).map(|_| take()).collect();
        for &at in &all {
            found += old(at, size);
            bytes(at, size).fill(DIRT);
        }
        all.into_iter().for_each(&give);
    }
    found
}

fn free(at: *mut u8) {
    // SAFETY: live, given up.
    unsafe { A.free(at) }
}

fn in_tenant(tenant: &kmem_core::Group<kmem_core::os::linux::Linux>, size: usize) -> *mut u8 {
    let _scope = tenant.enter();
    A.alloc(size, USER.here())
}

/// Old bytes, by the way to allocate.
fn ways() -> Vec<(&'static str, usize)> {
    let tenant = group(&A, "tenant");
    let mut found = Vec::new();
    for size in SIZES {
        let layout = Layout::from_size_align(size, 8).expect("a layout");
        let cache = A.cache_create(b"zeroed", size, 0, None, USER).expect("memory");
        // SAFETY: never destroyed.
        let cache = unsafe { cache.as_ref() };
        found.extend([
            ("alloc", through(size, || A.alloc(size, USER), free)),
            ("group", through(size, || in_tenant(&tenant, size), free)),
            ("aligned", through(size, || A.alloc_aligned(size, 256, USER), free)),
            ("kmalloc", through(size, || A.kmalloc(size, Gfp::KERNEL, USER), free)),
            ("vmalloc", through(size, || A.vmalloc(size, Gfp::KERNEL, USER), free)),
        ]);
        // SAFETY: layouts are those of the allocations.
        unsafe {
            let give = |at| GlobalAlloc::dealloc(&A, at, layout);
            found.push(("global", through(size, || GlobalAlloc::alloc(&A, layout), give)));
            let give = |at| A.cache_free(cache, at);
            let take = || A.cache_alloc(cache, Gfp::KERNEL, USER);
            found.push(("cache", through(size, take, give)));
            let half = || A.realloc(A.alloc(size / 2, USER), size, USER);
            found.push(("realloc", through(size, half, free)));
        }
    }
    found
}

fn run_case(case: &str) {
    match case {
        "ways" => {
            let found = ways().into_iter().filter(|&(_, old)| old > 0).map(|(way, _)| way);
            println!("old:{}", found.collect::<Vec<_>>().join(" "));
        }
        "on free" => {
            let at = A.alloc(100, USER);
            bytes(at, 112).fill(DIRT);
            free(at);
            assert_eq!(old(at, 112), 0);
            // Elements of a reserve, and all copies of a per-CPU object.
            let pool = A.mempool_create(1, Elements::Kmalloc(100), USER).expect("memory");
            let element = pool.alloc_preallocated(USER).expect("one");
            bytes(element.as_ptr(), 100).fill(DIRT);
            // SAFETY: an element of the pool, given up.
            unsafe { pool.free(element) };
            assert_eq!((old(element.as_ptr(), 100), pool.reserved()), (0, 1));
            let handle = A.alloc_percpu(64, 8, Gfp::KERNEL, USER);
            let copies: Vec<_> = A.per_cpu_copies(handle).collect();
            copies.iter().for_each(|&copy| bytes(copy, 64).fill(DIRT));
            // SAFETY: live, given up.
            unsafe { A.free_percpu(handle) };
            assert!(copies.iter().all(|&copy| old(copy, 64) == 0));
        }
        "reserve" => {
            let pool = A.mempool_create(1, Elements::Kmalloc(100), USER).expect("memory");
            let element = pool.alloc_preallocated(USER).expect("one");
            bytes(element.as_ptr(), 100).fill(DIRT);
            // SAFETY: an element of the pool, given up.
            unsafe { pool.free(element) };
            let element = pool.alloc_preallocated(USER).expect("one");
            assert_eq!(old(element.as_ptr(), 100), 0);
        }
        "child" => {
            let all: Vec<_> = (0..100).map(|_| A.alloc(100, USER)).collect();
            all.iter().for_each(|&at| bytes(at, 112).fill(DIRT));
            all.into_iter().for_each(free);
            // SAFETY: the child uses the instance alone, and does not panic.
            let clean = unsafe {
                forked(|| (0..200).map(|_| old(A.alloc(100, USER), 112)).sum::<usize>() == 0)
            };
            assert!(clean);
        }
        other => panic!("no case {other}"),
    }
}

#[test]
fn child() {
    if let Some(case) = case() {
        run_case(&case);
    }
}

fn succeeds(conf: &str, case: &str) -> bool {
    run_child(child, &format!("decay_ms:3600000,{conf}"), case).status.success()
}

/// The ways that gave memory with old contents.
fn stale(conf: &str) -> Vec<String> {
    let output = run_child(child, &format!("decay_ms:3600000,{conf}"), "ways");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{conf}: {output:?}");
    let found = text.lines().find_map(|line| line.split_once("old:")).expect("a line").1;
    found.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn no_way_to_allocate_gives_old_contents() {
    let every = ["alloc", "group", "aligned", "kmalloc", "vmalloc", "global", "cache", "realloc"];
    let found = stale("mem_profiling:1");
    assert!(every.iter().all(|way| found.iter().any(|at| at == way)), "{found:?}");
    for conf in ["init_on_alloc:1", "init_on_free:1", "init_on_alloc:1,init_on_free:1"] {
        for more in ["", ",rseq:off", ",redzone:1,quarantine_kb:64", ",decay_ms:0"] {
            assert_eq!(stale(&format!("{conf}{more}")), [""; 0], "{conf}{more}");
        }
    }
}

#[test]
fn freed_objects_elements_and_copies_hold_zeroes() {
    assert!(succeeds("init_on_free:1", "on free"));
    assert!(!succeeds("init_on_alloc:1", "on free"));
}

#[test]
fn an_element_of_a_reserve_is_zeroed_when_it_is_allocated() {
    assert!(succeeds("init_on_alloc:1", "reserve"));
    assert!(!succeeds("", "reserve"));
}

#[test]
fn a_forked_child_gets_no_old_contents() {
    for conf in ["init_on_alloc:1", "init_on_free:1", "init_on_free:1,rseq:off"] {
        assert!(succeeds(conf, "child"), "{conf}");
    }
    assert!(!succeeds("", "child"));
}
