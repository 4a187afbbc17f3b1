//! Operations on the copy of the CPU that the thread runs on, without a lock and safe against
//! migration. Each has a fast path by a critical section, and a slow path by atomics on the copy
//! that [`Slow`] chooses.
//!
//! Fast paths: ten instructions, no atomics.

use super::{Units, Word, rseq};

/// Times that a section starts over. Another thread or a signal aborts it once. Under a debugger
/// that steps through the program, no section commits.
const RESTARTS: u32 = 16;

/// Runs a section, which returns `None` if it failed. Then runs [`Slow::again`] with it and `$or`.
/// What these need is put together on that path only.
macro_rules! run {
    ($section:expr, $slow:ident, $or:expr) => {{
        // SAFETY: the same contract.
        match unsafe { $section } {
            Some(done) => done,
            // SAFETY: the same contract; `slow` returns the word in a copy that no section writes
            // to.
            None => $slow.again(move || unsafe { $section }, move || unsafe { $or }),
        }
    }};
}

impl Units {
    /// Adds to a word.
    ///
    /// # Safety
    /// `handle` is an aligned word in a live per-CPU object.
    #[inline(always)]
    pub(super) unsafe fn add<W: Word>(&self, handle: *mut W, by: W, slow: impl Slow) {
        run!(rseq::add(self, handle, by).then_some(()), slow, {
            W::fetch_add(slow.copy(handle.cast()).cast(), by);
        });
    }

    /// Adds to a word. Returns the new value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub(super) unsafe fn add_return<W: Word>(&self, handle: *mut W, by: W, slow: impl Slow) -> W {
        run!(rseq::add_return(self, handle, by), slow, {
            W::fetch_add(slow.copy(handle.cast()).cast(), by).plus(by)
        })
    }

    /// Writes a word. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub(super) unsafe fn swap<W: Word>(&self, handle: *mut W, new: W, slow: impl Slow) -> W {
        run!(rseq::swap(self, handle, new), slow, {
            W::fetch_swap(slow.copy(handle.cast()).cast(), new)
        })
    }

    /// Reads a word.
    ///
    /// # Safety
    /// See [`Self::add`].
    #[inline(always)]
    pub(super) unsafe fn read<W: Word>(&self, handle: *mut W, slow: impl Slow) -> W {
        run!(rseq::read(self, handle), slow, W::load(slow.copy(handle.cast()).cast()))
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
        run!(rseq::replace(self, handle, old, new), slow, {
            W::fetch_replace(slow.copy(handle.cast()).cast(), old, new)
        })
    }
}

/// The slow path of an operation whose CPU has no unit in use, or whose section was aborted.
pub(super) trait Slow: Copy {
    /// Gives the CPU a unit, if it has none. Returns whether to try the section again.
    fn retry(&self) -> bool;

    /// Copy of an object on which the thread uses atomics instead. No section writes to it.
    fn copy(&self, handle: *mut u8) -> *mut u8;

    /// Runs `section` again after a retry, and `atomic` if that fails too often.
    #[cold]
    #[inline(never)]
    fn again<T>(self, section: impl Fn() -> Option<T>, atomic: impl FnOnce() -> T) -> T {
        for _ in 0..RESTARTS {
            if !self.retry() {
                break;
            }
            if let Some(done) = section() {
                return done;
            }
        }
        atomic()
    }
}
