//! Memory for the layers that use [`Source`]; hash tables in memory of an instance.

use core::ptr::NonNull;

use super::Instance;
use crate::os::Platform;
use crate::request::Caller;
use crate::rhashtable::{Parameters, RHashTable, Seeded};
use crate::source::{Counters, Source};
use crate::sync::{AtomicU32, Ordering};
use crate::units::{Gfp, ObjcgId};

/// A hash table of an instance; see [`crate::rhashtable`].
pub type Table<K, V, P> = RHashTable<K, V, &'static Instance<P>, Seeded>;

impl<P: Platform> Instance<P> {
    /// Makes a hash table, whose own memory is billed to the caller. `None`: there is no memory, or
    /// a parameter is not a power of two.
    pub fn rhashtable<K, V>(
        &'static self,
        parameters: Parameters,
        caller: Caller,
    ) -> Option<Table<K, V, P>> {
        if !self.ready() {
            return None;
        }
        RHashTable::new(self, Seeded(self.heap().seed()), parameters, caller)
    }
}

// SAFETY: memory and counters are live allocations of the instance until they are released.
unsafe impl<P: Platform> Source for &'static Instance<P> {
    fn obtain(&self, bytes: usize, caller: Caller) -> Option<NonNull<u8>> {
        NonNull::new(self.alloc_zeroed(bytes, caller.quietly()))
    }

    unsafe fn release(&self, at: NonNull<u8>) {
        // SAFETY: the same contract.
        unsafe { self.free(at.as_ptr()) }
    }

    fn keep_payer(&self, caller: Caller) {
        let payer = caller.objcg();
        // The instance has started if it has a group.
        if payer != ObjcgId::ROOT {
            self.ledger.groups.pin_again(payer);
        }
    }

    fn drop_payer(&self, caller: Caller) {
        self.ledger.groups.unpin_payer(caller.objcg());
    }

    fn wait(&self, word: &AtomicU32, seen: u32) {
        if word.load(Ordering::SeqCst) == seen {
            self.platform().wait(word, seen);
        }
    }

    fn wake(&self, word: &AtomicU32) {
        self.platform().wake(word);
    }

    fn counters(&self, caller: Caller) -> Option<Counters> {
        let handle = self.alloc_percpu(4 * size_of::<u64>(), 32, Gfp::NOWARN, caller);
        Some(Counters(NonNull::new(handle)?.cast()))
    }

    unsafe fn drop_counters(&self, counters: Counters) {
        // SAFETY: the same contract.
        unsafe { self.free_percpu(counters.0.as_ptr().cast()) }
    }

    #[inline(always)]
    unsafe fn count(&self, counters: Counters, which: usize) {
        // SAFETY: the same contract.
        unsafe { self.this_cpu_add(counters.0.as_ptr().add(which), 1) }
    }

    unsafe fn counted(&self, counters: Counters, which: usize) -> u64 {
        // SAFETY: the same contract.
        unsafe { self.percpu_sum(counters.0.as_ptr().add(which)) }
    }

    fn barrier(&self) -> bool {
        self.platform().barrier()
    }
}
