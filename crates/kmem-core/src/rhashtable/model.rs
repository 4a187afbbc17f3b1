//! Models of the table: elements and sentinels enter and leave, and no thread reads a dropped
//! element.

use std::alloc::Layout;
use std::format;
use std::string::String;
use std::sync::Arc;

use loom::sync::atomic::AtomicU64;
use loom::thread;

use super::hint::{self, Hints};
use super::list::Node;
use super::{Parameters, RHashTable, Refused};
use crate::source::{Caller, Counters, Source};
use crate::sync::model::{Owned, check};
use crate::sync::{AtomicU32, Ordering};
use core::hash::{BuildHasher, Hasher};
use core::ptr::NonNull;

/// Memory from the test's allocator, and counters of one CPU.
#[derive(Default)]
struct Memory {
    counters: [AtomicU64; 4],
}

/// Bytes in front of each piece of memory, where its length is.
const HEAD: usize = 16;

// SAFETY: each piece is zeroed, aligned to 16 bytes, and used by one owner until it is released.
unsafe impl Source for Arc<Memory> {
    fn obtain(&self, bytes: usize, _: Caller) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes + HEAD, 16).ok()?;
        // SAFETY: the size is not zero, and the head has room for the length.
        unsafe {
            let at = std::alloc::alloc_zeroed(layout);
            at.cast::<usize>().write(bytes);
            NonNull::new(at.add(HEAD))
        }
    }
    unsafe fn release(&self, at: NonNull<u8>) {
        // SAFETY: from `obtain`, which wrote the length in front (contract).
        unsafe {
            let at = at.as_ptr().sub(HEAD);
            let bytes = at.cast::<usize>().read();
            std::alloc::dealloc(at, Layout::from_size_align_unchecked(bytes + HEAD, 16));
        }
    }
    fn wait(&self, _: &AtomicU32, _: u32) {}
    fn wake(&self, _: &AtomicU32) {}
    fn counters(&self, _: Caller) -> Option<Counters> {
        Some(Counters(NonNull::dangling()))
    }
    unsafe fn drop_counters(&self, _: Counters) {}
    unsafe fn count(&self, _: Counters, which: usize) {
        self.counters[which].fetch_add(1, Ordering::Relaxed);
    }
    unsafe fn counted(&self, _: Counters, which: usize) -> u64 {
        self.counters[which].load(Ordering::Relaxed)
    }
    fn barrier(&self) -> bool {
        false
    }
}

/// A hash that is equal to its key.
#[derive(Clone, Copy)]
struct Plain;
struct Same(u64);
impl Hasher for Same {
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
    fn finish(&self) -> u64 {
        self.0
    }
}
impl BuildHasher for Plain {
    type Hasher = Same;
    fn build_hasher(&self) -> Same {
        Same(0)
    }
}

/// A value whose drop writes to memory that readers read.
struct Value(u64, Arc<Owned>);
impl Drop for Value {
    fn drop(&mut self) {
        self.1.write();
    }
}

type Table = RHashTable<u64, Value, Arc<Memory>, Plain>;

fn table(min: usize, max: usize) -> Arc<Table> {
    let parameters = Parameters { min_buckets: min, max_buckets: max, shrinks: true };
    Arc::new(RHashTable::new(Arc::default(), Plain, parameters, Caller).expect("memory"))
}

impl Table {
    fn add(&self, key: u64, value: u64) -> bool {
        match self.insert(key, Value(value, Arc::default()), Caller) {
            Ok(()) => true,
            Err(Refused::Exists(..)) => false,
            Err(_) => unreachable!(),
        }
    }

    /// Reads a value, and the memory that its drop writes to.
    fn look(&self, key: u64) -> Option<u64> {
        let reading = self.read();
        let value = reading.get(&key)?;
        value.1.read();
        Some(value.0)
    }
}

fn show(value: Option<u64>) -> String {
    value.map_or(String::from("-"), |value| format!("{value}"))
}

#[test]
fn each_insertion_of_a_key_is_removed_once_or_refused() {
    check(2, &["1", "2"], |outcomes| {
        let table = table(1, 1);
        let other = table.clone();
        let thread = thread::spawn(move || (other.add(7, 2), other.remove(&7)));
        let mine = (table.add(7, 1), table.remove(&7));
        let his = thread.join().expect("it ends");
        let inserted = u32::from(mine.0) + u32::from(his.0);
        let removed = u32::from(mine.1) + u32::from(his.1);
        outcomes.note(format!("{inserted}"));
        assert_eq!((inserted, table.len()), (removed, 0));
    });
}

#[test]
fn neighbours_are_inserted_and_removed_independently() {
    check(2, &["- 3"], |outcomes| {
        let table = table(1, 1);
        assert!(table.add(1, 1) && table.add(2, 2));
        let other = table.clone();
        let thread = thread::spawn(move || assert!(other.remove(&1)));
        assert!(table.add(3, 3));
        assert!(table.remove(&2));
        thread.join().expect("it ends");
        outcomes.note(format!("{} {}", show(table.look(1)), show(table.look(3))));
        assert_eq!((table.look(2), table.len()), (None, 1));
    });
}

#[test]
fn a_reader_sees_the_old_value_or_the_new_one_or_none() {
    check(2, &["-", "1", "2"], |outcomes| {
        let table = table(1, 1);
        assert!(table.add(1, 1));
        let other = table.clone();
        let reader = thread::spawn(move || other.look(1));
        assert!(table.replace(1, Value(2, Arc::default()), Caller).is_ok());
        assert!(table.remove(&1));
        table.reclaim();
        outcomes.note(show(reader.join().expect("it ends")));
    });
}

#[test]
fn hints_never_lead_to_a_dropped_element() {
    check(2, &["- -", "1 -", "1 1"], |outcomes| {
        let table = table(1, 1);
        assert!(table.add(1, 1));
        let other = table.clone();
        // The first lookup leaves a hint, unless the element is removed. The second one follows it.
        let reader = thread::spawn(move || (other.look(1), other.look(1)));
        assert!(table.remove(&1));
        table.reclaim();
        let (first, second) = reader.join().expect("it ends");
        outcomes.note(format!("{} {}", show(first), show(second)));
        assert_eq!(table.look(1), None);
    });
}

#[test]
fn no_hint_is_added_after_the_hints_of_an_element_were_removed() {
    check(3, &["hint", "none"], |outcomes| {
        let shared = Arc::new((Hints::new(), Node::new(3)));
        let readers = [(); 2].map(|()| {
            let shared = shared.clone();
            // Both readers found the element in the list before it was removed.
            thread::spawn(move || shared.0.put(shared.1.link.hash(), &shared.1, 0, |_| true))
        });
        let (hints, node) = &*shared;
        let hash = node.link.hash();
        let before = hints.find(hash).is_some();
        hint::forget(node, |_| Some(hints));
        assert!(hints.find(hash).is_none());
        readers.into_iter().for_each(|reader| reader.join().expect("it ends"));
        assert!(hints.find(hash).is_none());
        outcomes.note(String::from(if before { "hint" } else { "none" }));
    });
}

#[test]
fn two_readers_leave_hints_and_find_the_right_elements() {
    check(2, &["1 1"], |outcomes| {
        // The tags differ. Of hints with equal tags, the one at the lower address would be found,
        // which varies between runs.
        const TWO: u64 = 2 << 50;
        let table = table(1, 1);
        assert!(table.add(1, 1) && table.add(TWO, 2));
        let other = table.clone();
        let reader = thread::spawn(move || (other.look(1), other.look(TWO)));
        let mine = (table.look(1), table.look(TWO));
        assert_eq!(mine, reader.join().expect("it ends"));
        outcomes.note(format!("{} {}", show(mine.0), show(table.look(1))));
        assert_eq!(mine, (Some(1), Some(2)));
    });
}

#[test]
fn a_lookup_misses_nothing_while_the_table_grows_and_sentinels_enter() {
    check(2, &["1"], |outcomes| {
        let table = table(1, 2);
        assert!(table.add(1, 1));
        let other = table.clone();
        let reader = thread::spawn(move || {
            let first = other.look(1);
            assert_eq!(first, other.look(1));
            first
        });
        // The sentinel of bucket 1 enters.
        assert!(table.add(3, 3));
        outcomes.note(show(reader.join().expect("it ends")));
        assert_eq!((table.look(1), table.look(3), table.buckets()), (Some(1), Some(3), 2));
    });
}

#[test]
fn a_lookup_misses_nothing_while_the_table_shrinks_and_sentinels_leave() {
    check(2, &["5"], |outcomes| {
        let table = table(4, 8);
        for key in [8, 5, 13, 4] {
            assert!(table.add(key, key));
        }
        assert_eq!(table.buckets(), 8);
        let other = table.clone();
        // In one of the buckets that are taken away.
        let reader = thread::spawn(move || other.look(5));
        assert!(table.remove(&8) && table.remove(&13) && table.remove(&4));
        table.reclaim();
        table.reclaim();
        outcomes.note(show(reader.join().expect("it ends")));
        assert_eq!((table.look(5), table.buckets()), (Some(5), 4));
    });
}
