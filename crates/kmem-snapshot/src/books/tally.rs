//! Live objects by extension word, added up over slabs of one size class before they join the
//! books.
//!
//! A large heap has many objects for each of its tags. So an object costs one entry of one table
//! here, as long as neighbours of one tag are of one group. The tables of the books are updated
//! once for all slabs of a class in a batch. A processor cannot guess the tags of neighbours, so no
//! branch of a usual object depends on them.

use kmem_layout::word::{EXT_LIVE, TAG_MASK};

/// Count of entries: one for each tag. All free objects have the one before, so that they need no
/// branch.
const ENTRIES: usize = TAG_MASK as usize + 2;
/// Words that are compared at once. Free objects are skipped, and objects of one word are added
/// together.
const STRIDE: usize = 8;

/// Counts of the live objects of some slabs.
#[derive(Debug)]
pub(super) struct Tally {
    /// The columns of [`Table`]. In one piece, so that one register finds all of them.
    table: Vec<u32>,
    /// Number of the present slab.
    slab: u32,
    /// Count of tags in [`Table::here`].
    here: usize,
    rare: Rare,
}

/// Parts of a tally that few objects change.
#[derive(Debug, Default)]
struct Rare {
    /// Tags whose entry has objects.
    met: Vec<u32>,
    /// Words whose entry got the word of another group after them, and counts.
    ousted: Vec<(u32, u64)>,
}

impl Tally {
    pub(super) fn new() -> Self {
        Self { table: vec![0; 4 * ENTRIES], slab: 0, here: 0, rare: Rare::default() }
    }

    /// Counts the live objects of a slab, by its extension vector.
    pub(super) fn slab(&mut self, vector: &[[u8; 4]]) {
        let Some([seen, counts, words, here]) = columns(&mut self.table) else { return };
        if self.slab == u32::MAX {
            seen.fill(0);
            self.slab = 0;
        }
        self.slab += 1;
        // Free objects are never met for the first time.
        seen[0] = self.slab;
        let mut table = Table { slab: self.slab, seen, counts, words, here, rare: &mut self.rare };
        let mut len = 0;
        // Only live words equal this one.
        let mut run = u32::MAX;
        let (strides, rest) = vector.as_chunks::<STRIDE>();
        for stride in strides {
            // Loops over an array and no closures: these become vector instructions in any build.
            let mut words = [0; STRIDE];
            for (word, bytes) in words.iter_mut().zip(stride) {
                *word = u32::from_le_bytes(*bytes);
            }
            let (mut live, mut same) = (0, 0);
            for word in words {
                live += (word / EXT_LIVE) & 1;
                same += u32::from(word == run);
            }
            if live != same {
                // Another load costs less than a part of a vector.
                for bytes in stride {
                    len += usize::from(table.add(u32::from_le_bytes(*bytes), 1, len));
                }
                // Every second word may belong to no object.
                let [.., before, last] = words;
                run = if last & EXT_LIVE != 0 { last } else { before | EXT_LIVE };
            } else if same != 0 {
                len += usize::from(table.add(run, same, len));
            }
        }
        for bytes in rest {
            len += usize::from(table.add(u32::from_le_bytes(*bytes), 1, len));
        }
        self.here = len;
    }

    /// Tags of the live objects in the slab that was counted last, each once, in no order.
    pub(super) fn here(&self) -> &[u32] {
        self.table.get(3 * ENTRIES..).and_then(|here| here.get(..self.here)).unwrap_or_default()
    }

    /// Takes the live words of all slabs since the last call, with their counts. A word may come
    /// twice.
    pub(super) fn take(&mut self) -> Vec<(u32, u64)> {
        let mut all = std::mem::take(&mut self.rare.ousted);
        let Some([_, counts, words, _]) = columns(&mut self.table) else { return all };
        for tag in self.rare.met.drain(..) {
            let at = tag as usize + 1;
            let (Some(count), Some(word)) = (counts.get_mut(at), words.get_mut(at)) else {
                continue;
            };
            all.push((std::mem::take(word), u64::from(std::mem::take(count))));
        }
        all
    }
}

/// The columns of [`Table`] in memory.
fn columns(table: &mut [u32]) -> Option<&mut [[u32; ENTRIES]; 4]> {
    table.as_chunks_mut().0.first_chunk_mut()
}

/// A tally within one slab.
struct Table<'a> {
    slab: u32,
    /// By entry: number of the slab that it was last seen in.
    seen: &'a mut [u32; ENTRIES],
    /// By entry: count of its objects that were not taken yet.
    counts: &'a mut [u32; ENTRIES],
    /// By entry: the extension word of these objects; 0: there are none.
    words: &'a mut [u32; ENTRIES],
    /// Tags of live objects in the slab. Those behind their count mean nothing.
    here: &'a mut [u32; ENTRIES],
    rare: &'a mut Rare,
}

impl Table<'_> {
    /// Adds objects with this word. `here` has `len` tags. True: it has one more now.
    #[inline(always)]
    fn add(&mut self, word: u32, objects: u32, len: usize) -> bool {
        let tag = word & TAG_MASK;
        let (at, word) = if word & EXT_LIVE != 0 { (tag as usize + 1, word) } else { (0, 0) };
        if self.words[at] != word {
            self.rare.change(&mut self.counts[at], &mut self.words[at], word);
        }
        if let Some(place) = self.here.get_mut(len) {
            *place = tag;
        }
        let is_first = self.seen[at] != self.slab;
        self.seen[at] = self.slab;
        self.counts[at] = self.counts[at].wrapping_add(objects);
        is_first
    }
}

impl Rare {
    /// Gives an entry another word.
    #[cold]
    #[inline(never)]
    fn change(&mut self, count: &mut u32, held: &mut u32, word: u32) {
        if *held == 0 {
            self.met.push(word & TAG_MASK);
        } else {
            self.ousted.push((*held, u64::from(*count)));
        }
        (*held, *count) = (word, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kmem_layout::word::OBJCG_SHIFT;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    type Sums = BTreeMap<u32, u64>;

    /// Words of a slab: runs of live and free ones, of few tags and groups.
    fn slab() -> impl Strategy<Value = Vec<u32>> {
        let live = |tag: u32, group: u32| group << OBJCG_SHIFT | EXT_LIVE | tag;
        // Words of freed objects keep their tag. The last one has all bits.
        let words =
            [0, 7, live(7, 0), live(7, 0), live(7, 1), live(9, 0), live(0, 0), TAG_MASK, u32::MAX];
        let run = (proptest::sample::select(words.to_vec()), 1_usize..40);
        let runs = proptest::collection::vec(run, 0..12);
        runs.prop_map(|runs| {
            runs.iter().flat_map(|&(word, len)| std::iter::repeat_n(word, len)).collect()
        })
    }

    proptest! {
        #[test]
        fn objects_and_tags_are_those_of_a_plain_count(
            slabs in proptest::collection::vec((slab(), any::<bool>()), 0..12),
        ) {
            let mut tally = Tally::new();
            // Near the end of its numbers, so that they start again.
            tally.slab = u32::MAX - 3;
            let (mut got, mut expected): (Sums, Sums) = Default::default();
            for (words, takes) in &slabs {
                let bytes: Vec<[u8; 4]> = words.iter().map(|word| word.to_le_bytes()).collect();
                tally.slab(&bytes);
                let live = words.iter().filter(|word| **word & EXT_LIVE != 0);
                let here: Vec<u32> = tally.here().to_vec();
                let distinct: BTreeSet<u32> = live.clone().map(|word| word & TAG_MASK).collect();
                prop_assert_eq!(here.len(), distinct.len());
                prop_assert_eq!(here.into_iter().collect::<BTreeSet<_>>(), distinct);
                live.for_each(|&word| *expected.entry(word).or_default() += 1);
                if *takes {
                    tally.take().iter().for_each(|(word, n)| *got.entry(*word).or_default() += n);
                    prop_assert_eq!(&got, &expected);
                }
            }
            tally.take().iter().for_each(|(word, n)| *got.entry(*word).or_default() += n);
            prop_assert_eq!(got, expected);
        }
    }

    #[test]
    fn a_slab_may_have_all_tags() {
        let mut tally = Tally::new();
        let words: Vec<[u8; 4]> =
            (0..=TAG_MASK).map(|tag| (tag | EXT_LIVE).to_le_bytes()).collect();
        for _ in 0..2 {
            tally.slab(&words);
            tally.slab(&words);
            assert!(tally.here().iter().copied().eq(0..=TAG_MASK));
            assert!(tally.take().into_iter().eq((0..=TAG_MASK).map(|tag| (tag | EXT_LIVE, 2))));
        }
    }
}
