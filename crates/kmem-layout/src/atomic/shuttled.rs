//! Atomics for shuttle: those of the hardware, with a scheduling point before each operation. There
//! shuttle's scheduler may switch to another thread.
//!
//! Shuttle's own atomics do not fit: tables of an instance are zeroed memory, and shared layouts
//! have a place for each word. So a whole instance can be run. Its threads take turns on one thread
//! of the system, so all operations are sequentially consistent, whatever ordering they name. The
//! models under loom test weaker orderings.

extern crate std;

use core::cell::RefCell;
pub use core::sync::atomic::Ordering;
use std::boxed::Box;

std::thread_local! {
    /// Called at each scheduling point of a race; none outside of races.
    static WATCH: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Runs `part`, the part of a model in which its threads run. Calls `watch` before every operation
/// of theirs, so its assertions are checked at every moment. Operations outside of `part` are no
/// scheduling points: there is no other thread.
pub fn race<T>(watch: impl Fn() + 'static, part: impl FnOnce() -> T) -> T {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            WATCH.set(None);
        }
    }
    let _over = Over;
    WATCH.set(Some(Box::new(watch)));
    part()
}

/// Returns whether a race runs. A thread that panics goes on without scheduling points. Calls the
/// race's `watch`.
fn races() -> bool {
    !std::thread::panicking()
        && WATCH.with_borrow(|watch| watch.as_ref().map(|watch| watch()).is_some())
}

/// Scheduling point: another thread may run here.
fn point() {
    if races() {
        // A load of a private atomic of shuttle's is a scheduling point without an effect.
        const { shuttle::sync::atomic::AtomicBool::new(false) }.load(Ordering::SeqCst);
    }
}

/// Lets another thread run; see [`super::spin`].
pub(super) fn spin() {
    if races() {
        shuttle::hint::spin_loop();
    }
}

/// A scheduling point; the fence has no effect among sequentially consistent operations.
pub fn fence(order: Ordering) {
    point();
    core::sync::atomic::fence(order);
}

macro_rules! atomic {
    ($name:ident, $value:ty, $($operation:ident)*) => {
        /// The atomic of this name in `core`, with scheduling points.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(core::sync::atomic::$name);

        #[expect(missing_docs, reason = "as in `core`")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(core::sync::atomic::$name::new(value))
            }

            pub const fn as_ptr(&self) -> *mut $value {
                self.0.as_ptr()
            }

            /// # Safety
            /// See the function in `core`.
            pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the same contract; this type has the layout of the one in `core`.
                unsafe { &*at.cast::<Self>() }
            }

            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                point();
                self.0.load(order)
            }

            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                point();
                self.0.store(value, order);
            }

            #[inline]
            pub fn compare_exchange(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                point();
                self.0.compare_exchange(seen, new, success, failure)
            }

            #[inline]
            pub fn compare_exchange_weak(
                &self,
                seen: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(seen, new, success, failure)
            }

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                let mut seen = self.load(failure);
                while let Some(new) = change(seen) {
                    match self.compare_exchange(seen, new, success, failure) {
                        Err(now) => seen = now,
                        done => return done,
                    }
                }
                Err(seen)
            }

            $(
                #[inline]
                pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.$operation(value, order)
                }
            )*
        }
    };
}

macro_rules! integers {
    ($($name:ident $value:ty,)*) => {
        $(atomic!($name, $value, swap fetch_add fetch_sub fetch_and fetch_or fetch_max fetch_min);)*
    };
}

atomic!(AtomicBool, bool, swap fetch_and fetch_or);
integers!(
    AtomicU8 u8,
    AtomicU16 u16,
    AtomicU32 u32,
    AtomicU64 u64,
    AtomicUsize usize,
    AtomicI64 i64,
);
