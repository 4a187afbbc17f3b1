//! Models of the reserve.

use std::boxed::Box;
use std::format;
use std::sync::Arc;
use std::vec::Vec;

use loom::thread;

use super::{Reserve, Shelf};
use crate::sync::model::{Owned, check};

/// A reserve with one shelf. Each element has memory that only its holder writes to.
struct Model {
    reserve: Reserve,
    owned: Vec<Owned>,
}

impl Model {
    fn new(target: u32, elements: usize) -> Arc<Self> {
        let reserve = Reserve::new();
        // SAFETY: a fresh shelf, which `Drop` releases last.
        unsafe { reserve.add(Box::into_raw(Box::new(Shelf::new()))) };
        reserve.aim(target);
        let owned = (0..elements).map(|_| Owned::default()).collect();
        Arc::new(Self { reserve, owned })
    }

    fn put(&self, element: usize) -> bool {
        self.owned[element].write();
        self.reserve.put(element)
    }

    fn take(&self) -> Option<usize> {
        let element = self.reserve.take()?;
        self.owned[element].write();
        Some(element)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // SAFETY: a shelf that `new` made, of a reserve that is used no more.
        drop(unsafe { Box::from_raw(self.reserve.first().cast_mut()) });
    }
}

#[test]
fn a_reserve_loses_and_doubles_no_element_and_keeps_to_its_target() {
    check(2, &["1 2", "2 2"], |outcomes| {
        let model = Model::new(2, 3);
        assert!(model.put(0));
        let takes = {
            let model = model.clone();
            thread::spawn(move || {
                let first = model.take();
                first.is_none_or(|element| model.put(element))
            })
        };
        let puts = {
            let model = model.clone();
            thread::spawn(move || u32::from(model.put(1)) + u32::from(model.put(2)))
        };
        let kept = takes.join().expect("it ends");
        let put = puts.join().expect("it ends");
        let expected = u32::from(kept) + put;
        let mut found = 0;
        while model.take().is_some() {
            found += 1;
        }
        outcomes.note(format!("{put} {found}"));
        assert_eq!(found, expected);
        assert!(found <= 2 && model.reserve.count() == 0);
    });
}
