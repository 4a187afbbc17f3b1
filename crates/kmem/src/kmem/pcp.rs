//! Per-CPU pages: arrays of free small blocks and huge pages, refilled from the zones and emptied into
//! them in bulk.
//!
//! ```text
//! alloc_pages --> slots.pop ----> ext, len of the page
//!                  | empty
//!                  v
//!      reserve of the CPU: credit of one frame --> its rows; another frame --> zone --> platform
//! ```

use super::{Instance, ZoneSet};
use crate::class::{PageClass, RunClass};
use crate::os::Platform;
use crate::page::{DoubleFree, Look, Pcp, Reserve, Way};
use crate::slab::purge::Work;
use crate::sync::Ordering;
use crate::units::{CpuId, Item, PageCount};

/// Most blocks in one's hands.
const MOST: usize = 127;
const _: () = assert!(PageClass::of(0).expect("single pages").most_batch() as usize <= MOST);

impl<P: Platform> Instance<P> {
    /// The part of a CPU, or of no particular one; none before start.
    fn pcp(&self, cpu: Option<CpuId>) -> Option<&Pcp> {
        let all = self.pcps();
        all.get(cpu.map_or(0, |cpu| cpu.0 as usize) % all.len().max(1))
    }

    pub(super) fn pcps(&self) -> &[Pcp] {
        let (at, count) =
            (self.pcp.load(Ordering::Acquire), self.pcp_count.load(Ordering::Relaxed));
        if at == 0 {
            return &[];
        }
        // SAFETY: so many in memory that is never freed, all zero at first.
        unsafe { core::slice::from_raw_parts(at as *const Pcp, count as usize) }
    }

    /// A free block, and more for the CPU's array if it can take them.
    pub(super) fn refill_pages(&'static self, class: PageClass) -> Item {
        let (array, hint) = (class.array(), self.slot_hint());
        let cpu = self.slots.current(hint);
        if let Some(cpu) = cpu {
            self.ensure_area(cpu);
        }
        let mut one = [Item::NONE];
        if !self.slots.uses_rseq() && self.slots.pop_many(array, hint, &mut one) == 1 {
            return one[0];
        }
        let keeps = cpu.is_some_and(|cpu| self.slots.area(cpu).is_some());
        let pcp = self.pcp(cpu);
        let batch = match pcp {
            Some(pcp) if keeps && self.decay_ms.load(Ordering::Relaxed) != 0 => {
                pcp.batch(class, Way::Refill)
            }
            _ => 1,
        };
        let mut items = [Item::NONE; MOST];
        let items = &mut items[..batch];
        let Some((set, got)) = self.claim_blocks(class, pcp, items) else {
            return Item::NONE;
        };
        self.note_peak();
        self.pages.reach(&set.zone);
        let good = self.check_refill(set, class, &mut items[batch - got..]);
        let Some((&one, rest)) = items[batch - good..].split_last() else {
            // All of them bad, and out of use.
            return self.refill_pages(class);
        };
        // SAFETY: pages just claimed.
        let kept = unsafe { self.slots.push_many(array, hint, rest) };
        if kept < rest.len() {
            self.give_blocks(class, &rest[kept..]);
        }
        one
    }

    /// Blocks out of one zone, in the last part of `out`, lowest last.
    fn claim_blocks(
        &'static self,
        class: PageClass,
        pcp: Option<&Pcp>,
        out: &mut [Item],
    ) -> Option<(&'static ZoneSet, usize)> {
        let (huge, order) = (class.is_huge(), class.order());
        let (zone, mut reserve) = match pcp {
            Some(pcp) if !huge => pcp.take_reserve(class),
            _ => (0, Reserve::default()),
        };
        if reserve.credit > 0
            && let Some(set) = self.zone_at(zone)
        {
            let got = set.zone.on(&self.platform).claim_bulk(order, &mut reserve, out);
            self.put_reserve(pcp, class, zone, reserve);
            if got > 0 {
                return Some((set, got));
            }
        }
        for set in self.near_sets() {
            let on = set.zone.on(&self.platform);
            let mut reserve = Reserve::default();
            let got = if huge {
                on.claim_frames_bulk(out)
            } else {
                on.claim_bulk(order, &mut reserve, out)
            };
            self.put_reserve(pcp, class, self.slot_of(set), reserve);
            if got > 0 {
                return Some((set, got));
            }
        }
        // One block: out of a new zone, or of what CPUs keep.
        let pages = PageCount(class.pages());
        let (set, run) = self.claim_pages(pages, pages)?;
        *out.last_mut()? = Item::at(set.zone.address(run.start));
        Some((set, 1))
    }

    fn slot_of(&self, set: &ZoneSet) -> u32 {
        let at = &raw const *set as usize;
        let slot = self.zones.iter().position(|zone| zone.load(Ordering::Relaxed) == at);
        slot.expect("a zone of this instance") as u32
    }

    fn zone_at(&'static self, zone: u32) -> Option<&'static ZoneSet> {
        let set = self.zones.get(zone as usize)?.load(Ordering::Acquire) as *const ZoneSet;
        // SAFETY: null or a set that is never freed.
        unsafe { set.as_ref() }
    }

    fn put_reserve(
        &'static self,
        pcp: Option<&Pcp>,
        class: PageClass,
        zone: u32,
        reserve: Reserve,
    ) {
        if !pcp.is_some_and(|pcp| pcp.put_reserve(class, zone, reserve))
            && let Some(set) = self.zone_at(zone)
        {
            set.zone.unreserve(reserve);
        }
    }

    /// Makes room in a full array, then puts a free block there.
    #[cold]
    #[inline(never)]
    pub(super) fn flush_pages(&'static self, class: PageClass, item: Item) {
        // A child that repairs itself finds the block free by its length.
        let found = !self.slots.alive();
        if !self.ready() || found {
            return;
        }
        let (array, hint) = (class.array(), self.slot_hint());
        if let Some(cpu) = self.slots.current(hint)
            && self.decay_ms.load(Ordering::Relaxed) != 0
        {
            self.ensure_area(cpu);
            for _ in 0..2 {
                // SAFETY: a freed block in our hands.
                if unsafe { self.slots.push_many(array, hint, &[item]) } == 1 {
                    return;
                }
                let batch = self.pcp(Some(cpu)).map_or(1, |pcp| pcp.batch(class, Way::Flush));
                let mut items = [Item::NONE; MOST];
                let len = self.slots.pop_many(array, hint, &mut items[..batch]);
                self.give_blocks(class, &items[..len]);
            }
        }
        self.give_blocks(class, &[item]);
    }

    /// Gives free blocks back to their zones.
    pub(super) fn give_blocks(&'static self, class: PageClass, items: &[Item]) {
        let mut rest = items;
        while let Some(&first) = rest.first() {
            let Some(set) = self.zone_of(first.address()) else { return };
            let inside = |item: &&Item| set.zone.pfn(item.address()).is_some();
            let one_zone = self.zone_slots.load(Ordering::Relaxed) == 1;
            let here = if one_zone { rest.len() } else { rest.iter().take_while(inside).count() };
            let (here, others) = rest.split_at(here);
            rest = others;
            let given = if class.is_huge() {
                set.zone.give_frames_bulk(here)
            } else {
                set.zone.give_bulk(class.order(), here)
            };
            if let Err(DoubleFree(page)) = given {
                self.page_freed_twice(set.zone.address(page));
            }
            self.decay(set);
        }
    }

    /// What is to be done now and then when pages come back: purging, and when a generation of the
    /// decay ends, emptying the arrays of runs, those of pages where the CPU did without a zone,
    /// and of the barn what nobody needed.
    pub(super) fn decay(&'static self, set: &ZoneSet) {
        let look = set.zone.on(&self.platform).decay(self.decay_ms.load(Ordering::Relaxed));
        if look == Look::Early {
            return;
        }
        if set.is_heap() {
            self.purge_slabs(set, 2, Work::SOME);
        }
        if look != Look::Generation {
            return;
        }
        set.slabs.grow_older();
        for pcp in self.pcps() {
            if pcp.is_idle() {
                self.unreserve(pcp);
            }
        }
        let idle = |cpu| self.pcp(Some(cpu)).is_some_and(Pcp::was_idle);
        self.drain_arrays(|cpu| {
            let pages = PageClass::all().map(PageClass::array).filter(move |_| idle(cpu));
            RunClass::all().chain(pages)
        });
        self.drain_vmalloc();
        // The barn is that of all zones; the first one's clock is its.
        if self.zone_at(0).is_some_and(|first| core::ptr::eq(first, set)) {
            self.shrink_barn();
        }
    }

    /// The same from paths that return no pages: a program that has fallen from its peak may not
    /// reach a zone for long.
    pub(super) fn look_at_clock(&'static self) {
        if self.decay_ms.load(Ordering::Relaxed) != 0 {
            self.zone_sets().for_each(|set| self.decay(set));
        }
    }

    /// Gives the reserves of all CPUs back.
    pub(super) fn unreserve_all(&'static self) {
        self.pcps().iter().for_each(|pcp| self.unreserve(pcp));
    }

    fn unreserve(&'static self, pcp: &Pcp) {
        for (zone, reserve) in pcp.take_reserves() {
            if let Some(set) = self.zone_at(zone) {
                set.zone.unreserve(reserve);
            }
        }
    }
}
