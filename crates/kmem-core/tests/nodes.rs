//! Machines with two nodes, simulated: CPU 0 is of node 0, CPU 1 of node 1. Memory comes from the
//! node of the CPU, or from the other one.
#![cfg(target_os = "linux")]

mod instance;

use instance::{Simulated, assert_empty, budget, leaked, simulated};
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::request::Caller;
use kmem_core::units::{Gfp, Order};

const USER: Caller = Caller::at(0x1000);

type Request = fn(&'static Simulated) -> *mut u8;

const REQUESTS: [Request; 5] = [
    |a| a.alloc(100, USER),
    |a| a.alloc(20_000, USER),
    |a| a.alloc(200_000, USER),
    |a| a.alloc_pages(Order(0), Gfp::NOWARN, USER),
    |a| a.alloc_pages(Order(9), Gfp::NOWARN, USER),
];

fn instance() -> &'static Simulated {
    let a = leaked(Sim::new(Linux::new(), budget(16 << 20, 2)).with_nodes(2));
    a.platform().fail(u64::MAX, u64::MAX);
    a
}

/// Makes a request `count` times on a CPU.
fn some(a: &'static Simulated, cpu: u32, request: Request, count: usize) -> Vec<*mut u8> {
    a.platform().run_on(cpu);
    let held: Vec<_> = (0..count).map(|_| request(a)).collect();
    assert!(held.iter().all(|at| !at.is_null()));
    held
}

fn free_all(a: &'static Simulated, cpu: u32, held: Vec<*mut u8>) {
    a.platform().run_on(cpu);
    instance::free_all(a, held);
}

fn all_of(a: &'static Simulated, held: &[*mut u8], node: u32) -> bool {
    held.iter().all(|&at| a.page_to_nid(at) == Some(node))
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
            free_all(a, cpu, held);
        }
        clean(a);
    }
}

#[test]
fn what_is_freed_far_away_is_not_taken_for_near() {
    for request in REQUESTS {
        let a = instance();
        for (here, there) in [(0, 1), (1, 0)] {
            let held = some(a, here, request, 3);
            free_all(a, there, held);
            let held = some(a, there, request, 3);
            assert!(all_of(a, &held, there));
            free_all(a, there, held);
        }
        clean(a);
    }
}

#[test]
fn when_a_node_has_no_more_the_others_are_asked() {
    for request in REQUESTS {
        let a = instance();
        let near = some(a, 0, request, 1);
        // Node 1 has no memory yet, so its CPU gets that of node 0.
        a.platform().fail(1, u64::MAX);
        let far = some(a, 1, request, 1);
        assert!(all_of(a, &far, 0));
        a.platform().fail(u64::MAX, u64::MAX);
        free_all(a, 1, near);
        free_all(a, 0, far);
        clean(a);
    }
}

#[test]
fn books_and_free_blocks_are_those_of_all_nodes() {
    let a = instance();
    let mut held = some(a, 0, REQUESTS[0], 50);
    held.extend(some(a, 1, REQUESTS[0], 50));
    assert_eq!(a.stats().objects, 100);
    assert_eq!(a.buddyinfo().count(), 2);
    free_all(a, 1, held);
    clean(a);
}

#[test]
fn one_node_has_one_zone() {
    let a = simulated(budget(16 << 20, 2));
    for cpu in [0, 1] {
        let held = some(a, cpu, REQUESTS[3], 10);
        assert!(all_of(a, &held, 0));
        free_all(a, cpu, held);
    }
    assert_eq!(a.buddyinfo().count(), 1);
}
