//! Taking runs of pages out of a zone.

use super::{
    BUCKETS, DoubleFree, FrameState, HUGE, On, Run, WHOLE, Zone, bucket, lane, lane_shift, rows_of,
};
use crate::os::Platform;
use crate::row::span;
use crate::sync::Ordering;
use crate::units::{FRAME_ORDER, FRAME_PAGES, Frame, Order, PAGE_SHIFT, PageCount, Pfn};

impl<P: Platform> On<'_, P> {
    /// Takes a naturally aligned block of an order.
    pub fn claim_order(&self, order: Order) -> Option<Run> {
        self.claim(order.pages(), order.pages())
    }

    /// Takes a run of `pages` (not 0) whose address is a multiple of `align` pages (a power of
    /// two). `None`: the zone has no such run and cannot grow one.
    pub fn claim(&self, pages: PageCount, align: PageCount) -> Option<Run> {
        let zone = self.zone;
        let start = self.until_grown(pages.0, align.0, || {
            if pages.0 < FRAME_PAGES && align.0 < FRAME_PAGES {
                zone.claim_in_frames(pages.0, align.0)
            } else {
                zone.claim_frames(pages.0, align.0)
            }
        })?;
        zone.count_used(i64::from(pages.0));
        Some(Run { start, pages })
    }

    /// What `claim` finds, growing the zone for such a run until it does. `None`: it cannot grow.
    pub(super) fn until_grown<T>(
        &self,
        pages: u32,
        align: u32,
        mut claim: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        let mut rewound = false;
        loop {
            if let Some(found) = claim() {
                return Some(found);
            }
            // Growth is rare and dear: look once more at what the cursor passed by.
            if !rewound && self.zone.rewind(bucket(pages.max(align))) {
                rewound = true;
                continue;
            }
            if !self.grow(self.zone.missing(pages, align)?) {
                return None;
            }
        }
    }

    /// Takes `count` whole frames from `first` on, if all are free or can be had: to lengthen a
    /// run of whole frames in place.
    pub fn claim_frames_at(&self, first: Frame, count: u32) -> bool {
        let zone = self.zone;
        let end = u64::from(first.0) + u64::from(count);
        loop {
            let have = zone.committed() >> FRAME_ORDER;
            if end <= u64::from(have) {
                break;
            }
            let missing = (end - u64::from(have)) << FRAME_ORDER;
            if first.0 > have || !self.grow(missing) {
                return false;
            }
        }
        let done = zone.take_frames(first.0, count).is_ok();
        if done {
            zone.count_used(i64::from(count * FRAME_PAGES));
        }
        done
    }
}

impl Zone {
    /// Pages to grow by, so that a run that was not found fits behind the last page in use.
    /// `None`: it never will.
    fn missing(&self, pages: u32, align: u32) -> Option<u64> {
        let room = self.pages - self.committed();
        let frames = self.committed() >> FRAME_ORDER;
        let tail = (0..frames).rev().take_while(|&frame| self.credit(frame) == WHOLE).count();
        let missing = pages.saturating_sub((tail as u32) << FRAME_ORDER).max(1);
        // Alignment beyond a frame may skip nearly that much.
        let want = u64::from(missing) + u64::from(align.saturating_sub(FRAME_PAGES));
        (missing <= room).then_some(want.min(room.into()))
    }

    /// A run shorter than a frame, inside one frame.
    fn claim_in_frames(&self, pages: u32, align: u32) -> Option<Pfn> {
        self.search(bucket(pages.max(align)), |frame| self.claim_in(frame, pages, align))
    }

    /// What `claim` finds in a frame: first in one that is partly used, then in one that is free.
    /// What is not found in a frame is at least as large as the runs of `bucket`.
    pub(super) fn search<T>(
        &self,
        bucket: usize,
        mut claim: impl FnMut(u32) -> Option<T>,
    ) -> Option<T> {
        let first = self.cursor[bucket].load(Ordering::Relaxed);
        let mut frame = first;
        while let Some(next) = self.frames.next(lane::PARTIAL, frame) {
            if let Some(found) = claim(next) {
                self.advance_cursor(bucket, first, next);
                return Some(found);
            }
            frame = next + 1;
        }
        self.advance_cursor(bucket, first, frame);
        let mut frame = 0;
        while let Some(next) = self.frames.next(lane::FREE, frame) {
            if let Some(found) = claim(next) {
                for cursor in &self.cursor {
                    if cursor.load(Ordering::Relaxed) > next {
                        cursor.fetch_min(next, Ordering::Relaxed);
                    }
                }
                return Some(found);
            }
            frame = next + 1;
        }
        None
    }

    /// Remembers that frames below `to` had nothing, unless the cursor moved meanwhile.
    fn advance_cursor(&self, bucket: usize, from: u32, to: u32) {
        if to > from {
            let _ = self.cursor[bucket].compare_exchange(
                from,
                to,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
    }

    /// Puts a cursor back to the first frame: one that got pages back just before a search in
    /// vain advanced the cursor is behind it. False: it is there already.
    fn rewind(&self, bucket: usize) -> bool {
        self.cursor[bucket].swap(0, Ordering::Relaxed) != 0
    }

    /// Lets searches find a frame that got pages back.
    pub(super) fn lower_cursors(&self, frame: u32, longest: u32) {
        for cursor in &self.cursor[..=bucket(longest).min(BUCKETS - 1)] {
            if cursor.load(Ordering::Relaxed) > frame {
                cursor.fetch_min(frame, Ordering::Relaxed);
            }
        }
    }

    /// A run in the given frame: credit first, then bits.
    fn claim_in(&self, frame: u32, pages: u32, align: u32) -> Option<Pfn> {
        let want = pages as u16;
        let old = self
            .update_credit(frame, |old| (old != HUGE && old >= want).then(|| old - want))
            .ok()?;
        let found = self.take_bits(frame, pages, align);
        if found.is_none() {
            self.give_credit(frame, want);
        }
        // In vain, too: what others took meanwhile the credit given back meets in the state it left.
        if FrameState::of(old) != FrameState::of(old - want) {
            self.rehint(frame);
        }
        found
    }

    /// Bits for a run, for which the caller holds credit.
    fn take_bits(&self, frame: u32, pages: u32, align: u32) -> Option<Pfn> {
        let first = Pfn(frame << FRAME_ORDER);
        let row_of = |i: u32| self.row(first.offset(i * 64));
        if pages <= 64 && align <= 64 {
            return (0..8)
                .find_map(|i| Some(first.offset(i * 64 + row_of(i).take_run(pages, align)?)));
        }
        // Whole rows and the head of one more, at a row's start.
        let rows = pages.div_ceil(64);
        let mask = |k: u32| {
            if (k + 1) * 64 <= pages { u64::MAX } else { span(0, pages - k * 64) }
        };
        let step = (align / 64).max(1) as usize;
        (0..=8 - rows).step_by(step).find_map(|i| {
            let taken = (0..rows).take_while(|&k| row_of(i + k).take_exact(mask(k))).count() as u32;
            if taken == rows {
                return Some(first.offset(i * 64));
            }
            for k in 0..taken {
                let free = row_of(i + k).give(mask(k));
                debug_assert_eq!(free, 0);
            }
            None
        })
    }

    /// A run of whole frames, the last of which keeps what is left over.
    fn claim_frames(&self, pages: u32, align: u32) -> Option<Pfn> {
        let count = pages.div_ceil(FRAME_PAGES);
        let align = (align >> FRAME_ORDER).max(1);
        // Alignment is of addresses, frames are numbered from the zone's base.
        let skew = (self.base >> (PAGE_SHIFT + FRAME_ORDER)) as u32 & (align - 1);
        let mut from = 0;
        loop {
            let free = self.frames.next(lane::FREE, from)?;
            let first = (free + skew).next_multiple_of(align) - skew;
            if u64::from(first) + u64::from(count) > u64::from(self.committed() >> FRAME_ORDER) {
                return None;
            }
            match self.take_frames(first, count) {
                Ok(()) => {
                    let rest = count * FRAME_PAGES - pages;
                    if rest > 0 {
                        self.trim(first + count - 1, FRAME_PAGES - rest);
                    }
                    return Some(Pfn(first << FRAME_ORDER));
                }
                Err(taken) => from = taken + 1,
            }
        }
    }

    /// Takes `count` wholly free frames from `first` on, up to four by one compare-and-swap.
    /// If one of them is not free: which.
    fn take_frames(&self, first: u32, count: u32) -> Result<(), u32> {
        let mut frame = first;
        while frame < first + count {
            let here = (4 - frame % 4).min(first + count - frame);
            if let Err(busy) = self.take_lanes(frame, here) {
                self.untake_frames(first, frame - first);
                return Err(busy);
            }
            frame += here;
        }
        for frame in first..first + count {
            self.rehint(frame);
        }
        Ok(())
    }

    fn take_lanes(&self, frame: u32, count: u32) -> Result<(), u32> {
        let word = self.kids(frame);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let mut next = seen;
            for i in frame..frame + count {
                if (seen >> lane_shift(i)) as u16 != WHOLE {
                    return Err(i);
                }
                next |= u64::from(HUGE) << lane_shift(i);
            }
            // Acquire pairs with the release of the last credit given.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Gives whole frames back that nothing was done with.
    fn untake_frames(&self, first: u32, count: u32) {
        for frame in first..first + count {
            self.release_frame(frame);
        }
    }

    /// HUGE -> WHOLE. False: the frame was not HUGE.
    pub(super) fn release_frame(&self, frame: u32) -> bool {
        let done = self.update_credit(frame, |old| (old == HUGE).then_some(WHOLE)).is_ok();
        self.rehint(frame);
        done
    }

    /// Turns a frame that is taken as a whole into a partly used one that keeps its first
    /// `keep` pages.
    pub(super) fn trim(&self, frame: u32, keep: u32) {
        for i in 0..8 {
            let used = keep.saturating_sub(i * 64).min(64);
            let row = self.row(Pfn((frame << FRAME_ORDER) + i * 64));
            let free = if used == 0 { u64::MAX } else { !span(0, used) };
            // The row is ours alone until the credit says otherwise.
            row.0.store(free, Ordering::Relaxed);
        }
        let rest = (FRAME_PAGES - keep) as u16;
        let changed = self.update_credit(frame, |old| (old == HUGE).then_some(rest));
        debug_assert!(changed.is_ok());
        self.rehint(frame);
        self.lower_cursors(frame, u32::from(rest));
    }

    /// Takes exactly the pages from `start` on, if all are free: to lengthen a run in place.
    /// Frames are taken page by page, never as a whole.
    pub fn claim_at(&self, start: Pfn, pages: PageCount) -> bool {
        let mut done = 0;
        while done < pages.0 {
            let at = start.offset(done);
            let len = (64 - at.0 % 64).min(pages.0 - done);
            if at.0 >= self.committed() || !self.claim_span(at, len) {
                if done > 0 {
                    let given: Result<(), DoubleFree> = self.give_spans(start, done);
                    debug_assert!(given.is_ok());
                }
                return false;
            }
            done += len;
        }
        self.count_used(i64::from(pages.0));
        true
    }

    /// Takes a span inside one row.
    fn claim_span(&self, at: Pfn, len: u32) -> bool {
        let (frame, want) = (at.frame().0, len as u16);
        let Ok(old) =
            self.update_credit(frame, |old| (old != HUGE && old >= want).then(|| old - want))
        else {
            return false;
        };
        let taken = self.row(at).take_exact(span(at.0 % 64, len));
        if !taken {
            self.give_credit(frame, want);
        }
        // As in `claim_in`.
        if FrameState::of(old) != FrameState::of(old - want) {
            self.rehint(frame);
        }
        taken
    }

    /// Whether no page of a run can hold old contents.
    pub fn reads_zero(&self, run: Run) -> bool {
        self.dirty_spans(run.start, run.pages.0).next().is_none()
    }

    /// The parts of a run that may hold old contents, as (first page, mask of one row).
    pub(crate) fn dirty_spans(&self, start: Pfn, pages: u32) -> impl Iterator<Item = (Pfn, u64)> {
        rows_of(start, pages).filter_map(|(row, mask)| {
            let mask = self.dirty(row).load(Ordering::Relaxed) & mask;
            (mask != 0).then_some((row, mask))
        })
    }
}
