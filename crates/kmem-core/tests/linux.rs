//! An instance on the real system: several threads use it, and its books agree with a model.
#![cfg(target_os = "linux")]

mod instance;

use instance::{books, counted};
use kmem_core::os::linux::Linux;
use kmem_core::os::sim::Sim;
use kmem_core::os::{Budget, Platform};
use kmem_core::request::Caller;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;

use kmem_core::{Instance, Kmem};

static KMEM: Kmem = Kmem::new();
static STORM: Kmem = Kmem::new();
static TRACED: Instance<Sim<Linux>> =
    Instance::over(Sim::new(Linux::new(), Budget::of(256 << 20, 512)).with_rseq());

fn random(state: &mut u64) -> usize {
    instance::random(state) as usize
}

/// An address that may go to another thread.
struct Block(usize, usize);

#[test]
fn the_census_equals_what_several_threads_hold() {
    const THREADS: usize = 4;
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..THREADS).map(|_| mpsc::channel::<Block>()).unzip();
    let threads: Vec<_> = receivers
        .into_iter()
        .enumerate()
        .map(|(me, inbox)| {
            let outbox = senders[(me + 1) % THREADS].clone();
            thread::spawn(move || {
                let mut state = 0x1234_5678_9ABC_DEF1 ^ (me as u64) << 32;
                let mut held: Vec<Block> = Vec::new();
                for _ in 0..60_000 {
                    match random(&mut state) % 8 {
                        0..4 => {
                            let r = random(&mut state);
                            let size = if r.is_multiple_of(50) { r % 2_000_000 } else { r % 3000 };
                            let site = 100 + random(&mut state) % 50;
                            let at = KMEM.alloc(size, Caller::at(site));
                            assert!(!at.is_null());
                            // SAFETY: at least 16 bytes, which this thread alone owns.
                            unsafe { at.cast::<usize>().write(site) };
                            held.push(Block(at as usize, site));
                        }
                        4 => {
                            if let Some(block) = held.pop() {
                                outbox.send(block).expect("a receiver");
                            }
                        }
                        5 => {
                            for block in inbox.try_iter().take(4) {
                                free(block);
                            }
                        }
                        6 if !held.is_empty() => {
                            let slot = random(&mut state) % held.len();
                            let site = 100 + random(&mut state) % 50;
                            let size = random(&mut state) % 100_000 + 16;
                            // SAFETY: live, and this thread alone owns it.
                            let at = unsafe {
                                KMEM.realloc(held[slot].0 as *mut u8, size, Caller::at(site))
                            };
                            // SAFETY: at least 16 bytes, which this thread alone owns.
                            unsafe { at.cast::<usize>().write(site) };
                            held[slot] = Block(at as usize, site);
                        }
                        _ => {
                            if !held.is_empty() {
                                let slot = random(&mut state) % held.len();
                                free(held.swap_remove(slot));
                            }
                        }
                    }
                }
                drop(outbox);
                (held, inbox)
            })
        })
        .collect();
    drop(senders);
    let mut left = Vec::new();
    let mut inboxes = Vec::new();
    for thread in threads {
        let (held, inbox) = thread.join().expect("no panic");
        left.extend(held);
        inboxes.push(inbox);
    }
    for inbox in inboxes {
        left.extend(inbox.iter());
    }
    let mut model = BTreeMap::new();
    for Block(at, site) in &left {
        let sum = model.entry(*site).or_insert((0, 0));
        *sum = (sum.0 + counted(&KMEM, *at as *mut u8), sum.1 + 1);
    }
    assert_eq!(books(&KMEM), model);
    left.into_iter().for_each(free);
    KMEM.trim();
    assert_eq!(KMEM.validate(), Ok(()));
    assert_eq!(KMEM.stats().used, 0);
    assert_eq!(KMEM.stats().objects, 0);
}

fn free(block: Block) {
    // SAFETY: live, given up; its first word is what its owner wrote.
    unsafe {
        assert_eq!((block.0 as *const usize).read(), block.1);
        KMEM.free(block.0 as *mut u8);
    }
}

/// Threads allocate from an instance and free, while another one calls `beside` again and again.
/// Each object keeps the mark of its owner.
fn storm<P: Platform>(
    instance: &'static Instance<P>,
    size: impl Fn(usize) -> usize + Sync,
    beside: impl Fn() + Sync,
) {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let size = &size;
        let worker = |me: usize| {
            let mut state = 77 + me as u64;
            let mut held = Vec::new();
            let free = |(at, mark): (*mut usize, usize)| {
                // SAFETY: live, owned by this thread, given up.
                unsafe {
                    assert_eq!(at.read(), mark);
                    instance.free(at.cast());
                }
            };
            for i in 0..400_000usize {
                if held.len() < 300 && random(&mut state).is_multiple_of(2) {
                    let bytes = size(random(&mut state));
                    let at = instance.alloc(bytes, Caller::at(0x4000 + me)).cast::<usize>();
                    // SAFETY: at least 8 bytes, which this thread alone owns.
                    unsafe { at.write(me << 32 | i) };
                    held.push((at, me << 32 | i));
                } else if let Some(object) = held.pop() {
                    free(object);
                }
                if i % 64 == 0 {
                    thread::yield_now();
                }
            }
            held.into_iter().for_each(free);
        };
        let workers: Vec<_> = (0..4).map(|me| scope.spawn(move || worker(me))).collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                beside();
                thread::yield_now();
            }
        });
        for worker in workers {
            worker.join().expect("no panic");
        }
        done.store(true, Ordering::Relaxed);
    });
    instance.trim();
    assert_eq!(instance.validate(), Ok(()));
    assert_eq!(instance.stats().used, 0);
}

#[test]
fn no_object_has_two_owners_under_migration_and_draining() {
    storm(&STORM, |random| random % 200 + 8, || STORM.drain());
}

/// Fast paths are closed and opened under each call.
#[test]
fn no_object_has_two_owners_while_a_tracer_comes_and_goes() {
    let size = |random: usize| {
        let bytes = if random.is_multiple_of(16) { 100_000 } else { 2000 };
        random / 16 % bytes + 8
    };
    let platform = TRACED.platform();
    let turn = AtomicBool::new(false);
    storm(&TRACED, size, || platform.trace(!turn.fetch_xor(true, Ordering::Relaxed)));
    let (weight, frees) = platform.told_tracer();
    assert!(frees > 0 && frees <= weight >> 19, "{frees} frees of {} samples", weight >> 19);
    platform.trace(false);
    let (object, before) = (TRACED.alloc(100, Caller::at(1)), platform.told_tracer());
    // SAFETY: live, and used no longer.
    unsafe { TRACED.free(object) };
    assert_eq!(platform.told_tracer(), before);
}
