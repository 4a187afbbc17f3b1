//! Models of rows and summaries, for loom.

use std::format;
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::Row;
use super::maxima::{self, Maxima};
use super::summary::{Summary, words_for};
use crate::sync::model::{Owned, check};
use crate::sync::{AtomicU64, Ordering};

/// A row, and for each thing memory that only the thing's owner may write to.
struct Things {
    row: Row,
    memory: Vec<Owned>,
}

impl Things {
    fn new(free: u64) -> Arc<Self> {
        let memory = (0..64 - free.leading_zeros()).map(|_| Owned::default()).collect();
        Arc::new(Self { row: Row(AtomicU64::new(free)), memory })
    }

    /// Writes to things that the caller owns.
    fn write(&self, bits: u64) {
        for (i, owned) in self.memory.iter().enumerate() {
            if bits & 1 << i != 0 {
                owned.write();
            }
        }
    }
}

#[test]
fn threads_that_take_and_give_never_share_a_thing() {
    check(3, &["1 1", "2 0", "2 1"], |outcomes| {
        let things = Things::new(0b11);
        let threads = [2, 1].map(|limit| {
            let things = things.clone();
            thread::spawn(move || {
                let mut got = 0;
                for _ in 0..2 {
                    let taken = things.row.take(limit);
                    things.write(taken);
                    assert!(taken.count_ones() <= limit);
                    got = taken.count_ones();
                    assert_eq!(things.row.give(taken), 0);
                }
                got
            })
        });
        let got = threads.map(|thread| thread.join().expect("it ends"));
        outcomes.note(format!("{} {}", got[0], got[1]));
        assert_eq!(things.row.load(), 0b11, "nothing is lost");
        things.write(0b11);
    });
}

#[test]
fn three_ways_to_take_never_share_or_lose_a_thing() {
    check(4, &["exact", "limit", "run"], |outcomes| {
        let things = Things::new(0b1111);
        let exact = {
            let things = things.clone();
            thread::spawn(move || {
                let taken = if things.row.take_exact(0b0110) { 0b0110 } else { 0 };
                things.write(taken);
                // Another thread may take this one.
                assert_eq!(things.row.give(taken & 0b0010), 0);
                taken & 0b0100
            })
        };
        let run = {
            let things = things.clone();
            thread::spawn(move || {
                let taken = things.row.take_run(2, 2).map_or(0, |start| super::span(start, 2));
                things.write(taken);
                assert_eq!(things.row.give(taken & 0b0101), 0);
                taken & 0b1010
            })
        };
        let limit = things.row.take(1);
        things.write(limit);
        let exact = exact.join().expect("it ends");
        let run = run.join().expect("it ends");
        for (name, taken) in [("exact", exact), ("run", run), ("limit", limit)] {
            if taken != 0 {
                outcomes.note(name);
            }
        }
        assert_eq!(
            limit.count_ones()
                + exact.count_ones()
                + run.count_ones()
                + things.row.load().count_ones(),
            4
        );
        assert_eq!(things.row.give(limit | exact | run), 0, "and none of them is free as well");
        assert_eq!(things.row.load(), 0b1111);
    });
}

#[test]
fn one_of_two_threads_that_free_a_thing_sees_the_double_free() {
    check(3, &["0", "1"], |outcomes| {
        let things = Things::new(0);
        let other = things.clone();
        let thread = thread::spawn(move || other.row.give(1));
        let here = things.row.give(1);
        let there = thread.join().expect("it ends");
        assert_eq!(here + there, 1);
        outcomes.note(format!("{here}"));
    });
}

/// A summary whose members have offers, by the rules that owners of members follow. An owner
/// inserts its number after it has an offer. A thread that finds a member without offers removes
/// the member and reads its offers again.
struct Hints {
    set: Summary,
    /// Count of offers of each number.
    offers: [AtomicU64; 4],
    _words: Vec<AtomicU64>,
}

/// A set of three levels.
const LEN: u32 = 8192 + 128;

impl Hints {
    fn new() -> Arc<Self> {
        let words: Vec<AtomicU64> = (0..words_for(LEN, 1)).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the vector has the right length; its elements stay when it is moved.
        let set = unsafe { Summary::new(words.as_ptr(), LEN, 1) };
        Arc::new(Self { set, offers: Self::AT.map(|_| AtomicU64::new(0)), _words: words })
    }

    /// Two numbers in one leaf, one in the leaf beside it, one under another child of the root.
    /// None is where a search begins: there it reads leaves without reading their parents.
    const AT: [u32; 4] = [4096 + 67, 4096 + 69, 4096 + 130, 8192 + 70];

    fn offer(&self, i: usize) {
        if self.offers[i].fetch_add(1, Ordering::SeqCst) == 0 {
            self.set.insert(0, Self::AT[i]);
        }
    }

    /// Takes one offer of a member, as claims from slabs and pageblocks do. False: none was found.
    fn take(&self) -> bool {
        let mut from = 0;
        while let Some(n) = self.set.next(0, from) {
            let i = Self::AT.iter().position(|&at| at == n).expect("a number that was inserted");
            let offers = &self.offers[i];
            let seen = offers.load(Ordering::Relaxed);
            if seen > 0
                && offers
                    .compare_exchange(seen, seen - 1, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok()
            {
                if seen == 1 {
                    self.dismiss(i);
                }
                return true;
            }
            if seen == 0 {
                self.dismiss(i);
            }
            from = n + 1;
        }
        false
    }

    fn dismiss(&self, i: usize) {
        self.set.remove(0, Self::AT[i]);
        if self.offers[i].load(Ordering::SeqCst) != 0 {
            self.set.insert(0, Self::AT[i]);
        }
    }

    /// Asserts, once all threads are done, that every offer can be found.
    fn validate(&self, left: u64) {
        let offered: u64 = self.offers.iter().map(|offers| offers.load(Ordering::SeqCst)).sum();
        assert_eq!(offered, left);
        for _ in 0..left {
            assert!(self.take(), "an offer is hidden");
        }
        assert!(!self.take());
    }
}

#[test]
fn removal_of_a_member_hides_no_neighbour_that_is_inserted() {
    for neighbour in 0..4 {
        check(5, &["found 1", "found 2"], move |outcomes| {
            let hints = Hints::new();
            hints.offer(0);
            let taker = {
                let hints = hints.clone();
                thread::spawn(move || u64::from(hints.take()) + u64::from(hints.take()))
            };
            hints.offer(neighbour);
            let taken = taker.join().expect("it ends");
            outcomes.note(format!("found {taken}"));
            hints.validate(2 - taken);
        });
    }
}

#[test]
fn two_removals_hide_no_member_that_is_inserted() {
    for neighbour in [1, 2] {
        check(2, &["0 1", "1 0", "1 1"], move |outcomes| {
            let hints = Hints::new();
            hints.offer(0);
            let takers = [(); 2].map(|()| {
                let hints = hints.clone();
                thread::spawn(move || u64::from(hints.take()))
            });
            hints.offer(neighbour);
            let [a, b] = takers.map(|taker| taker.join().expect("it ends"));
            outcomes.note(format!("{a} {b}"));
            hints.validate(2 - a - b);
        });
    }
}

/// Numbers, and a tree over them.
struct Numbers {
    tree: Maxima,
    /// The data that the number at 9 follows.
    data: AtomicU64,
    _words: Vec<AtomicU64>,
}

impl Numbers {
    /// Nine words below one, and one above.
    const LEN: u32 = 72;

    fn new(data: u8) -> Arc<Self> {
        let words: Vec<_> =
            (0..maxima::words_for(Self::LEN, 1)).map(|_| AtomicU64::new(0)).collect();
        // SAFETY: the vector has the right length; its elements stay when it is moved.
        let tree = unsafe { Maxima::new(words.as_ptr(), Self::LEN, 1) };
        let numbers = Arc::new(Self { tree, data: AtomicU64::new(u64::from(data)), _words: words });
        numbers.tree.raise(0, 9, data);
        numbers
    }

    /// Changes the data, and raises the number to it.
    fn change(&self, to: u8) {
        self.data.swap(u64::from(to), Ordering::SeqCst);
        if self.tree.get(0, 9) < to {
            self.tree.raise(0, 9, to);
        }
    }

    /// Lowers the number to the data.
    fn correct(&self) {
        let read = || {
            crate::sync::loom_fence();
            self.data.load(Ordering::SeqCst) as u8
        };
        if self.tree.lower(0, 9, read()) {
            self.tree.raise(0, 9, read());
        }
    }
}

#[test]
fn a_number_that_is_raised_while_another_thread_lowers_it_is_found() {
    check(4, &["found", "missed"], |outcomes| {
        let numbers = Numbers::new(9);
        numbers.data.swap(2, Ordering::SeqCst);
        let other = numbers.clone();
        let searcher = thread::spawn(move || {
            other.correct();
            other.tree.next(0, 0, 5)
        });
        numbers.change(8);
        let seen = searcher.join().expect("it ends");
        outcomes.note(if seen.is_some() { "found" } else { "missed" });
        assert_eq!(numbers.tree.next(0, 0, 8), Some(9));
        assert!(numbers.tree.is_found(0, 9));
    });
}

#[test]
fn the_maximum_of_two_numbers_of_a_word_is_kept_while_one_is_lowered() {
    check(5, &["8", "none"], |outcomes| {
        let numbers = Numbers::new(9);
        numbers.tree.raise(0, 8, 7);
        let other = numbers.clone();
        let lowerer = thread::spawn(move || {
            assert!(other.tree.lower(0, 9, 0), "it was larger");
            assert_eq!(other.tree.next(0, 0, 7), Some(8));
            other.tree.next(0, 0, 8)
        });
        numbers.tree.raise(0, 8, 8);
        let seen = lowerer.join().expect("it ends");
        outcomes.note(seen.map_or("none", |_| "8"));
        assert_eq!(numbers.tree.next(0, 0, 8), Some(8));
        assert_eq!(numbers.tree.next(0, 0, 9), None);
    });
}
