//! The census: everything live, by tag, group and class.
//!
//! Nothing is counted when memory is allocated or freed: one word per object says who holds it. The
//! census reads these words, four bytes per object.

use kmem_layout::word::{EXT_LIVE, TAG_UNTAGGED};

use super::{Held, Kind};
use crate::class::{Classes, SizeClass};
use crate::page::{Purpose, ZoneSet, Zones};
use crate::slab::{Format, SlabZone};
use crate::sync::{AtomicU32, Ordering};
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
        if self.format.has_words() {
            self.of_slabs(set, &mut each);
        }
        let mut at = Pfn::ZERO;
        while let Some(words) = set.zone.words(at) {
            let pages = words.length();
            if pages > PageCount::ZERO {
                let word = if self.format.has_words() { words.word() } else { TAG_UNTAGGED };
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
            each_run(words, |word, count| each(held(word, count)));
        };
        // SAFETY: the zone has that many pages.
        unsafe { set.slabs.each_slab(committed, self.classes.all(), each_slab) };
    }
}

/// Words that are looked at without a branch for each.
const STRIDE: usize = 4;

/// Calls `each` with the live words and their counts. Adjacent objects mostly have the same word,
/// so it is called for runs of words, not for words.
///
/// Words that belong to no object lie between the others at no regular distance, so a branch for
/// each would often be predicted wrongly.
#[inline]
fn each_run(words: &[AtomicU32], mut each: impl FnMut(u32, u64)) {
    // Only live words equal this one.
    let (mut run, mut count) = (u32::MAX, 0u64);
    let (strides, rest) = words.as_chunks::<STRIDE>();
    for stride in strides.iter().map(<[AtomicU32; STRIDE]>::as_slice).chain([rest]) {
        let (mut live, mut same) = (0, 0);
        for word in stride {
            let word = word.load(Ordering::Relaxed);
            live += (word / EXT_LIVE) & 1;
            same += u32::from(word == run);
        }
        if live == same {
            count += u64::from(same);
            continue;
        }
        for word in stride {
            let word = word.load(Ordering::Relaxed);
            if word & EXT_LIVE == 0 {
                continue;
            }
            if word != run {
                if count > 0 {
                    each(run, count);
                }
                (run, count) = (word, 0);
            }
            count += 1;
        }
    }
    if count > 0 {
        each(run, count);
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

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    #[test]
    fn runs_of_words_add_up_to_the_live_words() {
        let words_of = |kinds: &[u32], len: usize, seed: u64| -> Vec<AtomicU32> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize
            };
            (0..len).map(|_| AtomicU32::new(kinds[next() % kinds.len()])).collect()
        };
        let live = |tag: u32| tag | EXT_LIVE;
        // Words of freed objects keep their tag. The last kind has all bits.
        let kinds = [0, live(7), 7, live(7), 9, live(9), u32::MAX, !EXT_LIVE];
        for len in [0, 1, STRIDE - 1, STRIDE, STRIDE + 1, 10 * STRIDE + 3] {
            for few in 1..=kinds.len() {
                let words = words_of(&kinds[..few], len, (len * few) as u64);
                let (mut sums, mut expected) = (BTreeMap::new(), BTreeMap::new());
                for word in words.iter().map(|word| word.load(Ordering::Relaxed)) {
                    if word & EXT_LIVE != 0 {
                        *expected.entry(word).or_insert(0) += 1;
                    }
                }
                each_run(&words, |word, count| {
                    assert!(word & EXT_LIVE != 0 && count > 0);
                    *sums.entry(word).or_insert(0) += count;
                });
                assert_eq!(sums, expected);
            }
        }
    }

    #[test]
    fn equal_neighbours_are_one_run_across_free_words() {
        let word = |word| AtomicU32::new(word);
        let words: Vec<_> =
            (0..100).map(|i| word(if i % 3 == 0 { 5 } else { 5 | EXT_LIVE })).collect();
        let mut calls = 0;
        each_run(&words, |_, count| {
            calls += 1;
            assert_eq!(count, 66);
        });
        assert_eq!(calls, 1);
    }
}
