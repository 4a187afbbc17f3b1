//! Memory that a program does not need any more goes back. Unused sheaves go to their slabs, and
//! unused pages between objects go to the platform.

use crate::instance::{Simulated, assert_empty, budget, free, free_all, simulated};
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

/// Leaves free objects in sheaves, at least one of each of more than 50 slabs.
fn fill_sheaves(a: &'static Simulated) {
    let mut held: Vec<_> = (0..4000).map(|_| a.alloc(1024, CALLER)).collect();
    // The CPU keeps the first objects, which are of the last slab. Then the barn keeps one object
    // of each slab, so that no slab can retire.
    let slab = |at: &*mut u8| *at as usize >> 16;
    let place = |at: &*mut u8| *at as usize >> 10 & 63;
    let last = held.iter().map(slab).max();
    held.sort_by_key(|at| (Some(slab(at)) != last, place(at) != 5, *at as usize));
    free_all(a, held);
    assert!(slabs(a.stats().used) > 50, "{} slabs", slabs(a.stats().used));
}

/// Number of slabs of the smallest size in `bytes`.
fn slabs(bytes: u64) -> u64 {
    bytes >> 16
}

#[test]
fn sheaves_go_back_while_a_program_only_grows_by_large_blocks() {
    let a = simulated(budget(64 << 20, 1));
    fill_sheaves(a);
    let before = a.stats().used;
    let blocks: Vec<_> = (0..4)
        .map(|_| {
            a.platform().advance_ms(GENERATION);
            a.alloc(2 * MIB, CALLER)
        })
        .collect();
    let used = a.stats().used - (8 << 20);
    assert!(slabs(used) <= 4, "{} of {} slabs", slabs(used), slabs(before));
    free_all(a, blocks);
    a.drain();
    assert_empty(a);
}

#[test]
fn sheaves_that_nobody_needs_go_back_to_their_slabs_which_retire() {
    let a = simulated(budget(64 << 20, 1));
    fill_sheaves(a);
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

const MIB: usize = 1 << 20;

/// Takes a MiB `count` times and writes to it.
fn written(a: &'static Simulated, count: usize) -> Vec<*mut u8> {
    let held: Vec<_> = (0..count).map(|_| a.alloc(MIB, CALLER)).collect();
    for &at in &held {
        // SAFETY: live.
        unsafe { at.write_bytes(0xAA, MIB) };
    }
    held
}

/// Number of the addresses whose contents are still there.
fn kept(addresses: &[*mut u8]) -> usize {
    // SAFETY: committed memory of the zone.
    addresses.iter().filter(|&&at| unsafe { at.read_volatile() } == 0xAA).count()
}

#[test]
fn memory_that_was_in_use_half_a_second_ago_is_kept_for_the_next_phase() {
    let a = simulated(budget(128 << 20, 1));
    let held = written(a, 32);
    free_all(a, held.iter().copied());
    live_on(a, 20);
    assert_eq!(kept(&held), 32, "after 200 ms");
    live_on(a, 60);
    // The program goes on to use one pageblock, of two.
    assert!(kept(&held) <= 2, "{} of 32 after 800 ms", kept(&held));
    a.drain();
    assert_empty(a);
}

#[test]
fn as_much_memory_is_kept_as_was_in_use_at_once_that_with_the_lowest_addresses() {
    let a = simulated(budget(128 << 20, 1));
    let (freed, held): (Vec<_>, Vec<_>) =
        written(a, 16).chunks(2).map(|pair| (pair[0], pair[1])).unzip();
    free_all(a, freed.iter().copied());
    live_on(a, 10);
    assert_eq!(kept(&freed), 8);
    // These do not fit between the others, so they take new pages.
    let long: Vec<_> = (0..2).map(|_| a.alloc(2 * MIB, CALLER)).collect();
    live_on(a, 10);
    let left: Vec<_> = freed.iter().copied().filter(|&at| kept(&[at]) == 1).collect();
    assert!((3..=5).contains(&left.len()), "{} of 8", left.len());
    let lowest = freed.iter().map(|at| *at as usize).min().unwrap();
    assert!(left.iter().all(|&at| at as usize - lowest < 10 * MIB), "{left:?} of {freed:?}");
    free_all(a, held.into_iter().chain(long));
    a.drain();
    assert_empty(a);
}

#[test]
fn memory_that_is_kept_goes_back_before_a_request_exceeds_recent_use() {
    let a = simulated(budget(256 << 20, 1));
    let held = written(a, 32);
    free_all(a, held.iter().copied());
    live_on(a, 4);
    assert_eq!(kept(&held), 32);
    let within = a.alloc(20 * MIB, CALLER);
    let left = kept(&held);
    assert!(left >= 12, "{left} of 32: the first ones may be in use again");
    free(a, within);
    live_on(a, 4);
    let beyond = a.alloc(64 * MIB, CALLER);
    assert!(kept(&held) <= 2, "{} of 32", kept(&held));
    free(a, beyond);
    a.drain();
    assert_empty(a);
}

/// Tends as long as asked to. Returns the milliseconds that it took.
fn tend(a: &'static Simulated) -> u128 {
    let mut passed = 0;
    while let Some(time) = a.tend() {
        a.platform().advance_ms(time.as_millis() as u64);
        passed += time.as_millis();
        assert!(passed < 10_000, "it has no end");
    }
    passed
}

#[test]
fn a_tender_gives_back_what_an_idle_program_keeps_and_rests() {
    let a = simulated(budget(128 << 20, 1));
    a.await_tender();
    let held = written(a, 32);
    let small: Vec<_> = (0..4000).map(|_| a.alloc(1024, CALLER)).collect();
    assert_eq!(a.platform().tender_calls(), 0, "nothing came back");
    free_all(a, held.iter().copied().chain(small));
    assert_eq!(a.platform().tender_calls(), 1);
    assert_eq!(kept(&held), 32);
    let passed = tend(a);
    assert!((500..=2000).contains(&passed), "{passed} ms");
    assert_eq!(kept(&held), 0);
    assert_eq!(a.stats().used, 0, "CPUs and barns keep nothing");
    assert_eq!(a.trim(), 0);
    assert_empty(a);
}

#[test]
fn a_tender_that_rests_is_called_once_when_memory_comes_back() {
    let a = simulated(budget(128 << 20, 1));
    a.await_tender();
    for round in 1..4 {
        let held = written(a, 32);
        free_all(a, held.iter().copied());
        assert_eq!(a.platform().tender_calls(), round);
        tend(a);
        assert_eq!(kept(&held), 0);
    }
    a.drain();
    assert_empty(a);
}

#[test]
fn a_tender_is_not_called_for_a_small_heap() {
    let a = simulated(budget(128 << 20, 1));
    a.await_tender();
    for _ in 0..10 {
        free_all(a, written(a, 2));
    }
    assert_eq!(a.platform().tender_calls(), 0);
    a.drain();
    assert_empty(a);
}

#[test]
fn a_tender_leaves_the_memory_of_a_program_that_works_to_it() {
    let a = simulated(budget(128 << 20, 1));
    a.await_tender();
    let held = written(a, 32);
    free_all(a, held.iter().copied());
    for _ in 0..100 {
        assert!(a.tend().is_some(), "the program works");
        a.platform().advance_ms(50);
        free_all(a, written(a, 8));
    }
    assert!(kept(&held) >= 8, "{} of 32", kept(&held));
    a.drain();
    assert_empty(a);
}

#[test]
fn near_a_limit_of_memory_less_free_memory_is_kept() {
    let kept_under = |limit: usize| {
        let a = simulated(Budget { limit, ..budget(64 << 20, 1) });
        let held = written(a, 32);
        for (i, &at) in held.iter().enumerate() {
            a.platform().advance_ms(i as u64 % 2);
            free(a, at);
        }
        let count = kept(&held);
        a.drain();
        assert_empty(a);
        count
    };
    // Two generations are not over, so the clock alone gives nothing back.
    assert_eq!(kept_under(usize::MAX), 32);
    // In the end half of the limit is kept, of what was freed last.
    let few = kept_under(34 << 20);
    assert!((1..=18).contains(&few), "{few} MiB of 32");
}

#[test]
fn near_a_limit_of_memory_taking_new_pages_gives_back_free_ones() {
    let a = simulated(Budget { limit: 64 * MIB, ..budget(128 << 20, 1) });
    let (freed, held): (Vec<_>, Vec<_>) =
        (0..8).map(|_| (a.alloc(MIB, CALLER), a.alloc(MIB, CALLER))).unzip();
    for &at in &freed {
        // SAFETY: live.
        unsafe { at.write_bytes(0xAA, MIB) };
        free(a, at);
    }
    assert_eq!(kept(&freed), 8, "they are an eighth of the limit");
    // No free block is that long, so each of these takes pages that were never used.
    let long: Vec<_> = (0..10)
        .map(|_| {
            a.platform().advance_ms(1);
            a.alloc(4 * MIB, CALLER)
        })
        .collect();
    assert!(kept(&freed) <= 4, "{} MiB of 8", kept(&freed));
    held.into_iter().chain(long).for_each(|at| free(a, at));
    a.drain();
    assert_empty(a);
}
