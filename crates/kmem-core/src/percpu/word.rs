//! The words that per-CPU operations work on, and the operations by atomics.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// A word that per-CPU operations work on: 4 or 8 bytes, at a multiple of its size. Signed numbers
/// are added as their two's complement.
pub trait Word: Copy + PartialEq + sealed::Sealed + 'static {
    /// Zero-extends the word.
    fn bits(self) -> u64;

    /// Truncates `bits` to a word.
    fn from_bits(bits: u64) -> Self;

    /// Adds `by` to the word at `at`. Returns the old value.
    ///
    /// # Safety
    /// `at` is valid and aligned, and threads write to it by atomics only.
    unsafe fn fetch_add(at: *mut Self, by: Self) -> Self;

    /// Writes `new` to the word at `at`. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::fetch_add`].
    unsafe fn fetch_swap(at: *mut Self, new: Self) -> Self;

    /// Writes `new` to the word at `at` if its value is `old`. Returns the old value.
    ///
    /// # Safety
    /// See [`Self::fetch_add`].
    unsafe fn fetch_replace(at: *mut Self, old: Self, new: Self) -> Self;

    /// Reads the word at `at`, on any CPU.
    ///
    /// # Safety
    /// `at` is valid and aligned, and threads write to it by sections or atomics only.
    unsafe fn load(at: *mut Self) -> Self;

    /// The sum, modulo the width.
    fn plus(self, other: Self) -> Self;
}

macro_rules! word {
    ($word:ty, $atomic:ty) => {
        impl Word for $word {
            #[inline(always)]
            fn bits(self) -> u64 {
                self.into()
            }
            #[inline(always)]
            fn from_bits(bits: u64) -> Self {
                bits as Self
            }
            unsafe fn fetch_add(at: *mut Self, by: Self) -> Self {
                // SAFETY: the same contract.
                unsafe { <$atomic>::from_ptr(at) }.fetch_add(by, Ordering::Relaxed)
            }
            unsafe fn fetch_swap(at: *mut Self, new: Self) -> Self {
                // SAFETY: the same contract.
                unsafe { <$atomic>::from_ptr(at) }.swap(new, Ordering::AcqRel)
            }
            unsafe fn fetch_replace(at: *mut Self, old: Self, new: Self) -> Self {
                // SAFETY: the same contract.
                let atomic = unsafe { <$atomic>::from_ptr(at) };
                match atomic.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(seen) | Err(seen) => seen,
                }
            }
            unsafe fn load(at: *mut Self) -> Self {
                // SAFETY: the same contract.
                unsafe { <$atomic>::from_ptr(at) }.load(Ordering::Relaxed)
            }
            fn plus(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
        }
    };
}
word!(u32, AtomicU32);
word!(u64, AtomicU64);
