//! The quarantine: freed objects that are held back before they are used again, up to a number of
//! bytes. The oldest leaves first (as in KASAN and hardened_malloc).
//!
//! ```text
//!             head                tail
//!              v                   v
//! places:  -   o  o  o  -  o  o  o  -  -        -: empty
//! ```
//!
//! A ring of places. A thread that puts objects in takes the next places with one addition, and
//! exchanges the contents of each for an object. If the ring is full, it gets the oldest objects,
//! and frees them. A thread that is stopped in between blocks no other thread: they skip its
//! places. The objects that it puts there later leave a whole turn of the ring later.
//!
//! Context: any. Lock-free; nothing here waits.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::Item;

/// Bytes of the bound for each place. With smaller objects the ring is full before the bound is
/// reached.
const BYTES_PER_PLACE: u64 = 64;
/// Most places that a thread claims at once.
const BATCH: u64 = 64;

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

    /// Returns whether the bound allows objects of `bytes` in all.
    pub fn holds(&self, bytes: u32) -> bool {
        u64::from(bytes) <= self.bound.load(Ordering::Relaxed)
    }

    /// Bytes of objects that are held back.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Holds objects of `bytes` in all back. Calls `displaced` with each object that leaves for
    /// them, which the callee frees; it returns that object's bytes.
    pub fn put(&self, items: &[Item], bytes: u64, mut displaced: impl FnMut(Item) -> u32) {
        let first = self.tail.fetch_add(items.len() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut left = 0;
        for (number, &item) in (first..).zip(items) {
            // Release: the thread that takes the object out sees what was written to it. Acquire:
            // this thread sees what was written to the displaced object.
            let old = self.place(number).map_or(item.0, |at| at.swap(item.0, Ordering::AcqRel));
            if old != 0 {
                left += u64::from(displaced(Item(old)));
            }
        }
        if left > 0 {
            self.bytes.fetch_sub(left, Ordering::Relaxed);
        }
    }

    /// Takes old objects out while the bound is exceeded. Calls `free` with each, which returns
    /// its bytes. `size` tells the bytes of an object that another thread may take out.
    pub fn take_excess(&self, size: impl Fn(Item) -> u32, mut free: impl FnMut(Item) -> u32) {
        loop {
            let excess = self.bytes().saturating_sub(self.bound.load(Ordering::Relaxed));
            if excess == 0 || !self.take_oldest(excess, &size, &mut free) {
                return;
            }
        }
    }

    /// Takes all objects out, but for those in places that were skipped. Calls `free` with each,
    /// which returns its bytes.
    pub fn take_all(&self, mut free: impl FnMut(Item) -> u32) {
        while self.take_oldest(u64::MAX, &|_| 0, &mut free) {}
    }

    /// Takes the oldest objects out, until they have `bytes` or are [`BATCH`]. False: there was
    /// none.
    fn take_oldest(
        &self,
        bytes: u64,
        size: &impl Fn(Item) -> u32,
        free: &mut impl FnMut(Item) -> u32,
    ) -> bool {
        let Some((numbers, expected)) = self.claim_oldest(bytes, size) else { return false };
        // Before the objects are freed: else other threads take out more for the same excess.
        self.bytes.fetch_sub(expected, Ordering::Relaxed);
        let mut left = 0;
        for place in numbers.filter_map(|number| self.place(number)) {
            let item = place.swap(0, Ordering::AcqRel);
            if item != 0 {
                left += u64::from(free(Item(item)));
            }
        }
        if left != expected {
            self.bytes.fetch_add(expected.wrapping_sub(left), Ordering::Relaxed);
        }
        true
    }

    /// Claims the oldest places for this thread, and the bytes that their objects seem to have.
    /// `None`: there are no places with objects.
    fn claim_oldest(
        &self,
        bytes: u64,
        size: &impl Fn(Item) -> u32,
    ) -> Option<(core::ops::Range<u64>, u64)> {
        let places = u64::from(self.places.load(Ordering::Acquire));
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let tail = self.tail.load(Ordering::Relaxed);
            // `put` has displaced the objects that are a whole turn behind the tail.
            let oldest = head.max(tail.saturating_sub(places));
            let (mut end, mut seen) = (oldest, 0);
            while end < tail && seen < bytes && end - oldest < BATCH {
                let item = self.place(end).map_or(0, |place| place.load(Ordering::Relaxed));
                seen += if item == 0 { 0 } else { u64::from(size(Item(item))) };
                end += 1;
            }
            if end == oldest {
                return None;
            }
            match self.head.compare_exchange_weak(head, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some((oldest..end, seen)),
                Err(now) => head = now,
            }
        }
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
        let mut free = |item: Item| {
            left.push(item.0);
            bytes
        };
        quarantine.put(&[Item(number)], bytes.into(), &mut free);
        quarantine.take_excess(|_| bytes, &mut free);
        left
    }

    /// Takes all objects out.
    fn rest(quarantine: &Quarantine, bytes: u32) -> Vec<u64> {
        let mut rest = Vec::new();
        quarantine.take_all(|item| {
            rest.push(item.0);
            bytes
        });
        rest
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
        assert_eq!(rest(&quarantine, 100), (91..=100).collect::<Vec<_>>());
        assert_eq!(quarantine.bytes(), 0);
    }

    #[test]
    fn a_batch_goes_in_and_as_many_bytes_leave() {
        let quarantine = quarantine(1000);
        let (mut left, mut free) = (Vec::new(), |_: Item| panic!("the ring has room"));
        quarantine.put(&[Item(1), Item(2), Item(3)], 900, &mut free);
        quarantine.put(&[Item(4), Item(5)], 600, &mut free);
        quarantine.take_excess(
            |_| 300,
            |item| {
                left.push(item.0);
                300
            },
        );
        assert_eq!((left, quarantine.bytes()), (Vec::from([1, 2]), 900));
        assert_eq!(rest(&quarantine, 300), [3, 4, 5]);
    }

    #[test]
    fn bytes_are_right_though_an_object_looked_larger_than_it_is() {
        let quarantine = quarantine(1000);
        put(&quarantine, 1, 600);
        quarantine.put(&[Item(2)], 600, |_| panic!("the ring has room"));
        quarantine.take_excess(|_| 9999, |_| 600);
        assert_eq!(quarantine.bytes(), 600);
    }

    #[test]
    fn a_full_ring_displaces_its_oldest_object() {
        let quarantine = quarantine(64 * 8);
        let left: Vec<u64> = (1..=100).flat_map(|number| put(&quarantine, number, 16)).collect();
        assert_eq!(left, (1..=92).collect::<Vec<_>>());
        assert_eq!(quarantine.bytes(), 8 * 16);
        assert_eq!(rest(&quarantine, 16), (93..=100).collect::<Vec<_>>());
    }

    #[test]
    fn a_quarantine_that_is_not_open_accepts_no_object() {
        let quarantine = Quarantine::new();
        assert!(!quarantine.holds(1));
        assert_eq!(put(&quarantine, 7, 16), [7]);
        assert_eq!((rest(&quarantine, 16), quarantine.bytes()), (Vec::new(), 0));
    }

    #[test]
    fn forgotten_objects_do_not_leave() {
        let quarantine = quarantine(1000);
        put(&quarantine, 1, 100);
        // SAFETY: only this thread uses the quarantine.
        unsafe { quarantine.forget() };
        assert_eq!((quarantine.bytes(), rest(&quarantine, 100)), (0, Vec::new()));
        assert_eq!(put(&quarantine, 2, 100), []);
        assert_eq!(rest(&quarantine, 100), [2]);
    }
}
