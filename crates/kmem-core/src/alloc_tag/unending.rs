//! References to memory that is never freed, which come late.

use core::marker::PhantomData;

use crate::sync::{AtomicUsize, Ordering};

/// No reference at first, and later one that stays valid. Zeroed memory is a valid value.
///
/// # Invariants
/// The address is 0, or that of a value that is never freed.
pub(super) struct Unending<T: 'static>(AtomicUsize, PhantomData<&'static T>);

impl<T> Unending<T> {
    /// No reference.
    pub(super) const fn new() -> Self {
        Self(AtomicUsize::new(0), PhantomData)
    }

    /// Gives the reference to all threads, with what was written to the value before.
    pub(super) fn set(&self, to: &'static T) {
        // INVARIANT: a static reference.
        self.0.store((&raw const *to) as usize, Ordering::Release);
    }

    /// The reference, if it has come.
    pub(super) fn get(&self) -> Option<&'static T> {
        let at = self.0.load(Ordering::Acquire) as *const T;
        // SAFETY: null or a value that is never freed, by the invariant.
        unsafe { at.as_ref() }
    }
}
