//! Models of slabs, for loom: credit, hints, retirement.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::format;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32 as Count, Ordering::Relaxed};
use std::vec;
use std::vec::Vec;

use loom::thread;

use super::{Contents, Format, Kind, SlabZone, class_in, credit_in};
use crate::class::SizeClass;
use crate::row::Row;
use crate::row::summary::{Summary, words_for};
use crate::sync::model::{Owned, check};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::units::{CHUNK_ORDER, CHUNK_SIZE, Item, PageCount, Pfn};
use kmem_layout::geometry::ClassGeometry;

/// Number of chunks: enough that the sets have two levels.
const CHUNKS: usize = 130;
/// The chunk of the one slab: not the one where a search begins.
const CHUNK: u32 = 67;
/// Lanes of the sets: class 0 and the two classes of the model.
const LANES: u32 = 3;
const ONE: SizeClass = SizeClass(1);
const TWO: SizeClass = SizeClass(2);

/// A zone with room for one slab, whose memory has the rows of both classes in it.
struct Model {
    slabs: SlabZone,
    geometry: [ClassGeometry; 3],
    /// Memory for each object by its number, to which only the object's owner may write. The owner
    /// of a retired slab may write to all.
    owned: Vec<Owned>,
    retired: Count,
    memory: *mut u8,
    _words: Vec<AtomicU64>,
    _state: Vec<AtomicU32>,
    _chunk_class: Vec<AtomicU8>,
}

// SAFETY: rows and tables are atomics; the rest of the memory is never touched.
unsafe impl Send for Model {}
// SAFETY: rows and tables are atomics; the rest of the memory is never touched.
unsafe impl Sync for Model {}

const MEMORY: Layout = match Layout::from_size_align(CHUNK_SIZE, CHUNK_SIZE) {
    Ok(layout) => layout,
    Err(_) => panic!("a power of two"),
};

impl Model {
    /// A zone without a slab. Slabs of class one will have `objects` objects, those of class two
    /// two.
    fn new(objects: u32) -> Self {
        let geometry = |size, objects| ClassGeometry {
            objects,
            limit: objects * size,
            ..ClassGeometry::new(size, false)
        };
        // The rows of the two classes do not overlap.
        let geometry = [ClassGeometry::NONE, geometry(16, objects), geometry(1024, 2)];
        // SAFETY: the size is not zero.
        let memory = unsafe { alloc_zeroed(MEMORY) };
        for class in &geometry[1..] {
            let rows = memory.wrapping_add(class.rows_offset() as usize).cast::<Row>();
            for i in 0..class.rows() as usize {
                // SAFETY: inside the memory, aligned, and not in the rows of the other class.
                unsafe { rows.add(i).write(Row(AtomicU64::new(0))) };
            }
        }
        let chunks = CHUNKS as u32;
        let words: Vec<_> = (0..words_for(chunks, LANES)).map(|_| AtomicU64::new(0)).collect();
        let state: Vec<_> = vec![AtomicU32::new(0)];
        let chunk_class: Vec<_> = vec![AtomicU8::new(0)];
        let slabs = SlabZone {
            base: (memory as usize).wrapping_sub(CHUNK as usize * CHUNK_SIZE),
            // The arrays have an element for the one slab only.
            chunk_class: chunk_class.as_ptr().wrapping_sub(CHUNK as usize),
            state: state.as_ptr().wrapping_sub(CHUNK as usize),
            // SAFETY: the vector has the right length; its elements stay when it is moved.
            sets: unsafe { Summary::new(words.as_ptr(), chunks, LANES) },
            leaves: 0,
            chunks,
            generation: AtomicU32::new(0),
            looked: AtomicU32::new(0),
            hides: AtomicU32::new(0),
        };
        Self {
            slabs,
            geometry,
            owned: (0..objects).map(|_| Owned::default()).collect(),
            retired: Count::new(0),
            memory,
            _words: words,
            _state: state,
            _chunk_class: chunk_class,
        }
    }

    fn geometry(&self, class: SizeClass) -> &ClassGeometry {
        &self.geometry[class.0 as usize]
    }

    fn kind(&self, class: SizeClass) -> Kind<'_> {
        let format = Format { extension: false, charges: false, guards: false };
        Kind::new(class, self.geometry(class), format)
    }

    /// Makes the slab, and takes its first `take` objects.
    fn create(&self, class: SizeClass, take: usize) -> Vec<Item> {
        let mut out = vec![Item::NONE; take];
        let start = Pfn(CHUNK << CHUNK_ORDER);
        // SAFETY: only this thread uses the memory: there is no slab, or it just retired the slab.
        let got = unsafe { self.slabs.create(self.kind(class), start, Contents::Zero, &mut out) };
        assert_eq!(got, take);
        self.write(class, &out);
        out
    }

    /// Claims up to `most` objects.
    fn claim(&self, class: SizeClass, most: usize) -> Vec<Item> {
        let mut out = vec![Item::NONE; most];
        // SAFETY: the kind of all slabs of the class.
        let got = unsafe { self.slabs.claim(self.kind(class), None, &mut out) };
        let out = out.split_off(most - got);
        self.write(class, &out);
        out
    }

    /// Gives objects back. If that makes the slab wholly free, calls `retired`.
    fn give_and(&self, class: SizeClass, items: &[Item], retired: impl Fn()) {
        self.write(class, items);
        // SAFETY: the caller owns the objects.
        let given = unsafe {
            self.slabs.give(self.kind(class), items, |slab| {
                assert_eq!(slab.run.start, Pfn(CHUNK << CHUNK_ORDER));
                assert_eq!(slab.run.pages, PageCount(1 << CHUNK_ORDER));
                // No other thread owns an object of it, or has yet to give one back.
                assert_eq!(self.free_objects(class), self.geometry(class).objects);
                self.owned.iter().for_each(Owned::write);
                self.retired.fetch_add(1, Relaxed);
                retired();
            })
        };
        assert_eq!(given, Ok(()));
    }

    fn give(&self, class: SizeClass, items: &[Item]) {
        self.give_and(class, items, || ());
    }

    fn retired(&self) -> u32 {
        self.retired.load(Relaxed)
    }

    /// Writes to objects that the caller owns.
    fn write(&self, class: SizeClass, items: &[Item]) {
        for item in items {
            let offset = (item.address() - self.memory as usize) as u32;
            let index = self.geometry(class).index(offset).expect("an object");
            self.owned[index as usize].write();
        }
    }

    /// Number of free objects in the slab's rows.
    fn free_objects(&self, class: SizeClass) -> u32 {
        // SAFETY: the memory has the rows of both classes.
        let rows = unsafe { self.slabs.rows(self.memory as usize, self.geometry(class)) };
        rows.iter().map(|row| row.load().count_ones()).sum()
    }

    fn credit(&self) -> u32 {
        credit_in(self.slabs.state(CHUNK).load(Ordering::SeqCst))
    }

    /// Claims all that the slab has credit for, once all threads are done. Asserts that as many
    /// objects are found, and that no object is left.
    fn rest(&self, class: SizeClass) -> Vec<Item> {
        let credit = self.credit();
        let mut rest = Vec::new();
        while let [item] = self.claim(class, 1)[..] {
            rest.push(item);
        }
        assert_eq!(rest.len() as u32, credit, "credit is honoured");
        assert_eq!(self.free_objects(class), 0, "no objects without credit");
        rest
    }

    /// Gives back all objects: those of `held` and all that can be claimed. Asserts that the slab
    /// is retired by that: none is missing.
    fn finish(&self, class: SizeClass, held: &[Item]) {
        let before = self.retired();
        let rest = self.rest(class);
        self.give(class, held);
        self.give(class, &rest);
        assert_eq!(self.retired(), before + 1);
        assert_eq!(self.slabs.state(CHUNK).load(Ordering::SeqCst), 0);
        // SAFETY: a page of the slab.
        let (class, _) = unsafe { self.slabs.class_of(Pfn(CHUNK << CHUNK_ORDER)) };
        assert_eq!(class, SizeClass(0));
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the memory with this layout.
        unsafe { dealloc(self.memory, MEMORY) };
    }
}

#[test]
fn one_of_two_threads_that_give_the_last_objects_retires_the_slab() {
    check(5, &["here", "there"], |outcomes| {
        let model = Arc::new(Model::new(2));
        let items = model.create(ONE, 2);
        let (mine, theirs) = (items[0], items[1]);
        let other = model.clone();
        let thread = thread::spawn(move || {
            let retired = Count::new(0);
            other.give_and(ONE, &[theirs], || retired.store(1, Relaxed));
            retired.load(Relaxed)
        });
        model.give(ONE, &[mine]);
        let there = thread.join().expect("it ends");
        assert_eq!(model.retired(), 1);
        outcomes.note(if there == 1 { "there" } else { "here" });
        assert!(model.claim(ONE, 1).is_empty());
    });
}

#[test]
fn there_is_never_more_credit_than_objects() {
    check(5, &["0", "2", "3"], |outcomes| {
        // Objects of two rows come back while another thread reads credit and bits.
        let model = Arc::new(Model::new(66));
        let items = model.create(ONE, 66);
        let other = model.clone();
        let watcher = thread::spawn(move || {
            let credit = other.credit();
            assert!(credit <= other.free_objects(ONE));
            credit
        });
        let (given, kept) = items.split_at(3);
        model.give(ONE, &given[..2]);
        model.give(ONE, &given[2..]);
        outcomes.note(format!("{}", watcher.join().expect("it ends")));
        model.finish(ONE, kept);
    });
}

#[test]
fn the_thread_that_retires_a_slab_sees_an_object_claimed_and_given_back() {
    check(5, &["claimed, retired here", "claimed, retired there", "none"], |outcomes| {
        let model = Arc::new(Model::new(2));
        let items = model.create(ONE, 1);
        let other = model.clone();
        let claimer = thread::spawn(move || {
            let there = Count::new(0);
            let claimed = other.claim(ONE, 1);
            other.give_and(ONE, &claimed, || there.store(1, Relaxed));
            (claimed.len(), there.load(Relaxed))
        });
        model.give(ONE, &items);
        outcomes.note(match claimer.join().expect("it ends") {
            (0, _) => "none",
            (_, 0) => "claimed, retired here",
            _ => "claimed, retired there",
        });
        assert_eq!(model.retired(), 1);
        assert!(model.claim(ONE, 1).is_empty());
    });
}

#[test]
fn a_slab_is_retired_or_its_last_object_is_claimed_but_not_both() {
    check(5, &["claimed", "retired"], |outcomes| {
        let model = Arc::new(Model::new(2));
        let items = model.create(ONE, 1);
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(ONE, 1));
        model.give(ONE, &items);
        let claimed = claimer.join().expect("it ends");
        outcomes.note(if model.retired() == 1 { "retired" } else { "claimed" });
        assert_eq!(model.retired() == 1, claimed.is_empty());
        if model.retired() == 0 {
            model.finish(ONE, &claimed);
        } else {
            assert!(model.claim(ONE, 1).is_empty());
        }
    });
}

#[test]
fn a_slab_that_gets_credit_while_it_is_dismissed_is_found() {
    check(5, &["1", "2"], |outcomes| {
        let model = Arc::new(Model::new(3));
        let mut items = model.create(ONE, 2);
        let other = model.clone();
        let claimer = thread::spawn(move || {
            let mut got = other.claim(ONE, 1);
            got.extend(other.claim(ONE, 1));
            got
        });
        // The slab has one free object, which is claimed concurrently, and gets another.
        let mine = items.split_off(1);
        model.give(ONE, &mine);
        items.extend(claimer.join().expect("it ends"));
        outcomes.note(format!("{}", items.len() - 1));
        model.finish(ONE, &items);
    });
}

#[test]
fn two_threads_that_claim_while_one_gives_find_objects_for_their_credit() {
    // One object is free in the first row, and one of the second row comes back. The thread with
    // credit for the first may find it gone, and the second not yet visible.
    check(3, &["1 0", "0 1", "1 1"], |outcomes| {
        let model = Arc::new(Model::new(66));
        // Items come highest first.
        let mut items = model.create(ONE, 66);
        model.give(ONE, &items.split_off(65));
        let claimers = [(); 2].map(|()| {
            let model = model.clone();
            thread::spawn(move || model.claim(ONE, 1))
        });
        model.give(ONE, &[items.remove(0)]);
        let claimed = claimers.map(|claimer| claimer.join().expect("it ends"));
        outcomes.note(format!("{} {}", claimed[0].len(), claimed[1].len()));
        items.extend(claimed.iter().flatten());
        model.finish(ONE, &items);
    });
}

#[test]
fn a_claim_never_takes_from_a_slab_remade_for_another_class() {
    check(5, &["none", "one"], |outcomes| {
        let model = Arc::new(Model::new(2));
        let items = model.create(ONE, 1);
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(ONE, 1));
        // The slab that the claimer finds in the set is retired. A slab of another class takes its
        // place, with the same credit but with its rows elsewhere.
        let anew = Count::new(0);
        model.give_and(ONE, &items, || {
            model.create(TWO, 1);
            anew.store(1, Relaxed);
        });
        let claimed = claimer.join().expect("it ends");
        outcomes.note(if claimed.is_empty() { "none" } else { "one" });
        assert_eq!(claimed.is_empty(), anew.load(Relaxed) == 1);
        if claimed.is_empty() {
            let held = Item::at(model.memory as usize);
            assert_eq!(model.rest(TWO).len(), 1);
            let second = Item::at(model.memory as usize + 1024);
            model.give(TWO, &[held, second]);
            assert_eq!(model.retired(), 2);
        } else {
            model.finish(ONE, &claimed);
        }
    });
}

#[test]
fn a_slab_remade_for_the_same_class_is_found() {
    check(5, &["claimed", "claimed anew", "none"], |outcomes| {
        let model = Arc::new(Model::new(3));
        let items = model.create(ONE, 2);
        let other = model.clone();
        let claimer = thread::spawn(move || other.claim(ONE, 1));
        let anew = Count::new(0);
        model.give_and(ONE, &items, || {
            // This takes the lowest object.
            model.create(ONE, 1);
            anew.store(1, Relaxed);
        });
        let mut held = claimer.join().expect("it ends");
        let anew = anew.load(Relaxed) == 1;
        outcomes.note(match (held.is_empty(), anew) {
            (false, false) => "claimed",
            (false, true) => "claimed anew",
            (true, _) => "none",
        });
        if anew {
            held.push(Item::at(model.memory as usize));
        }
        model.finish(ONE, &held);
    });
}

#[test]
fn a_purge_holds_free_objects_alone_and_loses_none() {
    check(4, &["1", "2"], |outcomes| {
        let model = Arc::new(Model::new(3));
        let mut items = model.create(ONE, 2);
        let other = model.clone();
        let purger = thread::spawn(move || {
            let mut held = 0;
            let slab = other.memory as usize;
            let write = |row, bits| {
                for (first, count) in crate::row::runs(bits) {
                    for i in first as usize..(first + count) as usize {
                        other.write(ONE, &[Item::at(slab + (row * 64 + i) * 16)]);
                        held += 1;
                    }
                }
            };
            // SAFETY: the kind of all slabs of the class.
            let done = unsafe { other.slabs.with_free_objects(CHUNK, other.kind(ONE), write) };
            assert!(done.is_none(), "one object is always out");
            held
        });
        // Concurrently one object comes back and one is claimed.
        let mine = items.split_off(1);
        model.give(ONE, &mine);
        items.extend(model.claim(ONE, 1));
        outcomes.note(format!("{}", purger.join().expect("it ends")));
        model.finish(ONE, &items);
    });
}

#[test]
fn a_slab_that_becomes_free_during_a_purge_is_retired_once() {
    check(4, &["here", "there"], |outcomes| {
        let model = Arc::new(Model::new(2));
        let items = model.create(ONE, 1);
        let other = model.clone();
        let purger = thread::spawn(move || {
            let kind = other.kind(ONE);
            // SAFETY: the kind of all slabs of the class.
            unsafe { other.slabs.with_free_objects(CHUNK, kind, |_, _| ()) }.is_some()
        });
        model.give(ONE, &items);
        let there = purger.join().expect("it ends");
        assert_eq!(model.retired() + u32::from(there), 1);
        outcomes.note(if there { "there" } else { "here" });
        assert!(model.claim(ONE, 1).is_empty());
    });
}

#[test]
fn a_slab_that_becomes_free_while_it_is_held_is_retired_once() {
    check(4, &["here", "there"], |outcomes| {
        let model = Arc::new(Model::new(2));
        let items = model.create(ONE, 1);
        let other = model.clone();
        let holder = thread::spawn(move || {
            let kind = other.kind(ONE);
            other.slabs.hold(CHUNK, kind) && {
                assert_eq!(class_in(other.slabs.state(CHUNK).load(Ordering::SeqCst)), ONE);
                other.slabs.release(CHUNK, kind).is_some()
            }
        });
        model.give(ONE, &items);
        let there = holder.join().expect("it ends");
        assert_eq!(model.retired() + u32::from(there), 1);
        outcomes.note(if there { "there" } else { "here" });
        assert!(model.claim(ONE, 1).is_empty());
    });
}
