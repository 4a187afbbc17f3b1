//! The page zone: page runs of any length, from one page to the whole zone.
//!
//! ```text
//! zone   | frame 0 (2 MiB)                          | frame 1 | ..        | committed | reserved
//! rows   | row 0 (64 pages) .. row 7                | ..                     1 bit: free page
//! kids   | credit of frame 0, frame 1, frame 2, frame 3 | ..  four u16 to a word
//! dirty  | like rows                                         1 bit: old contents possible
//! ext    | u32 per page: tag and group of the run that starts there
//! len    | u32 per page: length of the run that starts there, 0 while it is free
//! ```
//!
//! **Credit.** A frame's credit is at most the number of its free bits. Whoever wants pages
//! takes credit first, then bits; whoever returns pages gives bits first, then credit. So
//! credit 512 proves all 512 pages free, and one compare-and-swap to [`HUGE`] takes the frame
//! as a whole, check included. While it is HUGE its bits stay set and belong to the taker.
//!
//! | credit    | state                       | set it is in |
//! |-----------|-----------------------------|--------------|
//! | 0         | full                        | none         |
//! | 1..=511   | partly used                 | PARTIAL      |
//! | 512       | wholly free                 | FREE         |
//! | 0xFFFF    | taken as a whole            | none         |
//!
//! A CPU may hold all the credit of a frame, its [`Reserve`]: the frame then looks full to others.
//!
//! The sets are hints (see [`crate::row::summary`]) that lead to the lowest frame first, so
//! partly used frames fill up and free ones stay whole. There are no locks: a thread that
//! stops anywhere, or a child forked at that moment, costs at most the pages in its hands.
//!
//! Context: any; may call the platform.

use core::ptr::NonNull;

use crate::os::Platform;
use crate::root::ZoneBlock;
use crate::row::summary::{self, Summary};
use crate::row::{Row, span};
use crate::sync::{AtomicU32, AtomicU64, Ordering, atomics};
use crate::units::{
    FRAME_ORDER, FRAME_PAGES, FRAME_SIZE, Frame, MAX_ORDER, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn,
};

mod bulk;
mod check;
mod claim;
mod fork;
mod give;
mod grow;
mod pcp;
mod purge;

pub use bulk::Reserve;
pub use check::Bad;
pub use pcp::{Pcp, Way};
pub use purge::{Look, Purged};

/// Credit of a frame that is taken as a whole.
const HUGE: u16 = 0xFFFF;
/// Credit of a frame that is wholly free.
const WHOLE: u16 = FRAME_PAGES as u16;

/// Lanes of the frame sets.
mod lane {
    pub(super) const PARTIAL: u32 = 0;
    pub(super) const FREE: u32 = 1;
    pub(super) const PURGE: u32 = 2;
    pub(super) const COUNT: u32 = 3;
}

/// Search cursors: one per log2 of the run length.
const BUCKETS: usize = FRAME_ORDER as usize + 1;

/// One zone.
///
/// # Invariants
/// The pointers lead to arrays of the lengths named, in memory that is never freed. Only the
/// parts that describe committed pages are non-zero.
pub struct Zone {
    base: usize,
    pages: u32,
    rows: *const Row,
    kids: *const AtomicU64,
    dirty: *const AtomicU64,
    ext: *const AtomicU32,
    len: *const AtomicU32,
    /// Decay generation of the last return to each frame.
    stamp: *const AtomicU32,
    frames: Summary,
    /// No frame below this one can serve a run of 2^i pages, as far as is known; looked at again
    /// before the zone grows.
    cursor: [AtomicU32; BUCKETS],
    block: *const ZoneBlock,
    used: *const AtomicU32,
    decay: purge::Decay,
    tables: [Table; TABLES],
    /// Pages for which the tables are committed.
    described: AtomicU32,
}

/// Tables that are committed as the zone grows: those of the zone, those of its slabs.
const TABLES: usize = 4 + SLAB_TABLES;
/// See [`TABLES`].
pub const SLAB_TABLES: usize = 2;

/// A table with so many bits for each chunk of 16 pages.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its address.
    pub at: usize,
    /// Bits per chunk.
    pub bits: u32,
}

// SAFETY: all shared state is atomic, reached through pointers that stay valid.
unsafe impl Send for Zone {}
// SAFETY: as above.
unsafe impl Sync for Zone {}

/// A run of pages just taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First page.
    pub start: Pfn,
    /// Length.
    pub pages: PageCount,
}

/// Pages that were returned although they are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DoubleFree(pub Pfn);

/// Sizes of the arrays of a zone, in the order they lie in memory.
struct Carve {
    at: usize,
}

impl Carve {
    /// Offset of the next array, on a cache line of its own.
    const fn take(&mut self, bytes: usize) -> usize {
        let at = self.at;
        self.at = (at + bytes + 63) & !63;
        at
    }
}

impl Zone {
    /// Bytes of metadata for a zone of `pages`.
    pub const fn metadata_bytes(pages: u32) -> usize {
        Self::fixed_bytes(pages)
            + 2 * (pages as usize / 8).next_multiple_of(64)
            + 2 * pages as usize * 4
    }

    /// Of these, the bytes in front that must be committed from the beginning.
    pub const fn fixed_bytes(pages: u32) -> usize {
        let frames = pages >> FRAME_ORDER;
        let mut carve = Carve { at: 0 };
        carve.take(frames.div_ceil(4) as usize * 8); // kids
        carve.take(frames as usize * 4); // stamp
        carve.take(summary::words_for(frames, lane::COUNT) * 8);
        carve.at
    }

    /// Makes a zone of the `pages` at `base`, none of them committed yet.
    ///
    /// # Safety
    /// `base` is the 2 MiB-aligned start of `pages` (a multiple of 512) reserved pages;
    /// `metadata` is [`Self::metadata_bytes`] of reserved memory that is zero once committed,
    /// the first [`Self::fixed_bytes`] of it committed; `slab_tables` are reserved like it;
    /// `block` and `used` are valid; all of it for this zone alone and for good.
    pub unsafe fn new(
        base: NonNull<u8>,
        pages: PageCount,
        metadata: *mut u8,
        slab_tables: [Table; SLAB_TABLES],
        block: *const ZoneBlock,
        used: *const AtomicU32,
    ) -> Self {
        let (base, pages) = (base.as_ptr() as usize, pages.0);
        debug_assert!(base.is_multiple_of(FRAME_SIZE) && pages.is_multiple_of(FRAME_PAGES));
        let frames = pages >> FRAME_ORDER;
        let mut carve = Carve { at: 0 };
        let mut take = |bytes| metadata.wrapping_add(carve.take(bytes));
        let kids = take(frames.div_ceil(4) as usize * 8).cast();
        let stamp = take(frames as usize * 4).cast();
        let sets = take(summary::words_for(frames, lane::COUNT) * 8).cast();
        let rows: *const Row = take(pages as usize / 8).cast();
        let dirty: *const AtomicU64 = take(pages as usize / 8).cast();
        let ext: *const AtomicU32 = take(pages as usize * 4).cast();
        let len: *const AtomicU32 = take(pages as usize * 4).cast();
        // SAFETY: zeroed memory of that size, by the caller's promise.
        let frames = unsafe { Summary::new(sets, frames, lane::COUNT) };
        let mut tables = [Table { at: 0, bits: 0 }; TABLES];
        tables[..4].copy_from_slice(&[
            Table { at: rows as usize, bits: 16 },
            Table { at: dirty as usize, bits: 16 },
            Table { at: ext as usize, bits: 16 * 32 },
            Table { at: len as usize, bits: 16 * 32 },
        ]);
        tables[4..].copy_from_slice(&slab_tables);
        Self {
            base,
            pages,
            rows,
            kids,
            dirty,
            ext,
            len,
            stamp,
            frames,
            cursor: atomics![AtomicU32::new(0); BUCKETS],
            block,
            used,
            decay: purge::Decay::new(),
            tables,
            described: AtomicU32::new(0),
        }
    }

    /// Writes the addresses of the tables for readers.
    pub fn describe(&self, block: &mut ZoneBlock) {
        block.base = self.base as u64;
        block.pages = u64::from(self.pages);
        block.page_ext = self.ext as u64;
        block.page_len = self.len as u64;
        block.rows = self.rows as u64;
        block.dirty = self.dirty as u64;
        block.credit = self.kids as u64;
    }

    /// Address of the zone's first page.
    #[inline]
    pub fn base(&self) -> usize {
        self.base
    }

    /// Pages of address space.
    #[inline]
    pub fn pages(&self) -> PageCount {
        PageCount(self.pages)
    }

    /// The page at an address, if it is one of this zone.
    #[inline]
    pub fn pfn(&self, at: usize) -> Option<Pfn> {
        let pfn = at.wrapping_sub(self.base) >> PAGE_SHIFT;
        (pfn < self.pages as usize).then_some(Pfn(pfn as u32))
    }

    /// Address of a page.
    #[inline]
    pub fn address(&self, pfn: Pfn) -> usize {
        self.base + pfn.0 as usize * PAGE_SIZE
    }

    /// Pages that can be used so far.
    #[inline]
    pub fn committed(&self) -> u32 {
        // SAFETY: `block` is valid for the zone's life.
        unsafe { (*self.block).committed.load(Ordering::Acquire) as u32 }
    }

    /// The extension word of the run that starts at `pfn`.
    #[inline]
    pub fn ext(&self, pfn: Pfn) -> &AtomicU32 {
        debug_assert!(pfn.0 < self.pages);
        // SAFETY: in range.
        unsafe { &*self.ext.add(pfn.0 as usize) }
    }

    /// The length of the run that starts at `pfn`, 0 if none does.
    #[inline]
    pub fn len(&self, pfn: Pfn) -> &AtomicU32 {
        debug_assert!(pfn.0 < self.pages);
        // SAFETY: in range.
        unsafe { &*self.len.add(pfn.0 as usize) }
    }

    fn row(&self, pfn: Pfn) -> &Row {
        debug_assert!(pfn.0 < self.pages);
        // SAFETY: in range.
        unsafe { &*self.rows.add(pfn.0 as usize / 64) }
    }

    fn dirty(&self, pfn: Pfn) -> &AtomicU64 {
        debug_assert!(pfn.0 < self.pages);
        // SAFETY: in range.
        unsafe { &*self.dirty.add(pfn.0 as usize / 64) }
    }

    fn kids(&self, frame: u32) -> &AtomicU64 {
        debug_assert!(frame < self.pages >> FRAME_ORDER);
        // SAFETY: in range.
        unsafe { &*self.kids.add(frame as usize / 4) }
    }

    fn stamp(&self, frame: u32) -> &AtomicU32 {
        debug_assert!(frame < self.pages >> FRAME_ORDER);
        // SAFETY: in range.
        unsafe { &*self.stamp.add(frame as usize) }
    }

    /// The credit of a frame.
    fn credit(&self, frame: u32) -> u16 {
        (self.kids(frame).load(Ordering::SeqCst) >> lane_shift(frame)) as u16
    }

    /// Changes the credit of a frame by `change`, which sees the present value and may refuse.
    /// The value before.
    fn update_credit(&self, frame: u32, change: impl Fn(u16) -> Option<u16>) -> Result<u16, u16> {
        let shift = lane_shift(frame);
        let word = self.kids(frame);
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let old = (seen >> shift) as u16;
            let Some(new) = change(old) else {
                return Err(old);
            };
            let next = seen & !(0xFFFF << shift) | u64::from(new) << shift;
            // Release: bits returned before the credit are visible to whoever takes it.
            match word.compare_exchange_weak(seen, next, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return Ok(old),
                Err(now) => seen = now,
            }
        }
    }

    /// Brings the hint sets up to a frame's credit. Called by whoever moved the credit from
    /// one row of the module's table to another.
    fn rehint(&self, frame: u32) {
        loop {
            let state = FrameState::of(self.credit(frame));
            match state {
                FrameState::Partial => {
                    self.frames.insert(lane::PARTIAL, frame);
                    self.frames.remove(lane::FREE, frame);
                }
                FrameState::Free => {
                    self.frames.insert(lane::FREE, frame);
                    self.frames.remove(lane::PARTIAL, frame);
                }
                FrameState::Taken => {
                    self.frames.remove(lane::PARTIAL, frame);
                    self.frames.remove(lane::FREE, frame);
                }
            }
            if FrameState::of(self.credit(frame)) == state {
                return;
            }
        }
    }

    fn count_used(&self, pages: i64) {
        // SAFETY: `used` is valid for the zone's life.
        unsafe { (*self.used).fetch_add(pages as u32, Ordering::Relaxed) };
    }

    /// Recounts the zone and compares: for every committed frame credit equals free bits, and
    /// wholly free frames and partly used ones can be found. For a zone at rest.
    pub fn validate(&self) -> Result<(), ZoneFault> {
        for frame in 0..self.committed() >> FRAME_ORDER {
            let bits: u32 = (0..8)
                .map(|i| self.row(Pfn((frame << FRAME_ORDER) + i * 64)).load().count_ones())
                .sum();
            let credit = self.credit(frame);
            let right =
                if credit == HUGE { bits == FRAME_PAGES } else { bits == u32::from(credit) };
            if !right {
                return Err(ZoneFault::Credit { frame, credit, bits });
            }
            let hinted = match FrameState::of(credit) {
                FrameState::Partial => self.frames.contains(lane::PARTIAL, frame),
                FrameState::Free => self.frames.contains(lane::FREE, frame),
                FrameState::Taken => true,
            };
            if !hinted {
                return Err(ZoneFault::Hint { frame });
            }
        }
        Ok(())
    }

    /// Whether a frame is taken as a whole.
    pub fn is_whole(&self, frame: Frame) -> bool {
        self.credit(frame.0) == HUGE
    }

    /// Where a run that ends at `end` ends with all that it has: at the end of the frame its last
    /// page lies in, if that is taken as a whole.
    pub fn whole_end(&self, end: Pfn) -> Pfn {
        if end.0.is_multiple_of(FRAME_PAGES) || !self.is_whole(end.frame()) {
            return end;
        }
        end.frame().end()
    }

    /// Free blocks by order, as a buddy allocator would have them: aligned, as large as they can be. For a zone at rest.
    pub fn free_blocks(&self) -> [u64; MAX_ORDER as usize + 1] {
        let mut blocks = [0; MAX_ORDER as usize + 1];
        let committed = self.committed();
        let is_free = |page: u32| {
            self.credit(page >> FRAME_ORDER) != HUGE
                && self.row(Pfn(page)).load() >> (page % 64) & 1 != 0
        };
        let mut page = 0;
        while page < committed {
            if !is_free(page) {
                page += 1;
                continue;
            }
            let most = if page == 0 { MAX_ORDER } else { page.trailing_zeros().min(MAX_ORDER) };
            let mut order = 0;
            while order < most
                && page + (2 << order) <= committed
                && (page + (1 << order)..page + (2 << order)).all(is_free)
            {
                order += 1;
            }
            blocks[order as usize] += 1;
            page += 1 << order;
        }
        blocks
    }

    /// Pages free at this moment.
    pub fn free_pages(&self) -> u64 {
        (0..self.committed() >> FRAME_ORDER)
            .map(|frame| match self.credit(frame) {
                HUGE => 0,
                credit => u64::from(credit),
            })
            .sum()
    }
}

/// What [`Zone::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneFault {
    /// The credit of a frame is not the number of its free bits.
    Credit {
        /// The frame.
        frame: u32,
        /// Its credit.
        credit: u16,
        /// Its free bits.
        bits: u32,
    },
    /// A frame with free pages cannot be found.
    Hint {
        /// The frame.
        frame: u32,
    },
}

/// The rows of the module's table that differ in their hints.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FrameState {
    Taken,
    Partial,
    Free,
}

impl FrameState {
    const fn of(credit: u16) -> Self {
        match credit {
            0 | HUGE => Self::Taken,
            WHOLE => Self::Free,
            _ => Self::Partial,
        }
    }
}

/// Where a frame's credit lies in its word of kids.
const fn lane_shift(frame: u32) -> u32 {
    frame % 4 * 16
}

#[cfg(all(test, loom))]
mod model;

/// The parts of a run, as (first page, mask of one row).
fn rows_of(start: Pfn, pages: u32) -> impl Iterator<Item = (Pfn, u64)> {
    let (mut at, end) = (start.0, start.0 + pages);
    core::iter::from_fn(move || {
        let len = (64 - at % 64).min(end - at);
        let mask = (len > 0).then(|| span(at % 64, len))?;
        let row = Pfn(at / 64 * 64);
        at += len;
        Some((row, mask))
    })
}

/// The cursor for runs of `pages`.
fn bucket(pages: u32) -> usize {
    (pages.next_power_of_two().trailing_zeros() as usize).min(BUCKETS - 1)
}

/// A zone together with the platform under it.
#[derive(Clone, Copy)]
pub struct On<'a, P> {
    /// The zone.
    pub zone: &'a Zone,
    /// Its platform.
    pub platform: &'a P,
}

impl Zone {
    /// The zone with its platform, for operations that may call it.
    pub fn on<'a, P: Platform>(&'a self, platform: &'a P) -> On<'a, P> {
        On { zone: self, platform }
    }
}
