//! The cache of call sites, from which the fast paths take extension words.

use kmem_layout::word::{EXT_LIVE, TAG_BITS, TAG_MASK};

#[cfg(doc)]
use super::CallSite;
use super::Sites;
use crate::os::ADDRESS_BITS;
use crate::sync::{AtomicU64, Ordering, fence};
use crate::units::TagId;

/// Slots of each cache, found by the key.
const SLOTS: usize = 4096;
/// Number of the bits of an extension word that the cache holds: the tag and the live bit.
const WORD: u32 = TAG_BITS + 1;

/// Distance of a key in a word of the cache, which has the bits of its address to the top. The
/// lowest ones cover bits of the extension word. The number of the slot has them, too, so they
/// cancel where the rest is equal.
const KEY: u32 = u64::BITS - ADDRESS_BITS;
/// Instructions of AArch64 lie at multiples of 4. So the number of a slot has other bits of the key
/// in place of the two lowest.
const FOLD: u32 = 10;

/// The fast paths of allocation are closed from the start to the end.
const ALWAYS: u32 = 1;
/// They are closed for a while.
const FOR_NOW: u32 = 2;

/// Words, each of which has the key and the bits of [`WORD`].
pub(super) type Cache = [AtomicU64; SLOTS];

/// A cache without words.
pub(super) const fn empty() -> Cache {
    [const { AtomicU64::new(0) }; SLOTS]
}

/// The number of a key's slot.
#[inline(always)]
const fn slot(key: usize) -> usize {
    if cfg!(target_arch = "aarch64") { (key ^ key >> FOLD) % SLOTS } else { key % SLOTS }
}

/// The address of the key in the word of a slot.
const fn address(slot: usize, word: u64) -> usize {
    let low = WORD - KEY;
    let high = (word >> WORD << low) as usize;
    let folded = if cfg!(target_arch = "aarch64") { slot ^ high >> FOLD } else { slot };
    high | folded & ((1 << low) - 1)
}

/// The tag in the word of a slot. `None`: the slot is empty.
pub(super) fn tag(slot: usize, word: u64) -> Option<TagId> {
    let bits = word ^ (address(slot, word) as u64) << KEY;
    (word != 0).then_some(TagId(bits as u32 & TAG_MASK))
}

/// The word of a key in one of the caches.
#[inline(always)]
fn look_up(cache: &Cache, key: usize) -> Option<u32> {
    let word = cache[slot(key)].load(Ordering::Relaxed);
    let word = word ^ (key as u64) << KEY;
    if word >> WORD == 0 { Some(word as u32) } else { None }
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
    /// Bits above the address are ignored. Values below [`CallSite::NOBODY`] are no keys, and may
    /// look cached.
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

    /// Forgets the tag of a key.
    pub(super) fn forget_key(&self, key: usize) {
        self.filled()[slot(key)].store(0, Ordering::Relaxed);
    }

    /// Forgets the tags of the keys with these addresses.
    pub(super) fn forget_addresses(&self, start: usize, len: usize) {
        for (number, slot) in self.filled().iter().enumerate() {
            let word = slot.load(Ordering::Relaxed);
            if address(number, word).wrapping_sub(start) < len {
                let _ = slot.compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    /// The cache that is in use.
    fn filled(&self) -> &Cache {
        if self.is_aside.load(Ordering::Relaxed) == 0 { &self.cache } else { &self.aside }
    }

    /// Puts a tag into the cache.
    pub(crate) fn remember(&self, key: usize, tag: TagId) {
        let word = (key as u64) << KEY ^ u64::from(tag.0 | EXT_LIVE);
        let filled = self.filled();
        let slot = &filled[slot(key)];
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

const _: () = {
    // An empty slot, which is zero, belongs to no call site.
    assert!((super::CallSite::NOBODY.address as u64) << KEY >> WORD != 0);
    // A slot's number has the bits that cover the extension word.
    assert!(WORD - KEY <= 2 && FOLD as usize + 2 <= SLOTS.ilog2() as usize);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// Each bit of an address, alone and with others, and each extension word.
    #[test]
    fn a_word_is_found_by_its_address_alone_and_tells_the_address() {
        let addresses = addresses();
        let cache = empty();
        for &kept in &addresses {
            for tag in [0, 1, (1 << TAG_BITS) - 1] {
                let word = (kept as u64) << KEY ^ u64::from(tag | EXT_LIVE);
                cache[slot(kept)].store(word, Ordering::Relaxed);
                assert_eq!(address(slot(kept), word), kept, "{kept:#x}");
                assert_eq!(super::tag(slot(kept), word), Some(TagId(tag)), "{kept:#x}");
                for &other in &addresses {
                    let found = (other == kept).then_some(tag | EXT_LIVE);
                    assert_eq!(look_up(&cache, other), found, "{kept:#x} {other:#x}");
                }
                let with_group = kept | 0x5aa5 << 48;
                assert_eq!(look_up(&cache, with_group), Some(tag | EXT_LIVE), "{kept:#x}");
            }
            cache[slot(kept)].store(0, Ordering::Relaxed);
        }
    }

    fn addresses() -> Vec<usize> {
        let base = 0x2aaa_b5c4_d108_usize;
        let one = (0..ADDRESS_BITS).map(|bit| base ^ 1 << bit);
        let two = (0..ADDRESS_BITS).map(|bit| base ^ 3 << bit & ((1 << ADDRESS_BITS) - 1));
        let low = (3..ADDRESS_BITS).map(|bit| 1 << bit);
        [base].into_iter().chain(one).chain(two).chain(low).collect()
    }
}
