//! Per-CPU arrays of both kinds: an item is in one place at a time.
#![cfg(target_os = "linux")]

mod instance;

use instance::{pin, random};
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::thread;

use kmem_core::class::{ArrayId, Contents, SizeClass};
use kmem_core::cpu::{Area, Cell, Cleared, Kind, Slots, Stock};
use kmem_core::os::Cpus;
use kmem_core::os::linux::Linux;
use kmem_core::units::{CpuId, Item, ObjcgId};
use kmem_layout::geometry::ClassGeometry;
use kmem_layout::word::{EXT_LIVE, OBJCG_SHIFT};

fn slots(kind: Kind) -> &'static Slots {
    // SAFETY: all zero is a valid value.
    let slots: &'static Slots = Box::leak(unsafe { Box::<Slots>::new_zeroed().assume_init() });
    slots.start(&Linux::new(), kind);
    let cap = |array: ArrayId| match array.contents() {
        Contents::Objects(class) => ClassGeometry::new(class.size(), true).cap,
        Contents::Runs(_) | Contents::Blocks(_) => 0,
    };
    for cpu in 0..4 {
        // SAFETY: all zero is valid; the area is never freed.
        unsafe {
            let area = Box::leak(Box::<Area>::new_zeroed().assume_init());
            assert!(slots.add(CpuId(cpu), area, cap));
        }
    }
    slots
}

/// Offset of the rseq area; none on a system without, unless `KMEM_TEST_RSEQ` says that it has one.
fn rseq_offset() -> Option<isize> {
    let offset = Linux::new().rseq_offset();
    if offset.is_none() {
        assert!(std::env::var_os("KMEM_TEST_RSEQ").is_none(), "no rseq on this system");
        eprintln!("no rseq on this system: nothing to test");
    }
    offset
}

/// Threads take items, hold them a little, and put them back. No two threads hold the same item.
fn exchange(slots: &'static Slots, drain: bool) {
    const ITEMS: usize = 300;
    let class = CLASS;
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
                            // SAFETY: the slots have started, and the class has an array.
                            some[0] = unsafe { slots.pop(class) };
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
                        // SAFETY: items that this thread took.
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
    let Some(offset) = rseq_offset() else { return };
    exchange(slots(Kind::Rseq(offset)), true);
}

/// Groups of which two share a cell.
const GROUPS: [ObjcgId; 3] = [ObjcgId(1), ObjcgId(2), ObjcgId(65)];
/// Items of the storm on stocks.
const PAID: usize = 400;
/// The class of the storm.
const CLASS: ArrayId = SizeClass(4).array();

/// Amount in stocks by group, on heads and in cells: put in and not taken out.
#[derive(Default)]
struct Supplied([[AtomicI64; 2]; GROUPS.len()]);

impl Supplied {
    fn add(&self, objcg: ObjcgId, in_cell: bool, amount: i64) {
        let group = GROUPS.iter().position(|&group| group == objcg).expect("one of ours");
        self.0[group][usize::from(in_cell)].fetch_add(amount, Ordering::Relaxed);
    }

    /// Subtracts a stock that was taken out of its place.
    fn back(&self, stock: Stock, in_cell: bool) {
        if stock.amount() > 0 {
            self.add(stock.objcg(), in_cell, -i64::from(stock.amount()));
        }
    }
}

/// Moves this thread to one CPU.
fn migrate(to: u64) {
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    // Where the system refuses, the thread stays on its CPU.
    pin(0, to as usize % cpus);
}

/// Addresses of the slots and the sums, for signal handlers.
static IN_SIGNALS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// Signal handler: interrupts sections, and uses the stocks itself.
extern "C" fn interrupt(_: libc::c_int) {
    let [slots, supplied] = [0, 1].map(|i| IN_SIGNALS[i].load(Ordering::Relaxed));
    // SAFETY: null, or values that are never freed.
    let (slots, supplied) =
        unsafe { ((slots as *const Slots).as_ref(), (supplied as *const Supplied).as_ref()) };
    if let (Some(slots), Some(supplied)) = (slots, supplied) {
        let group = GROUPS[0];
        for cell in [Cell::of_array(CLASS), Cell::of_group(group)] {
            if slots.adjust(cell, group, 1, 200, 0) {
                supplied.add(group, cell == Cell::of_group(group), 1);
            }
        }
    }
}

/// Threads that are preempted, migrated and interrupted pay from stocks and fill them. Another
/// thread takes stocks away from outside. Items and stocks are conserved.
fn pay_and_refund(slots: &'static Slots) {
    const ROUNDS: usize = 400_000;
    let supplied: &'static Supplied = Box::leak(Box::default());
    let outside = Mutex::new((1..=PAID).map(|i| Item::at(i * 64)).collect::<Vec<_>>());
    let done = AtomicBool::new(false);
    let threads = Mutex::new(Vec::new());
    let head = Cell::of_array(CLASS);
    IN_SIGNALS[0].store(&raw const *slots as u64, Ordering::Relaxed);
    IN_SIGNALS[1].store(&raw const *supplied as u64, Ordering::Relaxed);
    // SAFETY: a handler that allocates nothing and waits for nothing.
    unsafe { libc::signal(libc::SIGUSR1, interrupt as *const () as libc::sighandler_t) };
    let take_away = || {
        for cpu in 0..4 {
            let fence = || Linux::new().fence_cpus();
            let Some(mut stopped) = slots.stop(CpuId(cpu), fence) else { continue };
            for (cell, class) in Cell::all() {
                let stock = stopped.stock(cell);
                assert!(stock.amount() < Stock::MAX / 2, "{stock:?}");
                stopped.clear_stock(cell);
                supplied.back(stock, class.is_none());
            }
            let mut some = [Item::NONE; 128];
            let got = stopped.take(CLASS, &mut some);
            drop(stopped);
            outside.lock().expect("no panic").extend(&some[..got]);
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..6u64)
            .map(|me| {
                let (outside, threads, slot) = (&outside, &threads, me as u32 % 2);
                scope.spawn(move || {
                    // SAFETY: the thread's own handle, used until it is joined.
                    threads.lock().expect("no panic").push(unsafe { libc::pthread_self() });
                    let mut state = 0x9E37_79B9 ^ (me + 1) << 32;
                    let mut held: Vec<Item> = Vec::new();
                    for round in 0..ROUNDS {
                        if round % 256 == 0 {
                            migrate(random(&mut state));
                        }
                        let group = GROUPS[random(&mut state) as usize % GROUPS.len()];
                        let cell = Cell::of_group(group);
                        let by = (random(&mut state) % 3000) as i32;
                        match random(&mut state) % 8 {
                            0 | 1 => {
                                // SAFETY: the slots have started, and the class has an array.
                                let item = unsafe { slots.pop_paid(CLASS, group) };
                                if !item.is_none() {
                                    supplied.add(group, false, -1);
                                    held.push(item);
                                }
                            }
                            2 | 3 => {
                                if let Some(item) = held.pop() {
                                    let word = group.0 << OBJCG_SHIFT | EXT_LIVE | 7;
                                    let ext = AtomicU32::new(word);
                                    // SAFETY: an item that this thread took, and its word.
                                    let freed =
                                        unsafe { slots.push_freed(CLASS, item, (&ext, word), 200) };
                                    match freed {
                                        Cleared::Paid => supplied.add(group, false, 1),
                                        Cleared::Unpaid | Cleared::Not => held.push(item),
                                    }
                                    let left = if freed == Cleared::Not { word } else { 7 };
                                    assert_eq!(ext.into_inner(), left);
                                }
                            }
                            4 => {
                                let by = if by % 2 == 0 { 1 } else { -1 };
                                if slots.adjust(head, group, by, 200, slot) {
                                    supplied.add(group, false, by.into());
                                }
                            }
                            5 => {
                                let by = if by % 2 == 0 { by } else { -by };
                                if slots.adjust(cell, group, by, 32 << 10, slot) {
                                    supplied.add(group, true, by.into());
                                }
                            }
                            6 => {
                                let stock = Stock::new(group, by as u32 % 100);
                                if let Some(before) = slots.swap_stock(head, stock, slot) {
                                    supplied.add(group, false, stock.amount().into());
                                    supplied.back(before, false);
                                }
                                let stock = Stock::new(group, by as u32);
                                if let Some(before) = slots.swap_stock(cell, stock, slot) {
                                    supplied.add(group, true, stock.amount().into());
                                    supplied.back(before, true);
                                }
                            }
                            _ => {
                                let mut pool = outside.lock().expect("no panic");
                                let part = pool.len().min(10);
                                let at = pool.len() - part;
                                // SAFETY: items of the pool, which this thread has locked.
                                let put = unsafe { slots.push_many(CLASS, slot, &pool[at..]) };
                                pool.drain(at..at + put);
                                pool.append(&mut held);
                            }
                        }
                    }
                    outside.lock().expect("no panic").extend(held);
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                take_away();
                thread::yield_now();
            }
        });
        let mut signals = 0u64;
        while workers.iter().any(|worker| !worker.is_finished()) {
            for &thread in threads.lock().expect("no panic").iter() {
                // SAFETY: handles stay valid until the threads are joined, at the end of the scope.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                signals += 1;
            }
            thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
        // The end of a scope does not wait for handlers that run while a thread ends.
        workers.into_iter().for_each(|worker| worker.join().expect("no panic"));
        assert!(signals > 0);
    });
    IN_SIGNALS[0].store(0, Ordering::Relaxed);
    take_away();
    let left: Vec<i64> = supplied.0.iter().flatten().map(|n| n.load(Ordering::Relaxed)).collect();
    assert_eq!(left, [0; 2 * GROUPS.len()], "put in stock and neither there nor taken");
    let all = outside.into_inner().expect("no panic");
    assert_eq!(all.len(), PAID);
    assert_eq!(all.iter().map(|item| item.address() / 64).collect::<HashSet<_>>().len(), PAID);
}

/// Taken by one storm at a time, because the process has one handler.
static STORM: Mutex<()> = Mutex::new(());

#[test]
fn locked_stocks_are_conserved_while_taken_from_outside() {
    let _one = STORM.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    pay_and_refund(slots(Kind::Locked));
}

#[test]
fn rseq_stocks_are_conserved_while_taken_from_outside() {
    let Some(offset) = rseq_offset() else { return };
    let _one = STORM.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    pay_and_refund(slots(Kind::Rseq(offset)));
}

#[test]
fn an_unstarted_table_is_empty_and_full() {
    // SAFETY: all zero is a valid value.
    let slots: &'static Slots = Box::leak(unsafe { Box::<Slots>::new_zeroed().assume_init() });
    slots.start(&Linux::new(), Kind::Locked);
    for class in SizeClass::all().map(SizeClass::array) {
        // SAFETY: the slots have started, and the class has an array.
        assert!(unsafe { slots.pop(class) }.is_none());
        // SAFETY: never taken in.
        assert!(!unsafe { slots.push(class, Item::at(4096)) });
    }
}

#[test]
fn stopping_a_locked_array_in_vain_leaves_it_locked() {
    let slots = slots(Kind::Locked);
    let held = slots.stop(CpuId(0), || true).expect("no other thread has it");
    assert!(slots.stop(CpuId(0), || true).is_none());
    assert!(slots.stop(CpuId(0), || true).is_none(), "the refusal gave the lock away");
    drop(held);
    assert!(slots.stop(CpuId(0), || true).is_some());
}
