//! Giving memory back to the platform: free pages that have old contents are decommitted if no
//! thread used them for a while.
//!
//! Time is counted in generations of half the decay time. A pageblock is due when no page was
//! returned to it for two generations. No thread waits for the clock. Threads read it from time to
//! time, when they return pages, or when a CPU's array runs empty or full.

use super::credit::Credit;
use super::{On, Run, Zone, lane};
use crate::os::Platform;
use crate::row::Row;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{PageCount, Pageblock, Pfn};

/// Least number of ticks between two looks at the clock.
pub const LOOK_EVERY: u64 = 4_000_000;
/// Most pageblocks that one look purges, so no single free takes long.
const AT_ONCE: u32 = 16;
/// Least number of ticks between two counts of what is kept. A thread can touch and return 2 MiB in
/// the meantime.
const COUNT_EVERY: u64 = LOOK_EVERY / 16;

/// The state of a zone's decay.
pub(super) struct Decay {
    generation: AtomicU32,
    /// Begin of the generation, in milliseconds.
    began: AtomicU64,
    /// Ticks at the last look at the clock.
    looked: AtomicU64,
    /// Ticks at the last count of what is kept.
    counted: AtomicU64,
}

impl Decay {
    pub(super) fn new() -> Self {
        Self {
            generation: AtomicU32::new(2),
            began: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            counted: AtomicU64::new(0),
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }
}

/// Outcome of a look at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The clock was not read: the last look was a moment ago.
    Early,
    /// The generation has not changed since the last look.
    Due,
    /// A new generation began: the caller returns memory that is kept for reuse.
    Generation,
}

/// Outcome of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Bytes given back to the platform.
    pub bytes: usize,
}

impl Zone {
    /// Number of free pages that have old contents.
    fn count_kept(&self) -> PageCount {
        let (mut kept, mut from) = (PageCount::ZERO, 0);
        while let Some(next) = self.pageblocks.next(lane::PURGE, from) {
            from = next + 1;
            let pageblock = Pageblock(next);
            if !self.is_whole(pageblock) {
                let free = |(first, row): (Pfn, &Row)| {
                    (row.load() & self.dirty(first).load(Ordering::Relaxed)).count_ones()
                };
                kept += PageCount(self.rows_of(pageblock).map(free).sum());
            }
        }
        kept
    }
}

impl<P: Platform> On<'_, P> {
    /// Looks at the clock, and purges pageblocks that are due, up to a bound. Purges all if more
    /// than `kept` free pages have old contents.
    pub fn decay(&self, decay_ms: u32, kept: PageCount) -> Look {
        let decay = &self.zone.decay;
        if decay_ms == 0 {
            self.purge(0, u32::MAX);
            return Look::Early;
        }
        self.keep_few(kept);
        let (ticks, looked) = (self.platform.ticks(), decay.looked.load(Ordering::Relaxed));
        if ticks.wrapping_sub(looked) < LOOK_EVERY {
            return Look::Early;
        }
        decay.looked.store(ticks, Ordering::Relaxed);
        let (now, began) = (self.platform.now_ms(), decay.began.load(Ordering::Relaxed));
        let half = u64::from(decay_ms).div_ceil(2);
        let new = now.wrapping_sub(began) >= half
            && decay
                .began
                .compare_exchange(began, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if new {
            decay.generation.fetch_add(1, Ordering::Relaxed);
        }
        self.purge(2, AT_ONCE);
        if new { Look::Generation } else { Look::Due }
    }

    /// Purges all if more than `kept` free pages have old contents. Counts them from time to time
    /// only.
    pub fn keep_few(&self, kept: PageCount) {
        if self.zone.committed() <= kept {
            return;
        }
        let (ticks, counted) = (self.platform.ticks(), &self.zone.decay.counted);
        if ticks.wrapping_sub(counted.load(Ordering::Relaxed)) < COUNT_EVERY {
            return;
        }
        counted.store(ticks, Ordering::Relaxed);
        if self.zone.count_kept() > kept {
            self.purge(0, u32::MAX);
        }
    }

    /// Decommits free pages of at most `most` pageblocks to which no page was returned for `age`
    /// generations.
    pub fn purge(&self, age: u32, most: u32) -> Purged {
        let zone = self.zone;
        let mut purged = Purged::default();
        let (mut from, mut left) = (0, most);
        while left > 0 {
            let Some(next) = zone.pageblocks.next(lane::PURGE, from) else {
                break;
            };
            from = next + 1;
            let pageblock = Pageblock(next);
            let stamp = zone.stamp(pageblock).load(Ordering::Relaxed);
            if zone.decay.generation().wrapping_sub(stamp) < age {
                continue;
            }
            // Remove it first: a thread that returns a page now inserts it again.
            zone.pageblocks.remove(lane::PURGE, next);
            purged.bytes += self.purge_pageblock(pageblock);
            left -= 1;
        }
        purged
    }

    /// Takes all free pages of a pageblock, drops their contents, and gives them back. Returns the
    /// bytes dropped.
    fn purge_pageblock(&self, pageblock: Pageblock) -> usize {
        let zone = self.zone;
        let take_whole = |old| (old == Credit::WHOLE).then_some(Credit::HUGE);
        if zone.update_credit(pageblock, take_whole).is_ok() {
            zone.rehint(pageblock);
            let bytes = self.drop_pageblock(pageblock);
            zone.release_pageblock(pageblock);
            return bytes;
        }
        let take_all = |old: Credit| (old.pages() > PageCount::ZERO).then_some(Credit::NONE);
        let Ok(credit) = zone.update_credit(pageblock, take_all) else {
            return 0;
        };
        zone.rehint(pageblock);
        if !self.may_break_up(pageblock, credit.pages()) {
            zone.give_credit(pageblock, credit);
            return 0;
        }
        let (mut left, mut bytes) = (credit.pages().0, 0);
        for (at, row) in zone.rows_of(pageblock) {
            let taken = if left > 0 { row.take(left) } else { 0 };
            left -= taken.count_ones();
            // SAFETY: this thread took the bits of these free pages.
            bytes += unsafe { self.drop_dirty(at, taken) };
            let twice = row.give(taken);
            debug_assert_eq!(twice, 0);
        }
        // Give all credit back. This thread may have missed bits: a search for a longer run takes
        // a row for a moment, and puts it back behind this loop.
        zone.give_credit(pageblock, credit);
        bytes
    }

    /// Drops the contents of a pageblock that this thread took as a whole. Returns the bytes
    /// dropped.
    fn drop_pageblock(&self, pageblock: Pageblock) -> usize {
        let zone = self.zone;
        let all = Run { start: pageblock.first(), pages: PageCount::PAGEBLOCK };
        let dirty: u32 = zone.dirty_spans(all).map(|(_, mask)| mask.count_ones()).sum();
        // SAFETY: this thread took these free pages.
        if dirty == 0 || !unsafe { self.drop_pages(all) } {
            return 0;
        }
        for (row, _) in zone.rows_of(pageblock) {
            zone.dirty(row).store(0, Ordering::Relaxed);
        }
        PageCount(dirty).bytes()
    }

    /// Drops the contents of the dirty pages of a run. Returns the bytes dropped.
    ///
    /// # Safety
    /// The caller alone uses the pages, and their contents are not needed.
    pub unsafe fn drop_contents(&self, run: Run) -> usize {
        // SAFETY: parts of the run, with the same contract.
        run.rows().map(|(row, mask)| unsafe { self.drop_dirty(row, mask) }).sum()
    }

    /// Drops the contents of those pages of a row that are in `taken` and dirty. Returns the bytes
    /// dropped.
    ///
    /// # Safety
    /// The caller alone uses the pages in `taken`, and their contents are not needed.
    unsafe fn drop_dirty(&self, row: Pfn, taken: u64) -> usize {
        let dirty = self.zone.dirty(row);
        let todo = dirty.load(Ordering::Relaxed) & taken;
        let mut bytes = 0;
        for (first, len) in crate::row::runs(todo) {
            let part = Run { start: row + PageCount(first), pages: PageCount(len) };
            // SAFETY: pages in `taken`, with the same contract.
            if unsafe { self.drop_pages(part) } {
                dirty.fetch_and(!crate::row::span(first, len), Ordering::Relaxed);
                bytes += part.pages.bytes();
            }
        }
        bytes
    }
}
