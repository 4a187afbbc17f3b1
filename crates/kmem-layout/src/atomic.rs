//! The atomics of shared layouts and of all of the core. A model checker can replace them. Loom
//! replaces them by its own, with which only the lock-free protocols can be built. Shuttle replaces
//! them by the hardware's with a scheduling point before each operation; all can be built so.

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(shuttle)]
mod shuttled;
#[cfg(shuttle)]
pub use shuttled::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    race,
};

#[cfg(not(any(loom, shuttle)))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// Waits one round for another thread, which must be running.
#[inline]
pub fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttled::spin();
    #[cfg(not(any(loom, shuttle)))]
    core::hint::spin_loop();
}
