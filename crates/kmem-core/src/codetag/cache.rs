//! The cache of call sites, from which the fast paths take extension words.

use kmem_layout::word::{EXT_LIVE, TAG_BITS};

#[cfg(doc)]
use super::CallSite;
use super::Sites;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::units::TagId;

/// Slots of each cache, found by the key.
pub(super) const CACHE_SLOTS: usize = 4096;
/// Number of the bits of an extension word that the cache holds: the tag and the live bit.
pub(super) const CACHE_WORD: u32 = TAG_BITS + 1;

/// The fast paths of allocation are closed from the start to the end.
const ALWAYS: u32 = 1;
/// They are closed for a while.
const FOR_NOW: u32 = 2;

/// Words, each of which has the key and the bits of [`CACHE_WORD`].
pub(super) type Cache = [AtomicU64; CACHE_SLOTS];

/// The word of a key in one of the caches.
#[inline(always)]
fn look_up(cache: &Cache, key: usize) -> Option<u32> {
    let word = cache[key % CACHE_SLOTS].load(Ordering::Relaxed);
    let word = word ^ (key as u64) << TAG_BITS;
    if word >> CACHE_WORD == 0 { Some(word as u32) } else { None }
}

impl Sites {
    /// Address of both caches and their length in bytes. A reader outside the process may zero
    /// them.
    pub fn cache_part(&self) -> (u64, u64) {
        const {
            let aside = core::mem::offset_of!(Self, aside);
            assert!(core::mem::offset_of!(Self, cache) + size_of::<Cache>() == aside);
        }
        (self.cache.as_ptr() as u64, 2 * size_of::<Cache>() as u64)
    }

    /// The extension word of a live object with this key (see [`CallSite`]), if the cache has it.
    /// Bits above the address are ignored. The values 0 and 1, which are no keys, look cached.
    #[inline(always)]
    pub fn cached(&self, key: usize) -> Option<u32> {
        look_up(&self.cache, key)
    }

    /// [`Self::cached`] for a path behind the closed fast paths; see [`Self::put_aside`].
    #[inline]
    pub fn cached_aside(&self, key: usize) -> Option<u32> {
        look_up(&self.aside, key)
    }

    /// Closes the fast paths of allocation: [`Self::cached`] knows no key from now on, and
    /// [`Self::cached_aside`] does. Called once, before any allocation.
    pub fn put_aside(&self) {
        self.is_aside.store(ALWAYS, Ordering::Relaxed);
    }

    /// Returns whether [`Self::put_aside`] was called.
    #[inline]
    pub fn are_put_aside(&self) -> bool {
        self.is_aside.load(Ordering::Relaxed) & ALWAYS != 0
    }

    /// Does as [`Self::put_aside`] until it is told to end. The caller then calls
    /// [`Self::forget`].
    pub fn put_aside_while(&self, on: bool) {
        if on {
            self.is_aside.fetch_or(FOR_NOW, Ordering::SeqCst);
        } else {
            self.is_aside.fetch_and(!FOR_NOW, Ordering::SeqCst);
        }
    }

    /// [`Self::cached`] in the cache that is in use.
    #[inline]
    pub(super) fn look_up(&self, key: usize) -> Option<u32> {
        look_up(self.filled(), key)
    }

    /// The cache that is in use.
    pub(super) fn filled(&self) -> &Cache {
        if self.is_aside.load(Ordering::Relaxed) == 0 { &self.cache } else { &self.aside }
    }

    /// Puts a tag into the cache.
    pub(crate) fn remember(&self, key: usize, tag: TagId) {
        let word = (key as u64) << TAG_BITS ^ u64::from(tag.0 | EXT_LIVE);
        let filled = self.filled();
        let slot = &filled[key % CACHE_SLOTS];
        slot.store(word, Ordering::Relaxed);
        // If the other cache is filled from now on, `forget` comes after this, or this sees it.
        fence(Ordering::SeqCst);
        if !core::ptr::eq(filled, self.filled()) {
            slot.store(0, Ordering::Relaxed);
        }
    }

    /// Empties both caches. A call site without an entry takes the slow path.
    pub fn forget(&self) {
        // A thread that finds a slot empty sees what the caller wrote before.
        fence(Ordering::SeqCst);
        for word in self.cache.iter().chain(&self.aside) {
            word.store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}
