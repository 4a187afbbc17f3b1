//! What the layers between the books and the facade ask for: memory, to wait, to count per CPU. The facade implements it,
//! so that all they hold is billed and given back in one place each.

use core::ptr::NonNull;

#[cfg(not(loom))]
pub use crate::codetag::Caller;
use crate::sync::AtomicU32;

/// Models bill nobody.
#[cfg(loom)]
#[derive(Clone, Copy, Debug)]
pub struct Caller;

/// Four counters that every CPU has.
#[derive(Clone, Copy, Debug)]
pub struct Counters(pub NonNull<u64>);

/// Where memory comes from and goes back to.
///
/// # Safety
/// What `obtain` returns is as long as was asked for, zeroed, aligned to 16 bytes, and used by nobody else until it is
/// released.
pub unsafe trait Source: Sync {
    /// Zeroed memory, billed to the caller; a failure is not reported.
    fn obtain(&self, bytes: usize, caller: Caller) -> Option<NonNull<u8>>;

    /// Gives it back.
    ///
    /// # Safety
    /// From `obtain`, and nobody uses it any more.
    unsafe fn release(&self, at: NonNull<u8>);

    /// Waits until `word` is not `seen`, or a little longer than nothing: the caller looks again.
    fn wait(&self, word: &AtomicU32, seen: u32);

    /// Ends the waits for `word`.
    fn wake(&self, word: &AtomicU32);

    /// Counters at zero.
    fn counters(&self, caller: Caller) -> Option<Counters>;

    /// Gives counters back.
    ///
    /// # Safety
    /// From `counters`, and nobody uses them any more.
    unsafe fn drop_counters(&self, counters: Counters);

    /// Adds one to a counter of this CPU. Orders nothing.
    ///
    /// # Safety
    /// Live counters; `which` is below 4.
    unsafe fn count(&self, counters: Counters, which: usize);

    /// The sum of a counter over all CPUs.
    ///
    /// # Safety
    /// See [`Self::count`].
    unsafe fn counted(&self, counters: Counters, which: usize) -> u64;

    /// A full memory barrier on every CPU that runs a thread of ours. False: not supported.
    fn barrier(&self) -> bool;
}
