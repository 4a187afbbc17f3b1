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

use kmem_layout::word::TAG_BITS;

#[cfg(test)]
mod tests;

/// Count of tags.
const TAGS: usize = 1 << TAG_BITS;
/// Memory of a tag in a set, in bytes: its share of the set, of two tags or more.
const SHARED_TAG: u64 = 48;
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
    /// By sorted set of two tags or more.
    shared: HashMap<Box<[u32]>, u64>,
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

    /// Adds a slab in which these distinct tags live; sorts them.
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
            (self.room, self.held) = (room, self.held + tags.len());
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

/// Collects the distinct tags of one slab after another, without allocating for each.
#[derive(Debug)]
pub(super) struct Gather {
    /// By tag: number of the slab that it was last seen in.
    seen: Vec<u32>,
    /// Number of the present slab, from 1.
    slab: u32,
    last: Option<u32>,
    tags: Vec<u32>,
}

impl Gather {
    pub(super) fn new() -> Self {
        Self { seen: vec![0; TAGS], slab: 1, last: None, tags: Vec::new() }
    }

    /// Adds a live object of the present slab.
    #[inline]
    pub(super) fn object(&mut self, tag: u32) {
        // Neighbours often share a tag.
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

    /// Ends the present slab, which has `bytes` bytes.
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
