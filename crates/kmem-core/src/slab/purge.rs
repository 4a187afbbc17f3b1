//! Purges: giving back memory inside slabs, pages on which no object lives.
//!
//! Claims take from the lowest slab that has free objects, so higher slabs may stay unused. If no
//! thread claimed from a slab for some generations of the decay, a purge drops the pages under its
//! free objects. To do so it takes all credit of the slab and its free objects, as a claim does,
//! and gives them back. In between the slab looks full.

use super::{Format, Kind, MENDING, Retired, SlabZone, class_in, credit_in, stamp_in};
use crate::class::{Classes, SizeClass};
use crate::os::Platform;
use crate::page::{Keep, On, Run, Zone};
use crate::row::{Row, find_run, runs};
use crate::sync::Ordering;
use crate::units::{CHUNK_ORDER, PAGE_SIZE, PageCount, Pfn};
use kmem_layout::geometry::ClassGeometry;

/// Most work that one purge does.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Pageblocks of free pages that are dropped.
    pub pageblocks: u32,
    /// Chunks whose state is read.
    pub chunks: u32,
    /// Slabs whose rows are read.
    pub looks: u32,
    /// Slabs whose pages are dropped.
    pub purges: u32,
}

impl Work {
    /// Work of a purge that the clock started: no single call takes long.
    pub const SOME: Self = Self { pageblocks: 16, chunks: 4096, looks: 32, purges: 8 };
    /// All memory.
    pub const ALL: Self =
        Self { pageblocks: u32::MAX, chunks: u32::MAX, looks: u32::MAX, purges: u32::MAX };
}

impl SlabZone {
    /// Begins a generation of the decay.
    pub fn grow_older(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops pages without objects, of slabs from which no thread claimed in the last generations.
    /// Begins where the last call ended. Calls `retired` with each slab that became wholly free.
    /// Returns the bytes dropped. Slabs with guards keep their pages: the guards are on them.
    ///
    /// # Safety
    /// `on` is the zone of these slabs. They have the geometry in `classes`, and this format. All
    /// pages that were ever slabs are readable.
    pub unsafe fn purge<P: Platform>(
        &self,
        on: On<'_, P>,
        classes: &Classes,
        format: Format,
        keep: Keep,
        work: Work,
        mut retired: impl FnMut(Retired),
    ) -> usize {
        let end = on.zone.committed().0 >> CHUNK_ORDER;
        if format.guards {
            return 0;
        }
        let (mut looks, mut purges, mut bytes) = (work.looks, work.purges, 0);
        let mut chunk = self.looked.load(Ordering::Relaxed);
        for _ in 0..work.chunks.min(end) {
            if looks == 0 || purges == 0 {
                break;
            }
            chunk = if chunk + 1 < end { chunk + 1 } else { 0 };
            let Some(class) = self.old_class(chunk, keep.age) else { continue };
            looks -= 1;
            let kind = Kind::new(class, classes.geometry(class), format);
            let start = Pfn(chunk << CHUNK_ORDER);
            if self.holes(on.zone, chunk, kind.geometry).next().is_none() {
                continue;
            }
            let pageblock = start.pageblock();
            if on.zone.is_backed(pageblock) {
                let others = pageblock.first().0 >> CHUNK_ORDER..pageblock.end().0 >> CHUNK_ORDER;
                looks = looks.saturating_sub(others.len() as u32);
                let holes = |other| {
                    let class = self.old_class(other, keep.age)?;
                    let holes = self.holes(on.zone, other, classes.geometry(class));
                    Some(holes.map(|run| run.pages.0).sum::<u32>())
                };
                let free = PageCount(others.filter_map(holes).sum());
                if !on.may_break_up(pageblock, free, keep.backed) {
                    // This is so for all of its slabs.
                    chunk = (pageblock.end().0 >> CHUNK_ORDER) - 1;
                    continue;
                }
            }
            purges -= 1;
            let drop_pages = |row, bits| {
                for run in free_pages(start, kind.geometry, row, bits) {
                    // SAFETY: the pages lie in free objects that this thread holds.
                    bytes += unsafe { on.drop_contents(run) };
                }
            };
            // SAFETY: the kind is that of this zone's slabs of its class, by the contract.
            let done = unsafe { self.with_free_objects(chunk, kind, drop_pages) };
            if let Some(done) = done {
                retired(done);
            }
        }
        self.looked.store(chunk, Ordering::Relaxed);
        bytes
    }

    /// Class of the slab at a chunk, if it has free objects, and no thread claimed from it for
    /// `age` generations.
    fn old_class(&self, chunk: u32, age: u32) -> Option<SizeClass> {
        let state = self.state(chunk).load(Ordering::Relaxed);
        let credit = credit_in(state);
        let old = self.generation.load(Ordering::Relaxed).wrapping_sub(stamp_in(state)) & 0xFF;
        (credit != 0 && credit < MENDING && old >= age).then(|| class_in(state))
    }

    /// Pages under free objects only, which may have old contents: of the slab at a chunk, whose
    /// state just said so, with this geometry.
    fn holes<'a>(
        &'a self,
        zone: &'a Zone,
        chunk: u32,
        geometry: &'a ClassGeometry,
    ) -> impl Iterator<Item = Run> {
        let start = Pfn(chunk << CHUNK_ORDER);
        // SAFETY: the state said a slab of this class. If it was retired since, the memory is still
        // committed, and the bits that are read are only a hint.
        let rows = unsafe { self.rows(self.slab_address(chunk), geometry) };
        let free = move |(i, row): (usize, &'a Row)| free_pages(start, geometry, i, row.load());
        rows.iter().enumerate().flat_map(free).filter(|run| !zone.reads_zero(*run))
    }

    /// Calls `each` with the free objects of a slab, as the number of a row and its bits, while
    /// this thread holds them. If the slab is wholly free at the end, retires it and returns it.
    ///
    /// # Safety
    /// `kind` is that of this zone's slabs of its class.
    pub(super) unsafe fn with_free_objects(
        &self,
        chunk: u32,
        kind: Kind<'_>,
        mut each: impl FnMut(usize, u64),
    ) -> Option<Retired> {
        let credit =
            self.take_credit(chunk, kind.class, u32::MAX).ok().filter(|&credit| credit > 0)?;
        let mut left = credit;
        // SAFETY: this thread holds credit of the slab, so it stays a slab of its class, whose
        // geometry this is, by the contract.
        let rows = unsafe { self.rows(self.slab_address(chunk), kind.geometry) };
        for (i, row) in rows.iter().enumerate() {
            if left == 0 {
                break;
            }
            let bits = row.take(left);
            left -= bits.count_ones();
            each(i, bits);
            let twice = row.give(bits);
            debug_assert_eq!(twice, 0);
        }
        // Give all credit back. This thread may have missed objects that other threads freed in
        // rows behind it.
        self.give_credit(chunk, kind, credit)
    }
}

/// Pages of a slab that lie wholly in runs of free objects of one row.
fn free_pages(
    slab: Pfn,
    geometry: &ClassGeometry,
    row: usize,
    bits: u64,
) -> impl Iterator<Item = Run> {
    let size = geometry.size as usize;
    // Least run of free objects that covers a page. A row of tiny objects is shorter than that.
    let least = PAGE_SIZE.div_ceil(size.max(1)) as u32;
    let some = least <= 64 && find_run(bits, least, 1).is_some();
    runs(if some { bits } else { 0 }).filter_map(move |(first, count)| {
        let from = (row * 64 + first as usize) * size;
        let pages = from.div_ceil(PAGE_SIZE)..(from + count as usize * size) / PAGE_SIZE;
        let start = slab + PageCount(pages.start as u32);
        let run = Run { start, pages: PageCount(pages.len() as u32) };
        (!pages.is_empty()).then_some(run)
    })
}
