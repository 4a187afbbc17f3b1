//! Reading a table, and taking elements out of it.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};

use super::list::{GONE, fetch, target, word};
use super::{Element, RHashTable, element, element_of, element_order};
use crate::source::Source;
use crate::sync::Ordering;

/// While it lives, what its table holds or held stays readable.
pub struct Reading<'t, K, V, S: Source, H> {
    table: &'t RHashTable<K, V, S, H>,
    side: usize,
}

impl<'t, K, V, S: Source, H> Reading<'t, K, V, S, H> {
    #[inline]
    pub(super) fn new(table: &'t RHashTable<K, V, S, H>) -> Self {
        Self { table, side: table.grace.enter(&table.source) }
    }
}

impl<K, V, S: Source, H> Drop for Reading<'_, K, V, S, H> {
    #[inline]
    fn drop(&mut self) {
        self.table.grace.leave(&self.table.source, self.side);
    }
}

/// A place among the elements of a table, in the order of a walk. The default is before all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub struct Position(u64);

impl<'t, K, V, S: Source, H> Reading<'t, K, V, S, H> {
    /// Goes on to read after the value is gone, until [`Self::resume`]; what that wants to know.
    pub fn pause(self) -> usize {
        core::mem::ManuallyDrop::new(self).side
    }

    /// What was there before [`Self::pause`].
    ///
    /// # Safety
    /// From a reading of this table, once.
    pub unsafe fn resume(table: &'t RHashTable<K, V, S, H>, side: usize) -> Self {
        Self { table, side: side & 1 }
    }

    /// All elements, each once; those that are there all the while are not missed, however the table grows and shrinks.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.iter_from(Position::default()).map(|(_, key, value)| (key, value))
    }

    /// The same from a position on, with the position of each. Several elements have the same one if their hashes are equal.
    pub fn iter_from(&self, from: Position) -> impl Iterator<Item = (Position, &K, &V)> {
        let mut next = Some(self.table.chain(from.0.reverse_bits()));
        core::iter::from_fn(move || {
            loop {
                let link = next?;
                let (following, gone) = link.following();
                next = following;
                if link.is_sentinel() {
                    self.fetch_ahead(link.order());
                } else if !gone && link.order() >= from.0 {
                    let element: &Element<K, V> = element_of(link);
                    return Some((Position(link.order()), &element.key, &element.value));
                }
            }
        })
    }

    /// Has the links that a walk meets some chains later brought into the caches. Along the list each is found only
    /// when the one before it is there; but which chains come is known.
    fn fetch_ahead(&self, order: u64) {
        let step = 1u64.checked_shl(64 - self.table.chains().ilog2()).unwrap_or(0);
        for (chains, behind) in [(12, 0), (8, 1), (4, 2)] {
            if let Some(ahead) = step.checked_mul(chains).and_then(|far| order.checked_add(far)) {
                fetch(self.table.segments.link(ahead.reverse_bits() as usize), behind);
            }
        }
    }
}

impl<K: Hash + Eq, V, S: Source, H: BuildHasher> Reading<'_, K, V, S, H> {
    /// The value of a key.
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.table.hasher.hash_one(key);
        let number = hash as usize & (self.table.buckets() - 1);
        if let Some((hints, _)) = self.table.segments.hints(number)
            && let Some(node) = hints.find(hash)
        {
            let element: &Element<K, V> = element(node);
            if element.key.borrow() == key && !node.link.following().1 {
                return Some(&element.value);
            }
        }
        self.walk(hash, key)
    }

    /// The value of a key, by the list; leaves a hint.
    #[cold]
    #[inline(never)]
    fn walk<Q>(&self, hash: u64, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let order = element_order(hash);
        let mut next = self.table.chain(hash).following().0;
        while let Some(link) = next {
            let its = link.order();
            if its > order {
                return None;
            }
            let (following, gone) = link.following();
            if its == order && !gone {
                let element: &Element<K, V> = element_of(link);
                if element.key.borrow() == key {
                    self.table.leave_hint(hash, &element.node);
                    return Some(&element.value);
                }
            }
            next = following;
        }
        None
    }

    /// Removes a key; its value, which is dropped when nobody reads it any more.
    pub fn take<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let table = self.table;
        let hash = table.hasher.hash_one(key);
        loop {
            let Ok(place) = table.place(hash, key) else { continue };
            let old = place.at.filter(|_| place.found)?;
            let next = old.next.load(Ordering::Acquire);
            let gone = next | GONE;
            if next & GONE != 0
                || old
                    .next
                    .compare_exchange(next, gone, Ordering::AcqRel, Ordering::Relaxed)
                    .is_err()
            {
                continue;
            }
            let value = &element_of::<K, V>(old).value;
            table.unlink(place, old, hash, word(target(next)));
            table.removed();
            return Some(value);
        }
    }
}
