//! The walk over all memory that gives objects of deleted groups to their parents. See
//! `memcg::merge` for its rules.

use crate::heap::ZoneSet;
use crate::instance::Instance;
use crate::memcg::Step;
use crate::memcg::stock::{object_cost, pages_cost};
use crate::os::Platform;
use crate::page::Purpose;
use crate::slab::Retired;
use crate::units::{CHUNK_ORDER, ObjcgId, PageCount, Pfn};

/// Fewest chunks that a step visits: 16 MiB of address space.
const STEP: u32 = 256;

impl<P: Platform> Instance<P> {
    /// Takes a step of a walk that is due, unless another thread takes one. The walk ends before
    /// half of the ids that are free now are used.
    pub(super) fn merge_some(&'static self) {
        let groups = &self.ledger.groups;
        if !groups.merge_is_due() {
            return;
        }
        let Some(step) = groups.try_step() else { return };
        if step.is_walking() || self.begin_walk(&step) {
            let all: u32 = self.heap().zones.all().map(chunks).sum();
            let calls = groups.free_ids() / 2;
            self.walk(&step, STEP.max(all / calls.max(1)));
        }
    }

    /// Walks to the end; if that frees no id, walks again for all groups deleted by now. False: no
    /// id is free.
    pub(super) fn merge_all(&'static self) -> bool {
        let groups = &self.ledger.groups;
        let step = groups.step(self.wait_for_groups());
        if step.is_walking() {
            self.walk(&step, u32::MAX);
        }
        if groups.free_ids() == 0 && self.begin_walk(&step) {
            self.walk(&step, u32::MAX);
        }
        groups.free_ids() > 0
    }

    /// Begins a walk. False: there is no group to merge, or the CPUs cannot be fenced.
    fn begin_walk(&'static self, step: &Step<'_>) -> bool {
        if step.begin() == 0 {
            return false;
        }
        let (charging, slots) = (self.ledger.charging(), &self.heap().slots);
        charging.recall_deleted();
        // Another thread owned the area of a CPU for too long.
        charging.each_owner(|objcg| {
            if objcg != ObjcgId::ROOT {
                step.spare(objcg);
            }
        });
        if slots.uses_rseq() && !self.platform().fence_cpus() {
            step.end();
            return false;
        }
        true
    }

    /// Visits up to `most` chunks. Ends the walk at the last one.
    fn walk(&'static self, step: &Step<'_>, most: u32) {
        let (mut zone, mut chunk) = step.place();
        for _ in 0..most {
            let Some(set) = self.heap().zones.all().nth(zone as usize) else {
                return step.end();
            };
            if chunk >= chunks(set) {
                (zone, chunk) = (zone + 1, 0);
                continue;
            }
            self.merge_chunk(step, set, chunk);
            chunk += 1;
        }
        step.go_on_at(zone, chunk);
    }

    /// Merges what begins in a chunk: a slab, or allocations of pages.
    fn merge_chunk(&'static self, step: &Step<'_>, set: &'static ZoneSet, chunk: u32) {
        let heap = self.heap();
        let (slab, is_slab) = set.slabs.slab_at(chunk, heap.classes.all());
        let Some(class) = slab else {
            if !is_slab {
                merge_pages(step, set, Pfn(chunk << CHUNK_ORDER));
            }
            return;
        };
        if !heap.format().has_words() {
            return;
        }
        let merge = |words: &[crate::sync::AtomicU32]| {
            words.iter().for_each(|ext| step.merge(ext, object_cost(class)));
        };
        // SAFETY: the kind of the slabs of the class in this zone, which have extension words.
        let retired = unsafe { set.slabs.while_held(chunk, heap.kind_in(set, class), merge) };
        if let Some(slab) = retired {
            self.retire_held(set, slab);
        }
    }

    /// Gives the pages of a slab that became wholly free while it was held to its zone.
    fn retire_held(&'static self, set: &'static ZoneSet, slab: Retired) {
        match set.purpose {
            Purpose::PerCpu => self.percpu.on(&self.ledger).give_slab(set, slab.run),
            _ => self.heap().retire_slab(set, slab),
        }
    }
}

/// Number of chunks of a zone that were ever in use.
fn chunks(set: &ZoneSet) -> u32 {
    set.zone.committed().0 >> CHUNK_ORDER
}

/// Merges the page allocations that begin in a chunk.
fn merge_pages(step: &Step<'_>, set: &ZoneSet, start: Pfn) {
    for pfn in (0..1 << CHUNK_ORDER).map(|page| start + PageCount(page)) {
        let Some(words) = set.zone.words(pfn) else { return };
        let pages = words.length();
        // Other pages of an area have their distance from its start in this place, which is at most
        // their own number. A free and an allocation may make this page one of those at any time.
        let is_word = set.is_heap() || words.word() > pfn.0;
        if pages > PageCount::ZERO
            && is_word
            && let Some(ext) = words.ext
        {
            step.merge(ext, pages_cost(pages));
        }
    }
}
