//! What keeps memory from being given back: slabs by who has live objects in them.
//!
//! A slab goes back to its zone when all its objects are free, so one object keeps all of it. For
//! a row (a tag, or several that are shown as one):
//!
//! - **pinned**: bytes of all slabs with at least one live object of the row, and of its page runs;
//! - **sole**: of these, bytes of the slabs in which every live object is the row's, and of its
//!   page runs: what would become free if the row freed everything.
//!
//! `pinned - bytes` is what its objects keep beside themselves. Several rows may pin one slab, so
//! `pinned` does not add up over rows; `sole` does, to no more than what is in use.
//!
//! Rows are merged from tags after the census, and a slab that two tags share may be one row's.
//! So the census keeps the distinct sets of tags that meet in slabs, which are few next to the
//! slabs: one tag mostly, and else the same neighbours again and again.

use std::collections::HashMap;

use kmem::root::TAG_BITS;

const TAGS: usize = 1 << TAG_BITS;
/// Most tags in all sets together (128 MiB). A heap of many terabytes, or one made up to be a
/// nuisance, has more: from there on slabs are counted tag by tag.
const MAX_SHARED: usize = 32 << 20;

/// What the objects of a row keep from being given back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pinned {
    /// Bytes of slabs with at least one live object of the row, and of its page runs.
    pub pinned: u64,
    /// Of these, bytes of slabs in which every live object is of the row, and of its page runs.
    pub sole: u64,
}

/// Bytes of slabs and page runs, by the set of tags that live in them.
#[derive(Debug, Clone)]
pub struct Pins {
    /// One tag alone, by tag.
    alone: Vec<u64>,
    /// Two tags and more, sorted.
    shared: HashMap<Box<[u32]>, u64>,
    /// Tags that may still be kept in `shared`.
    room: usize,
    /// What did not fit, by tag; empty while all did.
    beyond: Vec<u64>,
}

impl Default for Pins {
    fn default() -> Self {
        Self { alone: vec![0; TAGS], shared: HashMap::new(), room: MAX_SHARED, beyond: Vec::new() }
    }
}

impl Pins {
    /// A page run of one tag, or a slab in which no other tag lives.
    pub(super) fn alone(&mut self, tag: u32, bytes: u64) {
        if let Some(sum) = self.alone.get_mut(tag as usize) {
            *sum += bytes;
        }
    }

    /// A slab in which these distinct tags live; sorts them.
    fn slab(&mut self, tags: &mut [u32], bytes: u64) {
        tags.sort_unstable();
        let tags = match &*tags {
            [] => return,
            [tag] => return self.alone(*tag, bytes),
            tags => tags,
        };
        if let Some(sum) = self.shared.get_mut(tags) {
            *sum += bytes;
        } else if let Some(room) = self.room.checked_sub(tags.len()) {
            self.room = room;
            self.shared.insert(tags.into(), bytes);
        } else {
            self.beyond.resize(TAGS, 0);
            for &tag in tags {
                if let Some(sum) = self.beyond.get_mut(tag as usize) {
                    *sum += bytes;
                }
            }
        }
    }

    /// Adds to `rows` what each of them pins. `row_of` tells which one a tag is part of; tags
    /// without one count as somebody else's. Exact until [`Pins::is_exact`] says otherwise: then
    /// `pinned` may be too large for rows of several tags.
    pub fn by_row(&self, row_of: impl Fn(u32) -> Option<usize>, rows: &mut [Pinned]) {
        let mut add = |row: Option<usize>, pinned: u64, sole: u64| {
            if let Some(row) = row.and_then(|row| rows.get_mut(row)) {
                row.pinned = row.pinned.saturating_add(pinned);
                row.sole = row.sole.saturating_add(sole);
            }
        };
        for (tag, &bytes) in (0..).zip(&self.alone).filter(|(_, bytes)| **bytes != 0) {
            add(row_of(tag), bytes, bytes);
        }
        for (tag, &bytes) in (0..).zip(&self.beyond).filter(|(_, bytes)| **bytes != 0) {
            add(row_of(tag), bytes, 0);
        }
        let mut here: Vec<Option<usize>> = Vec::new();
        for (tags, &bytes) in &self.shared {
            here.clear();
            here.extend(tags.iter().map(|&tag| row_of(tag)));
            here.sort_unstable();
            here.dedup();
            let sole = if here.len() == 1 { bytes } else { 0 };
            for &row in &here {
                add(row, bytes, sole);
            }
        }
    }

    /// False when there were more sets of tags than are kept.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.beyond.is_empty()
    }
}

/// Collects the distinct tags of one slab after the other, without allocating for each.
#[derive(Debug)]
pub(super) struct Gather {
    /// By tag: the number of the slab that it was last seen in.
    seen: Vec<u32>,
    slab: u32,
    last: Option<u32>,
    tags: Vec<u32>,
}

impl Gather {
    pub(super) fn new() -> Self {
        Self { seen: vec![0; TAGS], slab: 1, last: None, tags: Vec::new() }
    }

    /// A live object.
    #[inline]
    pub(super) fn object(&mut self, tag: u32) {
        // Neighbours mostly share a tag.
        if self.last == Some(tag) {
            return;
        }
        self.last = Some(tag);
        if let Some(seen) = self.seen.get_mut(tag as usize)
            && *seen != self.slab
        {
            *seen = self.slab;
            self.tags.push(tag);
        }
    }

    /// The end of a slab of so many bytes.
    pub(super) fn end(&mut self, bytes: u64, pins: &mut Pins) {
        pins.slab(&mut self.tags, bytes);
        self.tags.clear();
        self.last = None;
        if self.slab == u32::MAX {
            self.seen.fill(0);
            self.slab = 0;
        }
        self.slab += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    /// Tags of live objects and bytes, slab by slab; runs are slabs of one object.
    type Heap = Vec<(Vec<u32>, u64)>;

    fn pins(heap: &Heap, room: usize) -> Pins {
        let mut pins = Pins { room, ..Pins::default() };
        let mut gather = Gather::new();
        // Near the end of its numbers, so that they start again.
        gather.slab = u32::MAX - 3;
        for (tags, bytes) in heap {
            tags.iter().for_each(|&tag| gather.object(tag));
            gather.end(*bytes, &mut pins);
        }
        pins
    }

    fn model(heap: &Heap, row_of: impl Fn(u32) -> Option<usize>, rows: usize) -> Vec<Pinned> {
        let mut out = vec![Pinned::default(); rows];
        for (tags, bytes) in heap {
            let here: BTreeSet<_> = tags.iter().map(|&tag| row_of(tag)).collect();
            for row in here.iter().flatten() {
                out[*row].pinned += bytes;
                if here.len() == 1 {
                    out[*row].sole += bytes;
                }
            }
        }
        out
    }

    fn heap() -> impl Strategy<Value = Heap> {
        let tags = proptest::collection::vec(0_u32..12, 0..20);
        let slab = prop_oneof![
            // Slabs of all sorts, of few neighbours, of one.
            tags,
            proptest::collection::vec(prop_oneof![Just(3_u32), Just(7)], 0..6),
            (0_u32..12, 0_usize..5).prop_map(|(tag, count)| vec![tag; count]),
        ];
        proptest::collection::vec((slab, 1_u64..9), 0..60)
    }

    proptest! {
        #[test]
        fn rows_pin_what_a_plain_count_says(
            heap in heap(),
            rows in proptest::collection::vec(proptest::option::of(0_usize..5), 12),
        ) {
            let row_of = |tag: u32| rows[tag as usize];
            let mut got = vec![Pinned::default(); 5];
            let pins = pins(&heap, MAX_SHARED);
            pins.by_row(row_of, &mut got);
            prop_assert_eq!(&got, &model(&heap, row_of, 5));
            prop_assert!(pins.is_exact());
            let total: u64 = heap.iter().map(|(_, bytes)| bytes).sum();
            prop_assert!(got.iter().map(|p| p.sole).sum::<u64>() <= total);
        }

        #[test]
        fn tags_stay_exact_when_there_is_no_room_for_sets(heap in heap(), room in 0_usize..40) {
            let alone = |tag: u32| Some(tag as usize);
            let mut got = vec![Pinned::default(); 12];
            pins(&heap, room).by_row(alone, &mut got);
            prop_assert_eq!(got, model(&heap, alone, 12));
        }
    }

    #[test]
    fn a_set_that_comes_again_is_kept_once() {
        let heap = vec![(vec![9, 8, 8, 9], 4), (vec![8, 9], 4), (vec![], 4)];
        let pins = pins(&heap, 2);
        assert_eq!((pins.shared.len(), pins.room, pins.is_exact()), (1, 0, true));
    }
}
