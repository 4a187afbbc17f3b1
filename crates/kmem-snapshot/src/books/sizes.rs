//! Live objects of each tag by their size.

use std::collections::HashMap;

use super::zone::Class;

/// Memory of one length of page allocations, in bytes.
const LENGTH: u64 = 48;
/// Most memory of all counts. Most programs have some thousands of tags, which take half a KiB
/// each.
const MAX: u64 = 64 << 20;

/// Live objects of each tag by size.
#[derive(Debug, Clone, Default)]
pub struct Sizes {
    /// By size class: bytes of an object.
    sizes: Vec<u64>,
    /// By tag: objects of each size class; none where the tag has no object.
    objects: Vec<Option<Box<[u64]>>>,
    /// By tag and bytes: page allocations.
    pages: HashMap<(u32, u64), u64>,
    /// Memory that is left for counts, and memory that they take.
    room: u64,
    held: u64,
    /// Objects and page allocations that found no room.
    beyond: u64,
}

impl Sizes {
    /// Counts that take at most `memory` bytes.
    pub(super) fn with_room(classes: &[Option<Class>], memory: u64) -> Self {
        let size = |class: &Option<Class>| class.map_or(0, |class| u64::from(class.size));
        Self { sizes: classes.iter().map(size).collect(), room: memory.min(MAX), ..Self::default() }
    }

    /// Memory of the counts, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.held
    }

    fn has_room(&mut self, bytes: u64) -> bool {
        let Some(room) = self.room.checked_sub(bytes) else { return false };
        (self.room, self.held) = (room, self.held + bytes);
        true
    }

    /// Adds live objects of a size class.
    #[inline]
    pub(super) fn add(&mut self, tag: u32, class: usize, objects: u64) {
        if !matches!(self.objects.get(tag as usize), Some(Some(_))) {
            self.make(tag);
        }
        let of_tag = self.objects.get_mut(tag as usize).and_then(Option::as_mut);
        match of_tag.and_then(|of| of.get_mut(class)) {
            Some(count) => *count += objects,
            None => self.beyond += objects,
        }
    }

    #[cold]
    fn make(&mut self, tag: u32) {
        let (tag, classes) = (tag as usize, self.sizes.len());
        let more = (tag + 1).saturating_sub(self.objects.len());
        let bytes = more * size_of::<Option<Box<[u64]>>>() + classes * size_of::<u64>();
        if self.has_room(bytes as u64) {
            self.objects.resize(self.objects.len() + more, None);
            self.objects[tag] = Some(vec![0; classes].into());
        }
    }

    /// Adds a page allocation.
    pub(super) fn add_pages(&mut self, tag: u32, bytes: u64) {
        if let Some(count) = self.pages.get_mut(&(tag, bytes)) {
            *count += 1;
        } else if self.has_room(LENGTH) {
            self.pages.insert((tag, bytes), 1);
        } else {
            self.beyond += 1;
        }
    }

    /// Size, and number of live objects of this size, of tags that `has` accepts. Sizes come in
    /// ascending order, and may come twice: a page allocation may be as long as an object.
    pub fn of(&self, has: impl Fn(u32) -> bool) -> Vec<(u64, u64)> {
        let mut sums = vec![0; self.sizes.len()];
        for of in
            (0..).zip(&self.objects).filter(|(tag, _)| has(*tag)).filter_map(|it| it.1.as_ref())
        {
            sums.iter_mut().zip(of).for_each(|(sum, count)| *sum += count);
        }
        let mut found: Vec<(u64, u64)> = self.sizes.iter().copied().zip(sums).collect();
        let pages = self.pages.iter().filter(|((tag, _), _)| has(*tag));
        found.extend(pages.map(|((_, bytes), count)| (*bytes, *count)));
        found.retain(|(_, count)| *count != 0);
        found.sort_unstable();
        found
    }

    /// False where some objects are not counted, because there was no room.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        self.beyond == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(room: u64) -> Sizes {
        Sizes { sizes: vec![0, 16, 32], room, ..Sizes::default() }
    }

    #[test]
    fn objects_of_some_tags_are_summed_by_size() {
        let mut sizes = sizes(MAX);
        for (tag, class, objects) in [(7, 1, 10), (7, 2, 3), (9, 1, 5), (8, 2, 100)] {
            sizes.add(tag, class, objects);
        }
        sizes.add_pages(7, 65536);
        sizes.add_pages(7, 65536);
        sizes.add_pages(8, 65536);
        assert_eq!(sizes.of(|tag| tag == 7 || tag == 9), [(16, 15), (32, 3), (65536, 2)]);
        assert_eq!(sizes.of(|_| false), []);
        assert!(sizes.is_exact());
    }

    #[test]
    fn what_finds_no_room_is_told() {
        let mut sizes = sizes(150);
        sizes.add(3, 1, 1);
        assert_eq!((sizes.memory(), sizes.is_exact()), (4 * 16 + 3 * 8, true));
        sizes.add(3, 2, 1);
        sizes.add_pages(3, 8192);
        assert!(sizes.is_exact());
        sizes.add(90, 1, 1);
        assert!(!sizes.is_exact() && sizes.memory() <= 150);
        assert_eq!(sizes.of(|_| true), [(16, 1), (32, 1), (8192, 1)]);
    }
}
