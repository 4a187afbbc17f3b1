//! Reservations that are accessible from the beginning: a second way where `mprotect` fails.
//!
//! A reservation has no access, and a commit gives it access by `mprotect`. A filter of system
//! calls can deny that. The kernel denies it, too, when the process has as many mappings as it may
//! have: the accessible part becomes a mapping of its own. From the first refusal on, reservations
//! are mapped with access, so a commit has nothing to do. The memory that was reserved before stays
//! as it is.
//!
//! A limit of data and strict overcommitment count such a reservation as a whole. A refusal by
//! these is no loss: where `mprotect` could not get a little, `mmap` does not get more.

use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// Most reservations of that kind at one time. Each has room for many commits.
const MOST: usize = 64;

/// The accessible reservations of a process. Zeroed memory is a valid value: there is none.
///
/// # Invariants
/// The bytes between the two values of an entry are accessible.
pub(super) struct Accessible {
    /// 1 from a commit that failed to the next one that succeeds.
    wanted: AtomicU32,
    /// Number of entries that are not empty.
    count: AtomicU32,
    /// Start and end of each; an end of 0: the entry is empty.
    ranges: [[AtomicUsize; 2]; MOST],
}

impl Accessible {
    pub(super) const fn new() -> Self {
        Self {
            wanted: AtomicU32::new(0),
            count: AtomicU32::new(0),
            ranges: [const { [AtomicUsize::new(0), AtomicUsize::new(0)] }; MOST],
        }
    }

    /// Notes whether `mprotect` made memory accessible.
    pub(super) fn note(&self, done: bool) {
        let wanted = u32::from(!done);
        if self.wanted.load(Ordering::Relaxed) != wanted {
            self.wanted.store(wanted, Ordering::Relaxed);
        }
    }

    /// Returns whether the next reservation should be one of these.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
            && (self.count.load(Ordering::Relaxed) as usize) < MOST
    }

    /// Adds a reservation. False: there is no room for it.
    ///
    /// # Safety
    /// The range is accessible until [`Self::remove`].
    pub(super) unsafe fn add(&self, start: usize, bytes: usize) -> bool {
        for [from, to] in &self.ranges {
            // 1 is the end of an entry that a thread fills in.
            let taken = to.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
            if taken.is_ok() {
                from.store(start, Ordering::Relaxed);
                // INVARIANT: accessible, by the contract.
                to.store(start + bytes, Ordering::Release);
                self.count.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Removes what was added with these values, before the range is unmapped.
    pub(super) fn remove(&self, start: usize, bytes: usize) {
        if let Some([_, to]) = self.entry(start).filter(|[from, to]| {
            from.load(Ordering::Relaxed) == start && to.load(Ordering::Relaxed) == start + bytes
        }) {
            to.store(0, Ordering::Relaxed);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns whether an address is in one of them.
    pub(super) fn has(&self, at: usize) -> bool {
        self.entry(at).is_some()
    }

    fn entry(&self, at: usize) -> Option<&[AtomicUsize; 2]> {
        if self.is_empty() {
            return None;
        }
        let within = |[from, to]: &&[AtomicUsize; 2]| {
            at < to.load(Ordering::Acquire) && at >= from.load(Ordering::Relaxed)
        };
        self.ranges.iter().find(within)
    }
}

#[cfg(all(test, not(miri), not(loom)))]
mod tests {
    use crate::os::Memory;
    use crate::os::linux::Linux;
    use crate::sync::{AtomicU8, Ordering};
    use crate::units::PAGE_SIZE;

    #[test]
    fn an_accessible_reservation_that_is_shown_can_be_written_once_committed() {
        let linux = Linux::new();
        linux.accessible.note(false);
        let at = linux.reserve(PAGE_SIZE, PAGE_SIZE).expect("address space");
        assert!(linux.accessible.has(at.as_ptr() as usize));
        // SAFETY: the one page of a fresh reservation, which is shown and committed.
        unsafe {
            assert!(linux.show(at, PAGE_SIZE) && linux.commit(at, PAGE_SIZE));
            let byte = at.cast::<AtomicU8>().as_ref();
            assert_eq!(byte.load(Ordering::Relaxed), 0);
            byte.store(1, Ordering::Relaxed);
            linux.release(at, PAGE_SIZE);
        }
    }
}
