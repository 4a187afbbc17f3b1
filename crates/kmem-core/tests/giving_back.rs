//! Memory that a program does not need any more goes back. Unused sheaves go to their slabs, and
//! unused pages between objects go to the platform.

mod instance;

use instance::{Simulated, assert_empty, budget, free, free_all, simulated};
use kmem_core::os::Budget;
use kmem_core::request::Caller;

const CALLER: Caller = Caller::at(7);
/// Half of the decay time, in milliseconds.
const GENERATION: u64 = 10;

/// Lets generations pass. In each, the program makes a call that reads the clock.
fn live_on(a: &'static Simulated, generations: u32) {
    for _ in 0..generations {
        a.platform().advance_ms(GENERATION);
        let at = a.alloc(16, CALLER);
        assert!(!at.is_null());
        free(a, at);
    }
}

#[test]
fn sheaves_that_nobody_needs_go_back_to_their_slabs_which_retire() {
    let a = simulated(budget(64 << 20, 1));
    let mut held: Vec<_> = (0..4000).map(|_| a.alloc(1024, CALLER)).collect();
    // The CPU keeps the first objects, which are of the last slab. Then the barn keeps one object
    // of each slab, so that no slab can retire.
    let slab = |at: &*mut u8| *at as usize >> 16;
    let place = |at: &*mut u8| *at as usize >> 10 & 63;
    let last = held.iter().map(slab).max();
    held.sort_by_key(|at| (Some(slab(at)) != last, place(at) != 5, *at as usize));
    free_all(a, held);
    let slabs = |bytes: u64| bytes >> 16;
    assert!(slabs(a.stats().used) > 50, "{} slabs", slabs(a.stats().used));
    live_on(a, 1);
    assert!(slabs(a.stats().used) > 50, "a generation is not over: {}", slabs(a.stats().used));
    live_on(a, 3);
    // The slabs of objects that the CPU keeps, and the slab of `live_on`.
    assert!(slabs(a.stats().used) <= 4, "{} slabs", slabs(a.stats().used));
    a.drain();
    assert_empty(a);
}

/// Frees half of many objects and lets generations pass. Returns the number of freed objects whose
/// contents are gone, and the number of freed objects.
fn dropped(generations: u32) -> (usize, usize) {
    const SIZE: usize = 8192;
    let a = simulated(budget(64 << 20, 1));
    let held: Vec<_> = (0..400).map(|_| a.alloc(SIZE, CALLER)).collect();
    for at in &held {
        // SAFETY: live.
        unsafe { at.write_bytes(0xAA, SIZE) };
    }
    free_all(a, held.iter().copied().step_by(2));
    live_on(a, generations);
    // SAFETY: committed memory of the zone. Any bytes are valid, so freed objects may be read, too.
    let is =
        |at: *mut u8, byte: u8| (0..SIZE).all(|i| unsafe { at.add(i).read_volatile() } == byte);
    for at in held.iter().skip(1).step_by(2) {
        assert!(is(*at, 0xAA), "a live object changed");
    }
    let free: Vec<_> = held.iter().copied().step_by(2).collect();
    let gone = free.iter().filter(|at| is(**at, 0)).count();
    assert_eq!(free.iter().filter(|at| is(**at, 0xAA)).count() + gone, free.len());
    // Each freed object can be allocated once.
    let mut again: Vec<_> = free.iter().map(|_| a.alloc(SIZE, CALLER)).collect();
    again.sort();
    again.dedup();
    let mut sorted = free.clone();
    sorted.sort();
    assert_eq!(again, sorted);
    assert_eq!(a.stats().objects, 400);
    free_all(a, again.into_iter().chain(held.iter().copied().skip(1).step_by(2)));
    a.drain();
    assert_empty(a);
    (gone, free.len())
}

#[test]
fn memory_between_the_objects_of_slabs_left_alone_goes_back_to_the_platform() {
    let (gone, free) = dropped(10);
    // All but the objects on the CPU's array.
    assert!(gone + 4 >= free, "{gone} of {free}");
}

#[test]
fn memory_of_slabs_that_were_used_a_moment_ago_is_kept() {
    assert_eq!(dropped(1).0, 0);
}

#[test]
fn a_trim_gives_back_what_lies_between_objects_at_once() {
    let a = simulated(budget(64 << 20, 1));
    let held: Vec<_> = (0..400).map(|_| a.alloc(8192, CALLER)).collect();
    free_all(a, held.iter().copied().step_by(2));
    assert!(a.trim() >= 200 * 8192);
    assert_eq!(a.trim(), 0, "nothing twice");
}

#[test]
fn near_a_limit_of_memory_less_free_memory_is_kept() {
    const SIZE: usize = 1 << 20;
    let kept = |limit: usize| {
        let a = simulated(Budget { limit, ..budget(64 << 20, 1) });
        let held: Vec<_> = (0..32).map(|_| a.alloc(SIZE, CALLER)).collect();
        for &at in &held {
            // SAFETY: live.
            unsafe { at.write_bytes(0xAA, SIZE) };
        }
        for (i, &at) in held.iter().enumerate() {
            a.platform().advance_ms(i as u64 % 2);
            free(a, at);
        }
        // SAFETY: committed memory of the zone.
        let count = held.iter().filter(|&&at| unsafe { at.read_volatile() } == 0xAA).count();
        a.drain();
        assert_empty(a);
        count
    };
    // Two generations are not over, so the clock alone gives nothing back.
    assert_eq!(kept(usize::MAX), 32);
    // In the end half of the limit is kept, of what was freed last.
    let few = kept(34 << 20);
    assert!((1..=18).contains(&few), "{few} MiB of 32");
}

#[test]
fn near_a_limit_of_memory_taking_new_pages_gives_back_free_ones() {
    const MIB: usize = 1 << 20;
    let a = simulated(Budget { limit: 64 * MIB, ..budget(128 << 20, 1) });
    let (freed, held): (Vec<_>, Vec<_>) =
        (0..8).map(|_| (a.alloc(MIB, CALLER), a.alloc(MIB, CALLER))).unzip();
    for &at in &freed {
        // SAFETY: live.
        unsafe { at.write_bytes(0xAA, MIB) };
        free(a, at);
    }
    // SAFETY: committed memory of the zone.
    let kept = || freed.iter().filter(|&&at| unsafe { at.read_volatile() } == 0xAA).count();
    assert_eq!(kept(), 8, "they are an eighth of the limit");
    // No free block is that long, so each of these takes pages that were never used.
    let long: Vec<_> = (0..10)
        .map(|_| {
            a.platform().advance_ms(1);
            a.alloc(4 * MIB, CALLER)
        })
        .collect();
    assert!(kept() <= 4, "{} MiB of 8", kept());
    held.into_iter().chain(long).for_each(|at| free(a, at));
    a.drain();
    assert_empty(a);
}
