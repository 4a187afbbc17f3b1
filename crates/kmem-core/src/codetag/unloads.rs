//! Unloads of objects. What is remembered of the program's code holds until the next one.

use crate::sync::{AtomicU64, Ordering, fence};

/// Unloads under way, in the lower half of the word.
const UNLOADING: u64 = (1 << 32) - 1;

/// A number that changes when an object is unloaded. Rules hold within one generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

impl Generation {
    /// The generation without the number of unloads. `None`: an object is being unloaded, so
    /// nothing may be kept.
    #[inline(always)]
    pub(super) fn settled(self) -> Option<u32> {
        (self.0 & UNLOADING == 0).then_some((self.0 >> 32) as u32)
    }
}

/// The unloads of a program. Zeroed, there was none.
pub(super) struct Unloads {
    generation: AtomicU64,
}

impl Unloads {
    pub(super) const fn new() -> Self {
        Self { generation: AtomicU64::new(0) }
    }

    /// The generation of what is found from now on.
    #[inline(always)]
    pub(super) fn generation(&self) -> Generation {
        // Acquire pairs with the release that ends an unload: the old is forgotten.
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Notes that an object is about to be unloaded.
    pub(super) fn begin(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }

    /// Notes that the object of a [`Self::begin`] is gone, after `forget` emptied the caches.
    pub(super) fn end(&self, forget: impl FnOnce()) {
        // Pairs with the fence of a thread that keeps a rule. Either `forget` finds its rule, and
        // the memory that the thread made for it, or the thread sees that this unload began.
        fence(Ordering::SeqCst);
        forget();
        let next = |state: u64| {
            let unloading = (state & UNLOADING).saturating_sub(1);
            Some(((state >> 32).wrapping_add(1) << 32) | unloading)
        };
        let _ = self.generation.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    }

    /// In a forked child: no other thread goes on to unload an object. Returns whether one was
    /// being unloaded. It may be gone, so a new generation begins.
    pub(super) fn forget(&self) -> bool {
        let state = self.generation.load(Ordering::Relaxed);
        let was_unloading = state & UNLOADING != 0;
        if was_unloading {
            let next = (state >> 32).wrapping_add(1) << 32;
            self.generation.store(next, Ordering::Release);
        }
        was_unloading
    }
}
