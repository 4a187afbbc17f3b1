//! The atomics of the whole crate come from here, so that a model checker can replace them: loom with its own, of which
//! only the protocols can be built, shuttle with the hardware's and a point in front of each operation, of which everything can.

#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

#[cfg(shuttle)]
pub use shuttled::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    race,
};

#[cfg(not(any(loom, shuttle)))]
pub use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// One round of waiting for another thread that is known to be running.
#[inline]
pub fn spin() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(shuttle)]
    shuttled::spin();
    #[cfg(not(any(loom, shuttle)))]
    core::hint::spin_loop();
}

/// A function that is `const`, unless a model checker makes the atomics.
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visible:vis const fn $($rest:tt)*) => {
        #[cfg(not(loom))]
        $(#[$attribute])*
        $visible const fn $($rest)*
        #[cfg(loom)]
        $(#[$attribute])*
        $visible fn $($rest)*
    };
}

/// An array of atomics: of one constant each, unless a model checker makes them.
macro_rules! atomics {
    ($each:expr; $len:expr) => {{
        #[cfg(not(loom))]
        let array = [const { $each }; $len];
        #[cfg(loom)]
        let array: [_; $len] = core::array::from_fn(|_| $each);
        array
    }};
}

pub(crate) use {atomics, const_fn};

#[cfg(all(loom, test))]
pub(crate) mod model;
#[cfg(shuttle)]
mod shuttled;
