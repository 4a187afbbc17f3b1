//! Recount of the reserve of a pool at rest.

use super::reserve::{PLACES, Reserve};
use crate::row::span;
use crate::sync::Ordering;

/// The first thing that [`super::Mempool::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReserveFault {
    /// A place is both full and empty, or neither, or has no element although it is full.
    Place {
        /// Number of the shelf in the list, from 0.
        shelf: u32,
        /// Number of the place on the shelf.
        place: u32,
    },
    /// The number of full places is not the count of elements.
    Count {
        /// Full places.
        found: u32,
        /// Elements, by the count.
        count: u32,
    },
    /// The number of places is not that on all shelves.
    Places {
        /// Places on all shelves.
        found: u32,
        /// Places, by the reserve.
        places: u32,
    },
    /// There are more elements than the reserve may hold.
    Target {
        /// Elements.
        count: u32,
        /// Most elements that it may hold.
        target: u32,
    },
}

impl Reserve {
    /// Recounts the places of all shelves. For a reserve that no thread uses.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub(super) fn validate(&self) -> Result<(), ReserveFault> {
        let (mut full, mut shelves) = (0, 0);
        for shelf in self.shelves() {
            let (filled, empty) = (shelf.full.load(), shelf.empty.load());
            let unclear = !(filled ^ empty) & span(0, PLACES);
            let hollow = |place: &u32| {
                let element = &shelf.elements[*place as usize];
                filled >> place & 1 != 0 && element.load(Ordering::Relaxed) == 0
            };
            let wrong = (0..PLACES).find(|place| unclear >> place & 1 != 0 || hollow(place));
            if let Some(place) = wrong {
                return Err(ReserveFault::Place { shelf: shelves, place });
            }
            full += filled.count_ones();
            shelves += 1;
        }
        let (count, target) = (self.count(), self.target());
        if full != count {
            return Err(ReserveFault::Count { found: full, count });
        }
        if shelves * PLACES != self.places() {
            return Err(ReserveFault::Places { found: shelves * PLACES, places: self.places() });
        }
        if count > target {
            return Err(ReserveFault::Target { count, target });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::reserve::Shelf;
    use super::*;

    /// A reserve of two shelves with three elements.
    fn reserve() -> Reserve {
        let reserve = Reserve::new();
        for _ in 0..2 {
            // SAFETY: a shelf of its own, never freed.
            unsafe { reserve.add(Box::leak(Box::new(Shelf::new()))) };
        }
        reserve.aim(100);
        for element in [0x1000, 0x2000, 0x3000] {
            assert!(reserve.put(element));
        }
        assert_eq!(reserve.validate(), Ok(()));
        reserve
    }

    #[test]
    fn a_place_that_is_full_and_empty_or_neither_is_found() {
        let reserve = reserve();
        let shelf = reserve.shelves().next().expect("a shelf");
        let first = shelf.full.load().trailing_zeros();
        assert_eq!(shelf.empty.give(1 << first), 0);
        let here = Err(ReserveFault::Place { shelf: 0, place: first });
        assert_eq!(reserve.validate(), here);
        assert!(shelf.empty.take_exact(1 << first) && shelf.full.take_exact(1 << first));
        assert_eq!(reserve.validate(), here);
    }

    #[test]
    fn a_full_place_without_an_element_is_found() {
        let reserve = reserve();
        let shelf = reserve.shelves().next().expect("a shelf");
        shelf.elements[1].store(0, Ordering::Relaxed);
        assert_eq!(reserve.validate(), Err(ReserveFault::Place { shelf: 0, place: 1 }));
    }

    #[test]
    fn a_count_that_is_not_that_of_full_places_is_found() {
        let reserve = reserve();
        reserve.count.store(4, Ordering::Relaxed);
        assert_eq!(reserve.validate(), Err(ReserveFault::Count { found: 3, count: 4 }));
    }

    #[test]
    fn a_number_of_places_that_is_not_that_of_shelves_is_found() {
        let reserve = reserve();
        reserve.places.store(64, Ordering::Relaxed);
        assert_eq!(reserve.validate(), Err(ReserveFault::Places { found: 128, places: 64 }));
    }

    #[test]
    fn more_elements_than_the_reserve_may_hold_are_found() {
        let reserve = reserve();
        reserve.target.store(2, Ordering::Relaxed);
        assert_eq!(reserve.validate(), Err(ReserveFault::Target { count: 3, target: 2 }));
    }
}
