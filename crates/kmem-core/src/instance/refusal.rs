//! The function of the program that is told of refused requests.

use core::ffi::c_void;

use super::Instance;
use crate::memcg::GroupError;
use crate::os::Platform;
use crate::report::{Line, OnRefusal, Refusal};
use crate::task;

impl<P: Platform> Instance<P> {
    /// Tells `function` of every request that is refused from here on, in place of a report on the
    /// console. Replaces the function before it, and returns when no thread runs that any more. A
    /// request that is refused meanwhile may be reported.
    ///
    /// The function runs on the thread that allocates, which may hold any lock of the program. So
    /// it must not wait for a lock. It may allocate: the root pays, and no limit refuses that. A
    /// failure within it is reported on the console. It must not panic.
    ///
    /// It is not told of optional requests ([`Caller::once`](crate::Caller::once),
    /// [`Gfp::NOWARN`](crate::units::Gfp::NOWARN)), and not of requests that go above the limit
    /// because they must not fail. Those are most requests of Rust programs: see
    /// [`fallible`](crate::fallible).
    ///
    /// # Errors
    /// [`GroupError::InShrinker`]: the caller is within such a function or a shrinker, which cannot
    /// wait for itself. [`GroupError::NoMemory`]: the instance cannot start.
    pub fn tell_refusals<F: Fn(&Refusal) + Sync>(
        &'static self,
        function: &'static F,
    ) -> Result<(), GroupError> {
        /// # Safety
        /// `data` is the `&'static F` above, and `refusal` is valid for reading.
        unsafe extern "C" fn call<F: Fn(&Refusal) + Sync>(
            data: *mut c_void,
            refusal: *const Refusal,
        ) {
            // SAFETY: by the contract `data` is a static `F`, and `refusal` is valid.
            unsafe { (*data.cast::<F>())(&*refusal) }
        }
        let data = core::ptr::from_ref(function).cast_mut().cast();
        // SAFETY: `function` is a static reference to a `Sync` function, so any thread may call it.
        unsafe { self.on_refusal(Some((call::<F>, data))) }
    }

    /// Reports refusals on the console again, as before [`Self::tell_refusals`].
    ///
    /// # Errors
    /// See [`Self::tell_refusals`].
    pub fn report_refusals(&'static self) -> Result<(), GroupError> {
        // SAFETY: there is no function to call.
        unsafe { self.on_refusal(None) }
    }

    /// Replaces the function that is told of refusals; `None`: they are reported. See
    /// [`Self::tell_refusals`].
    ///
    /// # Errors
    /// See [`Self::tell_refusals`].
    ///
    /// # Safety
    /// Any thread may call the function with its data until it is replaced.
    pub unsafe fn on_refusal(
        &'static self,
        function: Option<(OnRefusal, *mut c_void)>,
    ) -> Result<(), GroupError> {
        if task::is_shrinking() {
            return Err(GroupError::InShrinker);
        }
        if !self.ready() {
            return Err(GroupError::NoMemory);
        }
        // SAFETY: the same contract; this thread is in no callback.
        unsafe { self.ledger.reports.tell(function, || self.platform().give_way()) };
        Ok(())
    }

    /// The call site of a refusal as a report names it: `file:line func:name`, or
    /// `module+0xoffset` for a return address.
    pub fn refusal_site(&'static self, refusal: &Refusal) -> Line {
        self.ledger.reporter().refusal_site(refusal)
    }
}
