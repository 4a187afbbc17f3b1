//! Address space of a zone behind its committed pages. A limit of address space counts it, so a
//! program that has one gets it back.
//!
//! One word holds the end of the space and the number of threads that grow into it. So no thread
//! grows into space that is given back at the same time.

use core::ptr::NonNull;

use super::{Beyond, On, Table, Zone};
use crate::os::Platform;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{CHUNK_ORDER, PAGE_SIZE, PAGEBLOCK_PAGES, PageCount, Pfn};

/// `end:32 | growing:32`.
pub(super) struct Space(AtomicU64);

impl Space {
    /// Space up to the page `end`.
    pub(super) fn new(end: PageCount) -> Self {
        Self(AtomicU64::new((end.0 as u64) << 32))
    }

    /// Keeps the space as it is until [`Self::leave`]. Returns its end.
    pub(super) fn enter(&self) -> PageCount {
        PageCount((self.0.fetch_add(1, Ordering::Acquire) >> 32) as u32)
    }

    /// Ends one [`Self::enter`].
    pub(super) fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// The end of the space.
    pub(super) fn end(&self) -> PageCount {
        PageCount((self.0.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// Moves the end of the space down to `to`. Returns the old end; `None` if it is not above
    /// `to`, or a thread grows.
    pub(super) fn cut(&self, to: PageCount) -> Option<PageCount> {
        let old = self.end();
        let (from, to) = (u64::from(old.0) << 32, u64::from(to.0) << 32);
        let moved = self.0.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        (from > to && moved.is_ok()).then_some(old)
    }

    /// In a forked child: forgets threads that grew.
    pub(super) fn forget(&self) {
        self.0.fetch_and(!u64::from(u32::MAX), Ordering::Relaxed);
    }
}

/// Use of the words of pages that are not committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Words {
    /// They are read: the fast paths of several nodes find them in the tables of all first zones.
    Read,
    /// They are not read.
    NotRead,
}

impl<P: Platform> On<'_, P> {
    /// Gives address space that was never used back to the platform, but for `keep` pages, if no
    /// thread grows the zone at the same time. Returns the bytes given back.
    pub fn give_back_space(&self, keep: PageCount, words: Words) -> usize {
        let zone = self.zone;
        let end =
            zone.committed().0.saturating_add(keep.0).checked_next_multiple_of(PAGEBLOCK_PAGES);
        let (Some(end), true) = (end.map(PageCount), self.platform.releases_parts()) else {
            return 0;
        };
        let Some(old) = zone.space.cut(end) else { return 0 };
        let address = |page: PageCount| zone.address(Pfn::ZERO + page);
        let mut bytes = self.give_back(address(end), address(old));
        let described = zone.described.load(Ordering::Acquire).max(Zone::to_describe(end));
        let unused = |table: &&Table| words == Words::NotRead && table.beyond == Beyond::Unused;
        for table in zone.tables.iter().filter(unused) {
            let bytes_for = |pages: u32| (pages >> CHUNK_ORDER) as usize * table.bits as usize / 8;
            bytes += self.give_back(table.at + bytes_for(described), table.at + bytes_for(old.0));
        }
        bytes
    }

    /// Gives the whole pages between two addresses back.
    fn give_back(&self, from: usize, to: usize) -> usize {
        let (from, to) = (from.next_multiple_of(PAGE_SIZE), to & !(PAGE_SIZE - 1));
        match NonNull::new(from as *mut u8) {
            Some(at) if from < to => {
                // SAFETY: reserved pages that were never committed, and that no thread commits
                // from here on: they lie behind the end of the space.
                unsafe { self.platform.release(at, to - from) };
                to - from
            }
            _ => 0,
        }
    }
}
