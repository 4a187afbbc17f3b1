//! Atomics for shuttle: those of the hardware, and in front of each operation a point where shuttle's scheduler may let
//! another thread go on.
//!
//! shuttle's own atomics would do the same, but zeroed memory is no value of theirs, and they are larger than the word:
//! tables of an instance are zeroed memory, and readers outside know where each word lies. So a whole instance can be
//! run. Its threads take turns in one thread of the system: what is seen is sequentially consistent, whatever ordering
//! an operation names. What a weaker one permits, the models under loom look for.

extern crate std;

use core::cell::RefCell;
pub use core::sync::atomic::Ordering;
use std::boxed::Box;

std::thread_local! {
    /// What is looked at in each point, while there are points.
    static WATCH: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Runs the part of a model in which its threads run, and `watch` in front of every operation of theirs: what it asserts
/// holds at every moment. Operations outside of that part are no points, as nobody else is there to go on.
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

/// Whether this is in a race. Who is about to fail goes on alone.
fn races() -> bool {
    !std::thread::panicking()
        && WATCH.with_borrow(|watch| watch.as_ref().map(|watch| watch()).is_some())
}

/// Somebody else may go on here.
fn point() {
    if races() {
        // An access to an atomic that nobody else has is no more than the point in front of it.
        const { shuttle::sync::atomic::AtomicBool::new(false) }.load(Ordering::SeqCst);
    }
}

/// Somebody else is to go on here.
pub(super) fn spin() {
    if races() {
        shuttle::hint::spin_loop();
    }
}

/// A fence changes nothing where all is sequentially consistent.
pub fn fence(order: Ordering) {
    point();
    core::sync::atomic::fence(order);
}

macro_rules! atomic {
    ($name:ident, $value:ty, $($operation:ident)*) => {
        /// As in `core`.
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
            /// As in `core`.
            pub const unsafe fn from_ptr<'a>(at: *mut $value) -> &'a Self {
                // SAFETY: the caller's promise; the layout is the value's.
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
integers!(AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64, AtomicUsize usize, AtomicI64 i64,);
