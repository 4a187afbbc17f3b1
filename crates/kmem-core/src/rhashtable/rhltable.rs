//! Several elements of one key (the kernel's `rhltable`).
//!
//! The kernel chains the elements of a key behind the first. Here they follow each other in the
//! list of the table anyway, because they have one hash, the newest first. So a search for a later
//! element of their chain passes all of them.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::mem::offset_of;

use super::list::Link;
use super::read::{Position, Reading};
use super::{Element, RHashTable, Refused, element_order};
use crate::source::{Caller, Source};

impl<K: Hash + Eq, V, S: Source, H: BuildHasher> RHashTable<K, V, S, H> {
    /// Inserts an element in front of those that the table has of the key (the kernel's
    /// `rhltable_insert`). Its memory is billed to `caller`.
    ///
    /// # Errors
    /// There is no memory.
    ///
    /// # Examples
    /// ```
    /// use kmem_core::rhashtable::Parameters;
    /// use kmem_core::{Caller, Kmem, static_tag};
    ///
    /// static KMEM: Kmem = Kmem::new();
    /// let caller = Caller::tagged(static_tag!("ports"));
    /// let ports = KMEM.rhashtable::<u16, &str>(Parameters::default(), caller).expect("memory");
    /// for name in ["http", "web"] {
    ///     ports.insert_also(80, name, caller).expect("memory");
    /// }
    /// assert!(ports.read().all(&80).eq(&["web", "http"]));
    /// assert!(ports.remove_if(&80, |name| *name == "web"));
    /// assert!(ports.read().all(&80).eq(&["http"]));
    /// ```
    pub fn insert_also(&self, key: K, value: V, caller: Caller) -> Result<(), Refused<K, V>> {
        self.insert_also_with(key, value, caller, |_| {})
    }

    /// [`Self::insert_also`]. Calls `ready` with the key in its element, before other threads can
    /// find it: for [`Reading::all_behind`].
    ///
    /// # Errors
    /// There is no memory, and `ready` was not called.
    pub fn insert_also_with(
        &self,
        key: K,
        value: V,
        caller: Caller,
        ready: impl FnOnce(&K),
    ) -> Result<(), Refused<K, V>> {
        self.insert_new((key, value), caller, false, ready)
    }

    /// Removes the first element of a key whose value `which` accepts (the kernel's
    /// `rhltable_remove`). Returns whether there was one.
    pub fn remove_if<Q>(&self, key: &Q, which: impl Fn(&V) -> bool) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let reading = self.read();
        let found = reading.take_if(key, which).is_some();
        drop(reading);
        self.tidy();
        found
    }
}

impl<K: Hash + Eq, V, S: Source, H: BuildHasher> Reading<'_, K, V, S, H> {
    /// The values of all elements of a key, the newest first (the kernel's `rhltable_lookup` and
    /// `rhl_for_each_rcu`). An element that stays in the table meanwhile is never missed.
    pub fn all<'g, Q>(&'g self, key: &'g Q) -> impl Iterator<Item = &'g V>
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let hash = self.table.hasher.hash_one(key);
        let at = Position(element_order(hash));
        self.iter_links(self.table.chain(hash).following().0)
            .skip_while(move |(position, ..)| *position < at)
            .take_while(move |(position, ..)| *position == at)
            .filter(move |(_, its, _)| (*its).borrow() == key)
            .map(|(.., value)| value)
    }

    /// The values of all elements of a key behind one of them, as [`Self::all`] returns them. Needs
    /// no search.
    ///
    /// # Safety
    /// See [`Self::iter_behind`].
    pub unsafe fn all_behind<'g>(&'g self, key: &'g K) -> impl Iterator<Item = &'g V> {
        // SAFETY: the same contract.
        let link = unsafe { link_of::<K, V>(key) };
        let at = Position(link.order());
        self.iter_links(link.following().0)
            .take_while(move |(position, ..)| *position == at)
            .filter(move |(_, its, _)| *its == key)
            .map(|(.., value)| value)
    }
}

impl<'t, K, V, S: Source, H> Reading<'t, K, V, S, H> {
    /// All elements behind one, as [`Self::iter_from`] returns them. Needs no search.
    ///
    /// # Safety
    /// `key` is that in an element of this table. The element was found while a guard existed that
    /// still exists.
    pub unsafe fn iter_behind<'g>(
        &'g self,
        key: &'g K,
    ) -> impl Iterator<Item = (Position, &'g K, &'g V)> + use<'g, 't, K, V, S, H> {
        // SAFETY: the same contract.
        self.iter_links(unsafe { link_of::<K, V>(key) }.following().0)
    }
}

/// The link of the element with this key in it.
///
/// # Safety
/// `key` is that in an element of these types.
unsafe fn link_of<K, V>(key: &K) -> &Link {
    let at = (&raw const *key).wrapping_byte_sub(offset_of!(Element<K, V>, key));
    // SAFETY: an element begins with its link, and is valid as long as its key.
    unsafe { &*at.cast() }
}
