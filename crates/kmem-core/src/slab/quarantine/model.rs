//! A model of the quarantine, for loom.

use std::boxed::Box;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::{BYTES_PER_PLACE, Quarantine};
use crate::sync::model::{Owned, check};
use crate::sync::{AtomicU64, Ordering};
use crate::units::Item;

/// A quarantine of two places, and for each object memory that only its owner may write to.
struct Model {
    quarantine: Quarantine,
    objects: Vec<Owned>,
}

impl Model {
    fn new(objects: usize) -> Arc<Self> {
        let ring: Box<[AtomicU64]> = (0..2).map(|_| AtomicU64::new(0)).collect();
        let quarantine = Quarantine::new();
        // SAFETY: two words for the quarantine alone; `drop` frees them after the last use.
        unsafe { quarantine.start(Box::into_raw(ring).cast(), 2 * BYTES_PER_PLACE) };
        Arc::new(Self { quarantine, objects: (0..objects).map(|_| Owned::default()).collect() })
    }

    /// Frees an object. Returns the count of objects that left.
    fn put(&self, number: usize, bytes: u32) -> usize {
        self.objects[number].write();
        let mut left = 0;
        let mut free = |item: Item| {
            left += self.left(item);
            bytes
        };
        self.quarantine.put(&[Item(number as u64 + 1)], bytes.into(), &mut free);
        self.quarantine.take_excess(|_| bytes, &mut free);
        left
    }

    /// Takes over an object that left. Returns the count of objects that left: 0 or 1.
    fn left(&self, item: Item) -> usize {
        if item.is_none() {
            return 0;
        }
        self.objects[item.0 as usize - 1].write();
        1
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let ring = core::ptr::from_ref(self.quarantine.place(0).expect("places")).cast_mut();
        // SAFETY: `new` made the ring, and the quarantine is used no longer.
        drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(ring, 2)) });
    }
}

/// Two threads free two objects each. At the end each object has left once or lies in a place.
fn free_by_two(bytes: u32, preemptions: usize, expected: &[&str]) {
    check(preemptions, expected, move |outcomes| {
        let model = Model::new(4);
        let other = Arc::clone(&model);
        let thread = thread::spawn(move || other.put(0, bytes) + other.put(1, bytes));
        let mut left = model.put(2, bytes) + model.put(3, bytes);
        left += thread.join().expect("it ends");
        outcomes.note(format!("{left}"));
        let mut held = 0;
        for number in 0..2 {
            let place = model.quarantine.place(number).expect("a place");
            held += model.left(Item(place.swap(0, Ordering::Acquire)));
        }
        assert_eq!((left + held, model.quarantine.bytes()), (4, held as u64 * u64::from(bytes)));
    });
}

#[test]
fn objects_leave_once_when_the_ring_is_full() {
    free_by_two(16, 3, &["2"]);
}

#[test]
fn objects_leave_once_when_there_are_too_many_bytes() {
    free_by_two(100, 2, &["2", "3", "4"]);
}
