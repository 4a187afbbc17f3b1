//! Taking runs of pages out of a zone.

use super::credit::Credit;
use super::{BUCKETS, On, Run, Zone, bucket, lane};
use crate::os::Platform;
use crate::row::span;
use crate::sync::Ordering;
use crate::units::{
    Order, PAGE_SHIFT, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, PageCount, Pageblock, Pfn,
};

impl<P: Platform> On<'_, P> {
    /// Takes a naturally aligned block of an order.
    pub fn claim_order(&self, order: Order) -> Option<Run> {
        self.claim(order.pages(), order.pages())
    }

    /// Takes a run of `pages` (not 0) whose address is a multiple of `align` pages (a power of
    /// two). `None`: the zone has no such run and cannot grow one.
    pub fn claim(&self, pages: PageCount, align: PageCount) -> Option<Run> {
        let zone = self.zone;
        let short = pages < PageCount::PAGEBLOCK && align < PageCount::PAGEBLOCK;
        let start = self.until_grown(pages, align, || {
            if short {
                self.claim_in_pageblocks(pages, align)
            } else {
                zone.claim_pageblocks(pages, align)
            }
        })?;
        if !short {
            self.take_whole(start.pageblock(), pages.0.div_ceil(PAGEBLOCK_PAGES));
        }
        zone.count_taken(pages);
        Some(Run { start, pages })
    }

    /// Calls `claim` until it finds something, growing the zone for such a run in between. `None`:
    /// the zone cannot grow.
    pub(super) fn until_grown<T>(
        &self,
        pages: PageCount,
        align: PageCount,
        mut claim: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let mut rewound = false;
        loop {
            if let Some(found) = claim() {
                return Some(found);
            }
            // Growth is rare and expensive: first search the pageblocks below the cursor again.
            if !rewound && self.zone.rewind(bucket(pages.max(align))) {
                rewound = true;
                continue;
            }
            if !self.grow(self.zone.missing(pages, align)?) {
                return None;
            }
        }
    }

    /// Takes `count` whole pageblocks from `first` on, to lengthen a run in place. False: one is
    /// not free, or the zone cannot grow that far.
    pub fn claim_pageblocks_at(&self, first: Pageblock, count: u32) -> bool {
        let zone = self.zone;
        let Some(end) = first.0.checked_add(count) else { return false };
        loop {
            let have = zone.end().0;
            if end <= have {
                break;
            }
            if first.0 > have || !self.grow(PageCount::of_pageblocks(end - have)) {
                return false;
            }
        }
        let done = zone.take_pageblocks(first, count).is_ok();
        if done {
            self.take_whole(first, count);
            zone.count_taken(PageCount::of_pageblocks(count));
        }
        done
    }

    /// A run shorter than a pageblock, inside one pageblock.
    fn claim_in_pageblocks(&self, pages: PageCount, align: PageCount) -> Option<Pfn> {
        let zone = self.zone;
        self.search(bucket(pages.max(align)), |pageblock| zone.claim_in(pageblock, pages, align))
    }

    /// Calls `claim` with pageblocks until it finds something: first with those that are partly
    /// used, then with those that are free. `bucket` is that of the smallest run that a pageblock
    /// may lack for `claim` to find nothing in it.
    pub(super) fn search<T>(
        &self,
        bucket: usize,
        mut claim: impl FnMut(Pageblock) -> Option<T>,
    ) -> Option<T> {
        let zone = self.zone;
        let first = zone.cursor[bucket].load(Ordering::Relaxed);
        let mut from = first;
        while let Some(next) = zone.pageblocks.next(lane::PARTIAL, from) {
            if let Some(found) = claim(Pageblock(next)) {
                zone.advance_cursor(bucket, first, next);
                return Some(found);
            }
            from = next + 1;
        }
        zone.advance_cursor(bucket, first, from);
        let mut from = 0;
        while let Some(next) = zone.pageblocks.next(lane::FREE, from) {
            if let Some(found) = claim(Pageblock(next)) {
                zone.lower_cursors(Pageblock(next), PageCount::PAGEBLOCK);
                self.break_up(Pageblock(next));
                return Some(found);
            }
            from = next + 1;
        }
        None
    }
}

impl Zone {
    /// Pages to grow by, so that a run that was not found fits behind the last page in use.
    /// `None`: the zone can never hold it.
    fn missing(&self, pages: PageCount, align: PageCount) -> Option<PageCount> {
        let room = self.space.end().saturating_sub(self.committed());
        let is_free = |&pageblock: &Pageblock| self.credit(pageblock) == Credit::WHOLE;
        let tail = Pageblock(0).up_to(self.end()).rev().take_while(is_free).count();
        let missing = pages.saturating_sub(PageCount::of_pageblocks(tail as u32));
        let missing = missing.max(PageCount::ONE);
        // Alignment beyond a pageblock may skip nearly as much as it asks for.
        let want = missing.0.saturating_add(align.saturating_sub(PageCount::PAGEBLOCK).0);
        (missing <= room).then_some(PageCount(want).min(room))
    }

    /// Remembers that pageblocks below `to` had nothing, unless another thread moved the cursor.
    fn advance_cursor(&self, bucket: usize, from: u32, to: u32) {
        if to > from {
            let cursor = &self.cursor[bucket];
            let _ = cursor.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Puts a cursor back to the first pageblock. A search that fails may advance the cursor past
    /// a pageblock that gets pages back at that moment. False: the cursor is there already.
    fn rewind(&self, bucket: usize) -> bool {
        self.cursor[bucket].swap(0, Ordering::Relaxed) != 0
    }

    /// Lets searches for runs of up to `longest` pages find a pageblock that got pages back.
    pub(super) fn lower_cursors(&self, pageblock: Pageblock, longest: PageCount) {
        for cursor in &self.cursor[..=bucket(longest).min(BUCKETS - 1)] {
            if cursor.load(Ordering::Relaxed) > pageblock.0 {
                cursor.fetch_min(pageblock.0, Ordering::Relaxed);
            }
        }
    }

    /// A run in the given pageblock: credit first, then bits.
    fn claim_in(&self, pageblock: Pageblock, pages: PageCount, align: PageCount) -> Option<Pfn> {
        let want = Credit::of(pages);
        self.with_credit(pageblock, want, || self.take_bits(pageblock, pages, align))
    }

    /// Takes `want` credit of a pageblock, and gives it back if `take` finds no bits for it.
    fn with_credit<T>(
        &self,
        pageblock: Pageblock,
        want: Credit,
        take: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let old = self.update_credit(pageblock, |old| old.less(want)).ok()?;
        let found = take();
        if found.is_none() {
            self.give_credit(pageblock, want);
        }
        // On failure, too: other threads may have taken pages while this credit was withheld, and
        // left the hints as of a state that is over.
        let left = old.less(want).unwrap_or(Credit::NONE);
        if old.state() != left.state() {
            self.rehint(pageblock);
        }
        found
    }

    /// Bits for a run, for which the caller holds credit.
    fn take_bits(&self, pageblock: Pageblock, pages: PageCount, align: PageCount) -> Option<Pfn> {
        let first = pageblock.first();
        let start = |i: u32| first + PageCount::of_rows(i);
        if pages <= PageCount::ROW && align <= PageCount::ROW {
            return (0..8).find_map(|i| {
                let offset = self.row(start(i)).take_run(pages.0, align.0)?;
                Some(start(i) + PageCount(offset))
            });
        }
        // Whole rows and the head of one more, at a row's start.
        let rows = pages.0.div_ceil(64);
        let mask = |k: u32| {
            if (k + 1) * 64 <= pages.0 { u64::MAX } else { span(0, pages.0 - k * 64) }
        };
        let step = (align.0 / 64).max(1) as usize;
        (0..=8 - rows).step_by(step).find_map(|i| {
            let take = |&k: &u32| self.row(start(i + k)).take_exact(mask(k));
            let taken = (0..rows).take_while(take).count() as u32;
            if taken == rows {
                return Some(start(i));
            }
            for k in 0..taken {
                let free = self.row(start(i + k)).give(mask(k));
                debug_assert_eq!(free, 0);
            }
            None
        })
    }

    /// A run of whole pageblocks. The last one becomes partly used if the run ends inside it.
    fn claim_pageblocks(&self, pages: PageCount, align: PageCount) -> Option<Pfn> {
        let count = pages.0.div_ceil(PAGEBLOCK_PAGES);
        let align = align.pageblocks().max(1);
        // Alignment is of addresses; pageblocks are numbered from the zone's base.
        let skew = (self.base >> (PAGE_SHIFT + PAGEBLOCK_ORDER)) as u32 & (align - 1);
        let mut from = 0;
        loop {
            let free = self.pageblocks.next(lane::FREE, from)?;
            let first = (free + skew).next_multiple_of(align) - skew;
            if u64::from(first) + u64::from(count) > u64::from(self.end().0) {
                return None;
            }
            let first = Pageblock(first);
            match self.take_pageblocks(first, count) {
                Ok(()) => {
                    let rest = PageCount::of_pageblocks(count) - pages;
                    if rest > PageCount::ZERO {
                        self.trim(first.after(count - 1), PageCount::PAGEBLOCK - rest);
                    }
                    return Some(first.first());
                }
                Err(taken) => from = taken.0 + 1,
            }
        }
    }

    /// Takes `count` wholly free pageblocks from `first` on, up to four by one compare-and-swap.
    ///
    /// # Errors
    /// One of them that is not free; none is taken.
    fn take_pageblocks(&self, first: Pageblock, count: u32) -> Result<(), Pageblock> {
        let end = first.after(count);
        let mut at = first;
        while at < end {
            let here = (4 - at.0 % 4).min(end.0 - at.0);
            if let Err(busy) = self.take_lanes(at, here) {
                first.up_to(at).for_each(|taken| {
                    self.release_pageblock(taken);
                });
                return Err(busy);
            }
            at = at.after(here);
        }
        first.up_to(end).for_each(|pageblock| self.rehint(pageblock));
        Ok(())
    }

    /// Turns a pageblock that is taken as a whole into a partly used one that keeps its first
    /// `keep` pages.
    pub(super) fn trim(&self, pageblock: Pageblock, keep: PageCount) {
        for (i, (_, row)) in (0..).zip(self.rows_of(pageblock)) {
            let used = keep.0.saturating_sub(i * 64).min(64);
            let free = if used == 0 { u64::MAX } else { !span(0, used) };
            // Only the caller uses the row until the credit says otherwise.
            row.0.store(free, Ordering::Relaxed);
        }
        let rest = PageCount::PAGEBLOCK - keep;
        let shrink = |old| (old == Credit::HUGE).then_some(Credit::of(rest));
        let changed = self.update_credit(pageblock, shrink);
        debug_assert!(changed.is_ok());
        self.rehint(pageblock);
        self.lower_cursors(pageblock, rest);
    }

    /// Takes exactly the pages from `start` on, if all are free: to lengthen a run in place.
    /// Pageblocks are taken page by page, never as a whole.
    pub fn claim_at(&self, start: Pfn, pages: PageCount) -> bool {
        let mut done = PageCount::ZERO;
        while done < pages {
            let at = start + done;
            let len = PageCount(64 - at.0 % 64).min(pages - done);
            if at.index() >= self.committed() || !self.claim_span(at, len) {
                if done > PageCount::ZERO {
                    let given = self.give_spans(Run { start, pages: done });
                    debug_assert!(given.is_ok());
                }
                return false;
            }
            done += len;
        }
        self.count_taken(pages);
        true
    }

    /// Takes a span of pages inside one row.
    fn claim_span(&self, at: Pfn, len: PageCount) -> bool {
        let take = || self.row(at).take_exact(span(at.0 % 64, len.0)).then_some(());
        self.with_credit(at.pageblock(), Credit::of(len), take).is_some()
    }
}
