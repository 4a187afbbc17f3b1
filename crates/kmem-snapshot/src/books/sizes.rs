//! Live objects of each tag by their size.

use std::collections::HashMap;

use super::by_tag::ByTag;
use super::zone::Class;

/// Memory of one length of page allocations, in bytes.
const LENGTH: u64 = 48;

/// Live objects of each tag by size.
#[derive(Debug, Clone, Default)]
pub struct Sizes {
    /// By size class: bytes of an object.
    sizes: Vec<u64>,
    /// Objects of each size class. Page allocations take memory from the same room.
    objects: ByTag<Box<[u64]>>,
    /// By tag and bytes: page allocations.
    pages: HashMap<(u32, u64), u64>,
    /// Objects and page allocations that found no room.
    beyond: u64,
}

impl Sizes {
    /// Counts that take at most `memory` bytes.
    pub(super) fn with_room(classes: &[Option<Class>], memory: u64) -> Self {
        let size = |class: &Option<Class>| class.map_or(0, |class| u64::from(class.size));
        let objects = ByTag::with_room(memory);
        Self { sizes: classes.iter().map(size).collect(), objects, ..Self::default() }
    }

    /// Memory of the counts, in bytes.
    pub(super) fn memory(&self) -> u64 {
        self.objects.memory()
    }

    /// Adds live objects of a size class.
    #[inline]
    pub(super) fn add(&mut self, tag: u32, class: usize, objects: u64) {
        let classes = self.sizes.len();
        let of_tag = self.objects.of(tag, classes * size_of::<u64>(), || vec![0; classes].into());
        match of_tag.and_then(|of| of.get_mut(class)) {
            Some(count) => *count += objects,
            None => self.beyond += objects,
        }
    }

    /// Adds a page allocation.
    pub(super) fn add_pages(&mut self, tag: u32, bytes: u64) {
        if let Some(count) = self.pages.get_mut(&(tag, bytes)) {
            *count += 1;
        } else if self.objects.has_room(LENGTH) {
            self.pages.insert((tag, bytes), 1);
        } else {
            self.beyond += 1;
        }
    }

    /// Size, and number of live objects of this size, of tags that `has` accepts. Sizes come in
    /// ascending order, and may come twice: a page allocation may be as long as an object.
    pub fn of(&self, has: impl Fn(u32) -> bool) -> Vec<(u64, u64)> {
        let mut sums = vec![0; self.sizes.len()];
        for (_, of) in self.objects.all().filter(|(tag, _)| has(*tag)) {
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
    use super::super::by_tag::MAX;
    use super::*;

    fn sizes(room: u64) -> Sizes {
        let objects = ByTag::with_room(room);
        Sizes { sizes: vec![0, 16, 32], objects, ..Sizes::default() }
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
