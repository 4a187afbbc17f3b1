//! Configured work on pages when they are handed out and come back: checks, poison, protection,
//! zeroes.
//!
//! A bad page is reported and not used again: its run stays claimed. So no user gets it, and the
//! counts of free pages stay right. The user gets another run. With `bad_page:end` the program ends
//! instead.

use core::ptr::NonNull;

use kmem_layout::word::EXT_LIVE;

use super::{DoubleFree, On, Run, Zone};
use crate::conf::{CheckPages, Conf};
use crate::os::{Access, Platform};
use crate::sync::Ordering;
use crate::units::{Item, PAGE_SHIFT, PAGE_SIZE, PageCount, Pfn};

/// Which checks are on, as bits.
#[derive(Clone, Copy, Debug)]
pub struct PageChecks(pub u32);

impl PageChecks {
    const REFILL: u32 = 1;
    const SHUFFLE: u32 = 2;
    const EVERY: u32 = 4;
    const PROTECT: u32 = 8;
    const POISON: u32 = 16;
    const INIT_ON_ALLOC: u32 = 32;
    const INIT_ON_FREE: u32 = 64;
    const FATAL: u32 = 128;
    /// Bits that need work at every allocation and free.
    const SLOW: u32 =
        Self::EVERY | Self::PROTECT | Self::POISON | Self::INIT_ON_ALLOC | Self::INIT_ON_FREE;

    /// Checks of a configuration.
    pub const fn of(conf: &Conf) -> Self {
        const fn bit(on: bool, bit: u32) -> u32 {
            if on { bit } else { 0 }
        }
        Self(
            bit(!matches!(conf.check_pages, CheckPages::Off), Self::REFILL)
                | bit(matches!(conf.check_pages, CheckPages::Every), Self::EVERY)
                | bit(conf.fatal_bad_page, Self::FATAL)
                | bit(conf.shuffle, Self::SHUFFLE)
                | bit(conf.debug_pagealloc, Self::PROTECT)
                | bit(conf.page_poison, Self::POISON)
                | bit(conf.init_on_alloc, Self::INIT_ON_ALLOC)
                // As in the kernel, poison has precedence over zeroes, for objects, too.
                | bit(conf.init_on_free && !conf.page_poison, Self::INIT_ON_FREE),
        )
    }

    const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Returns whether every allocation and free takes work, so fast paths must stay closed.
    pub const fn is_slow(self) -> bool {
        self.has(Self::SLOW)
    }

    /// Returns whether new memory reads as zero, objects included.
    pub const fn zeroes_on_alloc(self) -> bool {
        self.has(Self::INIT_ON_ALLOC)
    }

    /// Returns whether freed memory is zeroed, objects included.
    pub const fn zeroes_on_free(self) -> bool {
        self.has(Self::INIT_ON_FREE)
    }

    /// Returns whether blocks are checked when a CPU takes them from a zone.
    pub const fn at_refill(self) -> bool {
        self.has(Self::REFILL)
    }

    /// Returns whether what they find ends the program.
    pub const fn are_fatal(self) -> bool {
        self.has(Self::FATAL)
    }

    /// Returns whether blocks and objects are handed out in random order.
    pub const fn shuffles(self) -> bool {
        self.has(Self::SHUFFLE)
    }

    /// Returns whether free pages that have contents are filled with a pattern.
    pub const fn poisons(self) -> bool {
        self.has(Self::POISON)
    }

    /// Returns whether free pages are inaccessible.
    pub const fn protects(self) -> bool {
        self.has(Self::PROTECT)
    }
}

/// Fault of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It is free, but its words say that it is allocated.
    Allocated,
    /// It is free in its zone, but an allocation has it.
    Free,
    /// It was written to while it was free, at this offset in bytes.
    Written(usize),
}

/// A bad page, and the claimed run that it was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPage {
    /// The page.
    pub page: Pfn,
    /// Its fault.
    pub bad: Bad,
    /// The run.
    pub run: Run,
}

/// The pattern of free pages.
const POISON: u8 = 0xAA;

impl Zone {
    /// Checks a run that was claimed and not yet handed out: the words of all its pages must say
    /// that they are free. In the rows of a pageblock that is taken as a whole, all pages must be
    /// free.
    ///
    /// # Errors
    /// The first bad page.
    pub fn check_claimed(&self, run: Run) -> Result<(), BadPage> {
        let Run { start, pages } = run;
        let found = |page, bad| Err(BadPage { page, bad, run });
        let is_marked = |page: &Pfn| {
            let Some(words) = self.words(*page) else { return false };
            words.word() & EXT_LIVE | words.len.load(Ordering::Relaxed) != 0
        };
        if let Some(page) = (0..pages.0).map(|page| start + PageCount(page)).find(is_marked) {
            return found(page, Bad::Allocated);
        }
        if pages < PageCount::PAGEBLOCK || !self.is_whole(start.pageblock()) {
            return Ok(());
        }
        let mut taken = self.rows_of(start.pageblock()).map(|(first, row)| (first, !row.load()));
        match taken.find(|&(_, taken)| taken != 0) {
            Some((first, taken)) => {
                found(first + PageCount(taken.trailing_zeros()), Bad::Allocated)
            }
            None => Ok(()),
        }
    }

    /// Returns whether blocks of `pages`, just claimed, all pass [`Self::check_claimed`]. It looks
    /// at the words of their first pages, and at the rows of huge pages. It is also false for a
    /// huge page that is not taken as a whole; the caller checks that page by itself.
    ///
    /// The words of the other pages are left out: for a huge page they are 64 cache lines.
    ///
    /// The loop has no branch per block: there are many blocks, and few are bad. So the processor
    /// waits for the cache lines of all blocks at once.
    ///
    /// # Safety
    /// All of `blocks` are addresses in the committed part of this zone.
    pub unsafe fn are_claimed(&self, blocks: &[Item], pages: PageCount) -> bool {
        let (mut wrong, mut free) = (0, u64::MAX);
        for block in blocks {
            let page = Pfn(((block.address() - self.base) >> PAGE_SHIFT) as u32);
            // SAFETY: a committed page, by the contract.
            let words = unsafe { self.words_of(page) };
            wrong |= words.word() & EXT_LIVE;
            wrong |= words.len.load(Ordering::Relaxed);
            if pages == PageCount::PAGEBLOCK {
                wrong |= u32::from(!self.is_whole(page.pageblock()));
                let rows = self.rows_of(page.pageblock()).map(|(_, row)| row.load());
                free &= rows.fold(u64::MAX, |all, row| all & row);
            }
        }
        wrong == 0 && free == u64::MAX
    }

    /// Checks that no page of a claimed run is free in the zone.
    ///
    /// # Errors
    /// The first page that is.
    pub fn check_taken(&self, run: Run) -> Result<(), BadPage> {
        for (row, mask) in run.rows() {
            let free = self.row(row).load() & mask;
            if free != 0 && !self.is_whole(row.pageblock()) {
                let page = row + PageCount(free.trailing_zeros());
                return Err(BadPage { page, bad: Bad::Free, run });
            }
        }
        Ok(())
    }

    /// Fills a run with the pattern of free pages.
    ///
    /// # Safety
    /// The caller alone uses the pages, which are committed. Their contents are not needed.
    pub unsafe fn poison(&self, run: Run) {
        let at = self.address(run.start) as *mut u8;
        // SAFETY: committed pages that the caller alone uses, by the contract.
        unsafe { at.write_bytes(POISON, run.pages.bytes()) };
    }

    /// Checks the pattern in those pages of a run that have contents.
    ///
    /// # Errors
    /// The first page that was written to.
    ///
    /// # Safety
    /// The caller alone uses the pages, which are committed.
    pub unsafe fn check_poison(&self, run: Run) -> Result<(), BadPage> {
        for (row, mask) in self.dirty_spans(run) {
            for (first, len) in crate::row::runs(mask) {
                let at = row + PageCount(first);
                let (start, len) = (self.address(at) as *const u8, PageCount(len).bytes());
                // SAFETY: committed pages of the run, which the caller alone uses.
                let bytes = unsafe { core::slice::from_raw_parts(start, len) };
                // Compare whole lines first: that takes a few wide instructions.
                let spoilt =
                    |line: &[u8]| line.iter().fold(0, |all, &byte| all | byte ^ POISON) != 0;
                if !bytes.chunks(64).any(spoilt) {
                    continue;
                }
                if let Some(offset) = bytes.iter().position(|&byte| byte != POISON) {
                    let page = at + PageCount((offset / PAGE_SIZE) as u32);
                    return Err(BadPage { page, bad: Bad::Written(offset % PAGE_SIZE), run });
                }
            }
        }
        Ok(())
    }
}

impl<P: Platform> On<'_, P> {
    /// Does the configured work on a run that is about to be handed out.
    ///
    /// # Errors
    /// A bad page. The run must stay claimed.
    ///
    /// # Safety
    /// The caller claimed the run, and alone uses its pages.
    #[inline]
    pub unsafe fn prepare(&self, checks: PageChecks, run: Run) -> Result<(), BadPage> {
        // SAFETY: the same contract.
        if checks.is_slow() { unsafe { self.prepare_slow(checks, run) } } else { Ok(()) }
    }

    /// # Safety
    /// See [`Self::prepare`].
    #[cold]
    unsafe fn prepare_slow(&self, checks: PageChecks, run: Run) -> Result<(), BadPage> {
        if checks.protects()
            && let Some(at) = NonNull::new(self.zone.address(run.start) as *mut u8)
            && let Some(base) = NonNull::new(self.zone.base() as *mut u8)
        {
            // SAFETY: committed pages that the caller alone uses, by the contract. Then all
            // committed pages of the zone: that free ones are inaccessible is only an aid.
            unsafe {
                // A page in the middle of free ones takes two more mappings, which the platform
                // refuses if there are too many. A zone that is accessible is one mapping.
                if !self.platform.protect(at, run.pages.bytes(), Access::All) {
                    self.platform.protect(base, self.zone.committed().bytes(), Access::All);
                }
            }
        }
        if checks.has(PageChecks::EVERY) {
            self.zone.check_claimed(run)?;
            self.zone.check_taken(run)?;
        }
        if checks.poisons() {
            // SAFETY: committed pages that the caller alone uses, by the contract.
            unsafe { self.zone.check_poison(run)? };
        }
        if checks.has(PageChecks::INIT_ON_ALLOC) {
            // SAFETY: the same contract.
            unsafe { self.zero(run) };
        }
        Ok(())
    }

    /// Does the configured work on a run that comes back from its user.
    ///
    /// # Errors
    /// A page that is free in the zone already.
    ///
    /// # Safety
    /// The caller alone uses the pages, which are committed. Their contents are not needed.
    #[inline]
    pub unsafe fn retire(&self, checks: PageChecks, run: Run) -> Result<(), DoubleFree> {
        // SAFETY: the same contract.
        if checks.is_slow() { unsafe { self.retire_slow(checks, run) } } else { Ok(()) }
    }

    /// # Safety
    /// See [`Self::retire`].
    #[cold]
    unsafe fn retire_slow(&self, checks: PageChecks, run: Run) -> Result<(), DoubleFree> {
        if checks.has(PageChecks::EVERY) {
            self.zone.check_taken(run).map_err(|bad| DoubleFree(bad.page))?;
        }
        // A CPU may keep the pages, and hand them out again before they reach the zone.
        self.zone.mark_dirty(run);
        let at = self.zone.address(run.start) as *mut u8;
        if checks.has(PageChecks::INIT_ON_FREE) {
            // SAFETY: pages that the caller alone uses, whose contents are not needed.
            unsafe {
                if run.pages == PageCount::ONE || !self.drop_pages(run) {
                    at.write_bytes(0, run.pages.bytes());
                }
            }
        }
        if checks.poisons() {
            // SAFETY: pages that the caller alone uses, whose contents are not needed.
            unsafe { self.zone.poison(run) };
        }
        if checks.protects()
            && let Some(at) = NonNull::new(at)
        {
            // If the platform refuses (too many mappings), the pages stay accessible.
            // SAFETY: no thread uses the pages until they are handed out again.
            unsafe { self.platform.protect(at, run.pages.bytes(), Access::None) };
        }
        Ok(())
    }
}
