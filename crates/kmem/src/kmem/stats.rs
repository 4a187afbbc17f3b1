//! Counts of an instance, computed when asked for; and giving memory back at once.

use super::{Instance, ZoneSet};
use crate::class::{CLASS_COUNT, PageClass, RunClass, SizeClass};
use crate::cpu::Slots;
use crate::os::Platform;
use crate::slab::purge::Work;
use crate::slab::sheaf::SHEAF_OBJECTS;
use crate::sync::Ordering;
use crate::units::{CpuId, Item, MAX_ORDER, PAGE_SIZE, PageCount};

/// Sheaves emptied at one look at the clock, so that no single call takes long.
const SHEAVES_AT_ONCE: u32 = 256;

/// Counts of an instance, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// In live allocations; without books, what slabs and page allocations take up.
    pub tracked: u64,
    /// Live allocations.
    pub objects: u64,
    /// Of the tracked bytes, those in page allocations.
    pub large: u64,
    /// Page allocations.
    pub large_blocks: u64,
    /// Handed out by the zones: slabs and page allocations.
    pub used: u64,
    /// Readable and writable address space of the zones.
    pub committed: u64,
    /// Blocks of pages that were found bad and are out of use.
    pub bad_pages: u64,
}

impl<P: Platform> Instance<P> {
    /// Counts everything; takes time with the number of objects.
    pub fn stats(&'static self) -> Stats {
        let mut stats = Stats::default();
        if !self.ready() {
            return stats;
        }
        self.census(|_, bytes, calls| {
            stats.tracked += bytes;
            stats.objects += calls;
        });
        for ZoneSet { zone, .. } in self.zone_sets() {
            stats.committed += PageCount(zone.committed()).bytes() as u64;
            let mut pfn = 0;
            while pfn < zone.committed() {
                let pages = zone.len(crate::units::Pfn(pfn)).load(Ordering::Relaxed);
                if pages != 0 {
                    stats.large += PageCount(pages).bytes() as u64;
                    stats.large_blocks += 1;
                }
                pfn += pages.max(1);
            }
        }
        if let Some(root) = self.root() {
            stats.used = u64::from(root.used_pages.load(Ordering::Relaxed)) * PAGE_SIZE as u64;
        }
        stats.bad_pages = self.bad_pages.load(Ordering::Relaxed);
        if !self.books() {
            stats.tracked = stats.used;
        }
        stats
    }

    /// Empties the quarantine, the arrays of all CPUs and the barn into the slabs and zones.
    pub fn drain(&'static self) {
        if !self.ready() {
            return;
        }
        self.empty_quarantine();
        self.drain_arrays(|_| {
            let pages = PageClass::all().map(PageClass::array);
            SizeClass::all().chain(RunClass::all()).chain(pages)
        });
        self.unreserve_all();
        self.drain_percpu();
        self.drain_vmalloc();
        for class in SizeClass::all() {
            self.empty_sheaves(class, u32::MAX);
        }
    }

    /// Empties up to so many of the barn's sheaves of a class into the slabs.
    pub(super) fn empty_sheaves(&'static self, class: SizeClass, most: u32) {
        for _ in 0..most {
            let Some(held) = self.barn.take_full(class) else { return };
            let len = held.sheaf.len as usize;
            self.give_to_slabs(class, &held.sheaf.objects[..len]);
            self.barn.give_empty(held);
        }
    }

    /// Empties sheaves that nobody needed for a generation of the decay, some of them.
    pub(super) fn shrink_barn(&'static self) {
        let mut left = SHEAVES_AT_ONCE;
        for class in SizeClass::all() {
            let surplus = self.barn.surplus(class).min(left);
            self.empty_sheaves(class, surplus);
            left -= surplus;
        }
    }

    /// Empties the arrays of the given classes of each CPU.
    pub(super) fn drain_arrays<I: Iterator<Item = SizeClass>>(
        &'static self,
        classes: impl Fn(CpuId) -> I,
    ) {
        self.drain_slots(&self.slots, &classes, |class, items| self.give_drained(class, items));
    }

    /// The same for one of the instance's kinds of arrays, into `sink`.
    pub(super) fn drain_slots<I: Iterator<Item = SizeClass>>(
        &'static self,
        slots: &Slots,
        classes: &impl Fn(CpuId) -> I,
        sink: impl Fn(SizeClass, &mut [Item]),
    ) {
        let mut buffer = [Item::NONE; SHEAF_OBJECTS];
        for (cpu, area) in slots.areas() {
            if !classes(cpu).any(|class| area.len(class) > 0) {
                continue;
            }
            let Some(mut stopped) = slots.stop(cpu, || self.platform.fence_cpus()) else {
                continue;
            };
            for class in classes(cpu) {
                loop {
                    let got = stopped.take(class, &mut buffer);
                    if got == 0 {
                        break;
                    }
                    sink(class, &mut buffer[..got]);
                }
            }
        }
    }

    fn give_drained(&'static self, class: SizeClass, items: &[Item]) {
        if (class.0 as usize) < CLASS_COUNT {
            return self.give_to_slabs(class, items);
        }
        if let Some(class) = PageClass::of_array(class) {
            return self.give_blocks(class, items);
        }
        for at in items.iter().map(|item| item.address()) {
            let Some(set) = self.zone_of(at) else {
                continue;
            };
            if let Some(pfn) = set.zone.pfn(at) {
                self.give_pages(set, pfn, PageCount(RunClass::pages(class)));
            }
        }
    }

    /// Free blocks of each zone by order, as `/proc/buddyinfo` has them; for an instance at rest.
    pub fn buddyinfo(&'static self) -> impl Iterator<Item = [u64; MAX_ORDER as usize + 1]> {
        self.zone_sets().map(|set| set.zone.free_blocks())
    }

    /// Gives all memory that is not in use back to the platform, now; the bytes given back.
    pub fn trim(&'static self) -> usize {
        self.drain();
        let slabs = |set| self.purge_slabs(set, 0, Work::ALL);
        let in_slabs: usize = self.heap_sets().map(slabs).sum();
        let purge = |set: &ZoneSet| set.zone.on(&self.platform).purge(0, u32::MAX).bytes;
        in_slabs + self.zone_sets().map(purge).sum::<usize>()
    }

    /// Recounts all zones; for an instance at rest.
    ///
    /// # Errors
    /// The first thing found wrong.
    pub fn validate(&'static self) -> Result<(), crate::page::ZoneFault> {
        self.zone_sets().try_for_each(|set| set.zone.validate())
    }
}
