//! The groups of a record.

use super::super::{Held, Kind};
use crate::blackbox::{BOX_GROUPS, BoxGroup, BoxHeld};
use crate::root::{GroupBlock, MAX_GROUP_DEPTH};
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::units::ObjcgId;

/// The part of a record that is about groups, while it is being written.
pub(super) struct GroupPart<'a> {
    /// Of as many groups as there were at the beginning.
    table: &'a mut [BoxGroup],
    blocks: &'a [GroupBlock],
}

impl<'a> GroupPart<'a> {
    /// Nobody holds anything yet. `blocks` are the entries in use, by id.
    pub(super) fn new(
        room: &'a mut [BoxGroup; BOX_GROUPS as usize],
        blocks: &'a [GroupBlock],
    ) -> Self {
        let count = blocks.len().min(room.len());
        let table = &mut room[..count];
        table.iter_mut().for_each(|group| group.held = BoxHeld::default());
        Self { table, blocks }
    }

    /// What a group holds, as far as there is a place for it; else its nearest ancestor's that has one.
    pub(super) fn add(&mut self, held: &Held, kind: Kind) {
        let mut at = held.objcg;
        for _ in 0..MAX_GROUP_DEPTH {
            if (at.0 as usize) < self.table.len() {
                break;
            }
            let block = self.blocks.get(at.0 as usize);
            at = ObjcgId(block.map_or(0, |block| block.parent.load(Ordering::Relaxed)));
        }
        let at = if (at.0 as usize) < self.table.len() { at.0 as usize } else { 0 };
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

    /// Copies the entries; how many groups there are in the record.
    pub(super) fn finish(self) -> u32 {
        for (group, block) in self.table.iter_mut().zip(self.blocks) {
            group.block = copy(block);
        }
        self.table.len() as u32
    }
}

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
