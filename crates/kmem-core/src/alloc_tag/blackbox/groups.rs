//! The groups of a record of the black box.

use super::super::{Held, Kind};
use crate::sync::Ordering;
use crate::units::ObjcgId;
use kmem_layout::blackbox::{BOX_GROUPS, BoxGroup, BoxHeld};
use kmem_layout::group::{GroupBlock, MAX_GROUP_DEPTH};

/// The groups of a record that is being written.
pub(super) struct GroupPart<'a> {
    /// One entry for each group that there was at the beginning, as far as there is room.
    table: &'a mut [BoxGroup],
    blocks: &'a [GroupBlock],
}

impl<'a> GroupPart<'a> {
    /// Sums of zero for each group. `blocks` are the entries in use, by id.
    pub(super) fn new(
        room: &'a mut [BoxGroup; BOX_GROUPS as usize],
        blocks: &'a [GroupBlock],
    ) -> Self {
        let count = blocks.len().min(room.len());
        let table = &mut room[..count];
        table.iter_mut().for_each(|group| group.held = BoxHeld::default());
        Self { table, blocks }
    }

    /// Adds allocations to the sums of their group, or of its nearest ancestor that has an entry.
    #[inline(always)]
    pub(super) fn add(&mut self, held: &Held, kind: Kind) {
        let mut at = held.objcg.0 as usize;
        if at >= self.table.len() {
            at = self.nearest(held.objcg);
        }
        let Some(group) = self.table.get_mut(at) else { return };
        let sum = &mut group.held;
        sum.objects += held.calls;
        sum.metadata += held.charged() - held.bytes;
        *match kind {
            Kind::Slab => &mut sum.slab,
            Kind::Pages => &mut sum.pages,
            Kind::Vmalloc => &mut sum.vmalloc,
            Kind::PerCpu => &mut sum.percpu,
        } += held.bytes;
    }

    /// Place of the nearest ancestor that has an entry.
    #[cold]
    #[inline(never)]
    fn nearest(&self, mut at: ObjcgId) -> usize {
        for _ in 0..MAX_GROUP_DEPTH {
            if (at.0 as usize) < self.table.len() {
                return at.0 as usize;
            }
            let block = self.blocks.get(at.0 as usize);
            at = ObjcgId(block.map_or(0, |block| block.parent.load(Ordering::Relaxed)));
        }
        0
    }

    /// Copies the groups' blocks. Returns the number of groups in the record. Not inlined: callers
    /// of `malloc` may have little stack.
    #[inline(never)]
    pub(super) fn finish(self) -> u32 {
        for (group, block) in self.table.iter_mut().zip(self.blocks) {
            copy(&group.block, block);
        }
        self.table.len() as u32
    }
}

/// Copies a block in place, without addresses and descriptors of the process. A block on the stack
/// would be too large for callers of `malloc`.
fn copy(to: &GroupBlock, from: &GroupBlock) {
    for (to, from) in [
        (&to.state, &from.state),
        (&to.parent, &from.parent),
        (&to.pins, &from.pins),
        (&to.children, &from.children),
        (&to.over, &from.over),
        (&to.living, &from.living),
    ] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    for (to, from) in [
        (&to.charged, &from.charged),
        (&to.own, &from.own),
        (&to.reserved, &from.reserved),
        (&to.peak, &from.peak),
        (&to.max, &from.max),
        (&to.high, &from.high),
        (&to.low, &from.low),
    ] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    for (to, from) in to.events.iter().zip(&from.events) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    to.eventfd.store(0, Ordering::Relaxed);
    to.merging.store(0, Ordering::Relaxed);
    to.shrinkers.store(0, Ordering::Relaxed);
    to.name_len.store(from.name_len.load(Ordering::Relaxed), Ordering::Relaxed);
    for (to, from) in to.name.iter().zip(&from.name) {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}
