//! Tables that most programs do not need, made when they are first used.

use core::marker::PhantomData;

use crate::os::Memory;
use crate::sync::{AtomicU64, Ordering};
use crate::units::PAGE_SIZE;

/// A table of type `T`, or none yet. Zeroed, there is none.
///
/// # Invariants
/// `at` is 0, or the address of a valid `T` that is never freed. Zeroed memory is a valid `T`.
pub(super) struct Made<T> {
    at: AtomicU64,
    _of: PhantomData<T>,
}

impl<T: Sync> Made<T> {
    /// No table yet.
    ///
    /// # Safety
    /// Zeroed memory is a valid `T`.
    pub(super) const unsafe fn none() -> Self {
        Self { at: AtomicU64::new(0), _of: PhantomData }
    }

    /// The table, if there is one.
    #[inline(always)]
    pub(super) fn get(&self) -> Option<&T> {
        // Acquire pairs with the release of `make`: it is zeroed.
        // SAFETY: 0, or the address of a table that is never freed (invariant).
        unsafe { (self.at.load(Ordering::Acquire) as *const T).as_ref() }
    }

    /// The table, made if there is none. `None`: there is no memory for it.
    #[inline(always)]
    pub(super) fn get_or_make(&self, memory: &impl Memory) -> Option<&T> {
        self.get().or_else(|| self.make(memory))
    }

    #[cold]
    #[inline(never)]
    fn make(&self, memory: &impl Memory) -> Option<&T> {
        // Whole pages: readers count the memory of the allocator by what it asked for.
        let bytes = size_of::<T>().next_multiple_of(PAGE_SIZE);
        let at = memory.allocate(bytes, align_of::<T>())?;
        let (made, failed) = (Ordering::AcqRel, Ordering::Relaxed);
        // INVARIANT: zeroed memory of its size, which is released only if another thread's is used.
        if self.at.compare_exchange(0, at.as_ptr() as u64, made, failed).is_err() {
            // SAFETY: the fresh reservation, which nothing uses.
            unsafe { memory.release(at, bytes) };
        }
        self.get()
    }
}
