//! Single numbers.

use kmem_core::PerCpuVariable;
use kmem_core::os::linux::Linux;

/// A word of which every CPU has a copy.
pub(crate) type Word = PerCpuVariable<u64, Linux>;

/// A number that only grows. [`define!`](crate::define) makes it.
pub struct Counter(Word);

impl Counter {
    /// For the macro.
    #[doc(hidden)]
    pub const fn of(word: Word) -> Self {
        Self(word)
    }

    /// Adds to the copy of this CPU. Signal handlers may call it.
    #[inline]
    pub fn add(&'static self, by: u64) {
        self.0.add(by);
    }

    /// Adds up the copies, modulo 2^64. The sum is exact while no thread adds. Otherwise it lies
    /// between the sums before and after the call.
    pub fn sum(&'static self) -> u64 {
        self.0.sum()
    }
}

/// A number that grows and falls, such as connections that are open.
/// [`define!`](crate::define) makes it.
pub struct Gauge(Word);

impl Gauge {
    /// For the macro.
    #[doc(hidden)]
    pub const fn of(word: Word) -> Self {
        Self(word)
    }

    /// Adds to the copy of this CPU. Signal handlers may call it.
    #[inline]
    pub fn add(&'static self, by: i64) {
        self.0.add(by.cast_unsigned());
    }

    /// Adds up the copies. The sum is exact while no thread adds. Meanwhile it may miss what one
    /// CPU added and have what another took away, so it can be below zero for a moment.
    pub fn sum(&'static self) -> i64 {
        self.0.sum().cast_signed()
    }
}
