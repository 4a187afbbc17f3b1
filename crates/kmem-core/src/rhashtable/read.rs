//! Reading a table, and removing elements while their values are read.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};

use super::list::{GONE, Link, fetch, target, word};
use super::{Element, RHashTable, element, element_of, element_order};
use crate::source::Source;
use crate::sync::Ordering;

/// A read guard: elements that it finds stay valid until it is dropped, even if they are removed.
///
/// # Invariants
/// `side` is from `Grace::enter`, and only this guard leaves it.
pub struct Reading<'t, K, V, S: Source, H> {
    pub(super) table: &'t RHashTable<K, V, S, H>,
    side: usize,
}

impl<'t, K, V, S: Source, H> Reading<'t, K, V, S, H> {
    #[inline]
    pub(super) fn new(table: &'t RHashTable<K, V, S, H>) -> Self {
        // INVARIANT: the side is fresh from `enter`.
        Self { table, side: table.grace.enter(&table.source) }
    }
}

impl<K, V, S: Source, H> Drop for Reading<'_, K, V, S, H> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the side that `enter` returned, which only this guard leaves (invariant).
        unsafe { self.table.grace.leave(&self.table.source, self.side) };
    }
}

/// A position in a walk over a table. The default is before all elements.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
#[repr(transparent)]
pub struct Position(pub(super) u64);

impl<'t, K, V, S: Source, H> Reading<'t, K, V, S, H> {
    /// Turns the guard into a number for [`Self::resume`]. Its elements stay valid meanwhile.
    pub fn pause(self) -> usize {
        core::mem::ManuallyDrop::new(self).side
    }

    /// The guard that [`Self::pause`] turned into a number.
    ///
    /// # Safety
    /// `side` is from [`Self::pause`] of a guard of this table, and is passed once.
    pub unsafe fn resume(table: &'t RHashTable<K, V, S, H>, side: usize) -> Self {
        // INVARIANT: the side of a guard that no longer exists, by the contract.
        Self { table, side: side & 1 }
    }

    /// All elements, each once. An element that stays in the table during the walk is never missed,
    /// even if the table grows or shrinks.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.iter_from(Position::default()).map(|(_, key, value)| (key, value))
    }

    /// All elements from a position on, as in [`Self::iter`], with their positions. Elements of
    /// equal hashes have equal positions.
    pub fn iter_from(&self, from: Position) -> impl Iterator<Item = (Position, &K, &V)> {
        self.iter_links(Some(self.table.chain(from.0.reverse_bits())))
            .skip_while(move |(position, ..)| *position < from)
    }

    /// All elements from a link on, in their order, with their positions.
    pub(super) fn iter_links<'g>(
        &'g self,
        mut next: Option<&'g Link>,
    ) -> impl Iterator<Item = (Position, &'g K, &'g V)> {
        core::iter::from_fn(move || {
            loop {
                let link = next?;
                let (following, gone) = link.following();
                next = following;
                if link.is_sentinel() {
                    self.fetch_ahead(link.order());
                } else if !gone {
                    // SAFETY: a link of the table that is no sentinel.
                    let element: &Element<K, V> = unsafe { element_of(link) };
                    return Some((Position(link.order()), &element.key, &element.value));
                }
            }
        })
    }

    /// Prefetches links that a walk meets some chains later. Along the list, the address of a link
    /// is known only after the link before it is read. The sentinels of later chains are known now.
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
    /// The value of a key; `None` if the table does not have the key.
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
            // SAFETY: a hint of the table leads to one of its elements.
            let element: &Element<K, V> = unsafe { element(node) };
            if element.key.borrow() == key && !node.link.following().1 {
                return Some(&element.value);
            }
        }
        self.walk(hash, key)
    }

    /// The value of a key, found along the list. Leaves a hint.
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
                // SAFETY: a link of the table with the order of a hash is an element's.
                let element: &Element<K, V> = unsafe { element_of(link) };
                if element.key.borrow() == key {
                    self.table.leave_hint(hash, &element.node);
                    return Some(&element.value);
                }
            }
            next = following;
        }
        None
    }

    /// Removes a key and returns its value, which is dropped after this guard. `None`: the table
    /// does not have the key.
    pub fn take<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        self.take_if(key, |_| true)
    }

    /// [`Self::take`] of the first element of a key whose value `which` accepts.
    pub fn take_if<Q>(&self, key: &Q, which: impl Fn(&V) -> bool) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let table = self.table;
        let hash = table.hasher.hash_one(key);
        loop {
            let is_it = |there: &Element<K, V>| there.key.borrow() == key && which(&there.value);
            let Ok(place) = table.place(hash, is_it) else { continue };
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
            // SAFETY: a link of the table that `place` found by its key.
            let value = unsafe { &element_of::<K, V>(old).value };
            table.unlink(place, old, hash, word(target(next)));
            table.removed();
            return Some(value);
        }
    }
}
