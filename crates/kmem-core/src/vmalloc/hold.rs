//! Freed areas that are held. With fences, an area is inaccessible from its free on, until as many
//! others were freed after it as there are places. A use of a freed block faults.
//!
//! The memory of an area is dropped. An area that cannot be made inaccessible, or has no guard, is
//! not held. Without marks, at most half of the mappings that guards may have are spent on it.

use super::area::On;
use crate::heap::ZoneSet;
use crate::os::Platform;
use crate::page::Run;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{PageCount, Pfn};

/// Most areas that are held.
const MOST: usize = 1 << 15;

/// An area in a place: `pages:32 | first page:32`. No area has no pages, so 0 is an empty place.
fn place_of(run: Run) -> u64 {
    u64::from(run.pages.0) << 32 | u64::from(run.start.0)
}

fn in_place(word: u64) -> Option<Run> {
    let run = Run { start: Pfn(word as u32), pages: PageCount((word >> 32) as u32) };
    (run.pages > PageCount::ZERO).then_some(run)
}

impl<P: Platform> On<P> {
    /// Makes a free area inaccessible, and keeps the one that was freed longest ago for requests.
    pub(super) fn hold(self, set: &'static ZoneSet, run: Run) {
        let held = self.held_bits(set);
        let spends = self.part.splits.load(Ordering::Relaxed);
        let may_hold = spends < self.part.most_splits.load(Ordering::Relaxed) / 2
            && self.guard_bits(set).has(run.end());
        if !may_hold {
            return self.keep_accessible(set, run);
        }
        // The bit comes first: a child forked in between makes the pages accessible.
        held.set(run.start);
        if !self.make_inaccessible(set, run) {
            held.clear(run.start);
            return self.keep_accessible(set, run);
        }
        let places = self.held_places(set);
        let number = self.part.held.fetch_add(1, Ordering::Relaxed) as usize;
        let place = places.get(number % places.len().min(MOST));
        let old = place.map_or(0, |place| place.swap(place_of(run), Ordering::AcqRel));
        self.release(set, old);
    }

    /// The places that were used so far: none without fences.
    fn used_places(self, set: &ZoneSet) -> impl Iterator<Item = &'static AtomicU64> {
        let places = self.held_places(set);
        let used = self.part.held.load(Ordering::Relaxed).min(MOST as u64) as usize;
        (0..used).filter_map(move |number| places.get(number))
    }

    /// Keeps an area that was in a place for requests.
    fn release(self, set: &'static ZoneSet, place: u64) {
        let Some(run) = in_place(place) else { return };
        if self.make_accessible(set, run) {
            self.held_bits(set).clear(run.start);
            self.keep_accessible(set, run);
        } else {
            self.part.stuck.fetch_add(u64::from(run.pages.0), Ordering::Relaxed);
        }
    }

    /// Keeps all areas that are held for requests.
    pub(super) fn release_all(self, set: &'static ZoneSet) {
        for place in self.used_places(set) {
            self.release(set, place.swap(0, Ordering::AcqRel));
        }
    }

    /// Length of the area that is held from a page on, up to its guard.
    pub(super) fn length_of_held(self, set: &ZoneSet, start: Pfn) -> Option<PageCount> {
        let rest = set.zone.committed().saturating_sub(start.index());
        let guard = self.guard_bits(set).within(Run { start, pages: rest }).next()?;
        Some(guard.index() - start.index())
    }

    /// In a forked child: makes the areas that were held accessible. Their pages are free.
    pub(super) fn release_in_child(self, set: &'static ZoneSet) {
        self.used_places(set).for_each(|place| place.store(0, Ordering::Relaxed));
        let end = set.zone.committed();
        // Areas that lie side by side, with their guards, at once: there may be many.
        let mut side_by_side = Run { start: Pfn::ZERO, pages: PageCount::ZERO };
        for start in self.held_bits(set).all(end) {
            let Some(pages) = self.length_of_held(set, start) else { continue };
            let all = Run { start, pages: pages + PageCount::ONE };
            if side_by_side.end() == start {
                side_by_side.pages += all.pages;
            } else {
                self.open_in_child(set, side_by_side);
                side_by_side = all;
            }
        }
        self.open_in_child(set, side_by_side);
    }

    /// In a forked child: makes free areas with their guards accessible.
    fn open_in_child(self, set: &'static ZoneSet, run: Run) {
        if run.pages == PageCount::ZERO {
            return;
        }
        if self.make_accessible(set, run) {
            self.held_bits(set).within(run).for_each(|start| {
                self.held_bits(set).clear(start);
            });
            self.guard_bits(set).within(run).for_each(|guard| self.forget_guard(set, guard));
        } else {
            set.zone.claim_at(run.start, run.pages);
            self.part.stuck.fetch_add(u64::from(run.pages.0), Ordering::Relaxed);
        }
    }
}
