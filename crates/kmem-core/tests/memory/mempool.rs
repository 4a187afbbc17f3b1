//! Memory pools: the reserve serves requests when the system fails. The user of an element is
//! billed for it.

use crate::instance::{
    Simulated, after_faults, budget, calls, cases, free_all, simulated, started, until_null,
};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use kmem_core::memcg::GroupId;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Elements, Mempool};
use kmem_layout::group::Limit;
use proptest::prelude::*;

type Pool = Mempool<Sim<Linux>>;

const OWNER: Caller = Caller::at(0x1000);
const USER: Caller = Caller::at(0x2000);
const FILLER: Caller = Caller::at(0x3000);

/// Every kind of element.
fn kinds(a: &'static Simulated) -> Vec<Elements> {
    let cache = a.cache_create(b"things", 200, 64, None, Caller::at(9)).expect("memory");
    // SAFETY: never destroyed.
    let cache = unsafe { cache.as_ref() };
    vec![
        Elements::Kmalloc(1000),
        Elements::Slab(cache),
        Elements::Pages(Order(1)),
        Elements::Kmalloc(100_000),
    ]
}

/// Allocates all memory of an instance, whose platform gives no more.
fn exhaust(a: &'static Simulated) -> Vec<*mut u8> {
    let mut all = Vec::new();
    let objects =
        kmem_core::class::SIZES.iter().rev().map(|&size| size as usize).filter(|&size| size > 0);
    for size in [4 << 20, 1 << 20, 100_000, 36_864].into_iter().chain(objects) {
        all.extend(until_null(|| a.alloc(size, FILLER.quietly())));
    }
    for order in [Order(1), Order(0)] {
        all.extend(until_null(|| a.alloc_pages(order, Gfp::NOWARN, FILLER)));
    }
    all
}

#[test]
fn the_reserve_is_there_when_the_system_fails_and_its_user_is_billed() {
    for kind in 0..4 {
        let a = simulated(budget(16 << 20, 2));
        let pool = a.mempool_create(5, kinds(a)[kind], OWNER).expect("memory");
        assert_eq!((pool.reserved(), pool.min()), (5, 5));
        let own = calls(a)[&0x1000];
        a.platform().fail(1, u64::MAX);
        let filler = exhaust(a);
        let held: Vec<_> =
            (0..5).map(|_| pool.alloc(Gfp::NOWAIT, USER).expect("reserved")).collect();
        assert_eq!(pool.alloc(Gfp::NOWAIT, USER), None);
        assert_eq!(calls(a)[&0x2000], 5);
        assert_eq!(calls(a)[&0x1000], own - 5, "the pool itself");
        // A freed element goes to the reserve, and is billed to the pool.
        for (i, element) in held.into_iter().enumerate() {
            // SAFETY: from the pool, given up.
            unsafe { pool.free(element) };
            assert_eq!(pool.reserved() as usize, i + 1);
        }
        assert_eq!(calls(a).get(&0x2000), None);
        assert_eq!(calls(a)[&0x1000], own);
        let mut out = [std::ptr::null_mut(); 6];
        assert!(!pool.alloc_bulk(Gfp::NOWAIT, &mut out, USER));
        assert_eq!((out, pool.reserved()), ([std::ptr::null_mut(); 6], 5));
        assert!(pool.alloc_bulk(Gfp::NOWAIT, &mut out[..5], USER));
        for element in &out[..5] {
            // SAFETY: from the pool, given up.
            unsafe { pool.free(NonNull::new(*element).expect("filled")) };
        }
        assert_eq!(pool.validate(), Ok(()));
        drop(pool);
        free_all(a, filler);
        assert_eq!((calls(a).get(&0x1000), a.validate()), (None, Ok(())));
    }
}

#[test]
fn the_group_of_who_has_an_element_pays_for_it() {
    for kind in 0..4 {
        let a = simulated(budget(16 << 20, 2));
        let group = |name: &[u8]| a.group_create(GroupId::ROOT, name).expect("a group");
        let (owner, user) = (group(b"owner"), group(b"user"));
        let current = |id| a.group_stat(id).expect("it is there").current;
        let pool =
            a.mempool_create(5, kinds(a)[kind], OWNER.charged_to(owner.objcg())).expect("memory");
        let whole = current(owner);
        a.platform().fail(1, u64::MAX);
        exhaust(a);
        // A group at its limit still gets reserved elements.
        a.group_set(user, Limit::Max, 0).expect("a limit");
        let who = USER.charged_to(user.objcg());
        let held: Vec<_> =
            (0..5).map(|_| pool.alloc(Gfp::NOWAIT, who).expect("reserved")).collect();
        let each = (whole - current(owner)) / 5;
        assert!(each >= 200 && current(user) == 5 * each, "{} of {whole}", current(user));
        for element in held {
            // SAFETY: from the pool, given up.
            unsafe { pool.free(element) };
        }
        assert_eq!((current(user), current(owner)), (0, whole));
        assert_eq!(pool.validate(), Ok(()));
        drop(pool);
        assert_eq!((current(owner), a.validate_groups()), (0, Ok(())));
    }
}

#[test]
fn who_may_wait_gets_what_another_frees() {
    let a = simulated(budget(16 << 20, 2));
    let pool = a.mempool_create(2, Elements::Kmalloc(1000), OWNER).expect("memory");
    a.platform().fail(1, u64::MAX);
    exhaust(a);
    let turns = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let element = pool.alloc(Gfp::KERNEL, USER).expect("never fails");
                    // SAFETY: this thread alone has the element, which is that long; then given up.
                    unsafe {
                        let word = element.cast::<AtomicUsize>().as_ref();
                        word.store(7, Ordering::Relaxed);
                        thread::yield_now();
                        assert_eq!(word.swap(0, Ordering::Relaxed), 7, "two owners");
                        pool.free(element);
                    }
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!((turns.into_inner(), pool.reserved()), (3000, 2));
}

#[test]
fn without_memory_for_the_reserve_there_is_no_pool_and_a_resize_changes_nothing() {
    let a = simulated(budget(16 << 20, 2));
    let pool = a.mempool_create(3, Elements::Pages(Order(0)), OWNER).expect("memory");
    a.platform().fail(1, u64::MAX);
    let filler = exhaust(a);
    assert!(a.mempool_create(3, Elements::Kmalloc(5000), OWNER).is_err());
    for more in [4, 64, 65, 1000] {
        assert!(pool.resize(more).is_err());
        assert_eq!((pool.min(), pool.reserved()), (3, 3), "{more}");
    }
    free_all(a, filler);
    assert_eq!(pool.resize(200), Ok(()));
    assert_eq!((pool.min(), pool.reserved()), (200, 200));
    assert_eq!(pool.resize(1), Ok(()));
    assert_eq!((pool.min(), pool.reserved()), (1, 1));
    // A pool without a reserve does not wait for one.
    assert_eq!(pool.resize(0), Ok(()));
    let _all = exhaust(a);
    assert_eq!(pool.alloc(Gfp::KERNEL, USER), None);
}

#[test]
fn any_one_call_may_fail() {
    let work = |a: &'static Simulated| -> Option<usize> {
        let pool: Pool = a.mempool_create(70, Elements::Kmalloc(9000), OWNER).ok()?;
        let held: Vec<_> = (0..300).filter_map(|_| pool.alloc(Gfp::NOWAIT, USER)).collect();
        let served = held.len();
        assert!(served >= 70, "the reserve at least: {served}");
        for element in held {
            // SAFETY: from the pool, given up.
            unsafe { pool.free(element) };
        }
        assert_eq!(pool.reserved(), 70);
        Some(served)
    };
    let fresh = || started(budget(16 << 20, 2));
    let a = fresh();
    a.platform().fail(u64::MAX, u64::MAX);
    assert_eq!(work(a), Some(300));
    for fault in 1..=a.platform().calls() {
        let a = after_faults(fresh(), fault..fault + 1, work);
        assert_eq!(work(a), Some(300), "the fault at call {fault} did not pass");
        assert!(calls(a).is_empty());
    }
}

#[test]
fn elements_of_the_users_own_come_from_his_functions() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn alloc(_: Gfp, data: *mut c_void) -> *mut c_void {
        // SAFETY: the pool was made with a number.
        let most = unsafe { data.cast::<usize>().read() };
        if LIVE.load(Ordering::Relaxed) == most {
            return std::ptr::null_mut();
        }
        (LIVE.fetch_add(1, Ordering::Relaxed) + 1) as *mut c_void
    }
    unsafe extern "C" fn free(_: *mut c_void, _: *mut c_void) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
    }
    let a = simulated(budget(16 << 20, 2));
    let most = 7usize;
    let data = (&raw const most).cast_mut().cast();
    let pool = a.mempool_create(3, Elements::Custom { alloc, free, data }, OWNER).expect("three");
    let held: Vec<_> = (0..7).map(|_| pool.alloc(Gfp::NOWAIT, USER).expect("seven")).collect();
    assert_eq!(pool.alloc(Gfp::NOWAIT, USER), None);
    for element in held {
        // SAFETY: from the pool.
        unsafe { pool.free(element) };
    }
    assert_eq!(LIVE.load(Ordering::Relaxed), 3);
    assert_eq!(pool.validate(), Ok(()));
    drop(pool);
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Alloc,
    Free { which: usize },
    Resize { min: u32 },
    Break,
    Mend,
}

proptest! {
    #![proptest_config(cases(32))]

    /// The back end gives at most ten elements, or none while it is broken. The model is numbers.
    #[test]
    fn a_pool_is_a_back_end_and_a_bounded_reserve(steps in prop::collection::vec(prop_oneof![
        6 => Just(Step::Alloc),
        5 => any::<usize>().prop_map(|which| Step::Free { which }),
        1 => (0u32..8).prop_map(|min| Step::Resize { min }),
        1 => Just(Step::Break),
        1 => Just(Step::Mend),
    ], 1..200)) {
        struct End { broken: AtomicUsize, live: AtomicUsize, next: AtomicUsize }
        unsafe extern "C" fn alloc(_: Gfp, data: *mut c_void) -> *mut c_void {
            // SAFETY: the pool was made with an `End`.
            let end = unsafe { &*data.cast::<End>() };
            if end.broken.load(Ordering::Relaxed) != 0 || end.live.load(Ordering::Relaxed) == 10 {
                return std::ptr::null_mut();
            }
            end.live.fetch_add(1, Ordering::Relaxed);
            end.next.fetch_add(1, Ordering::Relaxed) as *mut c_void
        }
        unsafe extern "C" fn free(_: *mut c_void, data: *mut c_void) {
            // SAFETY: the pool was made with an `End`.
            unsafe { &*data.cast::<End>() }.live.fetch_sub(1, Ordering::Relaxed);
        }
        let [broken, live, next] = [0, 0, 1].map(AtomicUsize::new);
        let end = End { broken, live, next };
        let data = (&raw const end).cast_mut().cast();
        let elements = Elements::Custom { alloc, free, data };
        let pool = simulated(budget(16 << 20, 2)).mempool_create(2, elements, OWNER);
        let pool = pool.expect("two");
        let (mut held, mut reserved, mut min, mut broken) = (Vec::new(), 2usize, 2usize, false);
        for step in steps {
            let free_there = if broken { 0 } else { 10 - held.len() - reserved };
            match step {
                Step::Alloc => {
                    let got = pool.alloc(Gfp::NOWAIT, USER);
                    prop_assert_eq!(got.is_some(), free_there + reserved > 0);
                    if got.is_some() && free_there == 0 {
                        reserved -= 1;
                    }
                    prop_assert!(got.is_none_or(|element| !held.contains(&element)));
                    held.extend(got);
                }
                Step::Free { which } if !held.is_empty() => {
                    let element = held.swap_remove(which % held.len());
                    // SAFETY: from the pool.
                    unsafe { pool.free(element) };
                    reserved += usize::from(reserved < min);
                }
                Step::Resize { min: new } => {
                    let new = new as usize;
                    let can = new <= min || reserved + free_there >= new;
                    prop_assert_eq!(pool.resize(new as u32).is_ok(), can);
                    (reserved, min) = if new <= min {
                        (reserved.min(new), new)
                    } else if can {
                        (new, new)
                    } else {
                        // The reserve was filled up to its old size as far as possible.
                        (min.min(reserved + free_there), min)
                    };
                }
                Step::Break => {
                    end.broken.store(1, Ordering::Relaxed);
                    broken = true;
                }
                Step::Mend => {
                    end.broken.store(0, Ordering::Relaxed);
                    broken = false;
                }
                _ => {}
            }
            prop_assert_eq!((pool.reserved() as usize, pool.min() as usize), (reserved, min));
            prop_assert_eq!(end.live.load(Ordering::Relaxed), held.len() + reserved);
        }
        for element in held {
            // SAFETY: from the pool.
            unsafe { pool.free(element) };
        }
        assert_eq!(pool.validate(), Ok(()));
        drop(pool);
        prop_assert_eq!(end.live.load(Ordering::Relaxed), 0);
    }
}
