//! Giving memory back to the platform: free pages that have old contents are decommitted if no
//! thread used them for a while.
//!
//! Time is counted in generations of half the decay time. A pageblock is due when no page was
//! returned to it for two generations. No thread waits for the clock. Threads read it from time to
//! time, when they return pages, or when a CPU's array runs empty or full.

use super::credit::Credit;
use super::huge::SPARE;
use super::{On, Run, Zone, lane};
use crate::os::Platform;
use crate::row::Row;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{PageCount, Pageblock, Pfn};

/// Least number of ticks between two looks at the clock.
pub const LOOK_EVERY: u64 = 4_000_000;
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
    /// Free pages that the last purge kept because they are needed again.
    spared: AtomicU32,
}

impl Decay {
    pub(super) fn new() -> Self {
        Self {
            generation: AtomicU32::new(2),
            began: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            spared: AtomicU32::new(0),
        }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }
}

/// A look at the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// The time in milliseconds.
    pub now_ms: u64,
    /// A new generation began: the caller returns memory that is kept for reuse.
    pub new: bool,
}

/// Free pages that a purge leaves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// Those of pageblocks to which a page was returned in the last `age` generations.
    pub age: u32,
    /// This number of free pages, those with the lowest addresses: the next claims take them.
    pub spare: PageCount,
    /// Those of a pageblock with a huge page, if it has at most this number. A huge page cannot go
    /// back in part.
    pub backed: PageCount,
}

impl Keep {
    /// None.
    pub const NOTHING: Self = Self { age: 0, spare: PageCount::ZERO, backed: PageCount::ZERO };
    /// Those that were used a moment ago, and few of a huge page.
    pub const YOUNG: Self = Self { age: 2, spare: PageCount::ZERO, backed: SPARE };
}

/// Outcome of a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Bytes given back to the platform.
    pub bytes: usize,
    /// True if all free pages are among those to spare.
    pub spared_all: bool,
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

    /// The first pageblock behind those whose free pages are the first `spare` ones that may have
    /// old contents.
    fn spare(&self, spare: PageCount) -> u32 {
        let (mut from, mut left) = (0, spare);
        'all: while left > PageCount::ZERO {
            let Some(next) = self.pageblocks.next(lane::PURGE, from) else {
                from = self.pages.pageblocks();
                break;
            };
            // A search for each one would take longer than its credit.
            from = next / 64 * 64;
            let mut bits = self.pageblocks.word_of(lane::PURGE, next / 64);
            while bits != 0 {
                let i = bits.trailing_zeros();
                let free = self.credit(Pageblock(from + i)).pages();
                if free > left {
                    from += i;
                    break 'all;
                }
                left -= free;
                bits &= bits - 1;
            }
            from += 64;
        }
        self.decay.spared.store((spare - left).0, Ordering::Relaxed);
        from
    }

    /// Returns whether there are free pages that may have old contents.
    pub fn may_purge(&self) -> bool {
        self.pageblocks.next(lane::PURGE, 0).is_some()
    }

    /// Free pages that the last purge kept because they are needed again.
    pub fn spared(&self) -> PageCount {
        PageCount(self.decay.spared.load(Ordering::Relaxed))
    }
}

impl<P: Platform> On<'_, P> {
    /// Looks at the clock, and begins a new generation after half the decay time. `None`: the last
    /// look was a moment ago.
    pub fn look(&self, decay_ms: u32) -> Option<Look> {
        let decay = &self.zone.decay;
        let (ticks, looked) = (self.platform.ticks(), decay.looked.load(Ordering::Relaxed));
        if ticks.wrapping_sub(looked) < LOOK_EVERY {
            return None;
        }
        decay.looked.store(ticks, Ordering::Relaxed);
        let (now_ms, began) = (self.platform.now_ms(), decay.began.load(Ordering::Relaxed));
        let half = u64::from(decay_ms).div_ceil(2);
        let new = now_ms.wrapping_sub(began) >= half
            && decay
                .began
                .compare_exchange(began, now_ms, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if new {
            decay.generation.fetch_add(1, Ordering::Relaxed);
        }
        Some(Look { now_ms, new })
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
            self.purge(Keep::NOTHING, u32::MAX);
        }
    }

    /// Decommits free pages of at most `most` pageblocks.
    pub fn purge(&self, keep: Keep, most: u32) -> Purged {
        let zone = self.zone;
        let (mut from, mut left) = (zone.spare(keep.spare), most);
        let mut purged = Purged { bytes: 0, spared_all: from >= zone.pages.pageblocks() };
        while left > 0 && !purged.spared_all {
            let Some(next) = zone.pageblocks.next(lane::PURGE, from) else {
                break;
            };
            from = next + 1;
            let pageblock = Pageblock(next);
            if zone.age(pageblock) < keep.age {
                continue;
            }
            // Remove it first: a thread that returns a page now inserts it again.
            zone.pageblocks.remove(lane::PURGE, next);
            purged.bytes += self.purge_pageblock(pageblock, keep.backed);
            left -= 1;
        }
        purged
    }

    /// Takes all free pages of a pageblock, drops their contents, and gives them back. Returns the
    /// bytes dropped.
    fn purge_pageblock(&self, pageblock: Pageblock, backed: PageCount) -> usize {
        let zone = self.zone;
        if zone.hold(pageblock) {
            let bytes = self.drop_pageblock(pageblock);
            zone.release_pageblock(pageblock);
            return bytes;
        }
        let take_all = |old: Credit| (old.pages() > PageCount::ZERO).then_some(Credit::NONE);
        let Ok(credit) = zone.update_credit(pageblock, take_all) else {
            return 0;
        };
        zone.rehint(pageblock);
        if !self.may_break_up(pageblock, credit.pages(), backed) {
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
