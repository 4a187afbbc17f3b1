//! The quarantine: freed objects that are held back before they are used again, up to a number of
//! bytes. The oldest leaves first (as in KASAN and hardened_malloc).
//!
//! ```text
//!             head                tail
//!              v                   v
//! places:  -   o  o  o  -  o  o  o  -  -        -: empty
//! ```
//!
//! A ring of places. A thread that puts an object in takes the next place with one addition, and
//! exchanges the place's contents for the object. If the ring is full, it gets the oldest object,
//! and frees it. A thread that is stopped in between blocks no other thread: they skip its place.
//! The object that it puts there later leaves a whole turn of the ring later.
//!
//! Context: any. Lock-free; nothing here waits.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::Item;

/// Bytes of the bound for each place. With smaller objects the ring is full before the bound is
/// reached.
const BYTES_PER_PLACE: u64 = 64;

/// The quarantine of an instance. Zeroed memory is one that accepts no object.
///
/// # Invariants
/// `places` is 0, or `ring` is the address of that many words, which are never freed.
pub struct Quarantine {
    /// Address of the ring.
    ring: AtomicU64,
    /// Number of places in the ring, a power of two; 0 before start.
    places: AtomicU32,
    /// Most bytes of objects in the ring.
    bound: AtomicU64,
    /// Bytes of objects in the ring.
    bytes: AtomicU64,
    /// Number, not reduced to the ring, of the oldest place.
    head: AtomicU64,
    /// Number, not reduced to the ring, of the next place.
    tail: AtomicU64,
}

impl Quarantine {
    crate::sync::const_fn! {
        /// A quarantine that accepts no object.
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

    /// Number of places for a bound in bytes, at most 2 TiB.
    const fn places(bound: u64) -> u32 {
        if bound == 0 { 0 } else { (bound / BYTES_PER_PLACE).next_power_of_two() as u32 }
    }

    /// Bytes of the ring for a bound in bytes.
    pub const fn ring_bytes(bound: u64) -> usize {
        Self::places(bound) as usize * size_of::<AtomicU64>()
    }

    /// Opens the quarantine for up to `bound` bytes.
    ///
    /// # Safety
    /// `ring` is zeroed memory of [`Self::ring_bytes`], aligned to 8, used by this quarantine alone
    /// and never freed.
    pub unsafe fn start(&self, ring: *mut u8, bound: u64) {
        self.ring.store(ring as u64, Ordering::Relaxed);
        self.bound.store(bound, Ordering::Relaxed);
        // INVARIANT: the ring has that many words, by the contract.
        self.places.store(Self::places(bound), Ordering::Release);
    }

    /// Place with a number, which is reduced to the ring. `None`: the quarantine is not open.
    fn place(&self, number: u64) -> Option<&AtomicU64> {
        let places = u64::from(self.places.load(Ordering::Acquire));
        let number = number & places.checked_sub(1)?;
        let ring = self.ring.load(Ordering::Relaxed) as *const AtomicU64;
        // SAFETY: the ring has `places` words, by the invariant, and `number` is below that.
        Some(unsafe { &*ring.wrapping_add(number as usize) })
    }

    /// Returns whether the bound allows an object of `bytes`.
    pub fn holds(&self, bytes: u32) -> bool {
        u64::from(bytes) <= self.bound.load(Ordering::Relaxed)
    }

    /// Bytes of objects that are held back.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Holds an object of `bytes` back. Returns the object that it displaced, or none; the caller
    /// frees that object, see [`Self::left`].
    pub fn put(&self, item: Item, bytes: u32) -> Item {
        let number = self.tail.fetch_add(1, Ordering::Relaxed);
        let Some(place) = self.place(number) else { return item };
        self.bytes.fetch_add(bytes.into(), Ordering::Relaxed);
        // Release: the thread that takes the object out sees what was written to it. Acquire: this
        // thread sees what was written to the displaced object.
        Item(place.swap(item.0, Ordering::AcqRel))
    }

    /// Takes an old object out if the bound is exceeded; else none.
    pub fn take_excess(&self) -> Item {
        if self.bytes() <= self.bound.load(Ordering::Relaxed) { Item::NONE } else { self.take() }
    }

    /// Takes an old object out. None: the quarantine is empty, or its objects lie in places that
    /// were skipped.
    pub fn take(&self) -> Item {
        let places = u64::from(self.places.load(Ordering::Acquire));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let tail = self.tail.load(Ordering::Relaxed);
            // `put` has displaced the objects that are a whole turn behind the tail.
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

    /// Notes that an object of `bytes` has left. The caller took it out, or `put` displaced it.
    pub fn left(&self, bytes: u32) {
        self.bytes.fetch_sub(bytes.into(), Ordering::Relaxed);
    }

    /// In a forked child: forgets all objects. The repair of the child's slabs makes them free.
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
        // SAFETY: memory of that size, leaked, for this quarantine alone.
        unsafe { quarantine.start(Box::leak(ring).as_mut_ptr().cast(), bound) };
        quarantine
    }

    /// Puts an object in. Returns the objects that leave.
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
    fn oldest_objects_leave_first_beyond_the_bound() {
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
    fn a_full_ring_displaces_its_oldest_object() {
        let quarantine = quarantine(64 * 8);
        let left: Vec<u64> = (1..=100).flat_map(|number| put(&quarantine, number, 16)).collect();
        assert_eq!(left, (1..=92).collect::<Vec<_>>());
        assert_eq!(quarantine.bytes(), 8 * 16);
        assert_eq!(quarantine.take().0, 93);
    }

    #[test]
    fn a_quarantine_that_is_not_open_accepts_no_object() {
        let quarantine = Quarantine::new();
        assert!(!quarantine.holds(1));
        assert_eq!((quarantine.put(Item(7), 16), quarantine.take()), (Item(7), Item::NONE));
    }

    #[test]
    fn forgotten_objects_do_not_leave() {
        let quarantine = quarantine(1000);
        put(&quarantine, 1, 100);
        // SAFETY: only this thread uses the quarantine.
        unsafe { quarantine.forget() };
        assert_eq!((quarantine.bytes(), quarantine.take()), (0, Item::NONE));
        assert_eq!(put(&quarantine, 2, 100), []);
        assert_eq!(quarantine.take().0, 2);
    }
}
