//! The atomics of the whole crate, see [`kmem_layout::atomic`]; and macros that make them.

pub use kmem_layout::atomic::*;

/// Defines a function that is `const`, except under loom, whose atomics constants cannot hold.
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

/// Makes an array of atomics, constant except under loom.
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

/// Stands between a sequentially consistent write and a read that must not come before it. Loom
/// orders two such operations on different words by fences only.
#[inline(always)]
pub(crate) fn loom_fence() {
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

#[cfg(all(loom, test))]
pub(crate) mod model;
