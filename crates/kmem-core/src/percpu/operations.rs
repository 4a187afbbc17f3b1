//! Operations on the copy of the CPU that the thread runs on, without a lock and safe against
//! migration. Each has a fast path by a critical section, and a slow path by atomics on the copy
//! that [`Slow`] chooses.
//!
//! Fast paths: ten instructions, no atomics.

use super::{Units, Word, rseq};

impl Units {
    /// Adds to a word.
    ///
    /// # Safety
    /// `handle` is an aligned word in a live per-CPU object.
    #[inline(always)]
    pub(super) unsafe fn add<W: Word>(&self, handle: *mut W, by: W, slow: impl Slow) {
        // SAFETY: the same contract. `slow` returns the word in a copy that no section writes to.
        unsafe {
            if rseq::add(self, handle, by) {
                return;
            }
            if slow.retry() && rseq::add(self, handle, by) {
                return;
            }
            W::fetch_add(slow.copy(handle.cast()).cast(), by);
        }
    }

    /// Adds to a word. Returns the new value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub(super) unsafe fn add_return<W: Word>(&self, handle: *mut W, by: W, slow: impl Slow) -> W {
        // SAFETY: the same contract.
        let run = || unsafe { rseq::add_return(self, handle, by) };
        // SAFETY: `slow` returns the word in a copy that no section writes to.
        slow.or(run, || unsafe { W::fetch_add(slow.copy(handle.cast()).cast(), by) }.plus(by))
    }

    /// Writes a word. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub(super) unsafe fn swap<W: Word>(&self, handle: *mut W, new: W, slow: impl Slow) -> W {
        // SAFETY: the same contract.
        let run = || unsafe { rseq::swap(self, handle, new) };
        // SAFETY: `slow` returns the word in a copy that no section writes to.
        slow.or(run, || unsafe { W::fetch_swap(slow.copy(handle.cast()).cast(), new) })
    }

    /// Reads a word.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub(super) unsafe fn read<W: Word>(&self, handle: *mut W, slow: impl Slow) -> W {
        // SAFETY: the same contract.
        let run = || unsafe { rseq::read(self, handle) };
        // SAFETY: `slow` returns the word in a copy that no section writes to.
        slow.or(run, || unsafe { W::load(slow.copy(handle.cast()).cast()) })
    }

    /// Writes `new` to a word if its value is `old`. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub(super) unsafe fn replace<W: Word>(
        &self,
        handle: *mut W,
        old: W,
        new: W,
        slow: impl Slow,
    ) -> W {
        // SAFETY: the same contract.
        let run = || unsafe { rseq::replace(self, handle, old, new) };
        // SAFETY: `slow` returns the word in a copy that no section writes to.
        slow.or(run, || unsafe { W::fetch_replace(slow.copy(handle.cast()).cast(), old, new) })
    }
}

/// The slow path of an operation whose CPU has no unit in use.
pub(super) trait Slow {
    /// Tries to give the CPU a unit. Returns whether to try the section again.
    fn retry(&self) -> bool;

    /// Copy of an object on which the thread uses atomics instead. No section writes to it.
    fn copy(&self, handle: *mut u8) -> *mut u8;

    /// Runs `section`, and once more after a retry. If both fail, runs `atomic`.
    #[inline(always)]
    fn or<T>(&self, section: impl Fn() -> Option<T>, atomic: impl FnOnce() -> T) -> T {
        if let Some(done) = section() {
            return done;
        }
        if self.retry()
            && let Some(done) = section()
        {
            done
        } else {
            atomic()
        }
    }
}
