//! Giving back memory inside slabs: pages in which no object lives.
//!
//! Claims take from the lowest slab that has free objects, so those above it are left alone until they are
//! wholly free. Of a slab that nobody claimed from for some generations of the decay the pages
//! under free objects are dropped. Who does that takes all credit of the slab and the objects that
//! are free, as a claim does, and gives them back: for a moment the slab looks full.

use super::{MENDING, Retired, SlabZone, class_in, credit_in, stamp_in};
use crate::class::{ClassGeometry, SizeClass};
use crate::os::Platform;
use crate::page::{On, Run};
use crate::row::{find_run, runs};
use crate::sync::Ordering;
use crate::units::{CHUNK_ORDER, PAGE_SIZE, PageCount, Pfn};

/// How much is done at once.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Chunks passed by.
    pub chunks: u32,
    /// Slabs looked into.
    pub looks: u32,
    /// Slabs purged.
    pub purges: u32,
}

impl Work {
    /// At a look at the clock, so that no single call takes long.
    pub const SOME: Self = Self { chunks: 4096, looks: 32, purges: 8 };
    /// All slabs.
    pub const ALL: Self = Self { chunks: u32::MAX, looks: u32::MAX, purges: u32::MAX };
}

impl SlabZone {
    /// A generation of the decay begins.
    pub fn grow_older(&self) {
        self.generation.fetch_add(1, Ordering::Relaxed);
    }

    /// Drops pages without objects of slabs that nobody claimed from for `age` generations, going
    /// on where the last call ended; bytes dropped. `retired` is told of slabs that became wholly
    /// free meanwhile. Slabs with guards are left as they are.
    pub fn purge<P: Platform>(
        &self,
        on: On<'_, P>,
        classes: &[ClassGeometry],
        age: u32,
        work: Work,
        mut retired: impl FnMut(Retired),
    ) -> usize {
        let end = on.zone.committed() >> CHUNK_ORDER;
        if self.guards {
            return 0;
        }
        let (mut looks, mut purges, mut bytes) = (work.looks, work.purges, 0);
        let mut chunk = self.looked.load(Ordering::Relaxed);
        for _ in 0..work.chunks.min(end) {
            if looks == 0 || purges == 0 {
                break;
            }
            chunk = if chunk + 1 < end { chunk + 1 } else { 0 };
            let state = self.state(chunk).load(Ordering::Relaxed);
            let credit = credit_in(state);
            let old = self.generation.load(Ordering::Relaxed).wrapping_sub(stamp_in(state)) & 0xFF;
            if credit == 0 || credit >= MENDING || old < age {
                continue;
            }
            looks -= 1;
            let class = class_in(state);
            let Some(geometry) = classes.get(class.0 as usize) else { continue };
            let (slab, start) = (self.slab_address(chunk), Pfn(chunk << CHUNK_ORDER));
            let dirty = |pages: &Run| !on.zone.reads_zero(*pages);
            let mut rows = self.rows(slab, geometry).iter().enumerate();
            if !rows
                .any(|(i, row)| free_pages(start, geometry, i, row.load()).any(|run| dirty(&run)))
            {
                continue;
            }
            purges -= 1;
            let done = self.with_free_objects(chunk, class, geometry, |row, bits| {
                for run in free_pages(start, geometry, row, bits) {
                    bytes += on.drop_contents(run);
                }
            });
            if let Some(done) = done {
                retired(done);
            }
        }
        self.looked.store(chunk, Ordering::Relaxed);
        bytes
    }

    /// Calls `each` with the free objects of a slab, as the number of a row and bits of it, while nobody
    /// else can have them. The slab, if it is wholly free by the end.
    pub(super) fn with_free_objects(
        &self,
        chunk: u32,
        class: SizeClass,
        geometry: &ClassGeometry,
        mut each: impl FnMut(usize, u64),
    ) -> Option<Retired> {
        let credit = self.take_credit(chunk, class, u32::MAX).ok().filter(|&credit| credit > 0)?;
        let mut left = credit;
        for (i, row) in self.rows(self.slab_address(chunk), geometry).iter().enumerate() {
            if left == 0 {
                break;
            }
            let bits = row.take(left);
            left -= bits.count_ones();
            each(i, bits);
            let twice = row.give(bits);
            debug_assert_eq!(twice, 0);
        }
        // All of it, even where an object was not met: bits move between rows while others take and
        // give.
        self.give_credit(chunk, class, geometry, credit)
    }
}

/// The pages of a slab that lie wholly in free objects of one row that follow each other.
fn free_pages(
    slab: Pfn,
    geometry: &ClassGeometry,
    row: usize,
    bits: u64,
) -> impl Iterator<Item = Run> {
    let size = geometry.size as usize;
    // So many objects have at least to be free; more than a row has if they are tiny.
    let least = PAGE_SIZE.div_ceil(size.max(1)) as u32;
    let some = least <= 64 && find_run(bits, least, 1).is_some();
    runs(if some { bits } else { 0 }).filter_map(move |(first, count)| {
        let from = (row * 64 + first as usize) * size;
        let pages = from.div_ceil(PAGE_SIZE)..(from + count as usize * size) / PAGE_SIZE;
        let run =
            Run { start: slab.offset(pages.start as u32), pages: PageCount(pages.len() as u32) };
        (!pages.is_empty()).then_some(run)
    })
}
