//! Machines with several nodes, simulated: CPU `n` is of node `n`, and the nodes lie on a line.
//! Memory comes from the node of the CPU, or from the nearest one that has some.

use crate::instance::{
    Simulated, assert_empty, budget, case, free_all, leaked, said_by_child, simulated, until_null,
};
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};

const USER: Caller = Caller::at(0x1000);

type Request = fn(&'static Simulated) -> *mut u8;

const OBJECT: Request = |a| a.alloc(100, USER);
const PAGE: Request = |a| a.alloc_pages(Order(0), Gfp::NOWARN, USER);

const REQUESTS: [Request; 5] = [
    OBJECT,
    |a| a.alloc(20_000, USER),
    |a| a.alloc(200_000, USER),
    PAGE,
    |a| a.alloc_pages(Order(9), Gfp::NOWARN, USER),
];

/// An instance on a machine with this number of nodes, each with a CPU and with 16 MiB.
fn machine(nodes: u32) -> &'static Simulated {
    let budget = budget(nodes as usize * (16 << 20), nodes);
    let a = leaked(Sim::new(Linux::new(), budget).with_nodes(nodes));
    a.platform().fail(u64::MAX, u64::MAX);
    a
}

fn instance() -> &'static Simulated {
    machine(2)
}

/// Makes and frees some requests on a CPU, so that its arrays are searched for this period.
fn search(a: &'static Simulated, cpu: u32, request: Request) {
    for _ in 0..3 {
        let held = some(a, cpu, request, 2);
        free_all_on(a, cpu, held);
    }
}

/// Makes a request `count` times on a CPU.
fn some(a: &'static Simulated, cpu: u32, request: Request, count: usize) -> Vec<*mut u8> {
    a.platform().run_on(cpu);
    let held: Vec<_> = (0..count).map(|_| request(a)).collect();
    assert!(held.iter().all(|at| !at.is_null()));
    held
}

fn free_all_on(a: &'static Simulated, cpu: u32, held: Vec<*mut u8>) {
    a.platform().run_on(cpu);
    free_all(a, held);
}

fn all_of(a: &'static Simulated, held: &[*mut u8], node: u32) -> bool {
    held.iter().all(|&at| a.page_to_nid(at) == Some(node))
}

/// Number of allocations that are of a node.
fn count_of(a: &'static Simulated, held: &[*mut u8], node: u32) -> usize {
    held.iter().filter(|&&at| a.page_to_nid(at) == Some(node)).count()
}

fn clean(a: &'static Simulated) {
    a.drain();
    assert_empty(a);
}

#[test]
fn memory_is_of_the_node_of_the_cpu_that_asks() {
    for request in REQUESTS {
        let a = instance();
        for cpu in [0, 1, 0, 1] {
            let held = some(a, cpu, request, 3);
            assert!(all_of(a, &held, cpu));
            free_all_on(a, cpu, held);
        }
        clean(a);
    }
}

#[test]
fn a_free_asks_for_no_node() {
    for request in [OBJECT, PAGE] {
        let a = instance();
        let held = some(a, 0, request, 1000);
        let asked = a.platform().looks_for_node();
        free_all_on(a, 1, held);
        let asked = a.platform().looks_for_node() - asked;
        assert!(asked < 20, "{asked} times for 1000 frees");
        clean(a);
    }
}

#[test]
fn memory_that_is_freed_far_away_stays_there_until_the_array_is_full() {
    for request in [OBJECT, PAGE] {
        let a = instance();
        search(a, 1, request);
        let held = some(a, 0, request, 4);
        free_all_on(a, 1, held);
        let held = some(a, 1, request, 4);
        assert!(all_of(a, &held, 0), "the newest items of the array");
        free_all_on(a, 1, held);
        clean(a);
    }
}

#[test]
fn a_full_array_sends_memory_of_other_nodes_home_in_batches() {
    for request in [OBJECT, PAGE] {
        let a = instance();
        let used = a.stats().used;
        let held = some(a, 0, request, 4000);
        free_all_on(a, 1, held);
        // An array's worth stays on CPU 1. The rest is there for node 0, without a drain.
        let again = some(a, 0, request, 3500);
        assert!(all_of(a, &again, 0));
        let there = some(a, 1, request, 1000);
        let far = count_of(a, &there, 0);
        assert!(far <= 127, "{far} of node 0 on the CPU of node 1");
        assert!(a.stats().used >= used);
        free_all_on(a, 0, again);
        free_all_on(a, 1, there);
        clean(a);
    }
}

#[test]
fn a_mixed_array_is_sorted_by_node_when_it_is_full() {
    for request in [OBJECT, PAGE] {
        let a = instance();
        let (mut near, mut far) = (some(a, 1, request, 2000), some(a, 0, request, 2000));
        a.platform().run_on(1);
        while let (Some(near), Some(far)) = (near.pop(), far.pop()) {
            free_all(a, [near, far]);
        }
        for cpu in [0, 1] {
            let held = some(a, cpu, request, 1500);
            let far = count_of(a, &held, 1 - cpu);
            assert!(far <= 127, "{far} of the other node on CPU {cpu}");
            near.extend(held);
        }
        free_all_on(a, 0, near);
        clean(a);
    }
}

#[test]
fn memory_of_another_node_is_not_handed_out_for_ever() {
    for request in [OBJECT, PAGE] {
        let a = instance();
        search(a, 1, request);
        let (near, far) = (some(a, 1, request, 1), some(a, 0, request, 4));
        free_all_on(a, 1, near);
        free_all_on(a, 1, far);
        // One is always freed before the next is allocated, so the array is never full or empty.
        let pair = |a| {
            let held = some(a, 1, request, 1);
            let node = a.page_to_nid(held[0]);
            free_all_on(a, 1, held);
            node
        };
        assert_eq!(pair(a), Some(0));
        a.platform().advance_ms(10_000);
        // Other requests empty and fill other arrays, as they do in any program.
        for size in [500, 1000, 2000, 4000, 8000, 200, 300, 30, 60] {
            let held: Vec<_> = (0..1000).map(|_| a.alloc(size, USER)).collect();
            free_all_on(a, 1, held);
        }
        assert_eq!(pair(a), Some(1), "it went home");
        clean(a);
    }
}

#[test]
fn the_barn_of_a_node_has_objects_of_that_node() {
    let a = instance();
    let (near, far) = (some(a, 1, OBJECT, 1000), some(a, 0, OBJECT, 1000));
    free_all_on(a, 1, near.into_iter().zip(far).flat_map(|(near, far)| [near, far]).collect());
    // Before a drain, which empties the barns.
    assert_eq!(a.validate(), Ok(()));
    clean(a);
}

#[test]
fn when_a_node_has_no_more_the_others_are_asked() {
    for request in REQUESTS {
        let a = instance();
        // Node 0 grows until it has room for two of them.
        search(a, 0, request);
        a.drain();
        let near = some(a, 0, request, 1);
        // Node 1 has no memory yet, so its CPU gets that of node 0.
        a.platform().fail(1, u64::MAX);
        let far = some(a, 1, request, 1);
        assert!(all_of(a, &far, 0));
        a.platform().fail(u64::MAX, u64::MAX);
        free_all_on(a, 1, near);
        free_all_on(a, 0, far);
        clean(a);
    }
}

#[test]
fn when_a_node_has_no_more_the_nearest_is_asked_first() {
    for request in [REQUESTS[1], REQUESTS[4]] {
        let a = machine(4);
        let mut held = Vec::new();
        for cpu in 0..4 {
            held.extend(some(a, cpu, request, 1));
        }
        // The machine has no more address space: no zone can be added, and no memory but that.
        let mut order = Vec::new();
        a.platform().run_on(3);
        loop {
            let at = request(a);
            if at.is_null() || order.len() == 4 {
                held.push(at);
                break;
            }
            let node = a.page_to_nid(at).expect("a node");
            if order.last() != Some(&node) {
                order.push(node);
            }
            held.push(at);
            if a.buddyinfo().count() > 4 {
                break;
            }
        }
        assert_eq!(order, [3, 2, 1, 0]);
        free_all_on(a, 0, held);
        clean(a);
    }
}

/// Requests that name a node.
type NodeRequest = fn(&'static Simulated, u32, Gfp) -> *mut u8;

const NODE_REQUESTS: [NodeRequest; 6] = [
    |a, node, gfp| a.kmalloc_node(100, gfp, Some(node), USER),
    |a, node, gfp| a.kmalloc_node(20_000, gfp, Some(node), USER),
    |a, node, gfp| a.kmalloc_node(200_000, gfp, Some(node), USER),
    |a, node, gfp| a.alloc_pages_node(Some(node), Order(0), gfp, USER),
    |a, node, gfp| a.alloc_pages_node(Some(node), Order(9), gfp, USER),
    |a, node, gfp| {
        let mut page = [std::ptr::null_mut()];
        let got = a.alloc_pages_bulk_node(Some(node), gfp, &mut page, USER);
        assert_eq!(got, usize::from(!page[0].is_null()));
        page[0]
    },
];

#[test]
fn a_request_that_names_a_node_gets_its_memory() {
    for request in NODE_REQUESTS {
        let a = machine(3);
        for cpu in [0, 1, 2] {
            a.platform().run_on(cpu);
            let mut held = Vec::new();
            for node in [2, 0, 1] {
                for gfp in [Gfp::NOWARN, Gfp::ZERO, Gfp::THISNODE] {
                    let at = request(a, node, gfp);
                    assert_eq!(a.page_to_nid(at), Some(node), "on CPU {cpu}");
                    held.push(at);
                }
            }
            // The machine has no such node.
            let at = request(a, 3, Gfp::THISNODE);
            assert_eq!(a.page_to_nid(at), Some(cpu));
            held.push(at);
            free_all_on(a, 1, held);
            clean(a);
        }
    }
}

#[test]
fn a_node_without_memory_refuses_what_must_be_of_it() {
    for request in NODE_REQUESTS {
        let a = machine(2);
        a.platform().run_on(0);
        let only = Gfp::THISNODE.and(Gfp::NOWARN);
        // Node 0 has free pages, and node 1 has those that are left.
        let mut held = vec![request(a, 0, only), request(a, 1, only)];
        a.platform().fail(1, u64::MAX);
        held.extend(until_null(|| request(a, 1, only)));
        assert!(all_of(a, &held[1..], 1));
        a.platform().fail(u64::MAX, u64::MAX);
        free_all_on(a, 0, held);
        clean(a);
    }
}

#[test]
fn what_is_resized_stays_on_its_node_unless_it_must_be_of_another() {
    for (size, more) in [(100, 3000), (3000, 100_000), (200_000, 3 << 20), (200_000, 3000)] {
        let a = machine(3);
        let resize = |at, size, align, gfp, node| {
            // SAFETY: a live allocation, of which the new address alone is used from here on.
            unsafe { a.krealloc_node_align(at, size, align, gfp, node, USER) }
        };
        a.platform().run_on(2);
        let at = resize(std::ptr::null_mut(), size, 1, Gfp::THISNODE, Some(0));
        assert_eq!(a.page_to_nid(at), Some(0));
        // SAFETY: that many bytes of a live allocation.
        unsafe { at.write_bytes(7, size) };
        // In place: no node is named, or not this one alone, or the machine does not have it.
        for (gfp, node) in [(Gfp::THISNODE, None), (Gfp::KERNEL, Some(1)), (Gfp::THISNODE, Some(3))]
        {
            assert_eq!(resize(at, size, 1, gfp, node), at);
        }
        let at = resize(at, size, 1, Gfp::THISNODE, Some(1));
        assert_eq!(a.page_to_nid(at), Some(1));
        let aligned = resize(at, size, 1 << 16, Gfp::KERNEL, Some(0));
        assert!((aligned as usize).is_multiple_of(1 << 16));
        let node = if aligned == at { 1 } else { 0 };
        assert_eq!(a.page_to_nid(aligned), Some(node));
        let at = resize(aligned, more, 1 << 13, Gfp::THISNODE.and(Gfp::ZERO), Some(2));
        assert!((at as usize).is_multiple_of(1 << 13));
        assert_eq!(a.page_to_nid(at), Some(2));
        // SAFETY: that many bytes of a live allocation.
        let bytes = unsafe { std::slice::from_raw_parts(at, more) };
        assert!(bytes[..size.min(more)].iter().all(|&byte| byte == 7));
        // The node is full: the allocation stays as it is.
        a.platform().fail(1, u64::MAX);
        let only = Gfp::THISNODE.and(Gfp::NOWARN);
        assert!(resize(at, 1 << 30, 1, only, Some(2)).is_null());
        a.platform().fail(u64::MAX, u64::MAX);
        assert_eq!(a.page_to_nid(at), Some(2));
        // SAFETY: the same bytes.
        assert!(unsafe { std::slice::from_raw_parts(at, size.min(more)) }.iter().all(|&b| b == 7));
        assert!(resize(at, 0, 1, Gfp::KERNEL, None).is_null());
        clean(a);
    }
}

#[test]
fn a_cache_has_objects_of_the_node_that_is_named() {
    let a = machine(2);
    let cache = a.cache_create(b"things", 200, 64, None, USER).expect("memory");
    // SAFETY: the cache is destroyed after the last use of this reference.
    let things = unsafe { cache.as_ref() };
    for (node, expected) in [(Some(1), 1), (Some(0), 0), (None, 0), (Some(9), 0)] {
        let thing = a.cache_alloc_node(things, Gfp::THISNODE, node, USER);
        assert_eq!((a.page_to_nid(thing), things.live()), (Some(expected), 1));
        assert!((thing as usize).is_multiple_of(64));
        // SAFETY: a live object of the cache.
        unsafe { a.cache_free(things, thing) };
    }
    // The newest object of the array is of node 1.
    for (gfp, expected) in [(Gfp::KERNEL, 1), (Gfp::THISNODE.and(Gfp::ZERO), 0)] {
        a.platform().run_on(1);
        let far = a.cache_alloc(things, Gfp::THISNODE, USER);
        a.platform().run_on(0);
        search(a, 0, |a| a.kmalloc_node(200, Gfp::KERNEL, Some(0), USER));
        // SAFETY: live objects of the cache.
        unsafe {
            a.cache_free(things, far);
            let thing = a.cache_alloc(things, gfp, USER);
            assert_eq!((a.page_to_nid(thing), things.live()), (Some(expected), 1));
            a.cache_free(things, thing);
        }
    }
    // SAFETY: a live cache without objects.
    assert!(unsafe { a.cache_destroy(cache) });
    clean(a);
}

#[test]
fn books_and_free_blocks_are_those_of_all_nodes() {
    let a = instance();
    let mut held = some(a, 0, OBJECT, 50);
    held.extend(some(a, 1, OBJECT, 50));
    assert_eq!(a.stats().objects, 100);
    assert_eq!(a.buddyinfo().count(), 2);
    free_all_on(a, 1, held);
    clean(a);
}

#[test]
fn a_node_whose_zone_cannot_be_made_at_the_start_gets_one_when_it_is_used() {
    let fault_free = {
        let a = instance();
        drop(some(a, 0, OBJECT, 1));
        a.platform().calls()
    };
    let mut late = 0;
    for call in 1..fault_free {
        let a = instance();
        a.platform().fail(call, call + 1);
        a.platform().run_on(0);
        let first = a.alloc(100, USER);
        if first.is_null() {
            continue;
        }
        let zones = a.buddyinfo().count();
        let held = some(a, 1, OBJECT, 1);
        assert!(all_of(a, &held, 1), "call {call}");
        late += usize::from(a.buddyinfo().count() > zones);
        free_all_on(a, 0, vec![first, held[0]]);
        clean(a);
    }
    assert!(late > 0, "no call made the zone of node 1 fail");
}

#[test]
fn one_node_has_one_zone() {
    let a = simulated(budget(16 << 20, 2));
    for cpu in [0, 1] {
        let held = some(a, cpu, PAGE, 10);
        assert!(all_of(a, &held, 0));
        free_all_on(a, cpu, held);
    }
    assert_eq!(a.buddyinfo().count(), 1);
    assert_eq!(a.platform().looks_for_node(), 0);
}

#[test]
fn nodes_can_be_switched_off() {
    said_by_child(child, "numa:off", "one node");
    said_by_child(child, "numa:on", "two nodes");
}

#[test]
fn child() {
    let Some(case) = case() else { return };
    let a = instance();
    let held = some(a, 1, PAGE, 1);
    let node = u32::from(case == "two nodes");
    assert!(all_of(a, &held, node), "{case}");
    assert_eq!(a.buddyinfo().count(), 1 + node as usize, "{case}");
}
