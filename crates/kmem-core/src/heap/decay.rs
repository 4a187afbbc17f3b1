//! Decay: giving back memory that no CPU needed for a while. No thread waits for the clock. Threads
//! read it when they return pages, and when a CPU's array of objects runs empty or full.

use super::{Heap, ZoneSet};
use crate::class::{PageClass, RunClass, SizeClass};
use crate::os::Platform;
use crate::page::{Keep, LOOK_EVERY, Pcp};
use crate::slab::purge::Work;
use crate::sync::Ordering;
use crate::units::PageCount;

/// No limit of memory.
const NO_LIMIT: PageCount = PageCount(u32::MAX);
/// The part of a limit of memory that free pages may always take.
const LEAST_PART: u32 = 32;

/// Most generations of the decay that a slab's free memory is kept. A slab counts up to 255.
const OLDEST: u32 = 200;

/// Most sheaves that one look at the clock empties, so no single call takes long.
const SHEAVES_AT_ONCE: u32 = 256;

impl<P: Platform> Heap<P> {
    /// Looks at the clock after pages came back to a zone.
    pub(super) fn came_back(&'static self, set: &'static ZoneSet, pages: PageCount) {
        self.demand.raise(PageCount(self.zones.used().0.saturating_add(pages.0)));
        let looked = self.decay(set, Work::SOME);
        self.call_tender(looked);
    }

    /// Looks at the clock. Purges memory of a zone that is due. At the end of a generation of the
    /// decay, empties the arrays of runs. It also empties arrays of blocks of idle CPUs, and
    /// sheaves that no CPU needed. False: the last look was a moment ago.
    pub(super) fn decay(&'static self, set: &'static ZoneSet, work: Work) -> bool {
        let decay_ms = self.decay_ms.load(Ordering::Relaxed);
        let on = set.zone.on(&self.platform);
        if decay_ms == 0 {
            on.purge(Keep::NOTHING, u32::MAX);
            return false;
        }
        on.keep_few(self.may_keep());
        let Some(look) = on.look(decay_ms) else { return false };
        let demand_ms = self.demand_ms.load(Ordering::Relaxed);
        self.demand.note(self.zones.used(), look.now_ms, demand_ms);
        let purged = on.purge(Keep { spare: self.spare(set), ..Keep::YOUNG }, work.pageblocks);
        if set.is_heap() {
            let generations = (2 * demand_ms / decay_ms).clamp(2, OLDEST);
            let age = if purged.spared_all { generations } else { Keep::YOUNG.age };
            self.purge_slabs(set, Keep { age, ..Keep::YOUNG }, work);
        }
        if look.new {
            self.end_generation(set);
        }
        true
    }

    /// Free pages that a zone keeps, since as many were needed lately.
    fn spare(&self, set: &ZoneSet) -> PageCount {
        if self.demand_ms.load(Ordering::Relaxed) == 0 {
            return PageCount::ZERO;
        }
        let spare = self.demand.pages().saturating_sub(self.zones.used());
        let others = self.zones.all().filter(|other| !core::ptr::eq(*other, set));
        others.fold(spare, |left, other| left.saturating_sub(other.zone.spared()))
    }

    /// Gives back what is kept and due, before a request takes the program above its recent use.
    /// So old free memory and new memory do not add up.
    pub(super) fn make_room(&'static self, pages: PageCount) {
        let used = PageCount(self.zones.used().0.saturating_add(pages.0));
        if used <= self.demand.pages() || !self.keeps_pages() {
            return;
        }
        self.demand.raise(used);
        self.zones.heap().for_each(|set| {
            let on = set.zone.on(&self.platform);
            let look = on.look(self.decay_ms.load(Ordering::Relaxed));
            on.purge(Keep::YOUNG, pages.pageblocks());
            if look.is_some_and(|look| look.new) {
                self.end_generation(set);
            }
        });
    }

    /// Most free pages with old contents that a zone may keep. Near a limit of memory these are a
    /// quarter of what is left, since the system ends a process that exceeds it.
    fn may_keep(&self) -> PageCount {
        let limit = PageCount(self.limit.load(Ordering::Relaxed));
        if limit == NO_LIMIT {
            return NO_LIMIT;
        }
        let left = limit.saturating_sub(self.zones.used());
        PageCount((left.0 / 4).max(limit.0 / LEAST_PART))
    }

    /// Purges free pages after others were taken, if these come near to a limit of memory. The
    /// pages that were taken may be new ones.
    pub(super) fn mind_limit(&'static self) {
        let kept = self.may_keep();
        if kept != NO_LIMIT {
            self.zones.heap().for_each(|set| set.zone.on(&self.platform).keep_few(kept));
        }
    }

    #[cold]
    fn end_generation(&'static self, set: &'static ZoneSet) {
        set.slabs.grow_older();
        for pcp in self.pcps() {
            if pcp.is_idle() {
                self.unreserve(pcp);
            }
        }
        self.drain_arrays(|cpu| {
            let idle = self.pcp(Some(cpu)).is_some_and(Pcp::was_idle);
            let blocks = PageClass::all().filter(move |_| idle).map(PageClass::array);
            RunClass::all().map(RunClass::array).chain(blocks)
        });
        if let Some(owner) = self.owner() {
            owner.age();
        }
        // A barn belongs to all zones of its node; the first zone's clock counts for all barns.
        if self.zones.numbered(0).is_some_and(|first| core::ptr::eq(first, set)) {
            self.shrink_barns();
        }
    }

    /// Looks at the clock from paths that return no pages. A program past its peak may not reach a
    /// zone for a long time. False: the last look was a moment ago.
    pub(super) fn look_at_clock(&'static self) -> bool {
        if !self.keeps_pages() {
            return false;
        }
        // There may be many zones, and without critical sections every call comes here.
        let ticks = self.platform.ticks();
        if ticks.wrapping_sub(self.looked.load(Ordering::Relaxed)) < LOOK_EVERY {
            return false;
        }
        self.looked.store(ticks, Ordering::Relaxed);
        self.zones.all().filter(|set| self.decay(set, Work::SOME)).count() > 0
    }

    /// Empties sheaves of all barns that no CPU needed for a generation of the decay, up to a
    /// bound.
    fn shrink_barns(&'static self) {
        let mut left = SHEAVES_AT_ONCE;
        for barn in self.barns() {
            for class in SizeClass::all() {
                let surplus = barn.surplus(class).min(left);
                self.empty_sheaves(barn, class, surplus);
                left -= surplus;
            }
        }
    }
}
