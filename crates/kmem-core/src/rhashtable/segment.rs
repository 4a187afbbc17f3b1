//! Segments: the hints and the sentinels of a table's buckets. The first segment has the fewest
//! buckets of the table, each other one as many as all before it.
//!
//! References to a segment are used under a read guard, or by the thread that releases it.

use core::ptr::NonNull;

use super::hint::{self, Hints};
use super::list::{END, Link};
use crate::source::{Caller, Source};
use crate::sync::{AtomicUsize, Ordering};

/// Marks the word of a segment in the list of retired things.
pub(super) const RETIRED: usize = 1;
/// Buckets of a chain, which share a sentinel. Thanks to hints, few lookups walk along a chain.
/// Fewer sentinels are less work for writers, and fewer links between elements.
pub(super) const SHARE: usize = if cfg!(loom) { 1 } else { 4 };
/// Most segments of a table.
const MOST: usize = 40;

/// The head of a segment. Its sets of hints follow, then its sentinels.
///
/// # Invariants
/// Behind the head, the same memory has [`sets`] sets of hints and [`chains`] sentinels.
#[repr(C, align(16))]
pub(super) struct Segment {
    /// The next retired thing.
    pub(super) retired: AtomicUsize,
    /// 1 when its sentinels are out of the list.
    out: AtomicUsize,
    /// Number of its first bucket.
    first: usize,
    /// Number of its buckets, a power of two.
    count: usize,
    /// Makes sets whole cache lines in segments that begin with a cache line, as long ones do.
    _line: [usize; 4],
}

/// Sets of hints for `count` buckets, a power of two.
const fn sets(count: usize) -> usize {
    count.div_ceil(hint::COUNT)
}

/// Chains that begin in the `count` buckets from `first` on.
const fn chains(first: usize, count: usize) -> usize {
    if first == 0 { count.div_ceil(SHARE) } else { count / SHARE }
}

impl Segment {
    /// Bytes of a segment; `None` if a `usize` cannot count them.
    fn bytes(first: usize, count: usize) -> Option<usize> {
        let hints = sets(count).checked_mul(size_of::<Hints>())?;
        chains(first, count)
            .checked_mul(size_of::<Link>())?
            .checked_add(hints)?
            .checked_add(size_of::<Self>())
    }

    /// The word under which the segment is retired.
    pub(super) fn word(&self) -> usize {
        &raw const *self as usize | RETIRED
    }

    /// The segment that is retired under a word.
    ///
    /// # Safety
    /// The word is that of a segment, which is not released during `'g`.
    pub(super) unsafe fn of<'g>(word: usize) -> &'g Self {
        // SAFETY: without the mark, the word is the address of a segment (contract).
        unsafe { &*((word & !RETIRED) as *const Self) }
    }

    pub(super) fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_out(&self) {
        self.out.store(1, Ordering::Relaxed);
    }

    /// The sentinel of the chain with this index in the segment.
    ///
    /// # Safety
    /// `index` is below the number of the segment's chains.
    unsafe fn link(&self, index: usize) -> &Link {
        debug_assert!(index < chains(self.first, self.count));
        // SAFETY: the sentinels follow the sets of hints (invariant), and the index is one of them.
        unsafe { &*self.hints_at(sets(self.count)).cast::<Link>().add(index) }
    }

    /// The hints that the bucket with this index in the segment shares.
    ///
    /// # Safety
    /// `index` is below the number of the segment's buckets.
    #[inline(always)]
    unsafe fn hints(&self, index: usize) -> &Hints {
        debug_assert!(index < self.count);
        // SAFETY: the sets of hints follow (invariant), and the bucket has one of them.
        unsafe { &*self.hints_at(index / hint::COUNT) }
    }

    /// Address of a set of hints.
    #[inline(always)]
    fn hints_at(&self, set: usize) -> *const Hints {
        (&raw const *self).wrapping_add(1).cast::<Hints>().wrapping_add(set)
    }

    /// All sentinels, and the numbers of their chains.
    pub(super) fn links(&self) -> impl Iterator<Item = (&Link, usize)> {
        let chains = chains(self.first, self.count);
        // SAFETY: each index is below the number of chains.
        (0..chains).map(|index| (unsafe { self.link(index) }, self.first / SHARE + index))
    }
}

/// Allocates the segment of the `count` buckets from `first` on. `None`: there is no memory.
fn make(
    source: &impl Source,
    first: usize,
    count: usize,
    owner: Caller,
) -> Option<NonNull<Segment>> {
    let at = source.obtain(Segment::bytes(first, count)?, owner)?.cast::<Segment>();
    let (retired, out) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // SAFETY: fresh memory of the segment's size.
    // INVARIANT: it has room for the hints and the sentinels. Zeroes are valid for both: no hints,
    // and sentinels that are not in the list.
    unsafe {
        at.write(Segment { retired, out, first, count, _line: [0; 4] });
        #[cfg(loom)]
        {
            let hints = at.add(1).cast::<Hints>();
            (0..sets(count)).for_each(|set| hints.add(set).write(Hints::new()));
            let links = hints.add(sets(count)).cast::<Link>();
            (0..chains(first, count)).for_each(|index| links.add(index).write(Link::new(0, 0)));
        }
    }
    Some(at)
}

/// Releases a segment.
///
/// # Safety
/// The segment is from [`make`] with this source, and is not used after this call.
pub(super) unsafe fn release(segment: &Segment, source: &impl Source) {
    // SAFETY: memory of this source that is used no more (contract).
    unsafe { source.release(NonNull::from(segment).cast()) };
}

/// The segments of a table.
///
/// # Invariants
/// Each segment is null or from [`make`], for the buckets that [`Self::place`] says.
pub(super) struct Segments {
    segments: [AtomicUsize; MOST],
    /// log2 of the buckets of the first segment.
    shift: u32,
}

impl Segments {
    /// Makes the first segment, whose first sentinel begins the list. `None`: there is no memory.
    pub(super) fn new(source: &impl Source, buckets: usize, owner: Caller) -> Option<Self> {
        let first = make(source, 0, buckets, owner)?;
        let this = Self {
            segments: core::array::from_fn(|_| AtomicUsize::new(0)),
            shift: buckets.ilog2(),
        };
        // INVARIANT: the first segment has the buckets from 0 up to `1 << shift`.
        this.segments[0].store(first.as_ptr() as usize, Ordering::Release);
        this.link(0)?.next.store(END, Ordering::Release);
        Some(this)
    }

    /// Number of a bucket's segment, and the segment's first bucket.
    #[inline]
    fn place(&self, number: usize) -> (usize, usize) {
        let above = number >> self.shift;
        if above == 0 { (0, 0) } else { (above.ilog2() as usize + 1, 1 << number.ilog2()) }
    }

    /// A segment; `None` if it is not there.
    #[inline(always)]
    fn at<'g>(&self, number: usize) -> Option<&'g Segment> {
        let segment = self.segments[number].load(Ordering::Acquire) as *const Segment;
        // SAFETY: null, or a segment that stays valid while a reader that could find it reads.
        unsafe { segment.as_ref() }
    }

    /// The sentinel of a chain; `None` if its segment is not there.
    pub(super) fn link<'g>(&self, chain: usize) -> Option<&'g Link> {
        let (segment, first) = self.place(chain * SHARE);
        // SAFETY: the segment's buckets include the chain's first one (invariant).
        self.at(segment).map(|found| unsafe { found.link(chain - first / SHARE) })
    }

    /// The hints that a bucket shares, and the number of their segment; `None` if it is not there.
    #[inline(always)]
    pub(super) fn hints<'g>(&self, number: usize) -> Option<(&'g Hints, usize)> {
        let (segment, first) = self.place(number);
        // SAFETY: the segment's buckets include this one (invariant).
        self.at(segment).map(|found| (unsafe { found.hints(number - first) }, segment))
    }

    /// The hints, in a segment, of the bucket that elements with a hash are in now, or were in when
    /// the table had fewer buckets.
    pub(super) fn hints_in<'g>(&self, segment: usize, hash: u64) -> Option<&'g Hints> {
        let bits = self.shift + segment.saturating_sub(1) as u32;
        // SAFETY: the segment has `1 << bits` buckets (invariant).
        self.at(segment).map(|found| unsafe { found.hints((hash & ((1 << bits) - 1)) as usize) })
    }

    /// Adds a segment with `buckets` buckets, as many as there are. False: there is no memory.
    pub(super) fn add(&self, source: &impl Source, buckets: usize, owner: Caller) -> bool {
        let (number, _) = self.place(buckets);
        let Some(place) = self.segments.get(number) else { return false };
        if place.load(Ordering::Acquire) != 0 {
            return true;
        }
        let Some(segment) = make(source, buckets, buckets, owner) else { return false };
        // INVARIANT: the segment has the buckets from `buckets` up to twice that.
        place.store(segment.as_ptr() as usize, Ordering::Release);
        true
    }

    /// Removes the segment that begins with a bucket: new readers cannot find it.
    pub(super) fn take<'g>(&self, first: usize) -> Option<&'g Segment> {
        let (number, _) = self.place(first);
        let segment = self.segments[number].swap(0, Ordering::AcqRel) as *const Segment;
        // SAFETY: null, or a segment that only this thread can release now.
        unsafe { segment.as_ref() }
    }

    /// Releases all segments.
    ///
    /// # Safety
    /// All are from this source, and no thread uses one any more.
    pub(super) unsafe fn close(&self, source: &impl Source) {
        for segment in &self.segments {
            let segment = segment.swap(0, Ordering::Acquire) as *const Segment;
            // SAFETY: null, or a segment of this source that no thread uses any more (contract).
            unsafe {
                if let Some(segment) = segment.as_ref() {
                    release(segment, source);
                }
            }
        }
    }
}
