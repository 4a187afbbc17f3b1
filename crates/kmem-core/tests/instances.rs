//! Instances are values: two run side by side, each on memory of its own. Their books agree with a
//! plain model to the byte.

mod instance;

use instance::{Fixed, books, cases, fixed, free_all, until_null};
use kmem_core::request::Caller;
use std::collections::BTreeMap;

use kmem_core::class::{MAX_OBJECT, SIZES, SizeClass};
use kmem_core::units::{Gfp, Order};
use proptest::prelude::*;

/// Bytes that the books count for an allocation of `size`.
fn counted(instance: &'static Fixed, at: *mut u8, size: usize) -> u64 {
    let counted = instance::counted(instance, at);
    let bytes = counted as usize;
    if size <= MAX_OBJECT {
        assert_eq!(bytes, SIZES[SizeClass::of(size).0 as usize] as usize);
    } else {
        assert!(bytes >= size && bytes.is_multiple_of(4096) && (bytes - size) <= size / 8 + 4096);
    }
    counted
}

#[test]
fn two_instances_do_not_know_of_each_other() {
    let (a, b) = (fixed(32 << 20), fixed(32 << 20));
    let x = a.alloc(100, Caller::at(0x1001));
    let y = b.alloc(200, Caller::at(0x2002));
    assert!(a.owns(x) && !a.owns(y) && b.owns(y) && !b.owns(x));
    assert_eq!(books(a), BTreeMap::from([(0x1001, (112, 1))]));
    assert_eq!(books(b), BTreeMap::from([(0x2002, (208, 1))]));
    // SAFETY: both are live and given up.
    unsafe {
        a.free(x);
        b.free(y);
    }
    assert!(books(a).is_empty() && books(b).is_empty());
    a.drain();
    assert_eq!(a.validate(), Ok(()));
    assert_eq!(a.stats().used, 0);
}

#[test]
fn a_region_that_is_used_up_refuses_and_goes_on() {
    let a = fixed(32 << 20);
    let held = until_null(|| a.alloc(1000, Caller::at(7)));
    assert!(held.len() > 5000, "{} objects", held.len());
    assert!(a.alloc(100_000, Caller::at(7)).is_null());
    free_all(a, held);
    a.drain();
    assert_eq!(a.stats().used, 0);
    assert!(!a.alloc(1 << 20, Caller::at(7)).is_null());
}

#[test]
fn aligned_blocks_are_aligned_and_zeroed_ones_are_zero() {
    let a = fixed(64 << 20);
    for shift in 0..=22 {
        for size in [0, 1, 100, 5000, 40_000, 300_000] {
            let at = a.alloc_aligned(size, 1 << shift, Caller::at(9));
            assert!(
                !at.is_null() && (at as usize).is_multiple_of(1 << shift),
                "{size} at 2^{shift}"
            );
            // SAFETY: live and that long; then given up.
            unsafe {
                at.write_bytes(0xAA, size);
                a.free(at);
            }
        }
    }
    for size in [1, 100, 5000, 40_000, 300_000, 3_000_000] {
        let at = a.alloc_zeroed(size, Caller::at(9));
        // SAFETY: live and that long; then given up.
        unsafe {
            assert!(std::slice::from_raw_parts(at, size).iter().all(|&b| b == 0));
            at.write_bytes(0xBB, size);
            a.free(at);
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Alloc { size: usize, site: usize },
    Free { which: usize },
    Realloc { which: usize, size: usize, site: usize },
    Trim,
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 0usize..600,
        3 => 600usize..40_000,
        1 => 40_000usize..3_000_000,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let site = 0x1001usize..0x1020;
    prop_oneof![
        5 => (size(), site.clone()).prop_map(|(size, site)| Step::Alloc { size, site }),
        4 => any::<usize>().prop_map(|which| Step::Free { which }),
        2 => (any::<usize>(), size(), site)
            .prop_map(|(which, size, site)| Step::Realloc { which, size, site }),
        1 => Just(Step::Trim),
    ]
}

struct Held {
    at: *mut u8,
    size: usize,
    site: usize,
    fill: u8,
}

impl Held {
    fn fill(&self) {
        // SAFETY: live and that long.
        unsafe { self.at.write_bytes(self.fill, self.size) };
    }

    fn check(&self, size: usize) {
        // SAFETY: live and that long.
        let bytes = unsafe { std::slice::from_raw_parts(self.at, size) };
        assert!(bytes.iter().all(|&b| b == self.fill), "contents of {:p}", self.at);
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn the_census_equals_a_plain_model(steps in prop::collection::vec(step(), 1..400)) {
        let a = fixed(160 << 20);
        let mut held: Vec<Held> = Vec::new();
        for (i, step) in steps.into_iter().enumerate() {
            match step {
                Step::Alloc { size, site } => {
                    let at = a.alloc(size, Caller::at(site));
                    prop_assert!(!at.is_null());
                    held.push(Held { at, size, site, fill: i as u8 });
                    held[held.len() - 1].fill();
                }
                Step::Free { which } if !held.is_empty() => {
                    let gone = held.swap_remove(which % held.len());
                    gone.check(gone.size);
                    // SAFETY: live, given up.
                    unsafe { a.free(gone.at) };
                }
                Step::Realloc { which, size, site } if !held.is_empty() => {
                    let slot = which % held.len();
                    // SAFETY: live, and only this test uses it.
                    let at = unsafe { a.realloc(held[slot].at, size, Caller::at(site)) };
                    prop_assert!(!at.is_null());
                    held[slot].at = at;
                    held[slot].check(size.min(held[slot].size));
                    (held[slot].size, held[slot].site) = (size, site);
                    held[slot].fill();
                }
                Step::Trim => {
                    a.trim();
                    prop_assert_eq!(a.validate(), Ok(()));
                }
                _ => {}
            }
        }
        let mut model = BTreeMap::new();
        for h in &held {
            h.check(h.size);
            let sum = model.entry(h.site).or_insert((0, 0));
            *sum = (sum.0 + instance::counted(a, h.at), sum.1 + 1);
        }
        prop_assert_eq!(books(a), model);
        for h in held {
            // SAFETY: live, given up.
            unsafe { a.free(h.at) };
        }
        a.drain();
        prop_assert!(books(a).is_empty());
        prop_assert_eq!(a.validate(), Ok(()));
        prop_assert_eq!(a.stats().used, 0);
    }
}

#[test]
fn an_allocation_counts_as_what_may_be_used_of_it() {
    let a = fixed(64 << 20);
    for size in [0, 1, 16, 17, 129, 1025, 32_768, 32_769, 65_536, 1_000_000] {
        let at = a.alloc(size, Caller::at(15));
        let bytes = counted(a, at, size);
        assert_eq!(books(a), BTreeMap::from([(15, (bytes, 1))]), "{size}");
        // SAFETY: live, given up.
        unsafe { a.free(at) };
    }
}

#[test]
fn a_long_run_grows_in_place_mostly_and_gives_everything_back() {
    let a = fixed(256 << 20);
    let caller = Caller::at(0x50_0000);
    let mib = 1usize << 20;
    let mut at = a.alloc(5 * mib, caller);
    // Small objects settle behind it, so it must move once.
    let small: Vec<_> = (0..2000).map(|_| a.alloc(512, Caller::at(0x51_0000))).collect();
    let (mut size, mut moves) = (5 * mib, 0);
    // SAFETY: one live block all the time; objects are freed once.
    unsafe {
        while size < 21 * mib {
            let from = size;
            size += 4104;
            let to = a.realloc(at, size, caller);
            moves += u32::from(to != at);
            at = to;
            at.add(from).write_bytes(7, size - from);
            let pages = size.div_ceil(4096) as u64 * 4096;
            let mut held = 0;
            a.census(|tag, bytes, _| {
                held += if a.site_address(tag) == 0x50_0000 { bytes } else { 0 };
            });
            assert!((pages..=pages + pages / 8).contains(&held), "{held} for {size}");
        }
        assert!(moves <= 2, "{moves} moves");
        // Shrunk, it gives whole pageblocks back, and keeps its place.
        assert_eq!(a.realloc(at, 6 * mib + 1, caller), at);
        assert_eq!(*at.add(6 * mib), 7);
        assert_eq!(a.realloc(at, 9 * mib, caller), at);
        a.free(at);
        small.into_iter().for_each(|object| a.free(object));
    }
    a.drain();
    assert_eq!(a.stats().used, 0);
    assert_eq!(a.validate(), Ok(()));
}

#[test]
fn a_cpu_that_only_has_large_blocks_keeps_them() {
    let a = fixed(64 << 20);
    let block = a.alloc(100_000, Caller::at(13));
    // SAFETY: live, given up.
    unsafe { a.free(block) };
    let kept = a.stats().used;
    assert!(kept >= 100_000, "{kept} bytes are on the array of the CPU");
    a.drain();
    assert_eq!(a.stats().used, 0);
}

#[test]
fn a_cpu_keeps_blocks_of_orders_up_to_huge_pages() {
    let a = fixed(64 << 20);
    for order in (0..=9).map(Order) {
        let block = a.alloc_pages(order, Gfp::KERNEL, Caller::at(13));
        assert_eq!(block as usize % order.pages().bytes(), 0);
        // SAFETY: live, given up.
        unsafe { a.free_pages(block, order) };
        assert_eq!(
            a.alloc_pages(order, Gfp::KERNEL, Caller::at(13)),
            block,
            "the last one comes first"
        );
        // SAFETY: live, given up.
        unsafe { a.free_pages(block, order) };
        assert!(a.stats().used >= order.pages().bytes() as u64);
        a.drain();
        assert_eq!((a.stats().used, a.validate()), (0, Ok(())));
    }
}

/// Blocks of an order, which is not kept on arrays of its own.
fn blocks(a: &'static Fixed, order: Order, count: usize) -> Vec<*mut u8> {
    let block = |_| {
        let at = a.alloc_pages(order, Gfp::KERNEL, Caller::at(13));
        assert!(!at.is_null() && (at as usize).is_multiple_of(order.pages().bytes()));
        at
    };
    (0..count).map(block).collect()
}

fn free_blocks(a: &'static Fixed, order: Order, all: Vec<*mut u8>) {
    // SAFETY: live blocks of that order, given up.
    all.into_iter().for_each(|at| unsafe { a.free_pages(at, order) });
}

#[test]
fn blocks_and_runs_of_a_length_share_what_a_cpu_keeps() {
    let a = fixed(64 << 20);
    let mut kept = 0;
    for order in (4..=8).map(Order) {
        let bytes = order.pages().bytes();
        let all = blocks(a, order, 16);
        assert_eq!(books(a), BTreeMap::from([(13, (16 * bytes as u64, 16))]));
        free_blocks(a, order, all);
        assert!(books(a).is_empty());
        let more = a.stats().used - kept;
        assert_eq!(more, (2 << 20).min(8 * bytes) as u64, "kept of {order:?}");
        kept += more;
        let block = blocks(a, order, 1)[0];
        // SAFETY: live, given up.
        unsafe { a.free(block) };
        let run = a.alloc(bytes, Caller::at(14));
        assert_eq!(run, block, "a run takes the block that was freed last");
        // SAFETY: live, given up.
        unsafe { a.free(run) };
        assert_eq!(blocks(a, order, 1), [run], "a block takes the run that was freed last");
        free_blocks(a, order, vec![run]);
        assert_eq!((a.stats().used, a.validate()), (kept, Ok(())));
    }
    a.drain();
    assert_eq!((a.stats().used, a.validate()), (0, Ok(())));
}

#[test]
fn a_run_that_lies_at_no_multiple_of_its_length_serves_no_block() {
    let a = fixed(64 << 20);
    let alloc = |pages: usize| a.alloc(pages << 12, Caller::at(14));
    for order in (4..=8).map(Order) {
        let pages = order.pages().0 as usize;
        let (first, run) = (alloc(9), alloc(pages));
        let is_block = (run as usize).is_multiple_of(order.pages().bytes());
        // SAFETY: live, given up.
        unsafe { a.free(run) };
        let block = blocks(a, order, 1)[0];
        assert_eq!(block == run, is_block, "{order:?}");
        let again = alloc(pages);
        assert_eq!(again == run, !is_block, "it waits for a run");
        // SAFETY: live, given up.
        unsafe { [first, again].into_iter().for_each(|at| a.free(at)) };
        free_blocks(a, order, vec![block]);
        a.drain();
        assert_eq!((a.stats().used, a.validate()), (0, Ok(())));
    }
}

#[test]
fn zeroed_blocks_are_zero_beside_those_that_a_cpu_keeps() {
    let a = fixed(64 << 20);
    for order in (4..=8).map(Order) {
        let bytes = order.pages().bytes();
        let all = blocks(a, order, 4);
        // SAFETY: live blocks of that length.
        all.iter().for_each(|&at| unsafe { at.write_bytes(7, bytes) });
        free_blocks(a, order, all);
        let zeroed = a.alloc_pages(order, Gfp::ZERO, Caller::at(13));
        // SAFETY: a live block of that length.
        let contents = unsafe { std::slice::from_raw_parts(zeroed, bytes) };
        assert!(contents.iter().all(|&byte| byte == 0));
        free_blocks(a, order, vec![zeroed]);
    }
}
