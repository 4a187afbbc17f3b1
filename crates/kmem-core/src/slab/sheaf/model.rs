//! Models of the barn, for loom.

use std::boxed::Box;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::{Barn, Held, SHEAF_OBJECTS, Sheaf};
use crate::class::SizeClass;
use crate::os::regions::Regions;
use crate::os::stepped::Part;
use crate::sync::AtomicU32;
use crate::sync::model::{Owned, check};
use crate::units::Item;
use kmem_layout::geometry::ClassGeometry;

const CLASS: SizeClass = SizeClass(1);

/// A barn with its pool, and for each sheaf memory that only its owner may write to.
struct Model {
    barn: Barn,
    platform: Regions,
    owned: Vec<Owned>,
}

impl Model {
    fn new(sheaves: u32) -> Arc<Self> {
        let pool: Box<[Sheaf]> = (0..sheaves)
            .map(|_| Sheaf {
                next: AtomicU32::new(0),
                len: 0,
                objects: [Item::NONE; SHEAF_OBJECTS],
            })
            .collect();
        let barn = Barn::new();
        let pool = Part::whole(Box::into_raw(pool).cast(), Barn::pool_bytes(sheaves));
        // SAFETY: sheaves for the barn alone; `drop` frees them after the last use.
        unsafe { barn.start(pool, sheaves) };
        let owned = (0..sheaves).map(|_| Owned::default()).collect();
        Arc::new(Self { barn, platform: Regions::empty(), owned })
    }

    /// Fills a sheaf with one item, its own number plus one. False: the barn gave no empty sheaf.
    fn fill(&self) -> bool {
        let Some(held) = self.barn.take_empty(&self.platform, CLASS, &GEOMETRY) else {
            return false;
        };
        self.owned[held.number as usize].write();
        held.sheaf.len = 1;
        held.sheaf.objects[0] = Item::at(held.number as usize + 1);
        self.barn.give_full(CLASS, held);
        true
    }

    /// Writes to a full sheaf that the caller holds.
    fn write<'a>(&self, held: Held<'a>) -> Held<'a> {
        self.owned[held.number as usize].write();
        assert_eq!(
            (held.sheaf.len, held.sheaf.objects[0].address()),
            (1, held.number as usize + 1)
        );
        held
    }

    /// Takes all full sheaves. Returns the count.
    fn drain(&self) -> usize {
        let mut found = 0;
        while let Some(held) = self.barn.take_full(CLASS) {
            self.write(held);
            found += 1;
            assert!(found <= self.owned.len(), "the stack goes round");
        }
        found
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let pool = core::ptr::slice_from_raw_parts_mut(self.barn.sheaf(0), self.owned.len());
        // SAFETY: `new` made the pool, and the barn is used no longer.
        drop(unsafe { Box::from_raw(pool) });
    }
}

const GEOMETRY: ClassGeometry = ClassGeometry::new(64, false);

#[test]
fn sheaves_taken_and_put_back_concurrently_are_neither_lost_nor_doubled() {
    check(4, &["0", "1", "2"], |outcomes| {
        let model = Model::new(3);
        assert!(model.fill() && model.fill() && model.fill());
        // One thread takes two sheaves and puts the first back: the top is the old one, but the
        // sheaf below it is not. The other thread takes one at any moment of that.
        let other = model.clone();
        let thread = thread::spawn(move || {
            let first = other.barn.take_full(CLASS).map(|held| other.write(held));
            let second = other.barn.take_full(CLASS).map(|held| other.write(held));
            if let Some(first) = first {
                other.barn.give_full(CLASS, first);
            }
            usize::from(second.is_some())
        });
        let mine = model.barn.take_full(CLASS).map(|held| model.write(held).number);
        outcomes.note(format!("{}", mine.expect("three for two")));
        let kept = 1 + thread.join().expect("it ends");
        assert_eq!(model.drain() + kept, 3);
    });
}

#[test]
fn three_threads_pass_sheaves_on_and_keep_them_all() {
    check(2, &["1", "2"], |outcomes| {
        let model = Model::new(3);
        assert!(model.fill());
        let empties = {
            let model = model.clone();
            thread::spawn(move || {
                // Empty sheaves as refills of arrays do.
                let mut emptied = 0;
                while emptied < 2
                    && let Some(held) = model.barn.take_full(CLASS)
                {
                    model.barn.give_empty(model.write(held));
                    emptied += 1;
                }
                emptied
            })
        };
        let fills = {
            let model = model.clone();
            thread::spawn(move || usize::from(model.fill()))
        };
        let mut filled = 1 + usize::from(model.fill());
        let emptied = empties.join().expect("it ends");
        filled += fills.join().expect("it ends");
        outcomes.note(format!("{emptied}"));
        assert_eq!(model.drain(), filled - emptied, "full sheaves");
        let mut empty = 0;
        while let Some(held) = model.barn.take_empty(&model.platform, CLASS, &GEOMETRY) {
            model.owned[held.number as usize].write();
            empty += 1;
        }
        assert_eq!(empty + filled - emptied, 3, "all sheaves");
    });
}
