//! Per-CPU arrays of both kinds: an item is in one place at a time.
#![cfg(target_os = "linux")]

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use kmem::class::{CLASS_COUNT, ClassGeometry, SIZES, SizeClass};
use kmem::cpu::{Area, Kind, Slots};
use kmem::os::Platform;
use kmem::os::linux::Linux;
use kmem::units::{CpuId, Item};

fn slots(kind: Kind) -> &'static Slots {
    // SAFETY: all zero is a valid value.
    let slots: &'static Slots = Box::leak(unsafe { Box::<Slots>::new_zeroed().assume_init() });
    slots.start(kind);
    let mut classes = [ClassGeometry::NONE; CLASS_COUNT];
    for (class, size) in classes.iter_mut().zip(SIZES).skip(1) {
        *class = ClassGeometry::new(size, true);
    }
    for cpu in 0..4 {
        // SAFETY: all zero is valid; given away for good.
        unsafe {
            let area = Box::leak(Box::<Area>::new_zeroed().assume_init());
            assert!(slots.add(CpuId(cpu), area, &classes));
        }
    }
    slots
}

/// Threads take items out, hold them a little, put them back; each holds what nobody else does.
fn exchange(slots: &'static Slots, drain: bool) {
    const ITEMS: usize = 300;
    let class = SizeClass(4);
    let outside = Mutex::new((1..=ITEMS).map(|i| Item::at(i * 64)).collect::<Vec<_>>());
    let owners: Vec<AtomicBool> = (0..=ITEMS).map(|_| AtomicBool::new(false)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for me in 0..6u32 {
            let (outside, owners) = (&outside, &owners);
            scope.spawn(move || {
                let hint = me % 2;
                let mut held: Vec<Item> = Vec::new();
                for round in 0..40_000u32 {
                    let mut some = [Item::NONE; 40];
                    let want = 1 + (round * 7 + me) as usize % 40;
                    let got = match round % 3 {
                        0 => slots.pop_many(class, hint, &mut some[..want]),
                        1 => {
                            some[0] = slots.pop(class);
                            usize::from(!some[0].is_none())
                        }
                        _ => {
                            let mut pool = outside.lock().expect("no panic");
                            let n = want.min(pool.len());
                            let at = pool.len() - n;
                            some[..n].copy_from_slice(&pool[at..]);
                            pool.truncate(at);
                            n
                        }
                    };
                    for item in &some[..got] {
                        assert!(
                            !owners[item.address() / 64].swap(true, Ordering::AcqRel),
                            "two owners"
                        );
                    }
                    held.extend(&some[..got]);
                    let keep = (round % 50) as usize;
                    while held.len() > keep {
                        let part = (1 + round as usize % 20).min(held.len());
                        let at = held.len() - part;
                        for item in &held[at..] {
                            assert!(owners[item.address() / 64].swap(false, Ordering::AcqRel));
                        }
                        // SAFETY: items in our hands.
                        let put = unsafe { slots.push_many(class, hint, &held[at..]) };
                        outside.lock().expect("no panic").extend(&held[at + put..]);
                        held.truncate(at);
                    }
                }
                for item in &held {
                    owners[item.address() / 64].store(false, Ordering::Release);
                }
                outside.lock().expect("no panic").extend(held);
            });
        }
        if drain {
            scope.spawn(|| {
                let platform = Linux::new();
                while !done.load(Ordering::Relaxed) {
                    for cpu in 0..4 {
                        let mut some = [Item::NONE; 64];
                        if let Some(mut stopped) = slots.stop(CpuId(cpu), || platform.fence_cpus())
                        {
                            let got = stopped.take(class, &mut some);
                            drop(stopped);
                            outside.lock().expect("no panic").extend(&some[..got]);
                        }
                    }
                    done.store(outside.lock().expect("no panic").len() >= ITEMS, Ordering::Relaxed);
                    thread::yield_now();
                }
            });
        }
    });
    // At the end everything is outside or on an array, once.
    let mut all = outside.into_inner().expect("no panic");
    for cpu in 0..4 {
        if let Some(mut stopped) = slots.stop(CpuId(cpu), || true) {
            let mut some = [Item::NONE; 128];
            let got = stopped.take(class, &mut some);
            all.extend(&some[..got]);
        }
    }
    assert_eq!(all.len(), ITEMS);
    assert_eq!(all.iter().map(|item| item.address() / 64).collect::<HashSet<_>>().len(), ITEMS);
}

#[test]
fn locked_arrays_keep_every_item_once() {
    exchange(slots(Kind::Locked), true);
}

#[test]
fn rseq_arrays_keep_every_item_once_while_drained_from_outside() {
    let Some(offset) = Linux::new().rseq_offset() else {
        eprintln!("no rseq on this system: nothing to test");
        return;
    };
    exchange(slots(Kind::Rseq(offset)), true);
}

#[test]
fn an_unstarted_table_is_empty_and_full() {
    // SAFETY: all zero is a valid value.
    let slots: &'static Slots = Box::leak(unsafe { Box::<Slots>::new_zeroed().assume_init() });
    slots.start(Kind::Locked);
    for class in SizeClass::all() {
        assert!(slots.pop(class).is_none());
        // SAFETY: never taken in.
        assert!(!unsafe { slots.push(class, Item::at(4096)) });
    }
}

#[test]
fn stopping_a_locked_array_in_vain_leaves_it_locked() {
    let slots = slots(Kind::Locked);
    let held = slots.stop(CpuId(0), || true).expect("nobody else has it");
    assert!(slots.stop(CpuId(0), || true).is_none());
    assert!(slots.stop(CpuId(0), || true).is_none(), "the refusal gave the lock away");
    drop(held);
    assert!(slots.stop(CpuId(0), || true).is_some());
}
