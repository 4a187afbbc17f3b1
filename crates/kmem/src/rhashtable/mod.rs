//! A hash table that grows and shrinks while it is used (the kernel's `rhashtable`).
//!
//! ```text
//! segments[0] -> | sentinel of chain 0 | 1 | .. |     segments[1] -> | .. |   each as long as all before
//!                     |                  \
//! list:  sentinel 0 -> element -> element -> sentinel 1 -> element -> ..     ordered by reversed hash
//! ```
//!
//! All elements are in one list (see `list`), ordered by the reversed bits of their hash, so that the elements of a chain
//! follow each other, and when the number of chains doubles the new sentinel comes between those that stay and those
//! that "move": nothing moves. Growing is one array more and a number, and sentinels enter when they are first used.
//! So a table that finds no memory to grow goes on with longer chains. Shrinking takes the longest array's sentinels
//! out again. A chain is four buckets; what is asked for and told is buckets, of which there are about as many as elements.
//!
//! Most lookups do not walk: there are hints where the elements of some buckets are (see `hint`), left by the first lookup
//! of each.
//!
//! Readers take no lock, write nothing but a counter of their CPU and hints, and never start over. Writers do not lock
//! either: one compare-and-swap inserts, marks as removed, or replaces. So a signal handler may use the table wherever it
//! interrupted, and a thread that stops blocks nobody. What is removed is dropped when nobody reads it any more
//! (see `grace`).
//!
//! Why not a crate: those that exist take their memory from the global allocator, unwind or abort when there is none,
//! use thread-local storage for their readers, or locks that a signal handler hangs on.
//!
//! Context: any. In a child forked while other threads read, removed elements are not dropped any more.

use core::borrow::Borrow;
use core::hash::{BuildHasher, Hash};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

use crate::source::{Caller, Source};
use crate::sync::{AtomicUsize, Ordering};
use grace::{Batch, Grace};
use list::{END, ENTERING, GONE, Link, Node, Place, Restart, fetch, find, target, word};

mod grace;
mod hash;
mod hint;
mod list;
mod read;
mod segment;
pub use hash::Seeded;
pub use read::{Position, Reading};
use segment::{SHARE, Segments};

/// Things retired until somebody looks whether they can be dropped, which interrupts all CPUs: at least, at most, and
/// between these a part of the elements that there are.
const LOOK_AFTER: usize = if cfg!(loom) { 1 } else { 128 };
const LOOK_AFTER_MOST: usize = if cfg!(loom) { 1 } else { 1024 };
const LOOK_AFTER_PART: usize = 8;

/// Sentinels that are taken out while what lies around this many more is on its way.
const AHEAD: usize = 8;

/// What can be chosen of a table.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Fewest buckets, a power of two; a table begins with so many.
    pub min_buckets: usize,
    /// Most buckets, a power of two.
    pub max_buckets: usize,
    /// Whether it shrinks when less than 30 % full. (It grows when it is 75 % full.)
    pub shrinks: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { min_buckets: 64, max_buckets: 1 << 31, shrinks: true }
    }
}

/// An element. The node is first: a link that is no sentinel is an element.
#[repr(C)]
struct Element<K, V> {
    node: Node,
    key: K,
    value: V,
}

/// Why an element was not inserted, or did not replace another; it comes back.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<K, V> {
    /// There is one with that key.
    Exists(K, V),
    /// There is none with that key, to be replaced.
    Missing(K, V),
    /// There is no memory for it.
    NoMemory(K, V),
}

/// A table.
///
/// # Invariants
/// Every link that a search can reach is an element of these types, or a sentinel of a segment.
pub struct RHashTable<K, V, S: Source, H> {
    source: S,
    hasher: H,
    parameters: Parameters,
    segments: Segments,
    buckets: AtomicUsize,
    grace: Grace,
    owner: Caller,
    counts: Counts,
    _elements: PhantomData<Element<K, V>>,
}

/// What readers do not look at, on a cache line of its own.
#[repr(C, align(64))]
struct Counts {
    len: AtomicUsize,
    /// 1 while somebody makes it grow or shrink.
    resizing: AtomicUsize,
    /// Times it should have grown, but there was no memory.
    cramped: AtomicUsize,
}

// SAFETY: elements are handed out by reference to any thread, and dropped by any.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Source + Send, H: Send> Send
    for RHashTable<K, V, S, H>
{
}
// SAFETY: as above.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Source, H: Sync> Sync for RHashTable<K, V, S, H> {}

impl<K, V, S: Source, H> RHashTable<K, V, S, H> {
    /// An empty table; its own memory is billed to `owner`. `None`: there is no memory, or the parameters are no powers of two.
    pub fn new(source: S, hasher: H, parameters: Parameters, owner: Caller) -> Option<Self> {
        const { assert!(align_of::<Element<K, V>>() <= 16) };
        let Parameters { min_buckets: min, max_buckets: max, .. } = parameters;
        if !min.is_power_of_two() || !max.is_power_of_two() || min > max || max > 1 << 40 {
            return None;
        }
        let segments = Segments::new(&source, min, owner)?;
        let grace = Grace::new(&source, owner);
        let Some(grace) = grace else {
            segments.close(&source);
            return None;
        };
        Some(Self {
            source,
            hasher,
            parameters,
            segments,
            buckets: AtomicUsize::new(min),
            grace,
            owner,
            counts: Counts {
                len: AtomicUsize::new(0),
                resizing: AtomicUsize::new(0),
                cramped: AtomicUsize::new(0),
            },
            _elements: PhantomData,
        })
    }

    /// Begins to read.
    #[inline]
    pub fn read(&self) -> Reading<'_, K, V, S, H> {
        Reading::new(self)
    }

    /// Elements, about.
    pub fn len(&self) -> usize {
        // An element may be counted as removed before it is counted as inserted.
        (self.counts.len.load(Ordering::Relaxed) as isize).max(0) as usize
    }

    /// Whether there are none, about.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Buckets at this moment.
    pub fn buckets(&self) -> usize {
        self.buckets.load(Ordering::Relaxed)
    }

    /// Times it should have grown so far, but there was no memory.
    pub fn cramped(&self) -> usize {
        self.counts.cramped.load(Ordering::Relaxed)
    }

    /// Chains that the buckets of this moment are in.
    fn chains(&self) -> usize {
        self.buckets.load(Ordering::Acquire).div_ceil(SHARE)
    }

    /// Where a search for a hash begins: the sentinel of its chain, or if that is not in the list yet (and cannot come in at once),
    /// of the one whose elements it has.
    fn chain(&self, hash: u64) -> &Link {
        let mut number = hash as usize & (self.chains() - 1);
        loop {
            if let Some(link) = self.segments.link(number) {
                let next = link.next.load(Ordering::Acquire);
                if next & (ENTERING | GONE) == 0 && next != 0 || number == 0 {
                    return link;
                }
                if next == 0 && self.enter(number, link) {
                    return link;
                }
            }
            number = parent(number);
        }
    }

    /// Brings a sentinel into the list; false if another is at it, or it is given up.
    fn enter<'g>(&'g self, number: usize, link: &'g Link) -> bool {
        if link.next.compare_exchange(0, ENTERING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let order = sentinel_order(number);
        link.order.store(order, Ordering::Relaxed);
        loop {
            // Chains before this one: the recursion ends at the first, which is always there.
            let start = self.chain(parent(number) as u64);
            let Ok(place) = find(start, order, |_| false, |link| self.retire(link)) else {
                continue;
            };
            let next = word(place.at.map_or(core::ptr::null(), |at| at));
            link.next.store(next | ENTERING, Ordering::Relaxed);
            let new = word(link);
            if place
                .from
                .compare_exchange(place.seen, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                // Whoever inserted behind it meanwhile has done this already.
                link.next.fetch_and(!ENTERING, Ordering::AcqRel);
                return true;
            }
        }
    }

    /// Leaves a hint for an element that a reader found.
    fn leave_hint(&self, hash: u64, node: &Node) {
        let mask = self.buckets() - 1;
        if let Some((hints, segment)) = self.segments.hints(hash as usize & mask) {
            let buckets = mask & !(hint::COUNT - 1);
            hints.put(hash, node, segment, |other| (other ^ hash) as usize & buckets == 0);
        }
    }

    /// Gives an element that was unlinked to the grace period, when no hint leads to it any more.
    fn retire(&self, link: &Link) {
        // SAFETY: sentinels are not retired.
        let node = unsafe { Node::of(link) };
        hint::forget(node, |segment| self.segments.hints_in(segment, link.hash()));
        self.retire_unhinted(node);
    }

    fn retire_unhinted(&self, node: &Node) {
        // SAFETY: it stays until its grace period is over.
        unsafe { self.grace.retire(&raw const *node as usize, &node.state) };
    }

    /// Drops what nobody reads any more, if enough was retired to look.
    fn tidy(&self) {
        let part = self.len() / LOOK_AFTER_PART;
        if self.grace.waiting_for(part.clamp(LOOK_AFTER, LOOK_AFTER_MOST)) {
            self.reclaim();
        }
    }

    /// Drops what was removed and nobody reads any more.
    pub fn reclaim(&self) {
        if let Some(batch) = self.grace.look(&self.source) {
            self.drop_batch(batch, false);
        }
    }

    fn drop_batch(&self, batch: Batch, closing: bool) {
        let mut next = batch.0;
        while next != 0 {
            if next & segment::RETIRED != 0 {
                next = self.drop_segment(next, closing);
                continue;
            }
            let at = next as *mut Element<K, V>;
            // SAFETY: an element that nobody reads any more.
            unsafe {
                next = (*at).node.state.load(Ordering::Relaxed);
                at.drop_in_place();
                self.source.release(NonNull::new_unchecked(at.cast()));
            }
        }
    }

    /// A segment whose grace period is over: after the first, its sentinels are taken out of the list; after the second it
    /// is given back. What is retired behind it.
    fn drop_segment(&self, retired: usize, closing: bool) -> usize {
        // SAFETY: a segment of ours that nobody finds any more.
        let segment = unsafe { segment::Segment::of(retired) };
        let next = segment.retired.load(Ordering::Relaxed);
        if closing || segment.is_out() {
            // SAFETY: nobody reads it any more.
            unsafe { segment::release(segment, &self.source) };
            return next;
        }
        let reading = self.read();
        // What lies around a sentinel is in no order in memory, but the next ones are known.
        let (mut later, mut soon) = (segment.links().skip(AHEAD), segment.links().skip(AHEAD / 2));
        for (link, number) in segment.links() {
            for (ahead, behind) in [(later.next(), 1), (soon.next(), 2)] {
                if let Some((link, number)) = ahead {
                    fetch(Some(link), behind);
                    fetch(self.segments.link(parent(number)), behind);
                }
            }
            // Nobody finds it who could bring it in.
            if link.next.load(Ordering::Acquire) == 0 {
                continue;
            }
            let was = link.next.fetch_or(GONE, Ordering::AcqRel);
            if target(was).is_null() && was & END == 0 {
                continue;
            }
            let order = sentinel_order(number);
            loop {
                let start = self.chain(parent(number) as u64);
                if find(start, order, |_| false, |link| self.retire(link)).is_ok() {
                    break;
                }
            }
        }
        segment.set_out();
        drop(reading);
        // SAFETY: its word stays valid until it comes back.
        unsafe { self.grace.retire(retired, &segment.retired) };
        next
    }

    fn grow(&self) {
        let buckets = self.buckets();
        if buckets >= self.parameters.max_buckets || !self.begin_resize() {
            return;
        }
        if self.buckets() == buckets {
            if self.segments.add(&self.source, buckets, self.owner) {
                self.buckets.store(buckets * 2, Ordering::Release);
            } else {
                self.counts.cramped.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.counts.resizing.store(0, Ordering::Release);
    }

    fn shrink(&self) {
        let buckets = self.buckets();
        if buckets <= self.parameters.min_buckets || !self.begin_resize() {
            return;
        }
        if self.buckets() == buckets {
            self.buckets.store(buckets / 2, Ordering::Release);
            if let Some(segment) = self.segments.take(buckets / 2) {
                // SAFETY: its word stays valid until it comes back.
                unsafe { self.grace.retire(segment.word(), &segment.retired) };
            }
        }
        self.counts.resizing.store(0, Ordering::Release);
    }

    fn begin_resize(&self) -> bool {
        self.counts.resizing.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn added(&self) {
        self.counts.len.fetch_add(1, Ordering::Relaxed);
        if self.len() * 4 > self.buckets() * 3 {
            self.grow();
        }
    }

    fn removed(&self) {
        self.counts.len.fetch_sub(1, Ordering::Relaxed);
        if self.parameters.shrinks && self.len() * 10 < self.buckets() * 3 {
            self.shrink();
        }
    }
}

impl<K: Hash + Eq, V, S: Source, H: BuildHasher> RHashTable<K, V, S, H> {
    /// Inserts an element, billed to the caller.
    ///
    /// # Errors
    /// There is one with that key, or no memory.
    pub fn insert(&self, key: K, value: V, caller: Caller) -> Result<(), Refused<K, V>> {
        let hash = self.hasher.hash_one(&key);
        let new = self.element(hash, key, value, caller)?;
        let reading = self.read();
        loop {
            // SAFETY: ours alone until it is in the list.
            let own: &Element<K, V> = unsafe { new.as_ref() };
            let Ok(place) = self.place(hash, &own.key) else { continue };
            if place.found {
                // SAFETY: as above.
                let (key, value) = unsafe { self.unmake(new) };
                return Err(Refused::Exists(key, value));
            }
            let next = word(place.at.map_or(core::ptr::null(), |at| at));
            own.node.link.next.store(next, Ordering::Relaxed);
            let to = word(&own.node.link);
            // Release: whoever finds it finds it whole.
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

    /// Puts another value in the place of a key's, in one step.
    ///
    /// # Errors
    /// There is no such key, or no memory.
    pub fn replace(&self, key: K, value: V, caller: Caller) -> Result<(), Refused<K, V>> {
        let hash = self.hasher.hash_one(&key);
        let new = self.element(hash, key, value, caller)?;
        let reading = self.read();
        // SAFETY: ours alone until it is in the list.
        let own: &Element<K, V> = unsafe { new.as_ref() };
        loop {
            let Ok(place) = self.place(hash, &own.key) else { continue };
            let Some(old) = place.at.filter(|_| place.found) else {
                // SAFETY: as above.
                let (key, value) = unsafe { self.unmake(new) };
                return Err(Refused::Missing(key, value));
            };
            let next = old.next.load(Ordering::Acquire);
            if next & GONE != 0 {
                continue;
            }
            own.node.link.next.store(next, Ordering::Relaxed);
            // The old one goes, and leads to the new one, at once.
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

    /// Removes a key; whether it was there.
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

    /// Takes an element that is gone out of the list.
    fn unlink<'g>(&'g self, place: Place<'g>, old: &'g Link, hash: u64, past: usize) {
        if place
            .from
            .compare_exchange(place.seen, past, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
        {
            return self.retire(old);
        }
        // Something changed before it: whoever comes by takes it out, this search at the latest.
        while find(self.chain(hash), element_order(hash), |_| false, |link| self.retire(link))
            .is_err()
        {}
    }

    fn place<'g, Q>(&'g self, hash: u64, key: &Q) -> Result<Place<'g>, Restart>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let is_it = |link: &'g Link| element_of::<K, V>(link).key.borrow() == key;
        find(self.chain(hash), element_order(hash), is_it, |link| self.retire(link))
    }

    fn element(
        &self,
        hash: u64,
        key: K,
        value: V,
        caller: Caller,
    ) -> Result<NonNull<Element<K, V>>, Refused<K, V>> {
        let bytes = size_of::<Element<K, V>>();
        let memory = self.source.obtain(bytes, caller).or_else(|| {
            // What was removed may be what is missing.
            self.reclaim();
            self.source.obtain(bytes, caller)
        });
        let Some(at) = memory else { return Err(Refused::NoMemory(key, value)) };
        let at = at.cast::<MaybeUninit<Element<K, V>>>();
        let element = Element { node: Node::new(element_order(hash)), key, value };
        // SAFETY: fresh memory of that size and alignment.
        unsafe { (*at.as_ptr()).write(element) };
        Ok(at.cast())
    }

    /// # Safety
    /// An element that never was in the list.
    unsafe fn unmake(&self, element: NonNull<Element<K, V>>) -> (K, V) {
        // SAFETY: the caller's promise.
        unsafe {
            let Element { key, value, .. } = element.read();
            self.source.release(element.cast());
            (key, value)
        }
    }
}

impl<K, V, S: Source, H> Drop for RHashTable<K, V, S, H> {
    fn drop(&mut self) {
        let batches = self.grace.take_all();
        let mut next = self.segments.link(0);
        while let Some(link) = next {
            // What is gone but still in the list was not retired.
            next = link.following().0;
            if !link.is_sentinel() {
                // SAFETY: no sentinel.
                self.retire_unhinted(unsafe { Node::of(link) });
            }
        }
        for batch in batches.into_iter().chain(self.grace.take_all()) {
            self.drop_batch(batch, true);
        }
        self.segments.close(&self.source);
        self.grace.close(&self.source);
    }
}

/// A node as the element that it begins.
fn element<K, V>(node: &Node) -> &Element<K, V> {
    // SAFETY: the table's invariant.
    unsafe { &*(&raw const *node).cast() }
}

/// A link that is no sentinel, as the element that it begins.
fn element_of<K, V>(link: &Link) -> &Element<K, V> {
    // SAFETY: no sentinel, by every caller.
    element(unsafe { Node::of(link) })
}

/// The chain of whose elements a new chain takes over a part.
const fn parent(number: usize) -> usize {
    if number == 0 { 0 } else { number ^ 1 << number.ilog2() }
}

const fn sentinel_order(number: usize) -> u64 {
    (number as u64).reverse_bits()
}

const fn element_order(hash: u64) -> u64 {
    hash.reverse_bits() | 1
}

#[cfg(all(test, loom))]
mod model;
