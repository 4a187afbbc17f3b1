//! A hash table that grows and shrinks while it is used (the kernel's `rhashtable`).
//!
//! ```text
//! segments[0] -> | sentinel of chain 0 | 1 | .. |     segments[1] -> | .. |     ..
//!                     |                  \
//! list:  sentinel 0 -> element -> element -> sentinel 1 -> element -> ..
//! ```
//!
//! All elements are in one list (see `list`), ordered by the reversed bits of their hash. So the
//! elements of a chain follow each other. When the number of chains doubles, a new sentinel splits
//! a chain in two, and no element moves. Each segment has as many sentinels as all before it.
//!
//! Growing adds a segment and doubles a number. A sentinel enters the list when it is first used. A
//! table without memory to grow goes on with longer chains. Shrinking takes the sentinels of the
//! last segment out of the list. A chain is four buckets. The interface counts buckets, of which
//! there are about as many as elements.
//!
//! Most lookups do not walk along the list: the first lookup of an element leaves a hint where it
//! is (see `hint`).
//!
//! Readers take no lock and never start over. They write only hints and a counter of their CPU.
//! Writers take no lock either: one compare-and-swap inserts, marks as removed, or replaces. So a
//! signal handler may use the table wherever it interrupts, and a stopped thread blocks no other. A
//! removed element is dropped when all readers that may have found it have left (see `grace`).
//!
//! Existing crates do not fit. They take memory from the global allocator, and unwind or abort
//! without memory. They keep readers in thread-local storage, or take locks on which a signal
//! handler hangs.
//!
//! Context: any, signal handlers included. In a child forked while other threads read, removed
//! elements are never dropped.

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
#[cfg(not(loom))]
mod validate;
pub use hash::Seeded;
pub use read::{Position, Reading};
use segment::{SHARE, Segments};
#[cfg(not(loom))]
pub use validate::TableFault;

/// Fewest retired things for which a writer tries to drop them, which interrupts all CPUs.
const LOOK_AFTER: usize = if cfg!(loom) { 1 } else { 128 };
/// At this many retired things, every writer tries.
const LOOK_AFTER_MOST: usize = if cfg!(loom) { 1 } else { 1024 };
/// Between the two, a writer tries at one retired thing per this many elements.
const LOOK_AFTER_PART: usize = 8;

/// Sentinels by which prefetching is ahead while the sentinels of a segment leave the list.
const AHEAD: usize = 8;

/// The parameters of a table.
#[derive(Clone, Copy, Debug)]
pub struct Parameters {
    /// Fewest buckets, a power of two. A new table has this many.
    pub min_buckets: usize,
    /// Most buckets, a power of two, at most 2^40.
    pub max_buckets: usize,
    /// True if the table shrinks when it is less than 30 % full. (It grows above 75 %.)
    pub shrinks: bool,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { min_buckets: 64, max_buckets: 1 << 31, shrinks: true }
    }
}

/// An element. The node is first, so the address of an element's link is that of the element.
#[repr(C)]
struct Element<K, V> {
    node: Node,
    key: K,
    value: V,
}

/// Why an insertion or a replacement was refused. Gives the key and the value back.
#[derive(Debug, PartialEq, Eq)]
pub enum Refused<K, V> {
    /// An element to insert: the table has the key.
    Exists(K, V),
    /// An element to replace another: the table does not have the key.
    Missing(K, V),
    /// There is no memory for the element.
    NoMemory(K, V),
}

/// A hash table from `K` to `V`. `S` is the source of its memory, `H` hashes the keys.
///
/// # Examples
/// ```
/// use kmem_core::rhashtable::Parameters;
/// use kmem_core::{Caller, Kmem, static_tag};
///
/// static KMEM: Kmem = Kmem::new();
/// let caller = Caller::tagged(static_tag!("ports"));
/// let ports = KMEM.rhashtable::<u16, &str>(Parameters::default(), caller).expect("memory");
/// ports.insert(80, "http", caller).expect("memory");
/// assert_eq!(ports.read().get(&80), Some(&"http"));
/// assert!(ports.remove(&80));
/// assert!(ports.read().get(&80).is_none());
/// ```
///
/// # Invariants
/// Every link that a search can reach begins an element of these types, or is a sentinel of a
/// segment.
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

/// Fields that readers do not use, on a cache line of their own.
#[repr(C, align(64))]
struct Counts {
    /// Elements, as a signed number.
    len: AtomicUsize,
    /// 1 while a thread makes the table grow or shrink.
    resizing: AtomicUsize,
    /// Times that there was no memory to grow.
    cramped: AtomicUsize,
}

// SAFETY: any thread may refer to an element or drop it, and keys and values are `Send` and `Sync`.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Source + Send, H: Send> Send
    for RHashTable<K, V, S, H>
{
}
// SAFETY: any thread may refer to an element or drop it, and keys and values are `Send` and `Sync`.
unsafe impl<K: Send + Sync, V: Send + Sync, S: Source, H: Sync> Sync for RHashTable<K, V, S, H> {}

impl<K, V, S: Source, H> RHashTable<K, V, S, H> {
    /// Makes an empty table, whose own memory is billed to `owner`. `None`: there is no memory, or
    /// the parameters are invalid.
    pub fn new(source: S, hasher: H, parameters: Parameters, owner: Caller) -> Option<Self> {
        const { assert!(align_of::<Element<K, V>>() <= 16) };
        let Parameters { min_buckets: min, max_buckets: max, .. } = parameters;
        if !min.is_power_of_two() || !max.is_power_of_two() || min > max || max > 1 << 40 {
            return None;
        }
        let segments = Segments::new(&source, min, owner)?;
        let grace = Grace::new(&source, owner);
        let Some(grace) = grace else {
            // SAFETY: no other thread has seen the segments.
            unsafe { segments.close(&source) };
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

    /// Begins to read. Elements found through the guard stay valid until it is dropped.
    #[inline]
    pub fn read(&self) -> Reading<'_, K, V, S, H> {
        Reading::new(self)
    }

    /// Number of elements, not exact while other threads write.
    pub fn len(&self) -> usize {
        // An element may be counted as removed before it is counted as inserted.
        (self.counts.len.load(Ordering::Relaxed) as isize).max(0) as usize
    }

    /// Returns whether the table is empty, not exact while other threads write.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of buckets at this moment.
    pub fn buckets(&self) -> usize {
        self.buckets.load(Ordering::Relaxed)
    }

    /// Times so far that the table had no memory to grow.
    pub fn cramped(&self) -> usize {
        self.counts.cramped.load(Ordering::Relaxed)
    }

    /// Number of chains at this moment.
    fn chains(&self) -> usize {
        self.buckets.load(Ordering::Acquire).div_ceil(SHARE)
    }

    /// The sentinel where a search for a hash begins: that of its chain. If that sentinel is not in
    /// the list and cannot enter now, the sentinel of the chain that holds its elements.
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

    /// Brings a sentinel into the list. False: another thread brings it in, or gave it up.
    fn enter<'g>(&'g self, number: usize, link: &'g Link) -> bool {
        if link.next.compare_exchange(0, ENTERING, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let order = sentinel_order(number);
        link.order.store(order, Ordering::Relaxed);
        loop {
            // The parent has a lower number: the recursion ends at chain 0, always in the list.
            let start = self.chain(parent(number) as u64);
            let Ok(place) = self.search(start, order, |_| false) else { continue };
            let next = word(place.at.map_or(core::ptr::null(), |at| at));
            link.next.store(next | ENTERING, Ordering::Relaxed);
            let new = word(link);
            if place
                .from
                .compare_exchange(place.seen, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                // Does nothing if another thread has inserted a link behind it already.
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

    /// Finds a place in the list as [`find`] does. Retires the elements that it unlinks.
    fn search<'g>(
        &'g self,
        start: &'g Link,
        order: u64,
        is_it: impl Fn(&'g Link) -> bool,
    ) -> Result<Place<'g>, Restart> {
        // SAFETY: `find` has just unlinked the element.
        find(start, order, is_it, |link| unsafe { self.retire(link) })
    }

    /// Removes the hints for an unlinked element, and retires it.
    ///
    /// # Safety
    /// `link` is that of an element of this table, and this thread unlinked it.
    unsafe fn retire(&self, link: &Link) {
        // SAFETY: an element's link, by the contract.
        let node = unsafe { Node::of(link) };
        hint::forget(node, |segment| self.segments.hints_in(segment, link.hash()));
        // SAFETY: unlinked by this thread (contract), and without hints now.
        unsafe { self.retire_unhinted(node) };
    }

    /// Retires an element.
    ///
    /// # Safety
    /// `node` is that of an element of this table, which new readers cannot find. No other call
    /// retires it.
    unsafe fn retire_unhinted(&self, node: &Node) {
        // SAFETY: the element, and so its state, is valid until its grace period is over.
        unsafe { self.grace.retire(&raw const *node as usize, &node.state) };
    }

    /// Reclaims, if enough things are retired.
    fn tidy(&self) {
        let part = self.len() / LOOK_AFTER_PART;
        if self.grace.waiting_for(part.clamp(LOOK_AFTER, LOOK_AFTER_MOST)) {
            self.reclaim();
        }
    }

    /// Drops removed elements that no reader can refer to any more. Does not wait for readers.
    pub fn reclaim(&self) {
        if let Some(batch) = self.grace.look(&self.source) {
            // SAFETY: a batch of this table's grace period.
            unsafe { self.drop_batch(batch, false) };
        }
    }

    /// Drops the elements of a batch, and advances its segments.
    ///
    /// # Safety
    /// The batch is from this table's grace period. If `closing`, no other thread uses the table.
    unsafe fn drop_batch(&self, batch: Batch, closing: bool) {
        let mut next = batch.0;
        while next != 0 {
            if next & segment::RETIRED != 0 {
                // SAFETY: a segment's word in such a batch; for `closing`, the same contract.
                next = unsafe { self.drop_segment(next, closing) };
                continue;
            }
            let at = next as *mut Element<K, V>;
            // SAFETY: a retired element, which no thread refers to (invariant of `Batch`).
            unsafe {
                next = (*at).node.state.load(Ordering::Relaxed);
                at.drop_in_place();
                self.source.release(NonNull::new_unchecked(at.cast()));
            }
        }
    }

    /// Advances a segment whose grace period is over. After the first period, its sentinels leave
    /// the list; after the second, it is released. Returns the next retired thing of its batch.
    ///
    /// # Safety
    /// `retired` is the word of a segment in a batch of this table's grace period. If `closing`, no
    /// other thread uses the table.
    unsafe fn drop_segment(&self, retired: usize, closing: bool) -> usize {
        // SAFETY: a retired segment, which was not released yet (contract).
        let segment = unsafe { segment::Segment::of(retired) };
        let next = segment.retired.load(Ordering::Relaxed);
        if closing || segment.is_out() {
            // SAFETY: the table closes, or no reader has found the sentinels since they left the
            // list: no thread refers to the segment.
            unsafe { segment::release(segment, &self.source) };
            return next;
        }
        let reading = self.read();
        // The links around a sentinel are scattered in memory, but the next sentinels are known.
        let (mut later, mut soon) = (segment.links().skip(AHEAD), segment.links().skip(AHEAD / 2));
        for (link, number) in segment.links() {
            for (ahead, behind) in [(later.next(), 1), (soon.next(), 2)] {
                if let Some((link, number)) = ahead {
                    fetch(Some(link), behind);
                    fetch(self.segments.link(parent(number)), behind);
                }
            }
            // Not in the list. No thread can find it any more to bring it in.
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
                if self.search(start, order, |_| false).is_ok() {
                    break;
                }
            }
        }
        segment.set_out();
        drop(reading);
        // SAFETY: the segment is not released before its second grace period is over.
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
                // SAFETY: the segment is not released before a grace period is over.
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
    /// Inserts a key and its value. Their memory is billed to `caller`.
    ///
    /// # Errors
    /// The table has the key, or there is no memory.
    pub fn insert(&self, key: K, value: V, caller: Caller) -> Result<(), Refused<K, V>> {
        let hash = self.hasher.hash_one(&key);
        let new = self.element(hash, key, value, caller)?;
        let reading = self.read();
        loop {
            // SAFETY: initialized by `element`, and only this thread's until it is in the list.
            let own: &Element<K, V> = unsafe { new.as_ref() };
            let Ok(place) = self.place(hash, &own.key) else { continue };
            if place.found {
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
            let Ok(place) = self.place(hash, &own.key) else { continue };
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
    fn unlink<'g>(&'g self, place: Place<'g>, old: &'g Link, hash: u64, past: usize) {
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

    /// Finds the place of a key in the list.
    fn place<'g, Q>(&'g self, hash: u64, key: &Q) -> Result<Place<'g>, Restart>
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        // SAFETY: a link of this table with the order of a hash is an element's.
        let is_it = |link: &'g Link| unsafe { element_of::<K, V>(link) }.key.borrow() == key;
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

impl<K, V, S: Source, H> Drop for RHashTable<K, V, S, H> {
    fn drop(&mut self) {
        let batches = self.grace.take_all();
        let mut next = self.segments.link(0);
        while let Some(link) = next {
            // A removed element that is still in the list was not retired.
            next = link.following().0;
            if !link.is_sentinel() {
                // SAFETY: an element in the list, so it was not retired. There are no readers.
                unsafe { self.retire_unhinted(Node::of(link)) };
            }
        }
        for batch in batches.into_iter().chain(self.grace.take_all()) {
            // SAFETY: a batch of this table's grace period. No other thread uses the table.
            unsafe { self.drop_batch(batch, true) };
        }
        // SAFETY: no other thread uses the table, and all its elements are dropped.
        unsafe {
            self.segments.close(&self.source);
            self.grace.close(&self.source);
        }
    }
}

/// The element that begins with a node.
///
/// # Safety
/// The node is that of an element of these types.
unsafe fn element<K, V>(node: &Node) -> &Element<K, V> {
    // SAFETY: the node is the first field of the element (contract).
    unsafe { &*(&raw const *node).cast() }
}

/// The element that begins with a link.
///
/// # Safety
/// The link is that of an element of these types, and so no sentinel.
unsafe fn element_of<K, V>(link: &Link) -> &Element<K, V> {
    // SAFETY: the same contract.
    unsafe { element(Node::of(link)) }
}

/// The chain that holds the elements of a chain whose sentinel is not in the list.
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
