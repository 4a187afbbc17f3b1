//! Threads that use groups concurrently. They allocate, free the allocations of others, create and
//! delete groups, change limits, add and remove shrinkers, reserve, and read counts. Now and then
//! all pause, and the books must agree with a model to the byte.
//!
//! The storm runs on the real system, then over the simulator. There arrays and stocks are behind
//! try-locks, and the CPU changes in the middle of operations. A third kind of run is one thread
//! over the simulator, in a seeded order, with faults.

mod model;

use crate::instance::{Simulated, budget, simulated};
use kmem_core::memcg::{GroupError, GroupId};
use kmem_core::os::Platform;
use kmem_core::{Instance, Kmem};
use model::{Random, Storm};
use std::sync::Barrier;
use std::sync::atomic::Ordering;
use std::thread;

/// Runs the storm by `threads`, with `pauses` pauses. Each thread takes `steps` steps before a
/// pause.
fn by_threads<P: Platform>(
    kmem: &'static Instance<P>,
    threads: usize,
    pauses: usize,
    steps: usize,
) {
    let storm = Storm::new(kmem).expect("a fresh instance");
    let (pause, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    thread::scope(|scope| {
        for me in 0..threads {
            let (pause, go) = (&pause, &go);
            scope.spawn(move || {
                let mut random = Random(0x9E37_79B9_7F4A_7C15 ^ (me as u64 + 1) << 40);
                // The other threads must not wait for a thread that panicked.
                let _end = Ends;
                for _ in 0..pauses {
                    (0..steps).for_each(|_| storm.step(&mut random));
                    pause.wait();
                    go.wait();
                }
            });
        }
        let _end = Ends;
        for _ in 0..pauses {
            pause.wait();
            storm.check();
            go.wait();
        }
    });
    storm.end();
    let seen = [&storm.refused, &storm.shrunk, &storm.deleted].map(|n| n.load(Ordering::Relaxed));
    println!("{} refused, {} calls of shrinkers, {} groups deleted", seen[0], seen[1], seen[2]);
    assert!(seen.iter().all(|&count| count > 0), "{seen:?}");
}

/// Ends the process when a thread panics: other threads cannot leave a barrier.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(101);
        }
    }
}

#[test]
fn threads_on_the_real_system() {
    static A: Kmem = Kmem::new();
    by_threads(&A, 6, 40, 8000);
}

#[test]
fn threads_over_locked_arrays() {
    let kmem = simulated(budget(64 << 20, 4));
    kmem.platform().wander(0x1234_5678_9ABC_DEF1);
    by_threads(kmem, 6, 20, 4000);
}

/// Runs the storm by one thread, in an order that `seed` decides. The CPU changes in the middle of
/// steps.
fn in_a_seeded_order(
    seed: u64,
    steps: usize,
    mut between: impl FnMut(&Simulated, usize, &mut Random),
) {
    let kmem = simulated(budget(64 << 20, 4));
    let mut random = Random(seed);
    kmem.platform().wander(seed | 1);
    let Some(storm) = Storm::new(kmem) else { return };
    for step in 0..steps {
        between(kmem, step, &mut random);
        storm.step(&mut random);
    }
    storm.check();
    kmem.platform().fail(u64::MAX, u64::MAX);
    storm.end();
}

#[test]
fn a_seeded_order_with_faults_now_and_then() {
    for seed in 1..=40u64 {
        in_a_seeded_order(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), 1500, |kmem, step, random| {
            kmem.platform().advance_ms(random.below(3) as u64);
            if step % 100 == 50 {
                let from = 1 + random.below(10) as u64;
                kmem.platform().fail(from, from + 1 + random.below(20) as u64);
            }
        });
    }
}

#[test]
fn each_call_of_the_platform_fails_once() {
    let run = |fault: u64| {
        let mut calls = 0;
        in_a_seeded_order(0xDEAD_BEEF_1234_5677, 400, |kmem, step, _| {
            if step == 0 {
                kmem.platform().fail(fault, fault.saturating_add(1));
            }
            kmem.platform().advance_ms(2);
            calls = kmem.platform().calls();
        });
        calls
    };
    let calls = run(u64::MAX);
    assert!(calls > 20, "{calls} calls");
    (1..=calls).for_each(|fault| _ = run(fault));
}

#[test]
fn of_threads_that_make_a_group_of_one_name_one_does() {
    static A: Kmem = Kmem::new();
    const THREADS: usize = 64;
    let at_once = Barrier::new(THREADS);
    for round in 0..5 {
        let name = format!("{round}");
        let made: Vec<_> = thread::scope(|scope| {
            let work = || {
                at_once.wait();
                A.group_create(GroupId::ROOT, name.as_bytes())
            };
            let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let (one, others): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
        assert_eq!(one.len(), 1);
        assert!(others.iter().all(|other| *other == Err(GroupError::Exists)));
        assert_eq!(A.group_find(GroupId::ROOT, name.as_bytes()), one[0]);
    }
}

#[test]
fn a_full_table_refuses_and_loses_nothing() {
    let kmem = simulated(budget(64 << 20, 1));
    for round in 0..3 {
        let all: Vec<GroupId> = (0..)
            .map_while(|i| kmem.group_create(GroupId::ROOT, format!("{round}-{i}").as_bytes()).ok())
            .collect();
        assert_eq!(all.len(), 511, "one entry per 128 KiB, less the root's");
        assert_eq!(kmem.group_create(GroupId::ROOT, b"more"), Err(GroupError::Full));
        assert_eq!(kmem.group_find(GroupId::ROOT, b"more"), Err(GroupError::NotFound));
        all.into_iter().for_each(|id| kmem.group_delete(id).expect("a living group"));
    }
}
