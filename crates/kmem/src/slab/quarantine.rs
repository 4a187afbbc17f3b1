//! The quarantine: freed objects that are held back before they may be used again, the oldest going first,
//! no more than a number of bytes (as KASAN and hardened_malloc have it).
//!
//! ```text
//!             head                tail
//!              v                   v
//! places:  -   o  o  o  -  o  o  o  -  -        -: nothing there
//! ```
//!
//! A ring of places. Who puts an object in takes the next place with one addition, exchanges what is
//! there, and has to look after what was: the oldest object of a ring that is full. Whoever is stopped in
//! between blocks nobody; the place is skipped, and what appears there later leaves when the ring has gone round.
//!
//! Context: any. Lock-free; nothing here waits.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::Item;

/// Bytes that a place stands for: with objects smaller than that the ring is full before the bound is reached.
const BYTES_PER_PLACE: u64 = 64;

/// The quarantine of an instance. Zeroed memory is one that takes nothing.
pub struct Quarantine {
    /// Address of the ring.
    ring: AtomicU64,
    /// Places in the ring, a power of two; 0 before start.
    places: AtomicU32,
    /// Most bytes in it.
    bound: AtomicU64,
    bytes: AtomicU64,
    head: AtomicU64,
    tail: AtomicU64,
}

impl Quarantine {
    crate::sync::const_fn! {
        /// One that takes nothing.
        pub const fn new() -> Self {
            Self {
                ring: AtomicU64::new(0),
                places: AtomicU32::new(0),
                bound: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                head: AtomicU64::new(0),
                tail: AtomicU64::new(0),
            }
        }
    }

    /// Places for a bound in bytes, at most 2 TiB.
    const fn places(bound: u64) -> u32 {
        if bound == 0 { 0 } else { (bound / BYTES_PER_PLACE).next_power_of_two() as u32 }
    }

    /// Bytes of the ring for a bound in bytes.
    pub const fn ring_bytes(bound: u64) -> usize {
        Self::places(bound) as usize * size_of::<AtomicU64>()
    }

    /// Opens the quarantine.
    ///
    /// # Safety
    /// `ring` is zeroed memory of [`Self::ring_bytes`], aligned to 8, for the quarantine alone, for good.
    pub unsafe fn start(&self, ring: *mut u8, bound: u64) {
        self.ring.store(ring as u64, Ordering::Relaxed);
        self.bound.store(bound, Ordering::Relaxed);
        self.places.store(Self::places(bound), Ordering::Release);
    }

    fn place(&self, number: u64) -> Option<&AtomicU64> {
        let places = u64::from(self.places.load(Ordering::Acquire));
        let number = number & places.checked_sub(1)?;
        let ring = self.ring.load(Ordering::Relaxed) as *const AtomicU64;
        // SAFETY: a ring of so many places, which is never freed.
        Some(unsafe { &*ring.wrapping_add(number as usize) })
    }

    /// Whether an object of so many bytes can be held back.
    pub fn holds(&self, bytes: u32) -> bool {
        u64::from(bytes) <= self.bound.load(Ordering::Relaxed)
    }

    /// Bytes that are held back.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Holds an object of so many bytes back; an object that has to leave for it, or none.
    pub fn put(&self, item: Item, bytes: u32) -> Item {
        let number = self.tail.fetch_add(1, Ordering::Relaxed);
        let Some(place) = self.place(number) else { return item };
        self.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
        // Release: what was written to the object is there for who takes it out; acquire: the same of that one.
        Item(place.swap(item.0, Ordering::AcqRel))
    }

    /// Takes an old object out, if there is too much in here; or none.
    pub fn take_excess(&self) -> Item {
        if self.bytes() <= self.bound.load(Ordering::Relaxed) { Item::NONE } else { self.take() }
    }

    /// Takes an old object out; none if there are none, or those that there are wait for the ring to go round.
    pub fn take(&self) -> Item {
        let places = u64::from(self.places.load(Ordering::Acquire));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let tail = self.tail.load(Ordering::Relaxed);
            // What the ring has gone over has left by `put`.
            let oldest = head.max(tail.saturating_sub(places));
            if oldest >= tail {
                return Item::NONE;
            }
            let next = oldest + 1;
            match self.head.compare_exchange_weak(head, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => {
                    head = next;
                    let item =
                        self.place(oldest).map_or(0, |place| place.swap(0, Ordering::AcqRel));
                    if item != 0 {
                        return Item(item);
                    }
                }
                Err(now) => head = now,
            }
        }
    }

    /// An object of so many bytes has left.
    pub fn left(&self, bytes: u32) {
        self.bytes.fetch_sub(bytes.into(), Ordering::Relaxed);
    }

    /// Forgets everything in a forked child, in which all that is not live is free.
    ///
    /// # Safety
    /// No other thread exists that could use the quarantine.
    pub unsafe fn forget(&self) {
        for number in 0..u64::from(self.places.load(Ordering::Relaxed)) {
            if let Some(place) = self.place(number) {
                place.store(0, Ordering::Relaxed);
            }
        }
        for count in [&self.bytes, &self.head, &self.tail] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

impl Default for Quarantine {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::boxed::Box;
    use std::vec::Vec;

    fn quarantine(bound: u64) -> Quarantine {
        let ring: Box<[u64]> = (0..Quarantine::ring_bytes(bound) / 8).map(|_| 0).collect();
        let quarantine = Quarantine::new();
        // SAFETY: memory of that size, leaked.
        unsafe { quarantine.start(Box::leak(ring).as_mut_ptr().cast(), bound) };
        quarantine
    }

    /// Puts one in; those that leave for it.
    fn put(quarantine: &Quarantine, number: u64, bytes: u32) -> Vec<u64> {
        let mut left = Vec::new();
        let mut note = |item: Item| {
            if !item.is_none() {
                quarantine.left(bytes);
                left.push(item.0);
            }
            !item.is_none()
        };
        note(quarantine.put(Item(number), bytes));
        while note(quarantine.take_excess()) {}
        left
    }

    #[test]
    fn the_oldest_leave_first_once_there_is_too_much() {
        let quarantine = quarantine(1000);
        for number in 1..=10 {
            assert_eq!(put(&quarantine, number, 100), []);
        }
        for number in 11..=100 {
            assert_eq!(put(&quarantine, number, 100), [number - 10]);
            assert_eq!(quarantine.bytes(), 1000);
        }
        let rest: Vec<u64> = core::iter::from_fn(|| Some(quarantine.take().0))
            .take_while(|&number| number != 0)
            .collect();
        assert_eq!(rest, (91..=100).collect::<Vec<_>>());
    }

    #[test]
    fn a_full_ring_is_a_bound_too() {
        let quarantine = quarantine(64 * 8);
        let left: Vec<u64> = (1..=100).flat_map(|number| put(&quarantine, number, 16)).collect();
        assert_eq!(left, (1..=92).collect::<Vec<_>>());
        assert_eq!(quarantine.bytes(), 8 * 16);
        assert_eq!(quarantine.take().0, 93);
    }

    #[test]
    fn what_has_not_been_started_takes_nothing() {
        let quarantine = Quarantine::new();
        assert!(!quarantine.holds(1));
        assert_eq!((quarantine.put(Item(7), 16), quarantine.take()), (Item(7), Item::NONE));
    }

    #[test]
    fn what_is_forgotten_does_not_leave() {
        let quarantine = quarantine(1000);
        put(&quarantine, 1, 100);
        // SAFETY: nobody else has it.
        unsafe { quarantine.forget() };
        assert_eq!((quarantine.bytes(), quarantine.take()), (0, Item::NONE));
        assert_eq!(put(&quarantine, 2, 100), []);
        assert_eq!(quarantine.take().0, 2);
    }
}
