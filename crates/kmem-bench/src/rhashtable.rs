//! `kmem-bench rhashtable`: hash tables that threads share, with the parameters of the kernel's
//! `test_rhashtable`: 50,000 entries, and one, two and ten threads.
//!
//! | workload        | one operation                                                           |
//! |-----------------|-------------------------------------------------------------------------|
//! | `insert_remove` | insert a key, and remove it when all keys of the thread are in          |
//! | `lookup`        | find a key of the table, in random order; no thread writes              |
//! | `lookup_write`  | `lookup`, while the last thread inserts and removes all the time        |
//! | `walk`          | go to the next of all elements                                          |
//!
//! With `insert_remove` the table grows from its smallest size and shrinks again.
//!
//! | variant             | implementation                                              |
//! |---------------------|-------------------------------------------------------------|
//! | `kmem`              | `kmem_core::rhashtable`, memory from an instance with books |
//! | `dashmap`, `papaya` | the crates, memory from the C library                       |
//! | `rwlock`            | `hashbrown` under `parking_lot::RwLock`                     |
//!
//! All variants have keys and values of 4 bytes and hash with foldhash. Keys of lookups come from
//! an array that is drawn before. Each lookup enters and leaves its table (a reading, a shard's
//! lock, a pin, the lock); no variant amortizes that over several lookups.
//!
//! `kmem` and `papaya` keep elements as separate objects, which a lookup must fetch. `dashmap` and
//! `hashbrown` keep them in the table, which is dense with such small elements. The tables of
//! rivals grow only. `dashmap` and `hashbrown` have locks, so they remove without waiting for
//! readers.

use crate::cells::{Cell, timed};
use crate::prng::Prng;
use crate::{Failure, cells};
use hashbrown::{DefaultHashBuilder, HashMap};
use kmem_core::os::linux::Linux;
use kmem_core::request::Caller;
use kmem_core::rhashtable::{Parameters, RHashTable};
use kmem_core::{Instance, Kmem, static_tag};
use parking_lot::RwLock;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Time for all rounds.
const SECONDS: u64 = 10;

static KMEM: Kmem = Kmem::new();
const ENTRIES: u32 = 50_000;

/// A variant.
trait Map: Send + Sync + 'static {
    fn new() -> Self;
    fn insert(&self, key: u32);
    fn remove(&self, key: u32);
    /// Looks all keys up. Returns the number of keys found.
    fn lookup(&self, keys: &[u32]) -> usize;
    /// Number of elements that a walk finds.
    fn walk(&self) -> usize;
}

struct Ours(RHashTable<u32, u32, &'static Instance<Linux>, DefaultHashBuilder>);

impl Map for Ours {
    fn new() -> Self {
        let (hasher, caller) = (DefaultHashBuilder::default(), Caller::tagged(static_tag!()));
        let parameters = Parameters::default();
        Self(RHashTable::new(&KMEM, hasher, parameters, caller).expect("memory for a table"))
    }
    fn insert(&self, key: u32) {
        let _ = black_box(self.0.insert(key, key, Caller::tagged(static_tag!())));
    }
    fn remove(&self, key: u32) {
        black_box(self.0.remove(&key));
    }
    fn lookup(&self, keys: &[u32]) -> usize {
        keys.iter().filter(|key| self.0.read().get(*key).is_some()).count()
    }
    fn walk(&self) -> usize {
        self.0.read().iter().count()
    }
}

impl Map for dashmap::DashMap<u32, u32, DefaultHashBuilder> {
    fn new() -> Self {
        Self::with_hasher(DefaultHashBuilder::default())
    }
    fn insert(&self, key: u32) {
        black_box(self.insert(key, key));
    }
    fn remove(&self, key: u32) {
        black_box(self.remove(&key));
    }
    fn lookup(&self, keys: &[u32]) -> usize {
        keys.iter().filter(|key| self.get(*key).is_some()).count()
    }
    fn walk(&self) -> usize {
        self.iter().count()
    }
}

impl Map for papaya::HashMap<u32, u32, DefaultHashBuilder> {
    fn new() -> Self {
        Self::with_hasher(DefaultHashBuilder::default())
    }
    fn insert(&self, key: u32) {
        black_box(self.pin().insert(key, key));
    }
    fn remove(&self, key: u32) {
        black_box(self.pin().remove(&key));
    }
    fn lookup(&self, keys: &[u32]) -> usize {
        keys.iter().filter(|key| self.pin().get(*key).is_some()).count()
    }
    fn walk(&self) -> usize {
        self.pin().iter().count()
    }
}

impl Map for RwLock<HashMap<u32, u32>> {
    fn new() -> Self {
        Self::default()
    }
    fn insert(&self, key: u32) {
        black_box(self.write().insert(key, key));
    }
    fn remove(&self, key: u32) {
        black_box(self.write().remove(&key));
    }
    fn lookup(&self, keys: &[u32]) -> usize {
        keys.iter().filter(|key| self.read().contains_key(*key)).count()
    }
    fn walk(&self) -> usize {
        self.read().iter().count()
    }
}

/// Measures the table and prints it.
pub(crate) fn run(options: &cells::Options) -> Result<(), Failure> {
    let mut cells = Vec::new();
    for threads in [1, 2, 10] {
        add::<Ours>("kmem", threads, &mut cells);
        add::<dashmap::DashMap<u32, u32, DefaultHashBuilder>>("dashmap", threads, &mut cells);
        add::<papaya::HashMap<u32, u32, DefaultHashBuilder>>("papaya", threads, &mut cells);
        add::<RwLock<HashMap<u32, u32>>>("rwlock", threads, &mut cells);
    }
    cells::run("rhashtable", options, SECONDS, &cells)
}

fn add<M: Map>(name: &'static str, threads: usize, cells: &mut Vec<Cell>) {
    let map = M::new();
    cells.push(Cell::new(name, "insert_remove", threads, move |number| {
        let keys = (number as u32..ENTRIES).step_by(threads);
        timed(2 * keys.len(), || {
            keys.clone().for_each(|key| map.insert(key));
            keys.for_each(|key| map.remove(key));
        })
    }));
    let map = Arc::new(M::new());
    (0..ENTRIES).for_each(|key| map.insert(key));
    let (whole, present) = (map.clone(), map.clone());
    cells.push(Cell::new(name, "lookup", threads, move |number| lookup(&*map, number)));
    if threads == 1 {
        cells.push(Cell::new(name, "walk", threads, move |_| {
            timed(ENTRIES as usize, || assert_eq!(present.walk(), ENTRIES as usize))
        }));
        return;
    }
    let readers = AtomicUsize::new(threads - 1);
    cells.push(Cell::new(name, "lookup_write", threads, move |number| {
        if number + 1 < threads {
            let found = lookup(&*whole, number);
            readers.fetch_sub(1, Ordering::Release);
            return found;
        }
        while readers.load(Ordering::Acquire) > 0 {
            for key in ENTRIES..ENTRIES + 500 {
                whole.insert(key);
            }
            for key in ENTRIES..ENTRIES + 500 {
                whole.remove(key);
            }
        }
        readers.store(threads - 1, Ordering::Release);
        // Only the figures of readers count.
        (1, Duration::ZERO)
    }));
}

fn lookup(map: &impl Map, number: usize) -> (usize, Duration) {
    const LOOKUPS: usize = 100_000;
    let mut prng = Prng::new(number as u64 + 1);
    let keys: Vec<_> = (0..LOOKUPS).map(|_| prng.between(0, ENTRIES as usize - 1) as u32).collect();
    timed(LOOKUPS, || assert_eq!(map.lookup(&keys), LOOKUPS))
}
