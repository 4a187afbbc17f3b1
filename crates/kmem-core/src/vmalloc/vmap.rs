//! vmap: a second mapping of existing pages, one behind the other.
//!
//! A user process can map only shared memory a second time. So pages for vmap come from a zone of
//! their own, whose memory is a file without a name. Other pages are refused. A forked child has
//! neither these pages nor their mappings: it would share them with its parent.

use core::ptr::{NonNull, null_mut};

use super::area::On;
use super::{Area, Kind};
use crate::heap::ZoneSet;
use crate::ledger::{Request, Taken};
use crate::memcg::stock::Price;
use crate::os::Platform;
use crate::page::{Purpose, Run};
use crate::report::Fault;
use crate::request::Caller;
use crate::units::{Gfp, Item, PAGE_SIZE, PageCount};

impl<P: Platform> On<P> {
    /// Allocates a page that [`Self::map`] can map. Null: there is no memory, the group is at its
    /// limit, or the platform cannot map memory twice.
    pub fn alloc_page(self, gfp: Gfp, caller: Caller) -> *mut u8 {
        let one = PageCount::ONE;
        let request = Request { price: Price::Pages(one), bytes: PAGE_SIZE, endless: one };
        let taken = self.ledger.alloc(request, caller, || {
            let set = self.shared_space()?;
            let on = set.zone.on(self.ledger.platform());
            let run = on.claim(one, one)?;
            if gfp.has(Gfp::ZERO) || self.checks().zeroes_on_alloc() {
                // SAFETY: this thread just claimed the run.
                unsafe { on.zero(run) };
            }
            Taken::run(set, run)
        });
        taken.map_or(null_mut(), |taken| taken.at as *mut u8)
    }

    /// Maps pages from [`Self::alloc_page`] one behind the other, followed by a page that faults.
    /// Null: there is no memory for the mapping, or one of `pages` is no such page.
    ///
    /// # Safety
    /// The pages are live, and are not freed before [`Self::unmap_pages`].
    pub unsafe fn map(self, pages: &[*mut u8]) -> *mut u8 {
        let zones = &self.ledger.heap.zones;
        let mappable = |at: &*mut u8| {
            let set = zones.of(*at as usize);
            (*at as usize).is_multiple_of(PAGE_SIZE)
                && set.is_some_and(|set| set.purpose == Purpose::Shared)
        };
        let count = u32::try_from(pages.len()).unwrap_or(u32::MAX);
        if count == 0 || count == u32::MAX || !pages.iter().all(mappable) {
            return null_mut();
        }
        let Some(set) = self.space() else { return null_mut() };
        let Some(run) = self.make(set, PageCount(count), PageCount::ONE, 1) else {
            return null_mut();
        };
        let start = set.zone.address(run.start);
        // Map adjacent pages in one call.
        let mut done = 0;
        while done < pages.len() {
            let next = |i: usize| pages[done].wrapping_add((i - done) * PAGE_SIZE);
            let end = (done + 1..pages.len()).find(|&i| pages[i] != next(i)).unwrap_or(pages.len());
            let to = NonNull::new((start + done * PAGE_SIZE) as *mut u8);
            let bytes = (end - done) * PAGE_SIZE;
            let mapped = NonNull::new(pages[done]).zip(to).is_some_and(|(from, to)| {
                // SAFETY: shared pages that are live, by the contract, and an area that this thread
                // just made.
                unsafe { self.ledger.platform().alias(from, to, bytes) }
            });
            if !mapped {
                self.take_back(set, run, PageCount(done as u32));
                return null_mut();
            }
            done = end;
        }
        if let Some(words) = set.zone.words(run.start) {
            words.set_word(count);
        }
        self.map_bits(set).set(run.start);
        start as *mut u8
    }

    /// Removes a mapping. An address that is not that of a mapping is reported, and ends the
    /// program.
    ///
    /// # Safety
    /// No thread uses the mapping from here on.
    pub unsafe fn unmap_pages(self, at: usize) {
        let found = self.zone().zip(self.find(at));
        if let Some((set, Area { start, pages, kind: Kind::Vmap, .. })) = found
            && start == at
            && let Some(first) = set.zone.pfn(start)
            && self.map_bits(set).clear(first)
        {
            return self.take_back(set, Run { start: first, pages }, pages);
        }
        self.ledger.fault("vunmap", at, Fault::NeverAllocated);
    }

    /// Gives an area back whose first `mapped` pages show other pages. If the platform does not
    /// undo that, the area is never used again.
    fn take_back(self, set: &'static ZoneSet, run: Run, mapped: PageCount) {
        let at = set.zone.address(run.start);
        let platform = self.ledger.platform();
        let undone = mapped == PageCount::ZERO
            || NonNull::new(at as *mut u8)
                // SAFETY: pages of an area without a user, which `map` mapped.
                .is_some_and(|at| unsafe { platform.unalias(at, mapped.bytes()) });
        if undone {
            self.unmap(set, &mut [Item::at(at)], run.pages);
        }
    }
}
