//! Holds: a thread keeps a slab from being retired while it changes extension words of objects that
//! are not its own.
//!
//! A held slab serves claims and takes objects back as others do. If it is wholly free when the
//! hold ends, the thread that held it retires it. One thread at a time holds a slab.

use kmem_layout::geometry::{CHUNK_CLASS_MASK, ClassGeometry};

use super::{HELD, Kind, MENDING, Retired, SlabZone, class_in, credit_in};
use crate::class::SizeClass;
use crate::sync::{AtomicU32, Ordering};

impl SlabZone {
    /// Class of the slab that begins at a chunk of the zone, and whether the chunk lies in a slab.
    pub fn slab_at(&self, chunk: u32, classes: &[ClassGeometry]) -> (Option<SizeClass>, bool) {
        let class = self.chunk_class(chunk).load(Ordering::Acquire) & CHUNK_CLASS_MASK;
        let begins = self.slab_address(chunk) & classes[class as usize].slab_mask as usize == 0;
        ((class != 0 && begins).then_some(SizeClass(class)), class != 0)
    }

    /// Calls `act` with the extension words of the slab at a chunk, while this thread holds it. If
    /// the slab is wholly free at the end, retires it and returns it. Does nothing if there is no
    /// slab of this kind, or another thread holds it.
    ///
    /// # Safety
    /// `kind` is that of this zone's slabs of its class, which have extension words.
    pub unsafe fn while_held(
        &self,
        chunk: u32,
        kind: Kind<'_>,
        act: impl FnOnce(&[AtomicU32]),
    ) -> Option<Retired> {
        let seen = self.state(chunk).load(Ordering::Relaxed);
        if class_in(seen) == kind.class && credit_in(seen) >= MENDING {
            // SAFETY: a stale slab of the class begins at the chunk, and `kind` is that of its
            // class, by the contract.
            unsafe { self.mend(chunk, kind) };
        }
        if !self.hold(chunk, kind) {
            return None;
        }
        // SAFETY: the held slab is one of this kind, which has extension words, by the contract.
        act(unsafe { self.extension(self.slab_address(chunk), kind.geometry) });
        self.release(chunk, kind)
    }

    /// Holds the slab of a class at a chunk. False: there is none, or a thread holds it already.
    pub(super) fn hold(&self, chunk: u32, kind: Kind<'_>) -> bool {
        let state = self.state(chunk);
        let mut seen = state.load(Ordering::Relaxed);
        loop {
            if class_in(seen) != kind.class || seen & HELD != 0 || credit_in(seen) >= MENDING {
                return false;
            }
            // Acquire pairs with the release of the state: the extension words are visible.
            let (done, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            match state.compare_exchange_weak(seen, seen | HELD, done, failed) {
                Ok(_) => return true,
                Err(now) => seen = now,
            }
        }
    }

    /// Ends a hold. If the slab is wholly free, retires it and returns it.
    pub(super) fn release(&self, chunk: u32, kind: Kind<'_>) -> Option<Retired> {
        let state = self.state(chunk);
        let mut seen = state.load(Ordering::Relaxed);
        loop {
            let free = credit_in(seen) == kind.geometry.objects;
            let next = if free { 0 } else { seen & !HELD };
            // Release: a thread that retires the slab after this sees the changed words.
            let (done, failed) = (Ordering::SeqCst, Ordering::Relaxed);
            match state.compare_exchange_weak(seen, next, done, failed) {
                Ok(_) if free => return Some(self.retire(chunk, kind)),
                Ok(_) => return None,
                Err(now) => seen = now,
            }
        }
    }
}
