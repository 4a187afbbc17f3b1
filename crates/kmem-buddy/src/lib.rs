//! The classic page allocator of kernels: free lists of blocks per order under one lock (Knowlton,
//! 1965). Each page has a structure, which is checked. Lists of a CPU are refilled in bulk.
//!
//! ```text
//! Pcp: orders 0..=3, 9 --rmqueue_bulk--> Zone: | lock | free list of order 0 | .. | order 11 |
//!                                              | page 0 | page 1 | ..  64 bytes each
//! ```
//!
//! The allocator serves comparisons: it is the oracle of the property tests of kmem's page zone,
//! and the reference of its tables. It manages numbers of pages, not memory. [`Checks`] selects
//! when the structures of pages are checked.
//!
//! Omissions make it faster than a kernel's: the lists of a CPU have no lock, and there are no
//! statistics and no migration types. Tails of compound pages are not written.

mod block;
mod lock;
mod pcp;

use block::Page;
use lock::Lock;
pub use pcp::Pcp;
use std::sync::atomic::{AtomicU32, Ordering};

/// Largest order of a block.
pub const MAX_ORDER: u8 = 11;
/// No page: the end of a list.
const NIL: u32 = u32::MAX;

/// The time of checking the structures of pages that go from the zone to a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Checks {
    /// Under the zone's lock, block by block.
    Default,
    /// After the release of the lock, for all blocks of a refill.
    Patched,
    /// Never.
    Off,
}

/// The number of a page that a check found bad.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadPage(pub u32);

/// A zone of pages.
#[derive(Debug)]
pub struct Zone {
    lock: Lock,
    checks: Checks,
    pages: Box<[Page]>,
    /// First block of each order.
    heads: [AtomicU32; MAX_ORDER as usize + 1],
    free: AtomicU32,
    /// Number of blocks that a check took out of use.
    bad: AtomicU32,
}

impl Zone {
    /// Makes a zone of `pages` free pages.
    ///
    /// # Panics
    /// `pages` is no multiple of the largest block.
    #[must_use]
    pub fn new(pages: u32, checks: Checks) -> Self {
        assert!(pages.is_multiple_of(1 << MAX_ORDER), "whole blocks of the largest order");
        let zone = Self {
            lock: Lock::default(),
            checks,
            pages: (0..pages).map(|_| Page::new()).collect(),
            heads: [const { AtomicU32::new(NIL) }; MAX_ORDER as usize + 1],
            free: AtomicU32::new(pages),
            bad: AtomicU32::new(0),
        };
        for first in (0..pages).step_by(1 << MAX_ORDER).rev() {
            zone.push(first, MAX_ORDER);
        }
        zone
    }

    /// Makes the zone sum up the time for which its lock is held.
    pub fn time_sections(&mut self) {
        self.lock.time_sections();
    }

    /// The nanoseconds for which the lock was held so far, and the number of times. The time
    /// includes reading the clock.
    pub fn sections(&self) -> (u64, u64) {
        self.lock.sections()
    }

    /// Number of free pages of the zone, without those on lists of CPUs.
    pub fn free_pages(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Number of blocks that a check found bad when they were taken. They stay out of use.
    pub fn bad_blocks(&self) -> u32 {
        self.bad.load(Ordering::Relaxed)
    }

    /// Number of free blocks of an order.
    pub fn free_blocks(&self, order: u8) -> u32 {
        let _held = self.lock.lock();
        let mut count = 0;
        let mut at = self.heads[usize::from(order)].load(Ordering::Relaxed);
        while at != NIL {
            count += 1;
            at = self.page(at).next();
        }
        count
    }

    /// Takes a block of an order. Returns its first page. `None`: there is none, or a check failed.
    pub fn alloc(&self, order: u8) -> Option<u32> {
        let mut one = None;
        self.rmqueue_bulk(order, 1, |page| one = Some(page)).ok()?;
        one
    }

    /// Gives a block back.
    ///
    /// # Errors
    /// A page that is free already or was found bad; nothing was given back.
    pub fn free(&self, first: u32, order: u8) -> Result<(), BadPage> {
        self.check_freed(first, order)?;
        let _held = self.lock.lock();
        self.free_one(first, order);
        Ok(())
    }

    /// Takes a run of any length up to the largest block, as `alloc_pages_exact` does: a block,
    /// whose surplus pages are given back.
    pub fn alloc_exact(&self, pages: u32) -> Option<u32> {
        let order = pages.next_power_of_two().trailing_zeros() as u8;
        let first = (order <= MAX_ORDER).then(|| self.alloc(order))??;
        for page in first..first + (1 << order) {
            self.page(page).take();
        }
        for page in first + pages..first + (1 << order) {
            let given = self.free(page, 0);
            debug_assert_eq!(given, Ok(()));
        }
        Some(first)
    }

    /// Gives a run of [`Zone::alloc_exact`] back.
    ///
    /// # Errors
    /// The first page that is free already or was found bad; the other pages are given back.
    pub fn free_exact(&self, first: u32, pages: u32) -> Result<(), BadPage> {
        let mut result = Ok(());
        for page in first..first + pages {
            result = result.and(self.free(page, 0));
        }
        result
    }

    /// Takes up to `count` blocks as one operation under the lock. Calls `out` with the first pages
    /// of the good ones, and returns their number. A bad block stays out of use, as in the kernel.
    ///
    /// # Errors
    /// The last bad page that was found, if all blocks are bad.
    fn rmqueue_bulk(
        &self,
        order: u8,
        count: u32,
        mut out: impl FnMut(u32),
    ) -> Result<u32, BadPage> {
        let (mut removed, mut good) = (0, 0);
        let mut bad = None;
        let mut is_good = |first| match self.check_new(first, order) {
            Ok(()) => true,
            Err(found) => {
                self.bad.fetch_add(1, Ordering::Relaxed);
                bad = Some(found);
                false
            }
        };
        let mut taken = NIL;
        {
            let _held = self.lock.lock();
            while removed < count {
                let Some(first) = self.rmqueue(order) else { break };
                removed += 1;
                if self.checks == Checks::Default && !is_good(first) {
                    continue;
                }
                // Linked through the pages, as on a CPU's list.
                self.page(first).link(taken);
                taken = first;
            }
            self.free.store(self.free_pages() - (removed << order), Ordering::Relaxed);
        }
        while taken != NIL {
            let first = taken;
            taken = self.page(first).next();
            if self.checks == Checks::Patched && !is_good(first) {
                continue;
            }
            self.page(first).take();
            out(first);
            good += 1;
        }
        bad.filter(|_| good == 0).map_or(Ok(good), Err)
    }

    /// Takes the smallest block that is large enough, and halves it down to an order. The caller
    /// holds the lock.
    fn rmqueue(&self, order: u8) -> Option<u32> {
        let mut have = (order..=MAX_ORDER)
            .find(|&order| self.heads[usize::from(order)].load(Ordering::Relaxed) != NIL)?;
        let first = self.heads[usize::from(have)].load(Ordering::Relaxed);
        self.unlink(first, have);
        while have > order {
            have -= 1;
            self.push(first + (1 << have), have);
        }
        Some(first)
    }

    /// Gives a block back and joins it with its buddies. The caller holds the lock.
    fn free_one(&self, first: u32, order: u8) {
        self.free.store(self.free_pages() + (1 << order), Ordering::Relaxed);
        let (mut first, mut order) = (first, order);
        while order < MAX_ORDER {
            let buddy = first ^ (1 << order);
            if buddy as usize >= self.pages.len() || !self.page(buddy).is_free_block(order) {
                break;
            }
            self.unlink(buddy, order);
            first &= buddy;
            order += 1;
        }
        self.push(first, order);
    }

    fn push(&self, first: u32, order: u8) {
        let head = &self.heads[usize::from(order)];
        let next = head.load(Ordering::Relaxed);
        self.page(first).insert(order, next);
        if next != NIL {
            self.page(next).set_prev(first);
        }
        head.store(first, Ordering::Relaxed);
    }

    fn unlink(&self, first: u32, order: u8) {
        let page = self.page(first);
        let (prev, next) = page.remove();
        if prev == NIL {
            self.heads[usize::from(order)].store(next, Ordering::Relaxed);
        } else {
            self.page(prev).link(next);
        }
        if next != NIL {
            self.page(next).set_prev(prev);
        }
    }

    fn page(&self, page: u32) -> &Page {
        &self.pages[page as usize]
    }

    /// Checks every page of a block before it is allocated.
    fn check_new(&self, first: u32, order: u8) -> Result<(), BadPage> {
        let mut all = first..first + (1 << order);
        all.find(|&page| !self.page(page).is_new()).map_or(Ok(()), |page| Err(BadPage(page)))
    }

    /// Marks the first page of a block as free, and checks every page of it.
    fn check_freed(&self, first: u32, order: u8) -> Result<(), BadPage> {
        if !self.page(first).put() {
            return Err(BadPage(first));
        }
        if self.checks != Checks::Off {
            self.check_new(first, order)?;
        }
        Ok(())
    }

    /// Damages the structure of a page as a stray write does, to test the checks.
    pub fn spoil(&self, page: u32) {
        self.page(page).spoil();
    }
}
