//! Counts of each tag, in memory that is bounded.

/// Most memory of all counts. Most programs have some thousands of tags, which take half a KiB
/// each.
pub(super) const MAX: u64 = 64 << 20;

/// Counts of each tag that was met.
#[derive(Debug, Clone)]
pub(super) struct ByTag<C> {
    counts: Vec<Option<C>>,
    /// Memory that is left for counts, and memory that they take.
    room: u64,
    held: u64,
}

impl<C> Default for ByTag<C> {
    fn default() -> Self {
        Self::with_room(0)
    }
}

impl<C> ByTag<C> {
    /// Counts that take at most `memory` bytes.
    pub(super) fn with_room(memory: u64) -> Self {
        Self { counts: Vec::new(), room: memory.min(MAX), held: 0 }
    }

    /// Memory of the counts, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.held
    }

    /// Takes memory for other counts. False: there is no room.
    pub(super) fn has_room(&mut self, bytes: u64) -> bool {
        let Some(room) = self.room.checked_sub(bytes) else { return false };
        (self.room, self.held) = (room, self.held + bytes);
        true
    }

    /// The counts of a tag. Those of a new tag are made, and point to `bytes` bytes. None: there is
    /// no room for them.
    #[inline]
    pub(super) fn of(
        &mut self,
        tag: u32,
        bytes: usize,
        make: impl FnOnce() -> C,
    ) -> Option<&mut C> {
        if self.get(tag).is_none() {
            self.add(tag as usize, bytes, make);
        }
        self.counts.get_mut(tag as usize)?.as_mut()
    }

    #[cold]
    fn add(&mut self, tag: usize, bytes: usize, make: impl FnOnce() -> C) {
        let more = (tag + 1).saturating_sub(self.counts.len());
        if self.has_room((more * size_of::<Option<C>>() + bytes) as u64) {
            self.counts.resize_with(self.counts.len() + more, || None);
            self.counts[tag] = Some(make());
        }
    }

    /// The counts of a tag that was met.
    #[inline]
    pub(super) fn get(&self, tag: u32) -> Option<&C> {
        self.counts.get(tag as usize)?.as_ref()
    }

    /// All tags that were met, and their counts.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &C)> {
        (0..).zip(&self.counts).filter_map(|(tag, counts)| Some((tag, counts.as_ref()?)))
    }
}
