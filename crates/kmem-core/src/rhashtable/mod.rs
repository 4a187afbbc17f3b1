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
//! Growing adds a segment and doubles a number (see `resize`). A sentinel enters the list when it
//! is first used. A table without memory to grow goes on with longer chains. Shrinking takes the
//! sentinels of the last segment out of the list. A chain is four buckets. The interface counts
//! buckets, of which there are about as many as elements.
//!
//! Most lookups do not walk along the list: the first lookup of an element leaves a hint where it
//! is (see `hint`).
//!
//! A table may have several elements of one key (see `rhltable`).
//!
//! Readers take no lock and never start over. They write only hints and a counter of their CPU.
//! Writers take no lock either: one compare-and-swap inserts, marks as removed, or replaces. So a
//! signal handler may use the table wherever it interrupts, and a stopped thread blocks no other. A
//! removed element is dropped when all readers that may have found it have left (see `grace` and
//! `retire`).
//!
//! Existing crates do not fit. They take memory from the global allocator, and unwind or abort
//! without memory. They keep readers in thread-local storage, or take locks on which a signal
//! handler hangs.
//!
//! Context: any, signal handlers included. In a child forked while other threads read, removed
//! elements are never dropped.

use core::marker::PhantomData;

use crate::source::{Caller, Source};
use crate::sync::{AtomicUsize, Ordering};
use grace::Grace;
use list::{ENTERING, GONE, Link, Node, Place, Restart, find};

mod grace;
mod hash;
mod hint;
mod list;
mod read;
mod resize;
mod retire;
mod rhltable;
mod segment;
#[cfg(not(loom))]
mod validate;
mod write;

pub use hash::Seeded;
pub use read::{Position, Reading};
use segment::{SHARE, Segments};
#[cfg(not(loom))]
pub use validate::TableFault;

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
        source.keep_payer(owner);
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
        self.source.drop_payer(self.owner);
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
