//! What the layers between the books and the facade ask for: memory, and to wait. The facade implements it, so that all
//! they hold is billed and given back in one place each.

use core::ptr::NonNull;

use crate::codetag::Caller;
use crate::sync::AtomicU32;

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
}
