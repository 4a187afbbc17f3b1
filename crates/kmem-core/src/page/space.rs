//! Address space of a zone behind its committed pages. A limit of address space counts it, so a
//! program that has one gets it back.
//!
//! One word holds the end of the space and the number of threads that grow into it. So no thread
//! grows into space that is given back at the same time.
//!
//! Threads grow the space in turn. A commit makes pages readable and writable. If a second thread
//! committed the same pages later, it would undo what their owners had set since. Text could not be
//! executed then, and a guard would guard nothing.

use core::ptr::NonNull;

use super::{Beyond, On, Table, Zone};
use crate::os::{Platform, Process};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{CHUNK_ORDER, PAGE_SIZE, PAGEBLOCK_PAGES, PageCount, Pfn};

/// The end of a zone's address space, and the turns of the threads that grow into it.
pub(super) struct Space {
    /// `end:32 | growing:32`.
    word: AtomicU64,
    /// The thread whose turn it is; 0: no thread's.
    turn: AtomicU32,
    /// Threads that wait for the end of a turn.
    waiting: AtomicU32,
}

/// Longest turn: milliseconds that pass, and returns of a wait, which takes 10 ms at most. A
/// process that was stopped for a while has waited once.
const PATIENCE_MS: u64 = 1000;
const ROUNDS: u32 = 100;

/// Answer of [`Space::take_turn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It is the caller's, which calls [`Space::end_turn`].
    Taken,
    /// It is the caller's already: this is a signal handler that interrupted its thread. Or the
    /// platform does not tell threads apart.
    Nested,
    /// It is another thread's, this one's.
    Others(u32),
}

impl Space {
    /// Space up to the page `end`.
    pub(super) fn new(end: PageCount) -> Self {
        Self {
            word: AtomicU64::new((end.0 as u64) << 32),
            turn: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
        }
    }

    /// Takes the turn to commit pages, if no other thread has it. `thread` is the caller's number,
    /// see [`Cpus::thread`](crate::os::Cpus::thread).
    pub(super) fn take_turn(&self, thread: u32) -> Turn {
        if thread == 0 {
            return Turn::Nested;
        }
        match self.pass_turn(0, thread) {
            Ok(_) => Turn::Taken,
            Err(owner) if owner == thread => Turn::Nested,
            Err(owner) => Turn::Others(owner),
        }
    }

    /// Waits until the turn of a thread is over. Takes the turn of a thread that has it for too
    /// long: a signal handler may have jumped out of it.
    pub(super) fn wait_for(&self, owner: u32, platform: &impl Platform) -> Turn {
        let since = platform.now_ms();
        for round in 1.. {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            platform.wait(&self.turn, owner);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            if self.turn.load(Ordering::Relaxed) != owner {
                break;
            }
            let is_late = platform.now_ms().saturating_sub(since) > PATIENCE_MS;
            if is_late && round >= ROUNDS && self.pass_turn(owner, platform.thread()).is_ok() {
                return Turn::Taken;
            }
        }
        Turn::Others(owner)
    }

    /// Ends the caller's turn, if it still has it, and wakes those who wait for it.
    pub(super) fn end_turn(&self, thread: u32, platform: &impl Process) {
        if self.pass_turn(thread, 0).is_ok() && self.waiting.load(Ordering::SeqCst) != 0 {
            platform.wake(&self.turn);
        }
    }

    /// The next thread sees what the one before it published.
    fn pass_turn(&self, from: u32, to: u32) -> Result<u32, u32> {
        self.turn.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed)
    }

    /// Keeps the space as it is until [`Self::leave`]. Returns its end.
    pub(super) fn enter(&self) -> PageCount {
        PageCount((self.word.fetch_add(1, Ordering::Acquire) >> 32) as u32)
    }

    /// Ends one [`Self::enter`].
    pub(super) fn leave(&self) {
        self.word.fetch_sub(1, Ordering::Release);
    }

    /// The end of the space.
    pub(super) fn end(&self) -> PageCount {
        PageCount((self.word.load(Ordering::Relaxed) >> 32) as u32)
    }

    /// Moves the end of the space down to `to`. Returns the old end; `None` if it is not above
    /// `to`, or a thread grows.
    pub(super) fn cut(&self, to: PageCount) -> Option<PageCount> {
        let old = self.end();
        let (from, to) = (u64::from(old.0) << 32, u64::from(to.0) << 32);
        let moved = self.word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
        (from > to && moved.is_ok()).then_some(old)
    }

    /// In a forked child: forgets threads that grew.
    pub(super) fn forget(&self) {
        self.word.fetch_and(!u64::from(u32::MAX), Ordering::Relaxed);
        self.turn.store(0, Ordering::Relaxed);
        self.waiting.store(0, Ordering::Relaxed);
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

#[cfg(all(test, not(loom)))]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::os::regions::{Doors, Regions};

    #[test]
    fn a_turn_that_was_left_is_taken_after_a_second() {
        static NOW: AtomicU64 = AtomicU64::new(0);
        let now_ms = || NOW.fetch_add(100, Ordering::Relaxed);
        let platform = Regions::new(1, Doors { now_ms, ..Doors::NONE });
        let space = Space::new(PageCount(1));
        assert_eq!(space.take_turn(7), Turn::Taken);
        assert_eq!(space.take_turn(7), Turn::Nested);
        assert_eq!(space.take_turn(8), Turn::Others(7));
        assert_eq!(space.wait_for(7, &platform), Turn::Taken);
        // A hundred waits, since time goes fast here.
        assert!((10_000..11_000).contains(&NOW.load(Ordering::Relaxed)));
        // The end of the first turn does not end that of another thread.
        assert_eq!(space.take_turn(8), Turn::Taken);
        space.end_turn(7, &platform);
        assert_eq!(space.take_turn(9), Turn::Others(8));
        space.end_turn(8, &platform);
        assert_eq!(space.wait_for(8, &platform), Turn::Others(8));
        assert_eq!(space.take_turn(9), Turn::Taken);
    }
}
