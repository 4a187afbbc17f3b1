//! Areas, per-CPU objects, caches and pools of a group when a request for one fails in the middle.
//! The books balance to the byte, and the program is told which limit refused what to whom.

use crate::instance::{Simulated, agrees, assert_empty, budget, group, simulated, started};
use kmem_core::memcg::GroupId;
use kmem_core::os::Budget;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Cache, Elements, Group, Mempool, Refusal, RefusalReason};
use kmem_layout::group::Limit;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Mutex;

type Tenant = Group<Sim<Linux>>;
type Pool = Mempool<Sim<Linux>>;

const PAGE: usize = 4096;
const BUDGET: Budget =
    Budget { first_zone: 32 << 20, areas: 32 << 20, memory: 32 << 20, ..budget(16 << 20, 2) };
/// Byte that the constructor writes over an object.
const BUILT: u8 = 0x5a;

unsafe extern "C" fn construct(object: *mut c_void) {
    // SAFETY: an object of 200 bytes.
    unsafe { object.cast::<u8>().write_bytes(BUILT, 200) };
}

/// Caches whose memory the root has paid for before any fault.
#[derive(Clone, Copy)]
struct Caches {
    plain: &'static Cache,
    constructed: &'static Cache,
}

fn caches(a: &'static Simulated) -> Caches {
    let make = |ctor| {
        let made = a.cache_create(b"things", 200, 64, ctor, Caller::at(9)).expect("memory");
        // SAFETY: it is never destroyed.
        unsafe { made.as_ref() }
    };
    Caches { plain: make(None), constructed: make(Some(construct)) }
}

/// Memory that a group was granted, by kind.
#[derive(Default)]
struct Held {
    areas: Vec<*mut u8>,
    /// Pages that `vmap` can map, each of which has a mapping if there was memory for one.
    pages: Vec<(*mut u8, *mut u8)>,
    percpu: Vec<*mut u8>,
    objects: Vec<(&'static Cache, *mut u8)>,
    pools: Vec<(Pool, Vec<NonNull<u8>>)>,
}

impl Held {
    /// Objects and runs of pages that the group pays for.
    fn count(&self) -> usize {
        let shelves = |pool: &Pool| usize::from(pool.min() > 0);
        let pools = self.pools.iter();
        let pools = pools.map(|(pool, out)| out.len() + pool.reserved() as usize + shelves(pool));
        self.areas.len()
            + self.pages.len()
            + self.percpu.len()
            + self.objects.len()
            + pools.sum::<usize>()
    }

    fn live_of(&self, cache: &'static Cache) -> u64 {
        self.objects.iter().filter(|(of, _)| std::ptr::eq(*of, cache)).count() as u64
    }

    fn free(self, a: &'static Simulated) {
        // SAFETY: all live, and given up.
        unsafe {
            self.areas.into_iter().for_each(|at| a.vfree(at));
            for (page, map) in self.pages {
                a.vunmap(map);
                a.free(page);
            }
            self.percpu.into_iter().for_each(|at| a.free_percpu(at));
            self.objects.into_iter().for_each(|(cache, at)| a.cache_free(cache, at));
            for (pool, out) in self.pools {
                out.into_iter().for_each(|element| pool.free(element));
                assert_eq!(pool.validate(), Ok(()));
            }
        }
    }
}

/// Makes requests of each kind for a group, and changes the sizes of areas and pools.
fn some_of_everything(a: &'static Simulated, caches: Caches, tenant: &Tenant) -> Held {
    let caller = |site: usize| Caller::at(site).charged_to(tenant.id().objcg()).quietly();
    let mut held = Held::default();
    for size in [PAGE, 5 * PAGE, 90 * PAGE] {
        held.areas.push(a.vmalloc(size, Gfp::KERNEL, caller(0x1000)));
        held.areas.push(a.vmalloc_huge(size, Gfp::ZERO, caller(0x1010)));
    }
    for (at, pages) in held.areas.iter_mut().zip([3, 1, 700, 2, 100, 600]) {
        // SAFETY: null or live; if it cannot be had, the old one stays.
        let moved = unsafe { a.vrealloc(*at, pages * PAGE, Gfp::KERNEL, caller(0x1020)) };
        *at = if moved.is_null() { *at } else { moved };
    }
    held.areas.retain(|at| !at.is_null());
    for _ in 0..3 {
        let page = a.alloc_vmap_page(Gfp::KERNEL, caller(0x1030));
        if !page.is_null() {
            // SAFETY: a live page, which is freed after the mapping.
            held.pages.push((page, unsafe { a.vmap(&[page, page]) }));
        }
    }
    for size in [8, 200, 3000, 20_000] {
        let objects = (0..10).map(|_| a.alloc_percpu(size, 8, Gfp::KERNEL, caller(0x1040)));
        held.percpu.extend(objects.filter(|at| !at.is_null()));
    }
    for cache in [caches.plain, caches.constructed] {
        let objects = (0..100).map(|_| a.cache_alloc(cache, Gfp::KERNEL, caller(0x1050)));
        held.objects.extend(objects.filter(|at| !at.is_null()).map(|at| (cache, at)));
        assert_eq!(cache.live(), held.live_of(cache));
    }
    for elements in [
        Elements::Kmalloc(9000),
        Elements::Slab(caches.constructed),
        Elements::Pages(Order(1)),
        Elements::Kmalloc(100_000),
    ] {
        let Ok(pool) = a.mempool_create(3, elements, caller(0x1060)) else { continue };
        let out: Vec<_> = (0..6).filter_map(|_| pool.alloc(Gfp::NOWAIT, caller(0x1070))).collect();
        assert!(out.len() >= 3, "the reserve at least");
        let before = (pool.min(), pool.reserved());
        if pool.resize(20).is_err() {
            assert_eq!(pool.min(), before.0);
        }
        held.pools.push((pool, out));
    }
    held
}

/// Frees what a group holds, after a look whether its charge says that.
fn settle(a: &'static Simulated, tenant: &Tenant, held: Held, when: &str) -> usize {
    let count = held.count();
    agrees(a, tenant, count, when);
    held.free(a);
    agrees(a, tenant, 0, when);
    count
}

#[test]
fn a_fault_at_any_call_leaves_no_charge_of_an_area_an_object_or_a_pool() {
    let round = |fault: u64, faults: u64| {
        let a = started(BUDGET);
        let (caches, tenant) = (caches(a), group(a, "tenant"));
        a.platform().fail(fault, fault.saturating_add(faults));
        let held = some_of_everything(a, caches, &tenant);
        let calls = a.platform().calls();
        let granted = settle(a, &tenant, held, "after the fault");
        a.platform().fail(u64::MAX, u64::MAX);
        let again = some_of_everything(a, caches, &tenant);
        let again = settle(a, &tenant, again, "when the fault is over");
        assert!(again >= granted, "the fault at call {fault} did not pass");
        (granted, calls)
    };
    let (all, calls) = round(u64::MAX, 1);
    assert!(all > 250 && calls > 30, "{all} granted, {calls} calls");
    (1..=calls).for_each(|fault| _ = round(fault, 1));
    let counts: BTreeSet<_> = (1..=calls).map(|fault| round(fault, u64::MAX).0).collect();
    assert!(counts.len() > 5, "{counts:?}");
}

#[test]
fn a_limit_at_any_byte_leaves_no_charge_of_an_area_an_object_or_a_pool() {
    let a = simulated(BUDGET);
    let (caches, tenant) = (caches(a), group(a, "tenant"));
    let held = some_of_everything(a, caches, &tenant);
    let most = tenant.stat().peak;
    settle(a, &tenant, held, "without a limit");
    let mut counts = BTreeSet::new();
    for max in (0..60).map(|n| n * 500).chain((0..=40).map(|n| most * n / 40)) {
        tenant.set(Limit::Max, Some(max)).expect("a living group");
        a.group_reset_peak(tenant.id()).expect("a living group");
        let held = some_of_everything(a, caches, &tenant);
        assert!(tenant.stat().current <= max && tenant.stat().peak <= max, "{max}");
        counts.insert(settle(a, &tenant, held, "at its limit"));
    }
    assert!(counts.len() > 20, "{counts:?}");
    tenant.delete().expect("no groups below");
    // SAFETY: live caches that are used no longer.
    unsafe {
        assert!(a.cache_destroy(caches.plain.into()));
        assert!(a.cache_destroy(caches.constructed.into()));
    }
    a.trim();
    assert_empty(a);
}

/// A request of a kind, and the least number of bytes that a refusal of it names.
type Request = (&'static str, u64, fn(&'static Simulated, Caches, Caller) -> bool);

const REQUESTS: [Request; 6] = [
    ("an area", 9 * 4096, |a, _, caller| a.vmalloc(9 * PAGE, Gfp::KERNEL, caller).is_null()),
    ("a page for vmap", 4096, |a, _, caller| a.alloc_vmap_page(Gfp::KERNEL, caller).is_null()),
    ("a per-CPU object", 20_000, |a, _, caller| {
        a.alloc_percpu(20_000, 8, Gfp::KERNEL, caller).is_null()
    }),
    ("an object of a cache", 200, |a, caches, caller| {
        a.cache_alloc(caches.plain, Gfp::KERNEL, caller).is_null()
    }),
    ("a constructed object", 200, |a, caches, caller| {
        a.cache_alloc(caches.constructed, Gfp::KERNEL, caller).is_null()
    }),
    ("a pool", 0, |a, _, caller| {
        // It stays, so that memory runs out.
        a.mempool_create(3, Elements::Kmalloc(9000), caller).map(std::mem::forget).is_err()
    }),
];

/// The program's answer to a pool without memory is its result: a smaller pool may do.
#[test]
fn each_kind_tells_what_was_refused_to_whom_by_which_limit_and_a_pool_only_fails() {
    let told: &Mutex<Vec<Refusal>> = Box::leak(Box::default());
    let push = Box::leak(Box::new(|refusal: &Refusal| {
        told.lock().expect("no panic").push(*refusal);
    }));
    for (kind, least, refused) in REQUESTS {
        let a = started(BUDGET);
        let (caches, upper) = (caches(a), group(a, "upper"));
        upper.set(Limit::Max, Some(100)).expect("a living group");
        let tenant = upper.create("tenant").expect("a group");
        a.tell_refusals(push).expect("not within one");
        let caller = Caller::at(0x1_0000);
        assert!(refused(a, caches, caller.charged_to(tenant.id().objcg())), "{kind}");
        let at_max = std::mem::take(&mut *told.lock().expect("no panic"));
        assert_eq!((tenant.stat().current, upper.stat().current), (0, 0), "{kind}");
        // Memory runs out for the root, too.
        a.platform().fail(1, u64::MAX);
        while !refused(a, caches, caller) {}
        let no_memory = std::mem::take(&mut *told.lock().expect("no panic"));
        a.platform().fail(u64::MAX, u64::MAX);
        if least == 0 {
            assert!(at_max.is_empty() && no_memory.is_empty(), "{kind}");
            continue;
        }
        let [refusal] = at_max[..] else { panic!("{kind}: {at_max:?}") };
        assert_eq!((refusal.group, refusal.payer), (upper.id(), tenant.id()), "{kind}");
        assert_eq!((refusal.reason, refusal.limit), (RefusalReason::AtMax, 100), "{kind}");
        assert_eq!(refusal.caller, 0x1_0000, "{kind}");
        assert!((least..=2 * least).contains(&refusal.bytes), "{kind}: {refusal:?}");
        let [refusal] = no_memory[..] else { panic!("{kind}: {no_memory:?}") };
        assert_eq!((refusal.group, refusal.payer), (GroupId::ROOT, GroupId::ROOT), "{kind}");
        assert_eq!((refusal.reason, refusal.caller), (RefusalReason::NoMemory, 0x1_0000), "{kind}");
    }
}
