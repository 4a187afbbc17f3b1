//! Free blocks read from outside, against the allocator's own counts.
#![cfg(target_os = "linux")]

use kmem_core::os::Budget;
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::units::{Gfp, Order};
use kmem_core::{Caller, Instance, Kmem};
use kmem_snapshot::Process;
use kmem_snapshot::books::Buddyinfo;

static A: Kmem = Kmem::new();
const BUDGET: Budget = Budget::of(16 << 20, 2);

/// Free blocks per order, once CPUs keep nothing. Together they are all pages that are not in use.
fn blocks() -> [u64; 12] {
    A.drain();
    let process = Process::open(std::process::id()).unwrap();
    let mut info = Buddyinfo::take(&process).unwrap();
    assert!(info.faults.is_empty());
    // The other test has an instance of its own.
    info.zones.retain(|zone| A.owns(zone.base as *mut u8));
    let stats = A.stats();
    let free: u64 = info.zones.iter().map(|zone| zone.free_pages() * 4096).sum();
    assert_eq!(free, stats.committed - stats.used);
    assert_eq!(info.zones.iter().map(|zone| zone.pages * 4096).sum::<u64>(), stats.committed);
    info.zones.iter().fold([0; 12], |mut sum, zone| {
        sum.iter_mut().zip(zone.free).for_each(|(sum, free)| *sum += free);
        sum
    })
}

#[test]
fn free_pages_are_those_that_the_allocator_counts() {
    let mut held = Vec::new();
    for round in 0..40 {
        for order in (0..12).map(Order) {
            let at = A.alloc_pages(order, Gfp::KERNEL, Caller::at(0x1000));
            assert!(!at.is_null());
            held.push((at, order));
        }
        if round % 3 == 0 {
            held.swap_remove(round % held.len());
        }
        let (at, order) = held.swap_remove(round * 7 % held.len());
        // SAFETY: the block is live, and freed once.
        unsafe { A.free_pages(at, order) };
        if round % 8 == 0 {
            blocks();
        }
    }
    for (at, order) in held {
        // SAFETY: the block is live, and freed once.
        unsafe { A.free_pages(at, order) };
    }
    blocks();
}

#[test]
fn a_page_in_a_block_leaves_the_blocks_around_it() {
    // Blocks of one zone, of another instance than that of the other test.
    static B: Kmem = Kmem::new();
    let block = B.alloc_pages(Order(9), Gfp::KERNEL, Caller::at(0x1000));
    // SAFETY: the block is live and was allocated here. It is split into single pages, and each
    // page but one is freed once.
    unsafe {
        B.split_page(block, Order(9));
        for page in (0..512).filter(|&page| page != 5) {
            B.free_pages(block.add(page * 4096), Order(0));
        }
    }
    B.drain();
    let process = Process::open(std::process::id()).unwrap();
    let info = Buddyinfo::take(&process).unwrap();
    let at = block as u64;
    let zone = info.zones.iter().find(|z| (z.base..z.base + z.pages * 4096).contains(&at)).unwrap();
    // 4, 6, 0, 8, 16 .. 256.
    assert_eq!(zone.free[..9], [1, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn each_zone_says_which_node_it_is_of() {
    static C: Instance<Sim<Linux>> = Instance::over(Sim::new(Linux::new(), BUDGET).with_nodes(2));
    for cpu in [0, 1] {
        C.platform().run_on(cpu);
        assert!(!C.alloc_pages(Order(3), Gfp::KERNEL, Caller::at(0x1000)).is_null());
    }
    let process = Process::open(std::process::id()).unwrap();
    let info = Buddyinfo::take(&process).unwrap();
    let mut own = info.zones.iter().filter(|zone| C.owns(zone.base as *mut u8));
    let nodes: Vec<u32> = own.by_ref().map(|zone| zone.node).collect();
    assert_eq!(nodes, [0, 1]);
}
