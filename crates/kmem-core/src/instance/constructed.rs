//! Free objects of a cache with a constructor. They keep their constructed state, so the
//! constructor runs once for each object (the kernel's rule for `ctor`).
//!
//! ```text
//! alloc --> store --> (empty) --> heap --> constructor
//! free  --> store --> (full)  --> heap
//! ```
//!
//! In all books, an object in the store is free. A forked child begins with empty stores: its
//! repair gives what is free by its word to the slabs.
//!
//! | stamp          | meaning                                                         |
//! |----------------|-----------------------------------------------------------------|
//! | `forks << 1`   | in use, in a process with that many forks between it and `main` |
//! | odd            | a thread of that process empties the store; others pass it by   |

use core::ptr::NonNull;

use super::{Cache, Instance};
use crate::class::SizeClass;
use crate::heap::Live;
use crate::mempool::{Reserve, Shelf};
use crate::os::Platform;
use crate::report::{Printable, print};
use crate::request::Caller;
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Gfp, Item};

/// Most objects of a store.
const MOST: usize = 256;
/// Most bytes of the objects of a store, but for the first shelf.
const MOST_BYTES: usize = 1 << 20;
/// Objects on a shelf.
const SHELF: usize = 64;

/// The free objects of a cache.
pub(super) struct Constructed {
    reserve: Reserve,
    stamp: AtomicU32,
    /// 1 after a request for zeroed objects was reported.
    refused: AtomicU32,
}

impl Constructed {
    /// A store without places, which keeps nothing.
    pub(super) const fn new() -> Self {
        Self { reserve: Reserve::new(), stamp: AtomicU32::new(0), refused: AtomicU32::new(0) }
    }

    /// Shelves of a store for objects of a class.
    pub(super) fn shelves(class: SizeClass) -> usize {
        (MOST_BYTES / class.size() as usize).clamp(SHELF, MOST) / SHELF
    }

    /// Gives the store its places. `forks` is the number of forks so far.
    ///
    /// # Safety
    /// `at` is memory for `shelves` shelves, aligned to 16 bytes, which the store alone uses, as
    /// long as it is used. No other thread uses the store.
    pub(super) unsafe fn start(&self, at: NonNull<Shelf>, shelves: usize, forks: u32) {
        for i in 0..shelves {
            // SAFETY: memory of a shelf, for this store alone, by the contract.
            unsafe {
                let shelf = at.add(i);
                shelf.write(Shelf::new());
                self.reserve.add(shelf.as_ptr());
            }
        }
        self.reserve.aim((shelves * SHELF) as u32);
        self.stamp.store(forks << 1, Ordering::Relaxed);
    }

    /// The objects. `None`: there is no store, or another thread empties it.
    fn objects(&self, forks: u32) -> Option<&Reserve> {
        let (now, stamp) = (forks << 1, self.stamp.load(Ordering::Acquire));
        if self.reserve.places() == 0 {
            return None;
        }
        if stamp == now {
            return Some(&self.reserve);
        }
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        if stamp == now | 1 || self.stamp.compare_exchange(stamp, now | 1, done, failed).is_err() {
            return None;
        }
        self.reserve.forget();
        self.stamp.store(now, Ordering::Release);
        Some(&self.reserve)
    }
}

impl<P: Platform> Instance<P> {
    /// The free objects of a cache that keep their constructed state.
    fn constructed<'a>(&'static self, cache: &'a Cache) -> Option<&'a Reserve> {
        // In a forked child, the repair comes first.
        if !self.ready() {
            return None;
        }
        cache.constructed.objects(self.forks.load(Ordering::Relaxed))
    }

    /// Allocates an object that was constructed before. `None`: there is none. Null: the group is
    /// at its limit.
    pub(super) fn alloc_constructed(
        &'static self,
        cache: &Cache,
        caller: Caller,
    ) -> Option<*mut u8> {
        let reserve = self.constructed(cache)?;
        let class = cache.class()?;
        let item = Item::at(reserve.take()?);
        if self.ledger.alloc_from(class, caller, || item).is_none() {
            // SAFETY: an object of the class, which this thread took out of the store.
            unsafe { self.put_constructed(reserve, class, item) };
            return Some(core::ptr::null_mut());
        }
        Some(item.address() as *mut u8)
    }

    /// Frees an object of a cache, and keeps it in its constructed state. False: nothing was done.
    ///
    /// # Safety
    /// See [`Instance::cache_free`]; `object` is not null.
    pub(super) unsafe fn free_constructed(&'static self, cache: &Cache, object: *mut u8) -> bool {
        let (Some(reserve), Some(wanted)) = (self.constructed(cache), cache.class()) else {
            return false;
        };
        let at = object as usize;
        // An address that is no live object of such a cache is reported by the other path.
        let Ok(Live::Object { class, ext }) = self.heap().find(at) else { return false };
        if class != wanted || reserve.count() >= reserve.target() {
            return false;
        }
        // SAFETY: a live object, which the caller gives up, by the contract.
        unsafe {
            self.ledger.unbook_object(at, class, ext);
            self.put_constructed(reserve, class, Item::at(at));
        }
        true
    }

    /// # Safety
    /// `item` is a free object of that class, which the caller alone uses.
    unsafe fn put_constructed(&'static self, reserve: &Reserve, class: SizeClass, item: Item) {
        if !reserve.put(item.address()) {
            // SAFETY: the same contract.
            unsafe { self.ledger.discard_object(class, item) };
        }
    }

    /// Gives the free objects of a cache back to the heap.
    pub(super) fn empty_constructed(&'static self, cache: &Cache) {
        let (Some(reserve), Some(class)) = (self.constructed(cache), cache.class()) else { return };
        while let Some(at) = reserve.take() {
            // SAFETY: a free object of the class, which this thread took out of the store.
            unsafe { self.ledger.discard_object(class, Item::at(at)) };
        }
    }

    /// Returns whether a request is for zeroed objects of a cache with a constructor. The first one
    /// of each cache is reported.
    pub(super) fn refuses_zeroes(&self, cache: &Cache, gfp: Gfp) -> bool {
        let refuses = gfp.has(Gfp::ZERO) && cache.has_constructor();
        if refuses && cache.constructed.refused.swap(1, Ordering::Relaxed) == 0 {
            print!(
                self.platform(),
                "kmem: zeroed objects of the cache {} are refused: it has a constructor\n",
                Printable(cache.name())
            );
        }
        refuses
    }
}
