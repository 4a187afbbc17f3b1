//! Taking runs of pages out of a zone.

use super::credit::Credit;
use super::fit::Want;
use super::{On, Run, Zone, lane};
use crate::os::Platform;
use crate::row::{find_run, span};
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
        loop {
            if let Some(found) = claim() {
                return Some(found);
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
        let claim = |pageblock| zone.claim_in(pageblock, pages, align);
        if align == PageCount::ONE {
            return self.search(Want::run(pages), claim);
        }
        let block = Want::block(pages.max(align));
        if pages == align {
            return self.search(block, claim);
        }
        // An aligned block holds such a run. Where there is none, a run of that length may happen
        // to lie right: each pageblock with one is looked at.
        let found = zone.search_partial(block, claim);
        found.or_else(|| self.search(Want::run(pages), claim))
    }

    /// Calls `claim` with pageblocks until it finds something: first with those that
    /// are partly used and fit, then with those that are free.
    pub(super) fn search<T>(
        &self,
        want: Want,
        mut claim: impl FnMut(Pageblock) -> Option<T>,
    ) -> Option<T> {
        let zone = self.zone;
        if let Some(found) = zone.search_partial(want, &mut claim) {
            return Some(found);
        }
        let mut from = 0;
        while let Some(next) = zone.pageblocks.next(lane::FREE, from) {
            if let Some(found) = claim(Pageblock(next)) {
                self.break_up(Pageblock(next), want.use_of());
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

    /// Calls `claim` with partly used pageblocks that have what is wanted, until it finds
    /// something. Corrects the numbers of those in which it does not.
    fn search_partial<T>(
        &self,
        want: Want,
        mut claim: impl FnMut(Pageblock) -> Option<T>,
    ) -> Option<T> {
        let mut from = Pageblock(0);
        while let Some(next) = self.next_fit(want, from) {
            if next < self.end()
                && let Some(found) = claim(next)
            {
                return Some(found);
            }
            self.refit(next);
            from = next.after(1);
        }
        None
    }

    /// A run in the given pageblock: credit first, then bits.
    fn claim_in(&self, pageblock: Pageblock, pages: PageCount, align: PageCount) -> Option<Pfn> {
        let first = self.first_row(pageblock, pages, align)?;
        let want = Credit::of(pages);
        self.with_credit(pageblock, want, || self.take_bits(pageblock, first, pages, align))
    }

    /// The first row of a pageblock where [`Self::take_bits`] can find a run at this moment.
    fn first_row(&self, pageblock: Pageblock, pages: PageCount, align: PageCount) -> Option<u32> {
        let row = |i| self.row(pageblock.first() + PageCount::of_rows(i)).load();
        if is_in_row(pages, align) {
            return (0..8).find(|&i| find_run(row(i), pages.0, align.0).is_some());
        }
        starts_of_rows(pages, align)
            .find(|&i| row_masks(pages).all(|(k, mask)| row(i + k) & mask == mask))
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

    /// Bits for a run, for which the caller holds credit, not before the row `first`.
    fn take_bits(
        &self,
        pageblock: Pageblock,
        first: u32,
        pages: PageCount,
        align: PageCount,
    ) -> Option<Pfn> {
        let start = |i: u32| pageblock.first() + PageCount::of_rows(i);
        if is_in_row(pages, align) {
            return (first..8).find_map(|i| {
                let offset = self.row(start(i)).take_run(pages.0, align.0)?;
                Some(start(i) + PageCount(offset))
            });
        }
        starts_of_rows(pages, align).skip_while(|&i| i < first).find_map(|i| {
            let take = |&(k, mask): &(u32, u64)| self.row(start(i + k)).take_exact(mask);
            let taken = row_masks(pages).take_while(take).count();
            if taken == row_masks(pages).count() {
                return Some(start(i));
            }
            for (k, mask) in row_masks(pages).take(taken) {
                let free = self.row(start(i + k)).put(mask) & mask;
                debug_assert_eq!(free, 0);
            }
            // Another thread may have counted without them.
            self.raise_fit(pageblock);
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

/// Returns whether a claim looks for such a run inside a row.
fn is_in_row(pages: PageCount, align: PageCount) -> bool {
    pages <= PageCount::ROW && align <= PageCount::ROW
}

/// The rows of a pageblock at which a run may begin that is not inside a row.
fn starts_of_rows(pages: PageCount, align: PageCount) -> impl Iterator<Item = u32> {
    (0..=8 - pages.0.div_ceil(64)).step_by((align.0 / 64).max(1) as usize)
}

/// The masks of the rows of a run that begins at a row: whole rows, and the head of one more.
fn row_masks(pages: PageCount) -> impl Iterator<Item = (u32, u64)> {
    (0..pages.0.div_ceil(64)).map(move |k| {
        (k, if (k + 1) * 64 <= pages.0 { u64::MAX } else { span(0, pages.0 - k * 64) })
    })
}
