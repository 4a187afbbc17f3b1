//! Hash tables: one thread sees a plain map. Threads that share a table miss, double and lose no
//! element.

use crate::instance::{
    Simulated, after_faults, budget, calls, cases, free_all, simulated, started, until_null,
};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use kmem_core::request::Caller;
use kmem_core::rhashtable::{Parameters, Refused};
use kmem_core::{Kmem, Table};
use proptest::prelude::*;

const OWNER: Caller = Caller::at(0x1000);
const USER: Caller = Caller::at(0x2000);
const FILLER: Caller = Caller::at(0x3000);

static KMEM: Kmem = Kmem::new();

const SMALL: Parameters = Parameters { min_buckets: 2, max_buckets: 1 << 20, shrinks: true };

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u32),
    Replace(u16, u32),
    Remove(u16),
    Get(u16),
    Walk,
    Reclaim,
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn a_table_is_a_map(steps in prop::collection::vec(prop_oneof![
        6 => (0u16..300, any::<u32>()).prop_map(|(k, v)| Step::Insert(k, v)),
        2 => (0u16..300, any::<u32>()).prop_map(|(k, v)| Step::Replace(k, v)),
        4 => (0u16..300).prop_map(Step::Remove),
        3 => (0u16..300).prop_map(Step::Get),
        1 => Just(Step::Walk),
        1 => Just(Step::Reclaim),
    ], 1..600)) {
        let a = simulated(budget(16 << 20, 2));
        let table: Table<String, u32, _> = a.rhashtable(SMALL, OWNER).expect("memory");
        let mut model = HashMap::new();
        for step in steps {
            match step {
                Step::Insert(k, v) => {
                    let key = k.to_string();
                    let there = model.contains_key(&key);
                    match table.insert(key.clone(), v, USER) {
                        Ok(()) => prop_assert!(!there && model.insert(key, v).is_none()),
                        Err(refused) => prop_assert!(there && refused == Refused::Exists(key, v)),
                    }
                }
                Step::Replace(k, v) => {
                    let key = k.to_string();
                    match table.replace(key.clone(), v, USER) {
                        Ok(()) => prop_assert!(model.contains_key(&key)),
                        Err(refused) => {
                            prop_assert_eq!(refused, Refused::Missing(key.clone(), v));
                            prop_assert!(!model.contains_key(&key));
                        }
                    }
                    model.entry(key).and_modify(|value| *value = v);
                }
                Step::Remove(k) => {
                    let key = k.to_string();
                    let reading = table.read();
                    let expected = model.remove(&key);
                    prop_assert_eq!(reading.take(key.as_str()), expected.as_ref());
                }
                Step::Get(k) => {
                    let key = k.to_string();
                    let reading = table.read();
                    prop_assert_eq!(reading.get(key.as_str()), model.get(&key));
                }
                Step::Walk => {
                    let reading = table.read();
                    let all: Vec<_> = reading.iter().collect();
                    prop_assert_eq!(all.len(), model.len());
                    prop_assert!(all.into_iter().all(|(k, v)| model.get(k) == Some(v)));
                }
                Step::Reclaim => table.reclaim(),
            }
            prop_assert_eq!(table.len(), model.len());
            prop_assert!(table.len() * 4 <= table.buckets() * 3);
        }
        // Without readers, two looks free all removed elements, and four free all old arrays.
        for _ in 0..4 {
            table.reclaim();
        }
        let live = calls(a);
        prop_assert_eq!(live.get(&0x2000).copied().unwrap_or(0), model.len() as u64);
        let arrays = table.buckets().ilog2() as u64;
        prop_assert_eq!(live[&0x1000], arrays + 1, "{} buckets", table.buckets());
        drop(table);
        prop_assert!(calls(a).is_empty());
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn a_table_may_have_several_elements_of_a_key_the_newest_first(steps in prop::collection::vec(
        (0u16..40, 0u8..10, any::<u32>()), 1..600
    )) {
        let a = simulated(budget(16 << 20, 2));
        let table: Table<String, u32, _> = a.rhashtable(SMALL, OWNER).expect("memory");
        let mut model: HashMap<String, Vec<u32>> = HashMap::new();
        for (number, (key, kind, pick)) in steps.into_iter().enumerate() {
            let (key, number) = (key.to_string(), number as u32);
            let own = model.entry(key.clone()).or_default();
            if kind < 6 {
                prop_assert_eq!(table.insert_also(key.clone(), number, USER), Ok(()));
                own.insert(0, number);
            } else {
                let which = own.get(pick as usize % (own.len() + 1)).copied();
                own.retain(|&value| Some(value) != which);
                let there = table.remove_if(key.as_str(), |&value| Some(value) == which);
                prop_assert_eq!(there, which.is_some());
            }
            let reading = table.read();
            prop_assert!(reading.all(key.as_str()).eq(own.iter()));
            prop_assert_eq!(reading.get(key.as_str()).is_some(), !own.is_empty());
            prop_assert_eq!(table.len(), model.values().map(Vec::len).sum::<usize>());
        }
        prop_assert_eq!(table.validate(), Ok(()));
        for (key, own) in &model {
            // Any of them is the one that is there.
            if let Some(first) = own.first() {
                let refused = Err(Refused::Exists(key.clone(), 0));
                prop_assert_eq!(table.insert(key.clone(), 0, USER), refused);
                let reading = table.read();
                let all = reading.iter().map(|(its, _)| its);
                let keys: Vec<&String> = all.filter(|its| *its == key).collect();
                prop_assert_eq!(keys.len(), own.len());
                prop_assert_eq!(reading.all(key).next(), Some(first));
                // SAFETY: the key of an element, found under the same guard.
                unsafe {
                    prop_assert!(reading.all_behind(keys[0]).eq(own[1..].iter()));
                    let behind = reading.iter_behind(keys[0]).count();
                    let rest = reading.iter().skip_while(|(its, _)| !std::ptr::eq(*its, keys[0]));
                    prop_assert_eq!(behind, rest.count() - 1);
                }
            }
        }
        drop(table);
        prop_assert!(calls(a).is_empty());
    }
}

/// Threads insert and remove elements of the same few keys. Those that stay are never missed.
#[test]
fn elements_of_one_key_that_stay_are_found_while_others_come_and_go() {
    const KEYS: u32 = 4;
    const WRITERS: u32 = 4;
    const OWN: u32 = 50;
    let table: Table<u32, u32, _> = KMEM.rhashtable(SMALL, OWNER).expect("memory");
    let done = AtomicBool::new(false);
    for key in 0..KEYS {
        for stays in 0..3 {
            table.insert_also(key, stays, USER).expect("memory");
        }
    }
    thread::scope(|scope| {
        let writers: Vec<_> = (1..=WRITERS)
            .map(|me| {
                let table = &table;
                scope.spawn(move || {
                    for round in 0..200 {
                        let own = |i: u32| me * 1000 + i;
                        for i in 0..OWN {
                            table.insert_also((i + round) % KEYS, own(i), USER).expect("memory");
                        }
                        for i in 0..OWN {
                            let key = (i + round) % KEYS;
                            assert!(table.remove_if(&key, |&value| value == own(i)));
                            assert!(!table.remove_if(&key, |&value| value == own(i)));
                        }
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for key in 0..KEYS {
                        let reading = table.read();
                        let all: Vec<u32> = reading.all(&key).copied().collect();
                        let stay = all.iter().filter(|&&value| value < 3);
                        assert!(stay.eq([2, 1, 0].iter()), "{key}: {all:?}");
                        let different = all.iter().collect::<HashSet<_>>().len();
                        assert_eq!(different, all.len(), "{key}: {all:?}");
                    }
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().expect("no failure"));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(table.len() as u32, 3 * KEYS);
    assert_eq!(table.validate(), Ok(()));
}

/// The kernel's test: many threads use entries of their own, while the table grows and shrinks.
#[test]
fn ten_threads_insert_find_replace_and_remove_50000_entries_each_of_their_own() {
    const ENTRIES: u32 = 50_000;
    const THREADS: u32 = 10;
    let table: Table<u32, u32, _> = KMEM.rhashtable(SMALL, OWNER).expect("memory");
    for round in 0..2 {
        thread::scope(|scope| {
            for me in 0..THREADS {
                let table = &table;
                scope.spawn(move || {
                    let keys = (0..ENTRIES).filter(|key| key % THREADS == me);
                    for key in keys.clone() {
                        assert_eq!(table.insert(key, key + round, USER), Ok(()));
                    }
                    let reading = table.read();
                    for key in keys.clone() {
                        assert_eq!(reading.get(&key), Some(&(key + round)));
                        assert_eq!(reading.get(&(key + ENTRIES)), None);
                    }
                    drop(reading);
                    for key in keys.clone().step_by(3) {
                        assert_eq!(table.insert(key, 0, USER), Err(Refused::Exists(key, 0)));
                        assert_eq!(table.replace(key, 7, USER), Ok(()));
                        assert_eq!(table.read().get(&key), Some(&7));
                    }
                    for key in keys {
                        assert!(table.remove(&key) && !table.remove(&key));
                    }
                });
            }
        });
        assert_eq!((table.len(), table.read().iter().count()), (0, 0));
        assert!(table.buckets() <= 64, "{} buckets", table.buckets());
    }
}

#[test]
fn what_stays_is_found_and_walked_once_while_the_table_grows_and_shrinks() {
    let table: Table<u64, u64, _> = KMEM.rhashtable(SMALL, OWNER).expect("memory");
    let done = AtomicBool::new(false);
    let sizes = AtomicUsize::new(0);
    for key in 0..100u64 {
        table.insert(key, key, USER).expect("memory");
    }
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let reading = table.read();
                    for key in 0..100 {
                        assert_eq!(reading.get(&key), Some(&key));
                    }
                    let mut seen = HashSet::new();
                    for (key, value) in reading.iter() {
                        assert_eq!(key, value);
                        assert!(seen.insert(*key), "{key} twice");
                    }
                    assert!((0..100).all(|key| seen.contains(&key)));
                }
            });
        }
        for _ in 0..20 {
            for key in 100..5000 {
                table.insert(key, key, USER).expect("memory");
            }
            sizes.fetch_max(table.buckets(), Ordering::Relaxed);
            for key in 100..5000 {
                assert!(table.remove(&key));
            }
            assert!(table.buckets() < 1024, "{} buckets", table.buckets());
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(sizes.into_inner() >= 5000);
}

#[test]
fn every_value_is_dropped_once_and_not_while_it_is_read() {
    struct Counted(Arc<AtomicUsize>, u64);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1 = u64::MAX;
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let table: Table<u64, Counted, _> = KMEM.rhashtable(SMALL, OWNER).expect("memory");
    let made = AtomicUsize::new(0);
    let (made, drops_of) = (&made, &drops);
    let value = |n| {
        made.fetch_add(1, Ordering::Relaxed);
        Counted(drops_of.clone(), n)
    };
    thread::scope(|scope| {
        for me in 0..4u64 {
            let (table, value) = (&table, &value);
            scope.spawn(move || {
                for i in 0..20_000 {
                    let key = (i * 7 + me) % 50;
                    match i % 4 {
                        0 => drop(table.insert(key, value(key), USER)),
                        1 => drop(table.replace(key, value(key), USER)),
                        2 => drop(table.remove(&key)),
                        _ => {
                            let reading = table.read();
                            if let Some(found) = reading.get(&key) {
                                thread::yield_now();
                                assert_eq!(found.1, key);
                            }
                        }
                    }
                }
            });
        }
    });
    // Without readers, two looks free all removed elements.
    (0..2).for_each(|_| table.reclaim());
    let alive = made.load(Ordering::Relaxed) - drops.load(Ordering::Relaxed);
    assert_eq!(alive, table.len());
    drop(table);
    assert_eq!(drops.load(Ordering::Relaxed), made.load(Ordering::Relaxed));
}

#[test]
fn a_table_without_memory_refuses_elements_and_goes_on_with_the_buckets_it_has() {
    let a = simulated(budget(16 << 20, 2));
    let table: Table<u64, [u64; 4], _> = a.rhashtable(SMALL, OWNER).expect("memory");
    for key in 0..100 {
        table.insert(key, [key; 4], USER).expect("memory");
    }
    let buckets = table.buckets();
    a.platform().fail(1, u64::MAX);
    let mut filler = Vec::new();
    for &size in kmem_core::class::SIZES.iter().rev().filter(|&&size| size > 64) {
        filler.extend(until_null(|| a.alloc(size as usize, FILLER.quietly())));
    }
    // The memory that is left suffices for some elements, but for no array.
    let mut more = 100;
    while table.insert(more, [more; 4], USER).is_ok() {
        more += 1;
    }
    let refused = table.insert(more, [1; 4], USER);
    assert_eq!(refused, Err(Refused::NoMemory(more, [1; 4])));
    assert!(more > buckets as u64 && table.cramped() > 0, "{more} elements, {buckets} buckets");
    assert_eq!((table.buckets(), table.len() as u64), (buckets, more));
    let reading = table.read();
    assert!((0..more).all(|key| reading.get(&key) == Some(&[key; 4])));
    drop(reading);
    assert_eq!(table.replace(0, [5; 4], USER), Err(Refused::NoMemory(0, [5; 4])));
    // Removing needs no memory, and makes room.
    assert!((0..50).all(|key| table.remove(&key)));
    assert_eq!(table.insert(more, [more; 4], USER), Ok(()));
    a.platform().fail(u64::MAX, u64::MAX);
    free_all(a, filler);
    table.insert(more + 1, [0; 4], USER).expect("memory");
    assert!(table.buckets() > buckets);
    assert!((50..more).all(|key| table.remove(&key)));
}

#[test]
fn any_one_call_may_fail() {
    let work = |a: &'static Simulated| -> Option<usize> {
        let table: Table<u32, u32, _> = a.rhashtable(SMALL, OWNER)?;
        let served: Vec<_> =
            (0..3000).filter(|&key| table.insert(key, key, USER).is_ok()).collect();
        for &key in &served {
            assert_eq!(table.read().get(&key), Some(&key));
        }
        assert!(served.iter().all(|key| table.remove(key)));
        Some(served.len())
    };
    let fresh = || started(budget(16 << 20, 2));
    let a = fresh();
    a.platform().fail(u64::MAX, u64::MAX);
    assert_eq!(work(a), Some(3000));
    let calls_made = a.platform().calls();
    assert!(calls_made > 10, "{calls_made} calls");
    for fault in (1..=calls_made).filter(|fault| *fault <= 40 || fault.is_multiple_of(7)) {
        let a = after_faults(fresh(), fault..fault + 1, work);
        assert_eq!(work(a), Some(3000), "the fault at call {fault} did not pass");
        assert!(calls(a).is_empty(), "after a fault at call {fault}");
    }
}

#[test]
fn wrong_parameters_make_no_table() {
    for (min_buckets, max_buckets) in [(0, 8), (3, 8), (8, 4), (8, 9), (1, 1 << 41)] {
        let parameters = Parameters { min_buckets, max_buckets, shrinks: true };
        assert!(KMEM.rhashtable::<u8, u8>(parameters, OWNER).is_none());
    }
}
