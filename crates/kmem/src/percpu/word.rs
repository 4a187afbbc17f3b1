//! What per-CPU operations work on, and the operations by atomics.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
}

/// A word that per-CPU operations work on: 4 or 8 bytes, at a multiple of its size. (Signed numbers are added as
/// their two's complement.)
pub trait Word: Copy + PartialEq + sealed::Sealed + 'static {
    /// Zero-extended.
    fn bits(self) -> u64;

    /// The low bits.
    fn from_bits(bits: u64) -> Self;

    /// Adds; the value before.
    ///
    /// # Safety
    /// `at` is valid, aligned, and used by atomics only; so for all methods here.
    unsafe fn fetch_add(at: *mut Self, by: Self) -> Self;

    /// Writes; the value before.
    ///
    /// # Safety
    /// See [`Self::fetch_add`].
    unsafe fn fetch_swap(at: *mut Self, new: Self) -> Self;

    /// Writes `new` if the value is `old`; the value before.
    ///
    /// # Safety
    /// See [`Self::fetch_add`].
    unsafe fn fetch_replace(at: *mut Self, old: Self, new: Self) -> Self;

    /// The value, from any CPU.
    ///
    /// # Safety
    /// `at` is valid and aligned; others may write to it by sections or atomics.
    unsafe fn load(at: *mut Self) -> Self;

    /// Both, modulo the width.
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
                // SAFETY: the caller's promise; so below.
                unsafe { <$atomic>::from_ptr(at) }.fetch_add(by, Ordering::Relaxed)
            }
            unsafe fn fetch_swap(at: *mut Self, new: Self) -> Self {
                // SAFETY: as above.
                unsafe { <$atomic>::from_ptr(at) }.swap(new, Ordering::AcqRel)
            }
            unsafe fn fetch_replace(at: *mut Self, old: Self, new: Self) -> Self {
                // SAFETY: as above.
                let atomic = unsafe { <$atomic>::from_ptr(at) };
                match atomic.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(seen) | Err(seen) => seen,
                }
            }
            unsafe fn load(at: *mut Self) -> Self {
                // SAFETY: as above.
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
