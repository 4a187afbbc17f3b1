//! The groups of a record of the black box.

use super::super::{Held, Kind};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
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

    /// Copies the groups' blocks. Returns the number of groups in the record.
    pub(super) fn finish(self) -> u32 {
        for (group, block) in self.table.iter_mut().zip(self.blocks) {
            group.block = copy(block);
        }
        self.table.len() as u32
    }
}

/// A copy of a block, without addresses and descriptors of the process.
fn copy(block: &GroupBlock) -> GroupBlock {
    let u32_of = |word: &AtomicU32| AtomicU32::new(word.load(Ordering::Relaxed));
    let u64_of = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
    GroupBlock {
        state: u32_of(&block.state),
        parent: u32_of(&block.parent),
        charged: u64_of(&block.charged),
        own: u64_of(&block.own),
        reserved: u64_of(&block.reserved),
        peak: u64_of(&block.peak),
        max: u64_of(&block.max),
        high: u64_of(&block.high),
        low: u64_of(&block.low),
        events: core::array::from_fn(|event| u64_of(&block.events[event])),
        pins: u32_of(&block.pins),
        children: u32_of(&block.children),
        over: u32_of(&block.over),
        eventfd: AtomicU32::new(0),
        living: u32_of(&block.living),
        reserved_word: AtomicU32::new(0),
        shrinkers: AtomicU64::new(0),
        name_len: AtomicU8::new(block.name_len.load(Ordering::Relaxed)),
        name: core::array::from_fn(|i| AtomicU8::new(block.name[i].load(Ordering::Relaxed))),
    }
}
