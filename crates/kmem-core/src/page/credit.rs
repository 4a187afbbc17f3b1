//! Credit of pageblocks: how many free pages of one may still be claimed.
//!
//! ```text
//! credits[pageblock / 4]   four lanes of 16 bits, one per pageblock
//! ```
//!
//! | credit    | state of the pageblock | where searches find it       |
//! |-----------|------------------------|------------------------------|
//! | 0         | full                   | nowhere                      |
//! | 1..=511   | partly used            | in the trees of [`super::fit`] |
//! | 512       | wholly free            | in the set FREE              |
//! | 0xFFFF    | taken as a whole       | nowhere                      |

use super::{Zone, lane};
use crate::sync::{AtomicU64, Ordering};
use crate::units::{PAGEBLOCK_PAGES, PageCount, Pageblock};

/// The credit of one pageblock: pages that may be claimed, or [`Credit::HUGE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Credit(pub(super) u16);

impl Credit {
    /// No page may be claimed.
    pub(super) const NONE: Self = Self(0);
    /// The pageblock is wholly free.
    pub(super) const WHOLE: Self = Self(PAGEBLOCK_PAGES as u16);
    /// The pageblock is taken as a whole; its row bits stay set and belong to the taker.
    pub(super) const HUGE: Self = Self(0xFFFF);

    /// Pages that may be claimed.
    pub(super) const fn pages(self) -> PageCount {
        PageCount(if self.0 == Self::HUGE.0 { 0 } else { self.0 as u32 })
    }

    /// Credit for `pages` of one pageblock.
    pub(super) const fn of(pages: PageCount) -> Self {
        Self(pages.0 as u16)
    }

    /// Credit that is left after `want` is taken; `None` if there is less than `want`.
    pub(super) fn less(self, want: Self) -> Option<Self> {
        (self != Self::HUGE && self.0 >= want.0).then(|| Self(self.0 - want.0))
    }

    /// The sum, at most [`Self::WHOLE`]: a pageblock cannot hold more, and a bug elsewhere must not
    /// make it [`Self::HUGE`].
    pub(super) fn plus(self, more: Self) -> Self {
        Self((self.0 + more.0).min(Self::WHOLE.0))
    }

    pub(super) const fn state(self) -> State {
        match self {
            Self::NONE | Self::HUGE => State::Taken,
            Self::WHOLE => State::Free,
            _ => State::Partial,
        }
    }
}

/// The states of the module's table that differ in their hints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Taken,
    Partial,
    Free,
}

/// A word of credit whose pageblocks are all wholly free.
const FOUR_WHOLE: u64 = u64::MAX / 0xFFFF * Credit::WHOLE.0 as u64;
/// A word of credit whose pageblocks are all taken as a whole.
const FOUR_HUGE: u64 = u64::MAX;

/// Lowest bit of a pageblock's credit in its word.
const fn lane_shift(pageblock: Pageblock) -> u32 {
    pageblock.0 % 4 * 16
}

/// The credit of a pageblock in the word it lies in.
const fn credit_in(word: u64, pageblock: Pageblock) -> Credit {
    Credit((word >> lane_shift(pageblock)) as u16)
}

/// The word with another credit for a pageblock.
const fn with_credit(word: u64, pageblock: Pageblock, credit: Credit) -> u64 {
    let shift = lane_shift(pageblock);
    word & !(0xFFFF << shift) | (credit.0 as u64) << shift
}

impl Zone {
    /// The word with the credit of a pageblock and its three neighbours.
    fn credits(&self, pageblock: Pageblock) -> &AtomicU64 {
        debug_assert!(pageblock.0 < self.pages.pageblocks());
        // SAFETY: `credits` has a lane for each pageblock of the zone, by its invariant; callers
        // pass pageblocks of the zone.
        unsafe { &*self.credits.add(pageblock.0 as usize / 4) }
    }

    /// The credit of a pageblock.
    pub(super) fn credit(&self, pageblock: Pageblock) -> Credit {
        credit_in(self.credits(pageblock).load(Ordering::SeqCst), pageblock)
    }

    /// Changes the credit of a pageblock by `change`, which gets the old value and may refuse.
    /// Returns the old value.
    ///
    /// # Errors
    /// The value that `change` refused.
    pub(super) fn update_credit(
        &self,
        pageblock: Pageblock,
        change: impl Fn(Credit) -> Option<Credit>,
    ) -> Result<Credit, Credit> {
        let word = self.credits(pageblock);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let old = credit_in(seen, pageblock);
            let Some(new) = change(old) else {
                return Err(old);
            };
            let next = with_credit(seen, pageblock, new);
            // Release: bits returned before the credit are visible to the thread that takes it.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Ok(old),
                Err(now) => seen = now,
            }
        }
    }

    /// Sets the credit of a pageblock, in a zone that no other thread changes.
    pub(super) fn set_credit(&self, pageblock: Pageblock, credit: Credit) {
        let _ = self.update_credit(pageblock, |_| Some(credit));
    }

    /// Brings the hints up to a pageblock's credit. Called by the thread that moved the credit
    /// from one state of the module's table to another.
    pub(super) fn rehint(&self, pageblock: Pageblock) {
        loop {
            let state = self.credit(pageblock).state();
            match state {
                State::Free => self.pageblocks.insert(lane::FREE, pageblock.0),
                State::Partial | State::Taken => self.pageblocks.remove(lane::FREE, pageblock.0),
            }
            if self.credit(pageblock).state() == state {
                break;
            }
        }
        self.refit(pageblock);
    }

    /// Adds credit for pages whose bits were set before.
    pub(super) fn give_credit(&self, pageblock: Pageblock, more: Credit) {
        if !self.add_credit(pageblock, more) {
            self.raise_fit(pageblock);
        }
    }

    /// Adds credit for pages whose bits were set before. False: the caller must see to it that
    /// searches find these pages.
    pub(super) fn add_credit(&self, pageblock: Pageblock, more: Credit) -> bool {
        let old =
            self.update_credit(pageblock, |old| (old != Credit::HUGE).then(|| old.plus(more)));
        let moved = old.is_ok_and(|old| old.state() != old.plus(more).state());
        if moved {
            self.rehint(pageblock);
        }
        moved
    }

    /// Takes up to `most` of the four pageblocks of one word that are wholly free. Returns those
    /// taken as bits.
    pub(super) fn take_some_lanes(&self, first: Pageblock, most: u32) -> u32 {
        let word = self.credits(first);
        let mut seen = word.load(Ordering::Relaxed);
        if most >= 4 && seen == FOUR_WHOLE {
            // The common case; for the orderings see the loop below.
            match word.compare_exchange(seen, FOUR_HUGE, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return 0xF,
                Err(now) => seen = now,
            }
        }
        loop {
            let (mut next, mut lanes) = (seen, 0u32);
            for i in 0..4 {
                let pageblock = first.after(i);
                if credit_in(seen, pageblock) == Credit::WHOLE && lanes.count_ones() < most {
                    next = with_credit(next, pageblock, Credit::HUGE);
                    lanes |= 1 << i;
                }
            }
            if lanes == 0 {
                return 0;
            }
            // Acquire pairs with the release of the last credit given.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return lanes,
                Err(now) => seen = now,
            }
        }
    }

    /// Takes `count` wholly free pageblocks of one word, from `first` on.
    ///
    /// # Errors
    /// One of them that is not free; none is taken.
    pub(super) fn take_lanes(&self, first: Pageblock, count: u32) -> Result<(), Pageblock> {
        let word = self.credits(first);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let mut next = seen;
            for pageblock in first.up_to(first.after(count)) {
                if credit_in(seen, pageblock) != Credit::WHOLE {
                    return Err(pageblock);
                }
                next = with_credit(next, pageblock, Credit::HUGE);
            }
            // Acquire pairs with the release of the last credit given.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Makes those of the four pageblocks of a word that are in `lanes` wholly free. Returns the
    /// bits of those that were not taken as a whole.
    pub(super) fn release_lanes(&self, first: Pageblock, lanes: u32) -> u32 {
        let word = self.credits(first);
        let mut seen = word.load(Ordering::Relaxed);
        if lanes == 0xF && seen == FOUR_HUGE {
            match word.compare_exchange(seen, FOUR_WHOLE, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return 0,
                Err(now) => seen = now,
            }
        }
        loop {
            let (mut next, mut twice) = (seen, 0u32);
            for i in (0..4).filter(|i| lanes >> i & 1 != 0) {
                let pageblock = first.after(i);
                if credit_in(seen, pageblock) == Credit::HUGE {
                    next = with_credit(next, pageblock, Credit::WHOLE);
                } else {
                    twice |= 1 << i;
                }
            }
            // Release: the next owner sees the last owner's writes.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return twice,
                Err(now) => seen = now,
            }
        }
    }

    /// Returns whether the four pageblocks of the word of `first` are all wholly free.
    pub(super) fn are_four_whole(&self, first: Pageblock) -> bool {
        self.credits(first).load(Ordering::SeqCst) == FOUR_WHOLE
    }

    /// Takes a pageblock that is wholly free.
    pub(super) fn hold(&self, pageblock: Pageblock) -> bool {
        let take = |old| (old == Credit::WHOLE).then_some(Credit::HUGE);
        let held = self.update_credit(pageblock, take).is_ok();
        if held {
            self.rehint(pageblock);
        }
        held
    }

    /// Makes a pageblock wholly free. False: it was not taken as a whole.
    pub(super) fn release_pageblock(&self, pageblock: Pageblock) -> bool {
        let release = |old| (old == Credit::HUGE).then_some(Credit::WHOLE);
        let done = self.update_credit(pageblock, release).is_ok();
        self.rehint(pageblock);
        done
    }

    /// Returns whether a pageblock is taken as a whole.
    pub fn is_whole(&self, pageblock: Pageblock) -> bool {
        self.credit(pageblock) == Credit::HUGE
    }
}
