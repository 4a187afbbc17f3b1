//! Hints: where elements of a few buckets are, so that most lookups find one without a walk along the list.
//!
//! Eight buckets share eight, in one cache line. A reader that found an element by the list leaves a hint, if there is room
//! for one. The list stays the truth: a hint may be missing, and whoever finds one looks whether the element is still
//! there, and has the key.
//!
//! | word                              | meaning                                                            |
//! |-----------------------------------|--------------------------------------------------------------------|
//! | 0                                 | free                                                               |
//! | [`CLAIM`], part of an address     | a reader is about to put a hint here; nobody else has this word    |
//! | tag (its lowest bit set), address | an element, and 15 bits of its hash                                |
//!
//! What is retired must not be found by new readers, so its hints go first; and no hint may come after that. The element's
//! own word decides: a reader claims a place for its hint, then sets a bit for the segment in the word, which fails once the
//! element is retired, and only then puts the hint in the place of its claim. Whoever retires the element takes the
//! word away, and looks into the segments whose bits are set: there it sees each claim and hint, breaks claims (which
//! may be for it) and takes its hints out. An element that nobody looked up costs it no look.

use super::list::{HINTED, LIVE, Node};
use crate::sync::{AtomicU64, Ordering};

/// Buckets that share a set of hints, and its places: a cache line.
pub(super) const COUNT: usize = 8;
/// A place that somebody is at. (Addresses of elements are multiples of 16.)
const CLAIM: u64 = 1;
const ADDRESS: u64 = (1 << 48) - 1;

/// What tells the elements of a set apart: of the bits that buckets are rarely chosen by, without the highest, which
/// the order in the list does not know.
#[inline(always)]
const fn tag(hash: u64) -> u64 {
    ((hash << 1) >> 48 | 1) << 48
}

/// The hints of some buckets. Zeroes are none.
#[repr(C)]
pub(super) struct Hints([AtomicU64; COUNT]);

impl Hints {
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// An element that may be the one with that hash. No loop and no branch but the last: what a lookup waits for is the
    /// element's own cache line, and the next lookup can be on its way meanwhile.
    #[inline(always)]
    pub(super) fn find<'g>(&self, hash: u64) -> Option<&'g Node> {
        let tag = tag(hash);
        // What is left of a word with this tag is the address; of others it is more. The least is found without a branch.
        let rest = self.0.each_ref().map(|place| place.load(Ordering::Acquire) ^ tag);
        let least = |from: usize| rest[from].min(rest[from + 1]);
        let found = least(0).min(least(2)).min(least(4).min(least(6)));
        if found > ADDRESS {
            return None;
        }
        // SAFETY: an element, for a tag is never zero; it stays for as long as a reader that saw the hint reads.
        unsafe { (found as *const Node).as_ref() }
    }

    /// Leaves a hint for an element that was found in the list, if there is room. `segment`: the number of that which these
    /// hints are in. `belongs`: whether an element with some hash is looked for here; hints for others, which came to
    /// another bucket since, make room.
    pub(super) fn put(
        &self,
        hash: u64,
        node: &Node,
        segment: usize,
        belongs: impl Fn(u64) -> bool,
    ) {
        let at = &raw const *node as u64;
        if at > ADDRESS {
            return;
        }
        let mut room = None;
        for place in &self.0 {
            let seen = place.load(Ordering::Acquire);
            if seen & CLAIM != 0 {
                continue;
            }
            if seen & ADDRESS == at {
                return;
            }
            // SAFETY: as in `find`.
            let other = unsafe { ((seen & ADDRESS) as *const Node).as_ref() };
            if other.is_none_or(|other| !belongs(other.link.hash())) {
                room = room.or(Some((place, seen)));
            }
        }
        let Some((place, seen)) = room else { return };
        // A word that nobody else uses while this is under way.
        let own = 0u8;
        let claim = (&raw const *core::hint::black_box(&own) as u64) << 1 & ADDRESS | CLAIM;
        let order = Ordering::Relaxed;
        if place.compare_exchange(seen, claim, order, order).is_err() {
            return;
        }
        // Release shows the claim to whoever retires the element.
        let live = node.state.fetch_update(Ordering::AcqRel, order, |state| {
            (state & LIVE != 0).then_some(state | 1 << (HINTED + segment as u32))
        });
        let word = if live.is_ok() { tag(hash) | at } else { 0 };
        // Release: whoever finds it finds it whole. If somebody broke the claim, it stays broken.
        let _ = place.compare_exchange(claim, word, Ordering::Release, order);
    }

    /// Takes out the hints for an element, and breaks claims, which may be for it.
    fn forget(&self, node: &Node) {
        let at = &raw const *node as u64;
        for place in &self.0 {
            let mut seen = place.load(Ordering::Relaxed);
            while seen & CLAIM != 0 || seen != 0 && seen & ADDRESS == at {
                let order = Ordering::Relaxed;
                seen = match place.compare_exchange(seen, 0, order, order) {
                    Ok(_) => break,
                    Err(other) => other,
                };
            }
        }
    }
}

/// Takes out all hints for an element that is gone, and lets none come; `set`: those of a segment, where its would be.
pub(super) fn forget<'g>(node: &Node, set: impl Fn(usize) -> Option<&'g Hints>) {
    // Acquire pairs with the release in `put`.
    let mut segments = node.state.swap(0, Ordering::AcqRel) >> HINTED;
    while segments != 0 {
        if let Some(hints) = set(segments.trailing_zeros() as usize) {
            hints.forget(node);
        }
        segments &= segments - 1;
    }
}
