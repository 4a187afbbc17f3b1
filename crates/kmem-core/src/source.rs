//! The services that hash tables and memory pools need: memory, waits, counters per CPU. An
//! instance implements them, so that everything these layers hold is billed and freed in one place.

use core::ptr::NonNull;

#[cfg(not(loom))]
pub use crate::request::Caller;
use crate::sync::AtomicU32;

/// A caller of a model, to which nothing is billed.
#[cfg(loom)]
#[derive(Clone, Copy, Debug)]
pub struct Caller;

/// Four counters of 64 bits, with a copy for each CPU.
#[derive(Clone, Copy, Debug)]
pub struct Counters(pub NonNull<u64>);

/// A source of memory, waits and counters.
///
/// # Safety
/// [`Self::obtain`] returns zeroed memory of `bytes` bytes, aligned to 16 bytes, which only its
/// caller uses until it is released.
pub unsafe trait Source: Sync {
    /// Allocates `bytes` bytes of zeroed memory, billed to `caller`. `None`: there is no memory. A
    /// failure is not reported.
    fn obtain(&self, bytes: usize, caller: Caller) -> Option<NonNull<u8>>;

    /// Frees memory.
    ///
    /// # Safety
    /// `at` is from [`Self::obtain`], and is not used after this call.
    unsafe fn release(&self, at: NonNull<u8>);

    /// Keeps the number of the caller's group from being used for another group, until
    /// [`Self::drop_payer`]. Called by a user that allocates in the caller's name later.
    fn keep_payer(&self, _: Caller) {}

    /// Ends a [`Self::keep_payer`] with the same caller.
    fn drop_payer(&self, _: Caller) {}

    /// Waits while `word` is `seen`. May return early, so the caller checks again.
    fn wait(&self, word: &AtomicU32, seen: u32);

    /// Wakes all threads that wait for `word`.
    fn wake(&self, word: &AtomicU32);

    /// Allocates counters at zero, billed to `caller`. `None`: there is no memory.
    fn counters(&self, caller: Caller) -> Option<Counters>;

    /// Frees counters.
    ///
    /// # Safety
    /// `counters` are from [`Self::counters`], and are not used after this call.
    unsafe fn drop_counters(&self, counters: Counters);

    /// Adds one to this CPU's copy of a counter, without memory ordering.
    ///
    /// # Safety
    /// `counters` are live, and `which` is below 4.
    unsafe fn count(&self, counters: Counters, which: usize);

    /// The sum of a counter's copies on all CPUs.
    ///
    /// # Safety
    /// `counters` are live, and `which` is below 4.
    unsafe fn counted(&self, counters: Counters, which: usize) -> u64;

    /// Executes a full memory barrier on every CPU that runs a thread of this process. False: the
    /// platform does not support it.
    fn barrier(&self) -> bool;
}
