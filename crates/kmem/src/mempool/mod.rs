//! Memory pools: allocation that does not fail (the kernel's `mempool_t`).
//!
//! ```text
//! alloc --> back end --> (none) --> reserve --> (none) --> wait for a free --+
//!             ^----------------------------------------------------------------/
//! free  --> reserve, if it holds less than it should --> back end
//! ```
//!
//! A pool has a reserve of `min` elements, allocated when the pool is made or resized: either all of them or the
//! call fails. So whoever frees what it got in the end always gets another element, if it may wait.
//!
//! Elements in the reserve are billed to who made the pool, elements outside to who asked for them.
//!
//! Context: any for allocation that may not wait, and for freeing; nobody holds a lock.

#[cfg(not(loom))]
use core::ptr::NonNull;

#[cfg(not(loom))]
use crate::codetag::Caller;
#[cfg(not(loom))]
use crate::source::Source;
#[cfg(not(loom))]
use crate::sync::{AtomicU32, Ordering};
#[cfg(not(loom))]
use crate::units::Gfp;
#[cfg(not(loom))]
use reserve::{Reserve, Shelf};

#[cfg_attr(loom, expect(dead_code, reason = "only the reserve is built"))]
mod reserve;

/// Where the elements of a pool come from.
///
/// # Safety
/// What `take` returns is an element that nobody else uses until it is given back.
#[cfg(not(loom))]
pub unsafe trait BackEnd {
    /// An element for the caller; a failure is not reported.
    fn take(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>>;

    /// Gives an element back.
    ///
    /// # Safety
    /// From `take`, and nobody uses it any more.
    unsafe fn give(&self, element: NonNull<u8>);

    /// Bills an element to somebody else.
    ///
    /// # Safety
    /// A live element.
    unsafe fn rebill(&self, element: NonNull<u8>, caller: Caller);

    /// Zeroes an element.
    ///
    /// # Safety
    /// A live element that nobody else uses.
    unsafe fn zero(&self, element: NonNull<u8>);
}

/// There is not enough memory for the reserve.
#[cfg(not(loom))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoReserve;

/// A pool.
#[cfg(not(loom))]
pub struct Mempool<B: BackEnd, S: Source> {
    back_end: B,
    source: S,
    reserve: Reserve,
    owner: Caller,
    /// Moved by each element that comes back to the reserve.
    freed: AtomicU32,
    /// Who waits for that.
    waiters: AtomicU32,
}

#[cfg(not(loom))]
impl<B: BackEnd, S: Source> Mempool<B, S> {
    /// Makes a pool with a reserve of `min` elements, billed to `owner` like the pool's own memory.
    ///
    /// # Errors
    /// There is no memory for the reserve; then nothing is kept.
    pub fn new(back_end: B, source: S, min: u32, owner: Caller) -> Result<Self, NoReserve> {
        let pool = Self {
            back_end,
            source,
            reserve: Reserve::new(),
            owner,
            freed: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
        };
        pool.resize(min)?;
        Ok(pool)
    }

    /// Changes how many elements the reserve holds.
    ///
    /// # Errors
    /// There is no memory for more; then it is to hold as many as before.
    pub fn resize(&self, min: u32) -> Result<(), NoReserve> {
        while self.reserve.places() < min {
            let bytes = size_of::<Shelf>();
            let shelf = self.source.obtain(bytes, self.owner).ok_or(NoReserve)?.cast::<Shelf>();
            // SAFETY: fresh memory of that size, for the reserve alone until the pool is dropped.
            unsafe {
                shelf.write(Shelf::new());
                self.reserve.add(shelf.as_ptr());
            }
        }
        let before = self.reserve.aim(min);
        let mut result = Ok(());
        while min > before && self.reserve.count() < min {
            let Some(element) = self.back_end.take(Gfp::NOWAIT, self.owner) else {
                self.reserve.aim(before);
                result = Err(NoReserve);
                break;
            };
            if !self.reserve.put(element.as_ptr() as usize) {
                // SAFETY: an element in our hands.
                unsafe { self.back_end.give(element) };
            }
        }
        self.shed();
        result
    }

    /// Gives back what the reserve holds too many.
    fn shed(&self) {
        while self.reserve.count() > self.reserve.target() {
            let Some(element) = self.reserved_element() else { return };
            // SAFETY: an element in our hands.
            unsafe { self.back_end.give(element) };
        }
    }

    /// Elements in the reserve, about.
    pub fn reserved(&self) -> u32 {
        self.reserve.count()
    }

    /// Elements that the reserve is to hold.
    pub fn min(&self) -> u32 {
        self.reserve.target()
    }

    fn reserved_element(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.reserve.take()? as *mut u8)
    }

    /// An element for the caller. `None`: there is none, and the request may not wait ([`Gfp::NOWAIT`]); or it may, and
    /// the pool has no reserve to wait for.
    pub fn alloc(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>> {
        loop {
            if let Some(element) = self.try_alloc(gfp, caller) {
                return Some(element);
            }
            if gfp.has(Gfp::NOWAIT) || self.min() == 0 {
                return None;
            }
            // Sequentially consistent with `free`: it sees the waiter, or its element is seen here.
            self.waiters.fetch_add(1, Ordering::SeqCst);
            let seen = self.freed.load(Ordering::SeqCst);
            let element = self.try_alloc(gfp, caller);
            if element.is_none() {
                self.source.wait(&self.freed, seen);
            }
            self.waiters.fetch_sub(1, Ordering::SeqCst);
            if element.is_some() {
                return element;
            }
        }
    }

    fn try_alloc(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>> {
        // Who has a reserve does not make others give something up for it.
        let harder = Gfp::RETRY_MAYFAIL.and(Gfp::NOFAIL);
        let modest = if self.min() == 0 { gfp } else { gfp.without(harder) };
        if let Some(element) = self.back_end.take(modest, caller) {
            return Some(element);
        }
        let element = self.reserved_element()?;
        // SAFETY: an element in our hands.
        unsafe {
            self.back_end.rebill(element, caller);
            if gfp.has(Gfp::ZERO) {
                self.back_end.zero(element);
            }
        }
        Some(element)
    }

    /// Gives an element back.
    ///
    /// # Safety
    /// From this pool, and nobody uses it any more.
    pub unsafe fn free(&self, element: NonNull<u8>) {
        if self.reserve.count() >= self.reserve.target() {
            // SAFETY: the caller's promise.
            return unsafe { self.back_end.give(element) };
        }
        // SAFETY: live, and ours now. Billed before it is in the reserve: another may have it at once.
        unsafe { self.back_end.rebill(element, self.owner) };
        if !self.reserve.put(element.as_ptr() as usize) {
            // SAFETY: as above.
            return unsafe { self.back_end.give(element) };
        }
        self.freed.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.source.wake(&self.freed);
        }
    }

    /// Fills all of `out`, or nothing; whether it did. One that may wait waits for each, so two callers that want more than
    /// the reserve together may wait for each other for good: let bulk requests be no larger than the reserve, and
    /// one at a time.
    pub fn alloc_bulk(&self, gfp: Gfp, out: &mut [*mut u8], caller: Caller) -> bool {
        for i in 0..out.len() {
            let Some(element) = self.alloc(gfp, caller) else {
                for taken in &mut out[..i] {
                    let taken = core::mem::replace(taken, core::ptr::null_mut());
                    if let Some(element) = NonNull::new(taken) {
                        // SAFETY: allocated above, used by nobody.
                        unsafe { self.free(element) };
                    }
                }
                return false;
            };
            out[i] = element.as_ptr();
        }
        true
    }
}

/// Gives the reserve back. Elements outside must have come back before, or go back to the back end by its own ways.
#[cfg(not(loom))]
impl<B: BackEnd, S: Source> Drop for Mempool<B, S> {
    fn drop(&mut self) {
        self.reserve.aim(0);
        self.shed();
        let mut shelf = self.reserve.first();
        // SAFETY: shelves made in `resize`, which nobody uses any more.
        while let Some(this) = unsafe { shelf.as_ref() } {
            let next = this.next();
            if let Some(at) = NonNull::new(shelf.cast_mut().cast()) {
                // SAFETY: as above.
                unsafe { self.source.release(at) };
            }
            shelf = next;
        }
    }
}
