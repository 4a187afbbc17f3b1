//! The reserve of a pool: a bounded set of elements, without locks.
//!
//! ```text
//! shelf | full: row | empty: row | 64 places | next -> shelf ..
//! ```
//!
//! | bit of the place    | state                                                |
//! |---------------------|------------------------------------------------------|
//! | in `empty`          | has no element                                       |
//! | in neither          | one thread puts an element there, or takes one away  |
//! | in `full`           | has an element                                       |
//!
//! A thread raises `count` before it takes a place from `empty`, and lowers it after it gives the
//! place back. So `count` is at least the number of places that are not empty. It is never raised
//! above `target`, and there are at least `target` places. So a thread that raised it finds an
//! empty place, perhaps after other threads have moved some.
//!
//! Shelves are only added. Context: any, signal handlers included. There are no locks.

use crate::row::Row;
use crate::row::span;
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, atomics, const_fn, spin};

/// Places on a shelf.
pub(crate) const PLACES: u32 = 64;

/// 64 places. Zeroed memory is not a valid shelf: see [`Shelf::new`].
#[repr(C)]
pub(crate) struct Shelf {
    pub(crate) full: Row,
    pub(crate) empty: Row,
    pub(crate) elements: [AtomicUsize; PLACES as usize],
    next: AtomicUsize,
}

impl Shelf {
    const_fn! {
        /// A shelf of empty places.
        pub(crate) const fn new() -> Self {
            Self {
                full: Row(AtomicU64::new(0)),
                empty: Row(AtomicU64::new(span(0, PLACES))),
                elements: atomics![AtomicUsize::new(0); PLACES as usize],
                next: AtomicUsize::new(0),
            }
        }
    }

    /// The shelf behind this one.
    pub(crate) fn next(&self) -> *const Self {
        self.next.load(Ordering::Acquire) as *const Self
    }
}

impl Default for Shelf {
    fn default() -> Self {
        Self::new()
    }
}

/// A reserve of at most `target` elements.
///
/// # Invariants
/// The shelves in the list stay valid as long as the reserve is used.
pub(crate) struct Reserve {
    shelves: AtomicUsize,
    pub(crate) places: AtomicU32,
    pub(crate) count: AtomicU32,
    pub(crate) target: AtomicU32,
}

impl Reserve {
    const_fn! {
        /// A reserve without places.
        pub(crate) const fn new() -> Self {
            Self {
                shelves: AtomicUsize::new(0),
                places: AtomicU32::new(0),
                count: AtomicU32::new(0),
                target: AtomicU32::new(0),
            }
        }
    }

    /// Adds a shelf.
    ///
    /// # Safety
    /// The shelf is for this reserve alone, and valid as long as the reserve is used.
    pub(crate) unsafe fn add(&self, shelf: *const Shelf) {
        let mut first = self.shelves.load(Ordering::Relaxed);
        loop {
            // SAFETY: a valid shelf (contract).
            unsafe { &*shelf }.next.store(first, Ordering::Relaxed);
            let new = shelf as usize;
            // INVARIANT: the shelf stays valid (contract).
            match self.shelves.compare_exchange(first, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(seen) => first = seen,
            }
        }
        self.places.fetch_add(PLACES, Ordering::Release);
    }

    /// Number of places.
    pub(crate) fn places(&self) -> u32 {
        self.places.load(Ordering::Acquire)
    }

    /// Number of elements, not exact while other threads use the reserve.
    pub(crate) fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// Most elements that the reserve may hold.
    pub(crate) fn target(&self) -> u32 {
        self.target.load(Ordering::Relaxed)
    }

    /// Sets the target, at most the number of places. Returns the one before.
    pub(crate) fn aim(&self, target: u32) -> u32 {
        debug_assert!(target <= self.places());
        self.target.swap(target, Ordering::AcqRel)
    }

    /// Forgets the elements. Called by one thread, while no other uses the reserve.
    #[cfg(not(loom))]
    pub(crate) fn forget(&self) {
        for shelf in self.shelves() {
            shelf.full.0.store(0, Ordering::Relaxed);
            shelf.empty.0.store(span(0, PLACES), Ordering::Relaxed);
        }
        self.count.store(0, Ordering::Release);
    }

    /// All shelves, the newest first.
    pub(crate) fn shelves(&self) -> impl Iterator<Item = &Shelf> {
        let mut next = self.shelves.load(Ordering::Acquire) as *const Shelf;
        core::iter::from_fn(move || {
            if next.is_null() {
                return None;
            }
            // SAFETY: a shelf in the list stays valid (invariant).
            let shelf = unsafe { &*next };
            next = shelf.next();
            Some(shelf)
        })
    }

    /// The first shelf, for the owner that releases all; null for none.
    pub(crate) fn first(&self) -> *const Shelf {
        self.shelves.load(Ordering::Acquire) as *const Shelf
    }

    /// Puts an element into the reserve. False: the reserve is full.
    pub(crate) fn put(&self, element: usize) -> bool {
        let mut count = self.count.load(Ordering::Relaxed);
        loop {
            if count >= self.target.load(Ordering::Acquire) {
                return false;
            }
            // Acquire pairs with the release in `take`: the place that it gave back is visible.
            match self.count.compare_exchange_weak(
                count,
                count + 1,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(seen) => count = seen,
            }
        }
        loop {
            for shelf in self.shelves() {
                let place = shelf.empty.take(1);
                if place != 0 {
                    shelf.elements[place.trailing_zeros() as usize]
                        .store(element, Ordering::Relaxed);
                    let twice = shelf.full.give(place);
                    debug_assert!(twice == 0);
                    return true;
                }
            }
            spin();
        }
    }

    /// Takes an element out of the reserve; `None` if it finds none.
    pub(crate) fn take(&self) -> Option<usize> {
        for shelf in self.shelves() {
            let place = shelf.full.take(1);
            if place != 0 {
                let element =
                    shelf.elements[place.trailing_zeros() as usize].load(Ordering::Relaxed);
                let twice = shelf.empty.give(place);
                debug_assert!(twice == 0);
                self.count.fetch_sub(1, Ordering::Release);
                return Some(element);
            }
        }
        None
    }
}

impl Default for Reserve {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod model;
