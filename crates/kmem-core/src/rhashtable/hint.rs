//! Hints: addresses of elements, so that most lookups need no walk along the list.
//!
//! Eight buckets share eight hints in one cache line. A reader that finds an element in the list
//! leaves a hint, if there is room. The list decides: a hint may be missing. A reader that follows
//! one checks that the element is still in the list and has the key.
//!
//! | word                              | meaning                                                |
//! |-----------------------------------|--------------------------------------------------------|
//! | 0                                 | free                                                   |
//! | [`CLAIM`], part of an address     | a reader is about to put a hint here; unique to it     |
//! | tag (its lowest bit set), address | an element, and 15 bits of its hash                    |
//!
//! New readers must not find a retired element. So its hints are removed first, and none may be
//! added later. The state word of the element's node decides:
//!
//! - A reader claims a place for its hint, then sets the segment's bit in the state word. That
//!   fails once the element is retired. Only then does the hint replace the claim.
//! - The thread that retires the element clears the state word, and visits the segments whose bits
//!   were set. There it sees each hint and claim. It removes the hints for the element, and all
//!   claims, which may be for it. For an element that no reader looked up, it visits nothing.

use super::list::{HINTED, LIVE, Node};
use crate::sync::{AtomicU64, Ordering};

/// Buckets that share a set of hints, and hints of a set: one cache line.
pub(super) const COUNT: usize = 8;
/// Marks a place that a reader has claimed. (Addresses of elements are multiples of 16.)
const CLAIM: u64 = 1;
/// The bits of an address.
const ADDRESS: u64 = (1 << 48) - 1;

/// Tells the elements of a set apart: high bits of the hash, which rarely choose the bucket. The
/// highest bit is left out, because the order in the list does not keep it.
#[inline(always)]
const fn tag(hash: u64) -> u64 {
    ((hash << 1) >> 48 | 1) << 48
}

/// The hints of eight buckets. Zeroes are no hints.
///
/// # Invariants
/// A word with a tag has the address of an element of the table. The element is valid while a
/// reader that could see the word reads.
#[repr(C)]
pub(super) struct Hints([AtomicU64; COUNT]);

impl Hints {
    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// An element that may have a hash. It branches once, at the end: a lookup waits only for the
    /// element's cache line, and the processor can begin the next lookup meanwhile.
    #[inline(always)]
    pub(super) fn find<'g>(&self, hash: u64) -> Option<&'g Node> {
        let tag = tag(hash);
        // XOR leaves the address of a word with this tag, and more of any other. So the least is
        // the match, found without a branch.
        let rest = self.0.each_ref().map(|place| place.load(Ordering::Acquire) ^ tag);
        let least = |from: usize| rest[from].min(rest[from + 1]);
        let found = least(0).min(least(2)).min(least(4).min(least(6)));
        if found > ADDRESS {
            return None;
        }
        // SAFETY: the word had this tag, which is not zero, so it led to an element that is valid
        // while the calling reader reads (invariant).
        unsafe { (found as *const Node).as_ref() }
    }

    /// Leaves a hint for an element that a reader found in the list, if there is room. `segment` is
    /// the number of the segment with these hints. `belongs` tells whether lookups of a hash use
    /// them. A hint for which it is false may be replaced: its element is in another bucket now.
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
            // SAFETY: no claim, so null or an element that is valid while this reader reads
            // (invariant).
            let other = unsafe { ((seen & ADDRESS) as *const Node).as_ref() };
            if other.is_none_or(|other| !belongs(other.link.hash())) {
                room = room.or(Some((place, seen)));
            }
        }
        let Some((place, seen)) = room else { return };
        // The address of a local variable: no other claim is equal while this call runs.
        let own = 0u8;
        let claim = (&raw const *core::hint::black_box(&own) as u64) << 1 & ADDRESS | CLAIM;
        let order = Ordering::Relaxed;
        if place.compare_exchange(seen, claim, order, order).is_err() {
            return;
        }
        // Release shows the claim to the thread that retires the element.
        let live = node.state.fetch_update(Ordering::AcqRel, order, |state| {
            (state & LIVE != 0).then_some(state | 1 << (HINTED + segment as u32))
        });
        let word = if live.is_ok() { tag(hash) | at } else { 0 };
        // INVARIANT: the element is live, and the thread that retires it removes the hint.
        // Release: a reader that follows the hint sees the whole element. This fails if another
        // thread removed the claim.
        let _ = place.compare_exchange(claim, word, Ordering::Release, order);
    }

    /// Removes the hints for an element, and all claims, which may be for it.
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

/// Removes all hints for an unlinked element, and prevents new ones. `set` returns the hints of a
/// segment that lookups of the element use.
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
