//! No page has two owners. Two threads allocate, free and exchange blocks. A third thread allocates
//! blocks of other orders and drains CPUs. Each page has a stamp that names its owner.
//!
//! `KMEM_OWNERSHIP_OPS=1000000000` sets the number of operations per order, which is small by
//! default. `KMEM_OWNERSHIP_ORDERS=0,9` tests these orders only.

use crate::instance::random;
use kmem_core::units::{Gfp, MAX_ORDER, Order};
use kmem_core::{Caller, Kmem};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

static A: Kmem = Kmem::new();

/// Pages that have a stamp: the zone's first GiB.
const PAGES: usize = 1 << 18;
/// Most blocks of a thread: enough to overflow CPUs' arrays and pageblocks.
const HELD: u64 = 300;
/// Most pages of a thread.
const HELD_PAGES: u64 = 1 << 15;

/// Pages whose stamps are one word, a byte each.
const PER_WORD: usize = 8;

struct Stamps {
    base: usize,
    owners: Vec<AtomicU64>,
}

/// The stamp of an owner on the pages of a mask.
fn stamp(owner: u8, mask: u64) -> u64 {
    (u64::MAX / 0xFF * u64::from(owner)) & mask
}

impl Stamps {
    /// Changes the owner of all pages of a block.
    fn pass(&self, block: usize, order: Order, from: u8, to: u8) {
        let first = (block - self.base) / 4096;
        let pages = order.pages().0 as usize;
        let words = first / PER_WORD..(first + pages).div_ceil(PER_WORD);
        // A block is aligned: it has whole words, or lies in one.
        let mask = if pages < PER_WORD {
            ((1 << (8 * pages)) - 1) << (first % PER_WORD * 8)
        } else {
            u64::MAX
        };
        let change = stamp(to, mask).wrapping_sub(stamp(from, mask));
        for word in words {
            // Relaxed: the allocator must order what one owner did before what the next one does.
            let was = self.owners[word].fetch_add(change, Ordering::Relaxed);
            assert_eq!(
                was & mask,
                stamp(from, mask),
                "{block:#x}, order {}, goes from {from} to {to}: stamps of pages {} and on",
                order.0,
                word * PER_WORD
            );
        }
    }
}

/// Work of one thread.
fn work(me: u8, order: Order, operations: u64, stamps: &Stamps, exchange: &AtomicU64) {
    // The numbers differ from run to run, because the base is where the system put it.
    let mut state = 0x9E37_79B9_7F4A_7C15 ^ u64::from(me) << 56 ^ stamps.base as u64;
    let most = HELD.min(HELD_PAGES >> order.0).max(2) as usize;
    let mut held: Vec<usize> = Vec::with_capacity(most);
    for _ in 0..operations {
        match random(&mut state) % 16 {
            // Whole runs of allocations and of frees, so that arrays run empty and full.
            0..8 if held.len() < most => {
                let block = A.alloc_pages(order, Gfp::KERNEL, Caller::at(0x1000)) as usize;
                assert_ne!(block, 0);
                stamps.pass(block, order, 0, me);
                held.push(block);
            }
            15 => {
                // A block for a block: what comes back was the other thread's.
                let mine = held.pop().unwrap_or(0);
                if mine != 0 {
                    stamps.pass(mine, order, me, 3);
                }
                let theirs = exchange.swap(mine as u64, Ordering::AcqRel) as usize;
                if theirs != 0 {
                    stamps.pass(theirs, order, 3, me);
                    held.push(theirs);
                }
            }
            _ if !held.is_empty() => {
                let which = random(&mut state) as usize % held.len();
                let block = held.swap_remove(which);
                stamps.pass(block, order, me, 0);
                // SAFETY: live, and this thread alone owns it.
                unsafe { A.free_pages(block as *mut u8, order) };
            }
            _ => {}
        }
    }
    for block in held {
        stamps.pass(block, order, me, 0);
        // SAFETY: live, and this thread alone owns it.
        unsafe { A.free_pages(block as *mut u8, order) };
    }
}

#[test]
fn no_page_has_two_owners() {
    let asked = std::env::var("KMEM_OWNERSHIP_OPS").ok().and_then(|text| text.parse().ok());
    let orders = std::env::var("KMEM_OWNERSHIP_ORDERS").map_or_else(
        |_| (0..=MAX_ORDER as u8).map(Order).collect::<Vec<_>>(),
        |list| list.split(',').map(|order| Order(order.parse().expect("an order"))).collect(),
    );
    let first = A.alloc_pages(Order(0), Gfp::KERNEL, Caller::at(0x1000));
    let stamps = Stamps {
        // Blocks may lie in front of the first one, in the same zone.
        base: (first as usize & !((1 << 22) - 1)) - (64 << 20),
        owners: (0..PAGES / PER_WORD).map(|_| AtomicU64::new(0)).collect(),
    };
    // SAFETY: live, given up.
    unsafe { A.free_pages(first, Order(0)) };
    for order in orders {
        let began = Instant::now();
        let operations = asked.unwrap_or(4_000_000 >> order.0) / 2;
        let (exchange, done) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let (stamps, exchange, done) = (&stamps, &exchange, &done);
            let workers =
                [1, 2].map(|me| scope.spawn(move || work(me, order, operations, stamps, exchange)));
            scope.spawn(move || {
                // It also wants blocks of other orders, which are made of what the two give back.
                for other in [9, 0, 3, 8].into_iter().cycle().map(Order) {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    let block = A.alloc_pages(other, Gfp::KERNEL, Caller::at(0x1000)) as usize;
                    stamps.pass(block, other, 0, 4);
                    A.drain();
                    stamps.pass(block, other, 4, 0);
                    // SAFETY: live, and this thread alone owns it.
                    unsafe { A.free_pages(block as *mut u8, other) };
                }
            });
            let ended = workers.map(|worker| worker.join());
            done.store(true, Ordering::Relaxed);
            assert!(ended.iter().all(Result::is_ok));
        });
        let left = exchange.into_inner() as usize;
        if left != 0 {
            stamps.pass(left, order, 3, 0);
            // SAFETY: live; the threads that exchanged it have ended.
            unsafe { A.free_pages(left as *mut u8, order) };
        }
        assert!(stamps.owners.iter().all(|owners| owners.load(Ordering::Relaxed) == 0));
        A.drain();
        assert_eq!(A.validate(), Ok(()), "order {}", order.0);
        assert_eq!(A.stats().used, 0, "order {}", order.0);
        eprintln!("order {}: {} operations in {:.1?}", order.0, 2 * operations, began.elapsed());
    }
}
