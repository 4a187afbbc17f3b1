//! Effort of requests: `RETRY_MAYFAIL` and `NOFAIL` over a platform that has no more memory, or
//! none for a while.

use crate::instance::{Simulated, budget, free, group, simulated, until_null};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use kmem_core::Elements;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};
use kmem_layout::group::Limit;
use kmem_layout::group::group_event;

const USER: Caller = Caller::at(0x1000);
const QUIET: Gfp = Gfp::NOWARN;
const RETRY: Gfp = Gfp::NOWARN.and(Gfp::RETRY_MAYFAIL);
const NOFAIL: Gfp = Gfp::NOWARN.and(Gfp::NOFAIL);

type Request = fn(&'static Simulated, Gfp, Caller) -> *mut u8;

/// Every way to ask for memory with flags, all of them small.
const SMALL: [(&str, Request); 8] = [
    ("an object", |a, gfp, who| a.kmalloc(200, gfp, who)),
    ("a large object", |a, gfp, who| a.kmalloc(30_000, gfp, who)),
    ("a page", |a, gfp, who| a.alloc_pages(Order(0), gfp, who)),
    ("a zeroed page", |a, gfp, who| a.alloc_pages(Order(0), gfp.and(Gfp::ZERO), who)),
    ("8 pages", |a, gfp, who| a.alloc_pages(Order(3), gfp, who)),
    ("5 pages", |a, gfp, who| a.alloc_pages_exact(20_000, gfp, who)),
    ("a page to map", |a, gfp, who| a.alloc_vmap_page(gfp, who)),
    ("an area", |a, gfp, who| a.vmalloc(100_000, gfp, who)),
];

fn instance() -> &'static Simulated {
    // Every zone has room to grow, so only the platform refuses.
    let a = simulated(budget(64 << 20, 2));
    a.platform().fail(u64::MAX, u64::MAX);
    a
}

/// Repeats a request until it fails, while the platform gives no more.
fn exhaust(a: &'static Simulated, request: Request) -> Vec<*mut u8> {
    a.platform().fail(1, u64::MAX);
    until_null(|| request(a, QUIET, USER))
}

#[test]
fn a_request_that_retries_has_shrinkers_give_something_back_first() {
    for (name, request) in SMALL {
        let a = instance();
        free(a, request(a, QUIET, USER));
        let tenant = group(a, "tenant");
        let cached: &Mutex<Vec<usize>> = Box::leak(Box::default());
        let calls: &AtomicUsize = Box::leak(Box::default());
        let shrink = Box::leak(Box::new(move |_bytes: usize| {
            calls.fetch_add(1, Ordering::Relaxed);
            let all = std::mem::take(&mut *cached.lock().expect("no panic"));
            all.iter().for_each(|&at| free(a, at as *mut u8));
            all.len() * 64
        }));
        let _registered = tenant.add_shrinker(shrink).expect("a living group");
        let held = exhaust(a, request);
        assert!(!held.is_empty(), "{name}");
        cached.lock().expect("no panic").extend(held.iter().map(|&at| at as usize));
        for gfp in [QUIET, RETRY.and(Gfp::NOWAIT), NOFAIL.and(Gfp::NOWAIT)] {
            assert!(request(a, gfp, USER).is_null(), "{name}");
        }
        assert_eq!(calls.load(Ordering::Relaxed), 0, "{name}");
        let at = request(a, RETRY, USER);
        assert!(!at.is_null() && calls.load(Ordering::Relaxed) > 0, "{name}");
        free(a, at);
    }
}

#[test]
fn a_request_that_may_fail_ends_where_nothing_can_be_had() {
    for (name, request) in SMALL {
        let a = instance();
        free(a, request(a, QUIET, USER));
        let _held = exhaust(a, request);
        assert!(request(a, RETRY, USER).is_null(), "{name}");
    }
}

#[test]
fn a_request_that_must_not_fail_waits_until_the_platform_has_memory_again() {
    for (name, request) in SMALL {
        let a = instance();
        free(a, request(a, QUIET, USER));
        let _held = exhaust(a, request);
        a.platform().fail(1, u64::MAX);
        assert!(request(a, RETRY, USER).is_null(), "{name}");
        // More faults than a bounded number of tries meets.
        let faults = 2 * a.platform().calls();
        a.platform().fail(1, faults);
        let at = request(a, NOFAIL, USER);
        assert!(!at.is_null() && a.platform().calls() >= faults, "{name}");
        free(a, at);
    }
}

#[test]
fn what_another_thread_frees_ends_the_wait() {
    let a = instance();
    let pages: Request = |a, gfp, who| a.alloc_pages(Order(3), gfp, who);
    let tenant = group(a, "tenant");
    // None: the shrinker was called, so the thread waits. Some: the address that it got.
    let (said, heard) = mpsc::sync_channel(1);
    let got = said.clone();
    let shrink = Box::leak(Box::new(move |_bytes: usize| {
        let _ = said.try_send(None);
        0
    }));
    let _registered = tenant.add_shrinker(shrink).expect("a living group");
    let held = exhaust(a, pages);
    let waiting = std::thread::spawn(move || got.send(Some(pages(a, NOFAIL, USER) as usize)));
    assert_eq!(heard.recv(), Ok(None), "it did not wait");
    held.into_iter().for_each(|at| free(a, at));
    let at = heard.iter().flatten().next().expect("an answer");
    assert_ne!(at, 0);
    free(a, at as *mut u8);
    waiting.join().expect("no panic").expect("heard");
    a.trim();
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn long_blocks_are_refused_in_the_end_even_if_they_must_not_fail() {
    let long: [Request; 4] = [
        |a, gfp, who| a.alloc_pages(Order(4), gfp, who),
        |a, gfp, who| a.alloc_pages(Order(9), gfp, who),
        |a, gfp, who| a.kmalloc(100_000, gfp, who),
        |a, gfp, who| a.vmalloc(1 << 40, gfp, who),
    ];
    for request in long {
        let a = instance();
        free(a, a.alloc(1, USER));
        let _held = exhaust(a, request);
        assert!(request(a, NOFAIL, USER).is_null());
    }
}

#[test]
fn a_group_goes_above_its_limit_for_what_must_not_fail() {
    for (name, request) in SMALL {
        for gfp in [NOFAIL, NOFAIL.and(Gfp::NOWAIT)] {
            let a = instance();
            let tenant = group(a, "tenant");
            tenant.set(Limit::Max, Some(100)).expect("a living group");
            let who = USER.charged_to(tenant.id().objcg());
            let charged = |gfp| request(a, gfp, who);
            assert!(charged(RETRY).is_null() && !tenant.stat().over_limit, "{name}");
            let before = tenant.stat().events[group_event::OOM];
            let at = charged(gfp);
            let stat = tenant.stat();
            assert!(!at.is_null() && stat.over_limit && stat.current > 100, "{name}: {stat:?}");
            assert!(stat.events[group_event::OOM] > before, "{name}");
            free(a, at);
            assert_eq!((tenant.stat().current, a.validate_groups()), (0, Ok(())), "{name}");
        }
    }
}

#[test]
fn a_pool_with_a_reserve_takes_from_it_rather_than_wait_for_memory() {
    let a = instance();
    let pool = a.mempool_create(3, Elements::Pages(Order(0)), USER).expect("memory");
    let _held = exhaust(a, |a, gfp, who| a.alloc_pages(Order(0), gfp, who));
    let before = a.platform().calls();
    for _ in 0..3 {
        assert!(pool.alloc(NOFAIL, USER).is_some());
    }
    // A request that is tried once makes no more calls.
    assert!(a.platform().calls() - before < 200, "{}", a.platform().calls() - before);
    std::mem::forget(pool);
}
