//! The census: everything live, by tag, group and class.
//!
//! Nothing is counted when memory is allocated or freed: one word per object says who holds it. The
//! census reads these words, four bytes per object.

use kmem_layout::word::{EXT_LIVE, TAG_UNTAGGED};

use super::{Held, Kind};
use crate::class::{Classes, SizeClass};
use crate::page::{Purpose, ZoneSet, Zones};
use crate::slab::{Format, SlabZone};
use crate::sync::Ordering;
use crate::units::{PageCount, Pfn};

/// Counts everything live in the zones of an instance.
///
/// # Invariants
/// All slabs of the zones have the geometry in `classes`, and the extension words of the format.
#[derive(Clone, Copy)]
pub struct Census<'a> {
    zones: &'a Zones<SlabZone>,
    classes: &'a Classes,
    format: Format,
}

impl<'a> Census<'a> {
    /// A census of `zones`.
    ///
    /// # Safety
    /// All slabs of the zones were and will be made with the geometry in `classes`, and with the
    /// extension words of the format.
    #[inline]
    pub const unsafe fn new(
        zones: &'a Zones<SlabZone>,
        classes: &'a Classes,
        format: Format,
    ) -> Self {
        // INVARIANT: the same contract.
        Self { zones, classes, format }
    }

    /// Returns whether objects have extension words, which say who holds them.
    pub const fn knows_holders(&self) -> bool {
        self.format.extension
    }

    /// Calls `each` with everything live, in no order and in any number of parts.
    pub fn each(&self, mut each: impl FnMut(Held, Kind)) {
        for set in self.zones.all() {
            self.of_zone(set, |held| each(held, kind_of(set, &held)));
        }
    }

    /// Calls `each` with everything live in a zone, in no order and in any number of parts.
    pub fn of_zone(&self, set: &ZoneSet<SlabZone>, mut each: impl FnMut(Held)) {
        if self.format.extension {
            self.of_slabs(set, &mut each);
        }
        let mut at = Pfn::ZERO;
        while let Some(words) = set.zone.words(at) {
            let pages = PageCount(words.len.load(Ordering::Acquire));
            if pages > PageCount::ZERO {
                let word = words.ext.load(Ordering::Relaxed);
                let word = if self.format.extension { word } else { TAG_UNTAGGED };
                each(Held::new(word, SizeClass(0), pages.bytes() as u64, 1));
            }
            at += pages.max(PageCount::ONE);
        }
    }

    /// Calls `each` with the live objects of a zone's slabs.
    fn of_slabs(&self, set: &ZoneSet<SlabZone>, mut each: impl FnMut(Held)) {
        let committed = set.zone.committed();
        let each_slab = |slab, class| {
            let geometry = self.classes.geometry(class);
            let size = u64::from(geometry.size);
            let held = |word, count| Held::new(word, class, count * size, count);
            // SAFETY: a slab of this class, with extension words, by the invariant. If another
            // thread retires it now, its memory stays committed, and the words are of an unknown
            // moment.
            let words = unsafe { set.slabs.extension(slab, geometry) };
            // Adjacent objects mostly have the same word: report runs of objects, not objects.
            let mut live = words.iter().map(|word| word.load(Ordering::Relaxed));
            let mut live = || live.find(|word| word & EXT_LIVE != 0);
            let mut next = live();
            while let Some(run) = next {
                let mut count = 1;
                next = loop {
                    match live() {
                        Some(word) if word == run => count += 1,
                        other => break other,
                    }
                };
                each(held(run, count));
            }
        };
        // SAFETY: the zone has that many pages.
        unsafe { set.slabs.each_slab(committed, self.classes.all(), each_slab) };
    }
}

/// Kind of allocations of a zone.
fn kind_of(set: &ZoneSet<SlabZone>, held: &Held) -> Kind {
    match (set.purpose, held.class) {
        (Purpose::PerCpu, _) => Kind::PerCpu,
        (Purpose::Vmalloc | Purpose::Shared, _) => Kind::Vmalloc,
        (Purpose::Heap, SizeClass(0)) => Kind::Pages,
        (Purpose::Heap, _) => Kind::Slab,
    }
}
