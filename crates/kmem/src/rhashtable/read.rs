//! Reading a table, and taking elements out of it.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};

use super::list::{GONE, target, word};
use super::{Element, RHashTable, element, element_order};
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

impl<K, V, S: Source, H> Reading<'_, K, V, S, H> {
    /// All elements, each once; those that are there all the while are not missed, however the table grows and shrinks.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut next = self.table.segments.link(0);
        core::iter::from_fn(move || {
            loop {
                let link = next?;
                let (following, gone) = link.following();
                next = following;
                if !gone && !link.is_sentinel() {
                    let element: &Element<K, V> = element(link);
                    return Some((&element.key, &element.value));
                }
            }
        })
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
        let order = element_order(hash);
        let mut next = self.table.bucket(hash).following().0;
        while let Some(link) = next {
            let its = link.order();
            if its > order {
                return None;
            }
            let (following, gone) = link.following();
            if its == order && !gone {
                let element: &Element<K, V> = element(link);
                if element.key.borrow() == key {
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
            let value = &element::<K, V>(old).value;
            table.unlink(place, old, hash, word(target(next)));
            table.removed();
            return Some(value);
        }
    }
}
