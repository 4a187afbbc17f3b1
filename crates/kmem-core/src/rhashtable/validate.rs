//! Recounts of a hash table at rest.

use core::hash::{BuildHasher, Hash};

use super::list::{ENTERING, GONE, Node};
use super::{Element, RHashTable, element_order, sentinel_order};
use crate::source::Source;
use crate::sync::Ordering;

/// The first thing that [`RHashTable::validate`] found wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableFault {
    /// The list is not in the order of its hashes.
    Order {
        /// Links in front of the one that is out of order.
        index: usize,
    },
    /// An element lies where the hash of its key does not belong.
    Hash {
        /// Links in front of it.
        index: usize,
    },
    /// The count of elements is wrong.
    Count {
        /// The count.
        count: usize,
        /// Elements in the list.
        listed: usize,
    },
    /// A sentinel that says that it is in the list is not.
    Sentinels {
        /// Sentinels that say so.
        count: usize,
        /// Sentinels in the list; also those of a segment that is on its way out.
        listed: usize,
    },
}

impl<K: Hash, V, S: Source, H: BuildHasher> RHashTable<K, V, S, H> {
    /// Walks the list of a table at rest. Checks that the list is in order and that each element is
    /// where the hash of its key belongs. Compares the counts of elements and sentinels with those
    /// of the table.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn validate(&self) -> Result<(), TableFault> {
        let reading = self.read();
        let (mut elements, mut sentinels, mut index, mut before) = (0, 0, 0, 0);
        let mut next = self.segments.link(0);
        while let Some(link) = next {
            let (following, gone) = link.following();
            if !gone {
                if link.order() < before {
                    return Err(TableFault::Order { index });
                }
                before = link.order();
                if link.is_sentinel() {
                    sentinels += 1;
                } else {
                    // SAFETY: not a sentinel.
                    let node: *const Node = unsafe { Node::of(link) };
                    // SAFETY: a link that is no sentinel begins an element, by the type's
                    // invariant; it is not dropped while `reading` lives.
                    let element = unsafe { &*node.cast::<Element<K, V>>() };
                    let hash = self.hasher.hash_one(&element.key);
                    if element_order(hash) != link.order() {
                        return Err(TableFault::Hash { index });
                    }
                    elements += 1;
                }
            }
            index += 1;
            next = following;
        }
        let chains =
            (0..self.chains()).filter_map(|chain| Some((chain, self.segments.link(chain)?)));
        let is_in = chains.filter(|(chain, link)| {
            let next = link.next.load(Ordering::Acquire);
            next != 0 && next & (ENTERING | GONE) == 0 && link.order() == sentinel_order(*chain)
        });
        let count = is_in.count();
        drop(reading);
        if count > sentinels {
            return Err(TableFault::Sentinels { count, listed: sentinels });
        }
        match self.len() {
            count if count == elements => Ok(()),
            count => Err(TableFault::Count { count, listed: elements }),
        }
    }
}

#[cfg(test)]
mod tests {
    use core::ptr::NonNull;
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    use super::*;
    use crate::rhashtable::{Parameters, Seeded};
    use crate::source::{Caller, Counters};
    use crate::sync::AtomicU32;

    /// Memory of the test's allocator; no barrier, so nothing is dropped before the end.
    struct Memory;

    /// Room in front of each piece for its length.
    const HEAD: usize = 16;

    // SAFETY: pieces of the test's allocator, zeroed and aligned to 16 bytes.
    unsafe impl Source for Memory {
        fn obtain(&self, bytes: usize, _: Caller) -> Option<NonNull<u8>> {
            let layout = Layout::from_size_align(bytes + HEAD, 16).ok()?;
            // SAFETY: not of size zero; the length lies in front.
            unsafe {
                let at = alloc_zeroed(layout);
                at.cast::<usize>().write(bytes);
                NonNull::new(at.add(HEAD))
            }
        }

        unsafe fn release(&self, at: NonNull<u8>) {
            // SAFETY: from `obtain`, which wrote the length in front.
            unsafe {
                let at = at.as_ptr().sub(HEAD);
                let bytes = at.cast::<usize>().read();
                dealloc(at, Layout::from_size_align_unchecked(bytes + HEAD, 16));
            }
        }

        fn wait(&self, _: &AtomicU32, _: u32) {}

        fn wake(&self, _: &AtomicU32) {}

        fn counters(&self, _: Caller) -> Option<Counters> {
            Some(Counters(NonNull::dangling()))
        }

        unsafe fn drop_counters(&self, _: Counters) {}

        unsafe fn count(&self, _: Counters, _: usize) {}

        unsafe fn counted(&self, _: Counters, _: usize) -> u64 {
            0
        }

        fn barrier(&self) -> bool {
            false
        }
    }

    fn table() -> RHashTable<u64, u64, Memory, Seeded> {
        let parameters = Parameters::default();
        let table = RHashTable::new(Memory, Seeded(7), parameters, Caller::NOBODY).expect("memory");
        for key in 0..1000 {
            table.insert(key, key, Caller::NOBODY).expect("a new key");
        }
        (0..1000).step_by(3).for_each(|key| assert!(table.remove(&key)));
        table
    }

    /// The first element of the list.
    fn first(table: &RHashTable<u64, u64, Memory, Seeded>) -> &super::super::list::Link {
        let start = table.segments.link(0);
        let mut links = core::iter::successors(start, |link| link.following().0);
        links.find(|link| !link.is_sentinel()).expect("an element")
    }

    #[test]
    fn a_table_that_is_right_passes() {
        assert_eq!(table().validate(), Ok(()));
    }

    #[test]
    fn a_wrong_count_is_found() {
        let table = table();
        let listed = table.len();
        table.counts.len.fetch_add(2, Ordering::Relaxed);
        assert_eq!(table.validate(), Err(TableFault::Count { count: listed + 2, listed }));
    }

    #[test]
    fn an_element_in_a_wrong_place_is_found() {
        let wrong_hash = table();
        let link = first(&wrong_hash);
        // Further to the front, and still an element's.
        link.order.store(1, Ordering::Relaxed);
        assert!(matches!(wrong_hash.validate(), Err(TableFault::Hash { index: 1 })));
        link.order.store(u64::MAX, Ordering::Relaxed);
        assert!(matches!(wrong_hash.validate(), Err(TableFault::Hash { index: 1 })));
    }

    #[test]
    fn a_list_that_is_out_of_order_is_found() {
        let table = table();
        let link = first(&table);
        let next = link.following().0.expect("more than one");
        next.order.store(0, Ordering::Relaxed);
        assert!(matches!(table.validate(), Err(TableFault::Order { .. })));
    }

    #[test]
    fn a_sentinel_that_is_cut_off_is_found() {
        let table = table();
        // Everything behind the first element is lost.
        first(&table).next.store(super::super::list::END, Ordering::Relaxed);
        assert!(matches!(table.validate(), Err(TableFault::Sentinels { .. })));
    }
}
