//! Inserting, replacing and removing elements.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use super::list::{GONE, Link, Node, Place, Restart, word};
use super::{Element, RHashTable, Refused, element_of, element_order};
use crate::source::{Caller, Source};
use crate::sync::Ordering;

impl<K: Hash + Eq, V, S: Source, H: BuildHasher> RHashTable<K, V, S, H> {
    /// Inserts a key and its value. Their memory is billed to `caller`.
    ///
    /// # Errors
    /// The table has the key, or there is no memory.
    pub fn insert(&self, key: K, value: V, caller: Caller) -> Result<(), Refused<K, V>> {
        self.insert_new((key, value), caller, true, |_| {})
    }

    /// Inserts an element. If it need not be the only one of its key, it comes before all others.
    /// Calls `ready` with its key before other threads can find it.
    ///
    /// # Errors
    /// See [`Self::insert`].
    pub(super) fn insert_new(
        &self,
        (key, value): (K, V),
        caller: Caller,
        only: bool,
        ready: impl FnOnce(&K),
    ) -> Result<(), Refused<K, V>> {
        let hash = self.hasher.hash_one(&key);
        let new = self.element(hash, key, value, caller)?;
        let reading = self.read();
        // SAFETY: initialized by `element`, and only this thread's until it is in the list.
        let own: &Element<K, V> = unsafe { new.as_ref() };
        ready(&own.key);
        loop {
            let place = if only {
                self.place(hash, |there| there.key == own.key)
            } else {
                self.place(hash, |_| true)
            };
            let Ok(place) = place else { continue };
            if only && place.found {
                // SAFETY: the element was never in the list.
                let (key, value) = unsafe { self.unmake(new) };
                return Err(Refused::Exists(key, value));
            }
            let next = word(place.at.map_or(core::ptr::null(), |at| at));
            own.node.link.next.store(next, Ordering::Relaxed);
            let to = word(&own.node.link);
            // INVARIANT: the link begins an element of the table's types.
            // Release: a reader that finds the element sees all of it.
            if place
                .from
                .compare_exchange(place.seen, to, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                break;
            }
        }
        drop(reading);
        self.added();
        self.tidy();
        Ok(())
    }

    /// Replaces the element of a key in one step. Its memory is billed to `caller`.
    ///
    /// # Errors
    /// The table does not have the key, or there is no memory.
    pub fn replace(&self, key: K, value: V, caller: Caller) -> Result<(), Refused<K, V>> {
        let hash = self.hasher.hash_one(&key);
        let new = self.element(hash, key, value, caller)?;
        let reading = self.read();
        // SAFETY: initialized by `element`, and only this thread's until it is in the list.
        let own: &Element<K, V> = unsafe { new.as_ref() };
        loop {
            let Ok(place) = self.place(hash, |there| there.key == own.key) else { continue };
            let Some(old) = place.at.filter(|_| place.found) else {
                // SAFETY: the element was never in the list.
                let (key, value) = unsafe { self.unmake(new) };
                return Err(Refused::Missing(key, value));
            };
            let next = old.next.load(Ordering::Acquire);
            if next & GONE != 0 {
                continue;
            }
            own.node.link.next.store(next, Ordering::Relaxed);
            // INVARIANT: the link begins an element of the table's types.
            // One store marks the old element as removed and links the new one behind it.
            let to = word(&own.node.link) | GONE;
            if old.next.compare_exchange(next, to, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.unlink(place, old, hash, word(&own.node.link));
                break;
            }
        }
        drop(reading);
        self.tidy();
        Ok(())
    }

    /// Removes a key. Returns whether the table had it.
    pub fn remove<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Hash + Eq + ?Sized,
    {
        let reading = self.read();
        let found = reading.take(key).is_some();
        drop(reading);
        self.tidy();
        found
    }

    /// Unlinks an element that is marked as removed. `past` is the word that leads past it.
    pub(super) fn unlink<'g>(&'g self, place: Place<'g>, old: &'g Link, hash: u64, past: usize) {
        if place
            .from
            .compare_exchange(place.seen, past, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            // SAFETY: an element, which this thread has just unlinked.
            return unsafe { self.retire(old) };
        }
        // Another thread changed the link before it. If no other search unlinks it, this one does.
        while self.search(self.chain(hash), element_order(hash), |_| false).is_err() {}
    }

    /// Finds the place of an element in the list: the first of that hash that `is_it` accepts.
    pub(super) fn place<'g>(
        &'g self,
        hash: u64,
        is_it: impl Fn(&'g Element<K, V>) -> bool,
    ) -> Result<Place<'g>, Restart> {
        // SAFETY: a link of this table with the order of a hash is an element's.
        let is_it = |link: &'g Link| is_it(unsafe { element_of(link) });
        self.search(self.chain(hash), element_order(hash), is_it)
    }

    /// Allocates an element, which is not in the list yet.
    fn element(
        &self,
        hash: u64,
        key: K,
        value: V,
        caller: Caller,
    ) -> Result<NonNull<Element<K, V>>, Refused<K, V>> {
        let bytes = size_of::<Element<K, V>>();
        let memory = self.source.obtain(bytes, caller).or_else(|| {
            // Removed elements may be enough.
            self.reclaim();
            self.source.obtain(bytes, caller)
        });
        let Some(at) = memory else { return Err(Refused::NoMemory(key, value)) };
        let at = at.cast::<MaybeUninit<Element<K, V>>>();
        let element = Element { node: Node::new(element_order(hash)), key, value };
        // SAFETY: fresh memory of the element's size, aligned to 16, which `new` checks to be
        // enough.
        unsafe { (*at.as_ptr()).write(element) };
        Ok(at.cast())
    }

    /// Releases an element's memory. Returns its key and value.
    ///
    /// # Safety
    /// The element is from [`Self::element`], and was never in the list.
    unsafe fn unmake(&self, element: NonNull<Element<K, V>>) -> (K, V) {
        // SAFETY: no other thread ever saw the element (contract).
        unsafe {
            let Element { key, value, .. } = element.read();
            self.source.release(element.cast());
            (key, value)
        }
    }
}
