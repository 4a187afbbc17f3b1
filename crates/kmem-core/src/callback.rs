//! A function of the program that any thread may call, until it is removed.
//!
//! ```text
//! call:   count the call --> is the function there? --> run it --> count the return
//! remove: take the function away --> wait until no call is counted
//! ```
//!
//! A call is counted before the function is looked for. So a thread that removes the function waits
//! for this call, or this call sees that the function is removed.
//!
//! Context: any. A thread must not remove a function from within it: it would wait for itself.

use core::ffi::c_void;

use crate::sync::{AtomicU32, AtomicUsize, Ordering, const_fn, fence, spin};

/// A function and its data. Zeroed memory is a valid value: no function.
#[repr(C)]
pub(crate) struct Callback {
    /// Address of the function; 0 for none.
    call: AtomicUsize,
    data: AtomicUsize,
    /// Calls in progress.
    active: AtomicU32,
}

impl Callback {
    const_fn! {
        /// No function.
        pub(crate) const fn none() -> Self {
            Self {
                call: AtomicUsize::new(0),
                data: AtomicUsize::new(0),
                active: AtomicU32::new(0),
            }
        }
    }

    /// Returns whether there is a function.
    #[inline]
    pub(crate) fn is_set(&self) -> bool {
        self.call.load(Ordering::Relaxed) != 0
    }

    /// Puts a function in place. There must be none, and only one thread may do this at a time.
    pub(crate) fn set(&self, call: *const (), data: *mut c_void) {
        self.data.store(data as usize, Ordering::Relaxed);
        self.call.store(call as usize, Ordering::SeqCst);
    }

    /// Calls `work` with the function and its data, which stay valid until `work` returns. `None`:
    /// there is no function.
    pub(crate) fn with<T>(&self, work: impl FnOnce(*const (), *mut c_void) -> T) -> Option<T> {
        self.active.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let call = self.call.load(Ordering::SeqCst) as *const ();
        let done =
            (!call.is_null()).then(|| work(call, self.data.load(Ordering::Relaxed) as *mut c_void));
        // The function may have forked: in the child, the count is zero already.
        let less = |active: u32| active.checked_sub(1);
        let _ = self.active.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        done
    }

    /// Removes the function. Returns when all calls have returned, and calls `wait` while one has
    /// not.
    pub(crate) fn remove(&self, wait: impl Fn()) {
        self.call.store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while self.active.load(Ordering::SeqCst) != 0 {
            spin();
            wait();
        }
    }

    /// Forgets calls in progress, in a forked child: those on other threads never return.
    pub(crate) fn forget_calls(&self) {
        self.active.store(0, Ordering::Relaxed);
    }
}
