//! Giving memory back to the platform: free pages that hold old contents are decommitted once
//! they have been left alone for a while.
//!
//! Time is counted in generations of half the decay time. A frame is due when nothing was
//! returned to it for two generations. Nobody waits for the clock: it is looked at now and
//! then, when pages are returned or a CPU's array runs empty or full.

use core::ptr::NonNull;

use super::{HUGE, On, Run, WHOLE, lane, rows_of};
use crate::os::Platform;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{FRAME_ORDER, FRAME_PAGES, PAGE_SIZE, Pfn};

/// Ticks between two looks at the clock.
const LOOK_EVERY: u64 = 4_000_000;
/// Frames purged at one look, so that no single free takes long.
const AT_ONCE: u32 = 16;

/// The state of a zone's decay.
pub(super) struct Decay {
    generation: AtomicU32,
    /// When the generation began, in ms.
    began: AtomicU64,
    /// Ticks at the last look at the clock.
    looked: AtomicU64,
}

impl Decay {
    pub(super) fn new() -> Self {
        Self { generation: AtomicU32::new(2), began: AtomicU64::new(0), looked: AtomicU64::new(0) }
    }

    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }
}

/// What was seen of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// It was not looked at, because that was done a moment ago.
    Early,
    /// The same generation as before.
    Due,
    /// A new generation began, so what others keep for reuse should be returned.
    Generation,
}

/// What a purge did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Purged {
    /// Bytes given back to the platform.
    pub bytes: usize,
}

impl<P: Platform> On<'_, P> {
    /// Called after pages were returned: purges what is due, a bounded part at a time.
    pub fn decay(&self, decay_ms: u32) -> Look {
        let decay = &self.zone.decay;
        if decay_ms == 0 {
            self.purge(0, u32::MAX);
            return Look::Early;
        }
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

    /// Gives back the free pages of frames left alone for `age` generations, of at most
    /// `most` frames.
    pub fn purge(&self, age: u32, most: u32) -> Purged {
        let zone = self.zone;
        let mut purged = Purged::default();
        let (mut from, mut left) = (0, most);
        while left > 0 {
            let Some(frame) = zone.frames.next(lane::PURGE, from) else {
                break;
            };
            from = frame + 1;
            let stamp = zone.stamp(frame).load(Ordering::Relaxed);
            if zone.decay.generation().wrapping_sub(stamp) < age {
                continue;
            }
            // Removed first: a return that comes now puts it back.
            zone.frames.remove(lane::PURGE, frame);
            purged.bytes += self.purge_frame(frame);
            left -= 1;
        }
        purged
    }

    /// Takes all free pages of a frame, drops their contents, gives them back; bytes dropped.
    fn purge_frame(&self, frame: u32) -> usize {
        let zone = self.zone;
        let first = Pfn(frame << FRAME_ORDER);
        if zone.update_credit(frame, |old| (old == WHOLE).then_some(HUGE)).is_ok() {
            zone.rehint(frame);
            let dirty =
                zone.dirty_spans(first, FRAME_PAGES).map(|(_, m)| m.count_ones()).sum::<u32>();
            let mut bytes = 0;
            if dirty > 0 && self.drop_pages(first, FRAME_PAGES) {
                bytes = dirty as usize * PAGE_SIZE;
                for i in 0..8 {
                    zone.dirty(first.offset(i * 64)).store(0, Ordering::Relaxed);
                }
            }
            zone.release_frame(frame);
            return bytes;
        }
        let Ok(credit) = zone.update_credit(frame, |old| (old != HUGE && old > 0).then_some(0))
        else {
            return 0;
        };
        zone.rehint(frame);
        let (mut left, mut bytes) = (u32::from(credit), 0);
        for i in 0..8 {
            let at = first.offset(i * 64);
            let taken = if left > 0 { zone.row(at).take(left) } else { 0 };
            left -= taken.count_ones();
            bytes += self.drop_dirty(at, taken);
            let twice = zone.row(at).give(taken);
            debug_assert_eq!(twice, 0);
        }
        // All of it, even where some of the bits were not met: who is still looking for a longer
        // run takes a row for a moment and puts it back behind us.
        zone.give_credit(frame, credit);
        bytes
    }

    /// Drops the contents of pages that the caller has, where there are some; bytes dropped.
    pub fn drop_contents(&self, run: Run) -> usize {
        rows_of(run.start, run.pages.0).map(|(row, mask)| self.drop_dirty(row, mask)).sum()
    }

    /// Drops the contents of those pages of a row that are in `taken` and dirty.
    fn drop_dirty(&self, row: Pfn, taken: u64) -> usize {
        let dirty = self.zone.dirty(row);
        let todo = dirty.load(Ordering::Relaxed) & taken;
        let mut bytes = 0;
        for (start, len) in crate::row::runs(todo) {
            if self.drop_pages(row.offset(start), len) {
                dirty.fetch_and(!crate::row::span(start, len), Ordering::Relaxed);
                bytes += len as usize * PAGE_SIZE;
            }
        }
        bytes
    }

    fn drop_pages(&self, at: Pfn, pages: u32) -> bool {
        let Some(at) = NonNull::new(self.zone.address(at) as *mut u8) else {
            return false;
        };
        // SAFETY: free pages in our hands.
        unsafe { self.platform.decommit(at, pages as usize * PAGE_SIZE) }
    }
}
