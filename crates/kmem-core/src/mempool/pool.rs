//! The pool: its back end, its reserve, and threads that wait for elements.

use core::ptr::NonNull;

use super::ReserveFault;
use super::reserve::{Reserve, Shelf};
use crate::request::Caller;
use crate::source::Source;
use crate::sync::{AtomicU32, Ordering};
use crate::units::Gfp;

/// The source of a pool's elements.
///
/// # Safety
/// [`Self::take`] returns an element that only its caller uses until it is given back.
pub unsafe trait BackEnd {
    /// Allocates an element, billed to `caller`. `None`: there is no memory. A failure is not
    /// reported.
    fn take(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>>;

    /// Gives an element back.
    ///
    /// # Safety
    /// `element` is from [`Self::take`], and is not used after this call.
    unsafe fn give(&self, element: NonNull<u8>);

    /// Bills an element to another caller.
    ///
    /// # Safety
    /// `element` is live.
    unsafe fn rebill(&self, element: NonNull<u8>, caller: Caller);

    /// Zeroes an element.
    ///
    /// # Safety
    /// `element` is live, and no other thread uses it.
    unsafe fn zero(&self, element: NonNull<u8>);

    /// Returns whether requests with these flags are refused.
    fn refuses(&self, _: Gfp) -> bool {
        false
    }

    /// Returns whether elements of the reserve are to be zeroed when they are freed, and when they
    /// are allocated.
    fn zeroes(&self) -> (bool, bool) {
        (false, false)
    }
}

/// There is no memory for the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoReserve;

/// A pool of elements, with a reserve. Dropping it frees the reserve. Elements outside must be
/// freed before, or be given back to the back end.
///
/// # Examples
/// ```
/// use kmem_core::units::Gfp;
/// use kmem_core::{Caller, Elements, Kmem, static_tag};
///
/// static KMEM: Kmem = Kmem::new();
/// let caller = Caller::tagged(static_tag!("requests"));
/// let pool = KMEM.mempool_create(4, Elements::Kmalloc(64), caller).expect("memory");
/// let element = pool.alloc(Gfp::KERNEL, caller).expect("it may wait");
/// // SAFETY: an element of this pool that is not used any more.
/// unsafe { pool.free(element) };
/// assert_eq!(pool.reserved(), 4);
/// ```
///
/// # Invariants
/// The elements in the reserve are from the back end, and no thread uses them.
pub struct Mempool<B: BackEnd, S: Source> {
    back_end: B,
    source: S,
    reserve: Reserve,
    owner: Caller,
    /// Changes with each element that comes back to the reserve.
    freed: AtomicU32,
    /// Threads that wait for a change of `freed`.
    waiters: AtomicU32,
}

impl<B: BackEnd, S: Source> Mempool<B, S> {
    /// Makes a pool with a reserve of `min` elements, which are billed to `owner` like the pool's
    /// own memory.
    ///
    /// # Errors
    /// There is no memory for the reserve. All that was allocated for it is freed.
    pub fn new(back_end: B, source: S, min: u32, owner: Caller) -> Result<Self, NoReserve> {
        source.keep_payer(owner);
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

    /// Sets the size of the reserve, in elements. Allocates missing elements, frees excess ones.
    ///
    /// # Errors
    /// There is no memory for more elements. The size stays as before.
    pub fn resize(&self, min: u32) -> Result<(), NoReserve> {
        while self.reserve.places() < min {
            let bytes = size_of::<Shelf>();
            let shelf = self.source.obtain(bytes, self.owner).ok_or(NoReserve)?.cast::<Shelf>();
            // SAFETY: fresh memory of a shelf's size, for the reserve alone until the pool is
            // dropped.
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
            // INVARIANT: the element is fresh from the back end.
            if !self.reserve.put(element.as_ptr() as usize) {
                // SAFETY: from `take`, and used by no thread.
                unsafe { self.back_end.give(element) };
            }
        }
        self.shed();
        result
    }

    /// Frees the elements that the reserve has in excess of its size.
    fn shed(&self) {
        while self.reserve.count() > self.reserve.target() {
            let Some(element) = self.reserved_element() else { return };
            // SAFETY: an element from the reserve (invariant), which it does not hold any more.
            unsafe { self.back_end.give(element) };
        }
    }

    /// Recounts the reserve. For a pool that no thread uses.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn validate(&self) -> Result<(), ReserveFault> {
        self.reserve.validate()
    }

    /// Elements in the reserve, not exact while other threads use the pool.
    pub fn reserved(&self) -> u32 {
        self.reserve.count()
    }

    /// The size of the reserve, in elements.
    pub fn min(&self) -> u32 {
        self.reserve.target()
    }

    /// Takes an element out of the reserve.
    fn reserved_element(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.reserve.take()? as *mut u8)
    }

    /// Allocates an element from the reserve alone, billed to `caller`. `None`: it is empty. For an
    /// allocation that must not look for memory (the kernel's `mempool_alloc_preallocated`).
    pub fn alloc_preallocated(&self, caller: Caller) -> Option<NonNull<u8>> {
        self.alloc_reserved(Gfp::KERNEL, caller)
    }

    /// Allocates an element, billed to `caller`. `None`: there is none, and the request must not
    /// wait ([`Gfp::NOWAIT`]) or the pool has no reserve to wait for. Or the back end refuses such
    /// requests.
    pub fn alloc(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>> {
        if self.back_end.refuses(gfp) {
            return None;
        }
        loop {
            if let Some(element) = self.try_alloc(gfp, caller) {
                return Some(element);
            }
            if gfp.has(Gfp::NOWAIT) || self.min() == 0 {
                return None;
            }
            // Sequentially consistent with `free`: it sees the waiter, or this thread sees its
            // element.
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
        // With a reserve to fall back on, the pool does not take memory from other users.
        let harder = Gfp::RETRY_MAYFAIL.and(Gfp::NOFAIL);
        let modest = if self.min() == 0 { gfp } else { gfp.without(harder) };
        if let Some(element) = self.back_end.take(modest, caller) {
            return Some(element);
        }
        self.alloc_reserved(gfp, caller)
    }

    fn alloc_reserved(&self, gfp: Gfp, caller: Caller) -> Option<NonNull<u8>> {
        let element = self.reserved_element()?;
        // SAFETY: a live element from the reserve (invariant), which only this thread uses now.
        unsafe {
            self.back_end.rebill(element, caller);
            if gfp.has(Gfp::ZERO) || self.back_end.zeroes().1 {
                self.back_end.zero(element);
            }
        }
        Some(element)
    }

    /// Frees an element: puts it into the reserve if that is not full, else gives it back.
    ///
    /// # Safety
    /// `element` is from this pool, and is not used after this call.
    pub unsafe fn free(&self, element: NonNull<u8>) {
        if self.reserve.count() >= self.reserve.target() {
            // SAFETY: an element of the back end that is used no more (contract).
            return unsafe { self.back_end.give(element) };
        }
        // Billed before it is in the reserve: another thread may take it from there at once.
        // SAFETY: a live element, which no thread uses (contract).
        unsafe {
            self.back_end.rebill(element, self.owner);
            if self.back_end.zeroes().0 {
                self.back_end.zero(element);
            }
        }
        // INVARIANT: the element is from the back end and used no more (contract).
        if !self.reserve.put(element.as_ptr() as usize) {
            // SAFETY: an element of the back end that is used no more (contract).
            return unsafe { self.back_end.give(element) };
        }
        self.freed.fetch_add(1, Ordering::SeqCst);
        if self.waiters.load(Ordering::SeqCst) != 0 {
            self.source.wake(&self.freed);
        }
    }

    /// Fills all of `out` with elements, or none of it. Returns whether it did.
    ///
    /// A request that may wait waits for each element. Two such requests that together exceed the
    /// reserve may wait for each other without end. So make one at a time, no larger than the
    /// reserve.
    pub fn alloc_bulk(&self, gfp: Gfp, out: &mut [*mut u8], caller: Caller) -> bool {
        for i in 0..out.len() {
            let Some(element) = self.alloc(gfp, caller) else {
                for taken in &mut out[..i] {
                    let taken = core::mem::replace(taken, core::ptr::null_mut());
                    if let Some(element) = NonNull::new(taken) {
                        // SAFETY: this call allocated the element, and no thread used it.
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

impl<B: BackEnd, S: Source> Drop for Mempool<B, S> {
    fn drop(&mut self) {
        self.reserve.aim(0);
        self.shed();
        let mut shelf = self.reserve.first();
        // SAFETY: null, or a shelf that `resize` made and that is not released yet.
        while let Some(this) = unsafe { shelf.as_ref() } {
            let next = this.next();
            if let Some(at) = NonNull::new(shelf.cast_mut().cast()) {
                // SAFETY: `resize` obtained the shelf from this source. The pool is used no more.
                unsafe { self.source.release(at) };
            }
            shelf = next;
        }
        self.source.drop_payer(self.owner);
    }
}
