//! Which memory the tags pin, as the census meets them. A slab goes back to its zone when all its
//! objects are free, so one object keeps all of it. For a row, which is one tag or several:
//!
//! - **pinned**: bytes of all slabs with at least one live object of the row, and of its page
//!   allocations;
//! - **sole**: the part of these bytes in slabs where every live object is the row's, and in its
//!   page allocations. They would become free if the program freed all objects of the row.
//!
//! Several rows may pin one slab, so `pinned` does not add up over rows. `sole` does, to no more
//! than the memory in use. Rows are merged from tags after the census, and then a slab that two
//! tags share may belong to one row. So the census keeps the distinct sets of tags that meet in
//! slabs. There are few of them: most slabs have one tag, and the same neighbours recur.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};

use kmem_layout::word::TAG_BITS;

#[cfg(test)]
mod tests;

/// Count of tags.
const TAGS: usize = 1 << TAG_BITS;
/// Memory of a tag in a set, in bytes: its share of the set, of two tags or more.
const SHARED_TAG: u64 = 64;
/// Most memory of all sets together. A heap of many terabytes, or a hostile one, has more; its
/// further slabs are counted tag by tag.
const MAX_SHARED: u64 = 1 << 30;

/// Memory that the objects of a row keep from being given back, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pinned {
    /// Slabs with at least one live object of the row, and the row's page allocations.
    pub pinned: u64,
    /// The part of it in slabs where every live object is the row's, and in its page allocations.
    pub sole: u64,
}

/// Bytes of slabs and page allocations, by the set of tags that live in them.
#[derive(Debug, Clone)]
pub struct Pins {
    /// By tag: slabs of one tag alone; empty while there is none.
    alone: Vec<u64>,
    /// By the sum of its marks: each set of two tags or more, and its slabs.
    shared: HashMap<Mark, (Box<[u32]>, u64)>,
    /// Count of tags that `shared` still has room for, and count of tags in it.
    room: usize,
    held: usize,
    /// By tag: slabs that found no room in `shared`; empty while all did.
    beyond: Vec<u64>,
}

impl Default for Pins {
    fn default() -> Self {
        Self::with_room(MAX_SHARED)
    }
}

impl Pins {
    /// Pins whose sets take at most `memory` bytes.
    pub(super) fn with_room(memory: u64) -> Self {
        let room = usize::try_from(memory.min(MAX_SHARED) / SHARED_TAG).unwrap_or(0);
        Self { alone: Vec::new(), shared: HashMap::new(), room, held: 0, beyond: Vec::new() }
    }

    /// Memory of the sets, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.held as u64 * SHARED_TAG
    }

    /// Adds a page allocation of one tag, or a slab in which no other tag lives.
    pub(super) fn alone(&mut self, tag: u32, bytes: u64) {
        if self.alone.is_empty() {
            self.alone.resize(TAGS, 0);
        }
        if let Some(sum) = self.alone.get_mut(tag as usize) {
            *sum += bytes;
        }
    }

    /// Adds a slab in which these distinct tags live, in any order.
    pub(super) fn slab(&mut self, tags: &[u32], marks: &mut Marks, bytes: u64) {
        let tags = match tags {
            [] => return,
            [tag] => return self.alone(*tag, bytes),
            tags => tags,
        };
        let mark = marks.of(tags);
        if let Some((_, sum)) = self.shared.get_mut(&mark) {
            *sum += bytes;
        } else if let Some(room) = self.room.checked_sub(tags.len()) {
            (self.room, self.held) = (room, self.held + tags.len());
            self.shared.insert(mark, (tags.into(), bytes));
        } else {
            self.beyond.resize(TAGS, 0);
            for &tag in tags {
                if let Some(sum) = self.beyond.get_mut(tag as usize) {
                    *sum += bytes;
                }
            }
        }
    }

    /// Adds to each of `rows` the bytes it pins. `row_of` returns the index of the row that a tag
    /// belongs to; a tag without a row counts as foreign to all rows.
    ///
    /// Exact while [`Pins::is_exact`]. After that `pinned` may be too large for a row of several
    /// tags.
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
        for (tags, bytes) in self.shared.values() {
            here.clear();
            here.extend(tags.iter().map(|&tag| row_of(tag)));
            here.sort_unstable();
            here.dedup();
            let sole = if here.len() == 1 { *bytes } else { 0 };
            for &row in &here {
                add(row, *bytes, sole);
            }
        }
    }

    /// False when there were more sets of tags than are kept.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.beyond.is_empty()
    }
}

/// Random number of a tag, or the sum of those of a set.
type Mark = [u64; 2];

/// Marks of tags. Sums of marks tell sets apart without sorting them: two sets have one sum with a
/// chance of one in 2^128. The process that is read cannot know the marks.
#[derive(Debug)]
pub(super) struct Marks {
    random: RandomState,
    /// By tag, up to the highest one that was met; zeroes until it is met.
    by_tag: Vec<Mark>,
}

impl Marks {
    pub(super) fn new() -> Self {
        Self { random: RandomState::new(), by_tag: Vec::new() }
    }

    /// The mark of a set of distinct tags.
    fn of(&mut self, tags: &[u32]) -> Mark {
        let mut sum = [0_u64; 2];
        for &tag in tags {
            let mark = match self.by_tag.get(tag as usize) {
                Some(&mark) if mark[0] != 0 => mark,
                _ => self.make(tag),
            };
            sum = [sum[0].wrapping_add(mark[0]), sum[1].wrapping_add(mark[1])];
        }
        sum
    }

    /// Makes the mark of a tag.
    #[cold]
    #[inline(never)]
    fn make(&mut self, tag: u32) -> Mark {
        let mark = [self.random.hash_one((tag, 0)), self.random.hash_one((tag, 1))];
        let at = tag as usize;
        if at < TAGS && at >= self.by_tag.len() {
            self.by_tag.resize(at + 1, [0; 2]);
        }
        if let Some(place) = self.by_tag.get_mut(at) {
            *place = mark;
        }
        mark
    }
}
