//! What is done with pages when they are handed out and when they come back, as the configuration
//! asks: checks, poison, protection, zeroes.
//!
//! A bad page is reported and taken out of use: it stays claimed, so that nobody gets it and the
//! counts of free pages stay right, and its user gets another one.

use core::ptr::NonNull;

use super::{Instance, ZoneSet, fault::Line};
use crate::class::PageClass;
use crate::conf::{CheckPages, Conf};
use crate::os::Platform;
use crate::page::{Bad, Run};
use crate::prng::Prng;
use crate::root::{EXT_LIVE, TAG_MASK};
use crate::sync::Ordering;
use crate::units::{Item, PageCount, Pfn, TagId};

/// What is on, as bits of one word.
#[derive(Clone, Copy)]
pub(super) struct PageDebug(pub(super) u32);

impl PageDebug {
    const REFILL: u32 = 1;
    const SHUFFLE: u32 = 2;
    const EVERY: u32 = 4;
    pub(super) const PROTECT: u32 = 8;
    const POISON: u32 = 16;
    const INIT_ON_ALLOC: u32 = 32;
    const INIT_ON_FREE: u32 = 64;
    /// Those that concern every allocation and free.
    const SLOW: u32 =
        Self::EVERY | Self::PROTECT | Self::POISON | Self::INIT_ON_ALLOC | Self::INIT_ON_FREE;

    /// What a configuration asks for.
    pub(super) fn of(conf: &Conf) -> Self {
        let bit = |on: bool, bit: u32| if on { bit } else { 0 };
        Self(
            bit(conf.check_pages != CheckPages::Off, Self::REFILL)
                | bit(conf.check_pages == CheckPages::Every, Self::EVERY)
                | bit(conf.shuffle, Self::SHUFFLE)
                | bit(conf.debug_pagealloc, Self::PROTECT)
                | bit(conf.page_poison, Self::POISON)
                | bit(conf.init_on_alloc, Self::INIT_ON_ALLOC)
                // As in the kernel, the pattern goes before zeroes.
                | bit(conf.init_on_free && !conf.page_poison, Self::INIT_ON_FREE),
        )
    }

    pub(super) fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Whether fast paths must stay closed.
    pub(super) fn is_slow(self) -> bool {
        self.has(Self::SLOW)
    }
}

impl<P: Platform> Instance<P> {
    pub(super) fn page_debug(&self) -> PageDebug {
        PageDebug(self.page_debug.load(Ordering::Relaxed))
    }

    /// Looks at blocks that come from a zone to a CPU, and mixes them up; how many of them, at the
    /// end of `items`, are good.
    #[inline]
    pub(super) fn check_refill(
        &'static self,
        set: &ZoneSet,
        class: PageClass,
        items: &mut [Item],
    ) -> usize {
        let debug = self.page_debug();
        if debug.has(PageDebug::SHUFFLE) {
            self.shuffle(items);
        }
        if !debug.has(PageDebug::REFILL) || set.zone.are_claimed(items, class.pages()) {
            return items.len();
        }
        self.sort_out(set, class, items)
    }

    #[cold]
    fn sort_out(&'static self, set: &ZoneSet, class: PageClass, items: &mut [Item]) -> usize {
        let mut good = 0;
        for i in (0..items.len()).rev() {
            let Some(start) = set.zone.pfn(items[i].address()) else { continue };
            if let Err(bad) = set.zone.check_claimed(start, class.pages()) {
                self.bad_page(set, Run { start, pages: PageCount(class.pages()) }, bad);
                continue;
            }
            good += 1;
            items.swap(i, items.len() - good);
        }
        good
    }

    /// Numbers to mix with what is handed out, if that is asked for.
    pub(super) fn mixer(&self) -> Option<Prng> {
        self.page_debug().has(PageDebug::SHUFFLE).then(|| self.prng())
    }

    /// The time, and where the program was loaded.
    fn prng(&self) -> Prng {
        Prng::new(self.platform.ticks() ^ (&raw const *self as u64).rotate_left(32))
    }

    fn shuffle(&self, items: &mut [Item]) {
        let mut prng = self.prng();
        for last in (1..items.len()).rev() {
            items.swap(last, prng.below(last as u32 + 1) as usize);
        }
    }

    /// Pages that are handed out. False: they are bad, and out of use now.
    #[inline]
    pub(super) fn prepare_pages(&'static self, set: &ZoneSet, run: Run) -> bool {
        let debug = self.page_debug();
        !debug.is_slow() || self.prepare_pages_slow(set, run, debug)
    }

    #[cold]
    fn prepare_pages_slow(&'static self, set: &ZoneSet, run: Run, debug: PageDebug) -> bool {
        let Run { start, pages } = run;
        let at = set.zone.address(start) as *mut u8;
        if debug.has(PageDebug::PROTECT)
            && let Some(at) = NonNull::new(at)
        {
            // SAFETY: pages in our hands. Where it is refused, so was the protection of free pages
            // or the next write ends the program.
            unsafe { self.platform.protect(at, pages.bytes(), true) };
        }
        let mut found = Ok(());
        if debug.has(PageDebug::EVERY) {
            found = set.zone.check_claimed(start, pages.0);
            found = found.and_then(|()| set.zone.check_taken(start, pages.0));
        }
        if debug.has(PageDebug::POISON) {
            found = found.and_then(|()| set.zone.check_poison(start, pages.0));
        }
        if let Err(bad) = found {
            self.bad_page(set, run, bad);
            return false;
        }
        if debug.has(PageDebug::INIT_ON_ALLOC) {
            self.zero_run(set, run);
        }
        true
    }

    /// Pages that come back from their user.
    #[inline]
    pub(super) fn retire_pages(&'static self, set: &ZoneSet, start: Pfn, pages: u32) {
        let debug = self.page_debug();
        if debug.is_slow() {
            self.retire_pages_slow(set, start, pages, debug);
        }
    }

    #[cold]
    fn retire_pages_slow(&'static self, set: &ZoneSet, start: Pfn, pages: u32, debug: PageDebug) {
        if debug.has(PageDebug::EVERY)
            && let Err((page, _)) = set.zone.check_taken(start, pages)
        {
            self.page_freed_twice(set.zone.address(page));
        }
        // The CPU may keep them, and they are looked at before they come to the zone again.
        set.zone.mark_dirty(start, pages);
        let at = set.zone.address(start) as *mut u8;
        let bytes = PageCount(pages).bytes();
        if debug.has(PageDebug::INIT_ON_FREE) {
            let dropped = pages > 1
                && NonNull::new(at)
                    // SAFETY: pages that nobody uses any more.
                    .is_some_and(|at| unsafe { self.platform.decommit(at, bytes) });
            if !dropped {
                // SAFETY: as above.
                unsafe { at.write_bytes(0, bytes) };
            }
        }
        if debug.has(PageDebug::POISON) {
            set.zone.poison(start, pages);
        }
        if debug.has(PageDebug::PROTECT)
            && let Some(at) = NonNull::new(at)
        {
            // SAFETY: as above. Where it is refused (too many mappings), they stay accessible.
            unsafe { self.platform.protect(at, bytes, false) };
        }
    }

    /// Reports a bad page of a run that was claimed. The run stays claimed.
    #[cold]
    fn bad_page(&'static self, set: &ZoneSet, run: Run, (page, bad): (Pfn, Bad)) {
        self.bad_pages.fetch_add(1, Ordering::Relaxed);
        let word = set.zone.ext(page).load(Ordering::Relaxed);
        let mut line = Line::new();
        line.bytes(b"kmem: bad page: frame ");
        line.decimal(page.0 as usize);
        line.bytes(b" at ");
        line.hex(set.zone.address(page));
        line.bytes(b", in a block of ");
        line.decimal(run.pages.0 as usize);
        line.bytes(b" pages (order ");
        line.decimal(run.pages.0.next_power_of_two().ilog2() as usize);
        line.bytes(b"), ");
        match bad {
            Bad::Allocated => line.bytes(b"is free but marked as allocated"),
            Bad::Free => line.bytes(b"is in use but marked as free"),
            Bad::Written(offset) => {
                line.bytes(b"was written to while it was free, at offset ");
                line.decimal(offset);
            }
        }
        // Inside a run there may be no word: then that of the run says who had it last.
        let begin = set.zone.ext(run.start).load(Ordering::Relaxed);
        let tag = if word & TAG_MASK != 0 { word } else { begin } & TAG_MASK;
        let last = self.sites.address(TagId(tag));
        if last != 0 {
            line.bytes(b"; last allocated by the call that returns to ");
            line.hex(last);
        }
        line.bytes(b"; taken out of use\n");
        self.platform.print(line.text());
        // Nobody has it: a free of it is one too many.
        set.zone.ext(run.start).store(begin & !EXT_LIVE, Ordering::Relaxed);
        set.zone.len(run.start).store(0, Ordering::Release);
    }
}
