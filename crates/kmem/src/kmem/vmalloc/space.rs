//! The zone of areas.

use core::ptr::NonNull;

use super::super::{Instance, Purpose, ZoneSet};
use crate::class::SizeClass;
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::{FRAME_SIZE, PAGE_SIZE};
use crate::vmalloc::{Bits, LONG};

impl<P: Platform> Instance<P> {
    pub(in crate::kmem) fn vmalloc_zone(&self) -> Option<&'static ZoneSet> {
        let zone = self.vmalloc.zone.load(Ordering::Acquire) as *const ZoneSet;
        // SAFETY: null or a set that is never freed.
        unsafe { zone.as_ref() }
    }

    /// The zone of areas, made when it is first needed. `None`: there is no address space for it, or nothing that
    /// could protect it.
    pub(in crate::kmem) fn vmalloc_space(&'static self) -> Option<&'static ZoneSet> {
        if let Some(set) = self.vmalloc_zone() {
            return Some(set);
        }
        if !self.platform.can_protect() {
            return None;
        }
        let starting = &self.vmalloc.starting;
        while starting.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            if let Some(set) = self.vmalloc_zone() {
                return Some(set);
            }
            crate::sync::spin();
        }
        let made = self.vmalloc_zone().or_else(|| self.make_vmalloc_space());
        starting.store(0, Ordering::Release);
        made
    }

    pub(in crate::kmem) fn make_vmalloc_space(&'static self) -> Option<&'static ZoneSet> {
        let mut bytes = self.platform.budget().first_zone & !(FRAME_SIZE - 1);
        let set = loop {
            if bytes < 2 * FRAME_SIZE {
                return None;
            }
            // The bits first: without them the zone could not be used.
            let words = (2 * Bits::bytes((bytes / PAGE_SIZE) as u32)).next_multiple_of(PAGE_SIZE);
            if let Some(at) = self.platform.reserve(words, PAGE_SIZE) {
                // SAFETY: our own fresh reservation.
                if unsafe { self.platform.commit(at, words) } {
                    self.vmalloc.bits.store(at.as_ptr() as usize, Ordering::Relaxed);
                    if let Some(set) = self.add_zone_for(Purpose::Vmalloc, bytes) {
                        break set;
                    }
                }
                // SAFETY: as above, unused.
                unsafe { self.platform.release(at, words) };
            }
            bytes = (bytes / 2) & !(FRAME_SIZE - 1);
        };
        // A guard makes two mappings of one; half of them is the program's.
        self.vmalloc.most_guards.store(self.platform.max_mappings() / 4, Ordering::Relaxed);
        let (wiped, length) = self.vmalloc.slots.wiped_part();
        if let Some(wiped) = NonNull::new(wiped) {
            // SAFETY: page aligned, part of this instance; see `build`.
            unsafe { self.platform.wipe_on_fork(wiped, length) };
        }
        self.vmalloc.slots.start(self.slot_kind());
        self.vmalloc.zone.store(&raw const *set as usize, Ordering::Release);
        Some(set)
    }

    /// Unmaps the free areas that CPUs keep.
    pub(in crate::kmem) fn drain_vmalloc(&'static self) {
        if let Some(set) = self.vmalloc_zone() {
            let classes = |_| (1..LONG.0 + 1).map(SizeClass);
            self.drain_slots(&self.vmalloc.slots, &classes, |class, areas| {
                if class != LONG {
                    return self.unmap(set, areas, class.0.into());
                }
                for area in areas.iter().filter_map(|area| set.zone.pfn(area.address())) {
                    self.unmap_span(set, area, self.length_of_kept(set, area), 1);
                }
            });
        }
    }
}
