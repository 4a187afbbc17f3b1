//! A zone that is made when it is first needed.

use super::ZoneSet;
use crate::sync::{AtomicU32, AtomicUsize, Ordering, spin};

/// A zone that the first thread that needs it makes. Zeroed memory is a valid value: no zone.
///
/// # Invariants
/// `zone` is 0 or the address of a set that is never freed.
pub struct LazyZone {
    zone: AtomicUsize,
    /// 1 while a thread makes the zone.
    making: AtomicU32,
}

impl LazyZone {
    /// No zone.
    pub const fn new() -> Self {
        Self { zone: AtomicUsize::new(0), making: AtomicU32::new(0) }
    }

    /// The zone; `None` before it is made.
    #[inline]
    pub fn get(&self) -> Option<&'static ZoneSet> {
        // Acquire pairs with the release in `get_or_make`: the zone's tables are there.
        let zone = self.zone.load(Ordering::Acquire) as *const ZoneSet;
        // SAFETY: null or a set that is never freed, by the invariant.
        unsafe { zone.as_ref() }
    }

    /// The zone, made by `make` if there is none. Threads that come meanwhile wait. `None`: `make`
    /// could not make it.
    pub fn get_or_make(
        &self,
        make: impl FnOnce() -> Option<&'static ZoneSet>,
    ) -> Option<&'static ZoneSet> {
        if let Some(set) = self.get() {
            return Some(set);
        }
        let (done, failed) = (Ordering::Acquire, Ordering::Relaxed);
        while self.making.compare_exchange(0, 1, done, failed).is_err() {
            if let Some(set) = self.get() {
                return Some(set);
            }
            spin();
        }
        let made = self.get().or_else(make);
        // INVARIANT: the address of a set that is never freed, by the type of `made`.
        self.zone.store(made.map_or(0, |set| &raw const *set as usize), Ordering::Release);
        self.making.store(0, Ordering::Release);
        made
    }

    /// In a forked child: a thread that was making the zone is not there any more.
    ///
    /// # Safety
    /// No other thread exists.
    pub unsafe fn restart_in_child(&self) {
        self.making.store(0, Ordering::Relaxed);
    }

    /// Forgets the zone, in a forked child whose parent has its memory.
    ///
    /// # Safety
    /// No other thread exists.
    pub unsafe fn forget(&self) {
        self.zone.store(0, Ordering::Relaxed);
        self.making.store(0, Ordering::Relaxed);
    }
}

impl Default for LazyZone {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A set for its address; nothing is in its zone.
    fn set() -> &'static ZoneSet {
        // SAFETY: zeroed memory is a valid set: numbers, and the first purpose.
        unsafe { Box::leak(Box::new_zeroed()).assume_init_ref() }
    }

    #[test]
    fn a_zone_is_made_once_and_again_after_a_failure() {
        let lazy = LazyZone::new();
        assert!(lazy.get_or_make(|| None).is_none());
        let made = set();
        let found = lazy.get_or_make(|| Some(made)).expect("made");
        assert!(core::ptr::eq(found, made));
        let again = lazy.get_or_make(|| panic!("it is there")).expect("made");
        assert!(core::ptr::eq(again, made));
    }

    #[test]
    fn a_child_makes_the_zone_that_a_thread_of_its_parent_was_making() {
        let lazy = LazyZone::new();
        // The state that a fork copies while another thread is in `make`.
        lazy.making.store(1, Ordering::Relaxed);
        // SAFETY: only this thread has the value.
        unsafe { lazy.restart_in_child() };
        let made = set();
        assert!(lazy.get_or_make(|| Some(made)).is_some_and(|set| core::ptr::eq(set, made)));
    }
}
