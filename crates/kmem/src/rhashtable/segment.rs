//! The buckets of a table, as sets of hints and sentinels, in segments: the first has the fewest buckets there can be, each
//! other one as many as all before it.

use core::ptr::NonNull;

use super::hint::{self, Hints};
use super::list::{END, Link};
use crate::source::{Caller, Source};
use crate::sync::{AtomicUsize, Ordering};

/// Marks a segment among what is retired.
pub(super) const RETIRED: usize = 1;
/// Buckets that share a sentinel: a chain of elements. With hints, few lookups walk along it, and a quarter of the sentinels is
/// a quarter of what writers bring in and take out, and of what lies between elements.
pub(super) const SHARE: usize = if cfg!(loom) { 1 } else { 4 };
/// Segments of a table.
const MOST: usize = 40;

/// What is in front of the sets of hints of a segment, which are in front of its sentinels.
#[repr(C, align(16))]
pub(super) struct Segment {
    /// Its place among what is retired.
    pub(super) retired: AtomicUsize,
    /// 1 when its sentinels are out of the list.
    out: AtomicUsize,
    /// Number of the first bucket, and how many there are.
    first: usize,
    count: usize,
    /// Sets are whole cache lines where the segment begins with one, as long ones do.
    _line: [usize; 4],
}

// A power of two of buckets has so many sets.
const fn sets(count: usize) -> usize {
    count.div_ceil(hint::COUNT)
}

// And so many chains that begin there.
const fn chains(first: usize, count: usize) -> usize {
    if first == 0 { count.div_ceil(SHARE) } else { count / SHARE }
}

impl Segment {
    fn bytes(first: usize, count: usize) -> Option<usize> {
        let hints = sets(count).checked_mul(size_of::<Hints>())?;
        chains(first, count)
            .checked_mul(size_of::<Link>())?
            .checked_add(hints)?
            .checked_add(size_of::<Self>())
    }

    /// The word that it is retired by.
    pub(super) fn word(&self) -> usize {
        &raw const *self as usize | RETIRED
    }

    /// The segment of such a word.
    ///
    /// # Safety
    /// A segment that was not released.
    pub(super) unsafe fn of<'g>(word: usize) -> &'g Self {
        // SAFETY: the caller's promise.
        unsafe { &*((word & !RETIRED) as *const Self) }
    }

    pub(super) fn is_out(&self) -> bool {
        self.out.load(Ordering::Relaxed) != 0
    }

    pub(super) fn set_out(&self) {
        self.out.store(1, Ordering::Relaxed);
    }

    /// A sentinel.
    fn link(&self, index: usize) -> &Link {
        debug_assert!(index < chains(self.first, self.count));
        // SAFETY: the sets follow, then so many links.
        unsafe { &*self.hints_at(sets(self.count)).cast::<Link>().add(index) }
    }

    /// The hints that a bucket shares.
    #[inline(always)]
    fn hints(&self, index: usize) -> &Hints {
        debug_assert!(index < self.count);
        // SAFETY: as above.
        unsafe { &*self.hints_at(index / hint::COUNT) }
    }

    #[inline(always)]
    fn hints_at(&self, set: usize) -> *const Hints {
        // In the same memory.
        (&raw const *self).wrapping_add(1).cast::<Hints>().wrapping_add(set)
    }

    /// All sentinels, and the numbers of their chains.
    pub(super) fn links(&self) -> impl Iterator<Item = (&Link, usize)> {
        let chains = chains(self.first, self.count);
        (0..chains).map(|index| (self.link(index), self.first / SHARE + index))
    }
}

fn make(
    source: &impl Source,
    first: usize,
    count: usize,
    owner: Caller,
) -> Option<NonNull<Segment>> {
    let at = source.obtain(Segment::bytes(first, count)?, owner)?.cast::<Segment>();
    let (retired, out) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // SAFETY: fresh memory of that size; zeroes are no hints, and sentinels that are not in the list.
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

/// Gives a segment back.
///
/// # Safety
/// Nobody uses it any more.
pub(super) unsafe fn release(segment: &Segment, source: &impl Source) {
    // SAFETY: the caller's promise; from `make`.
    unsafe { source.release(NonNull::from(segment).cast()) };
}

/// The segments of a table.
pub(super) struct Segments {
    segments: [AtomicUsize; MOST],
    /// log2 of the buckets of the first one.
    shift: u32,
}

impl Segments {
    /// The first segment, whose first sentinel begins the list. `None`: no memory.
    pub(super) fn new(source: &impl Source, buckets: usize, owner: Caller) -> Option<Self> {
        let first = make(source, 0, buckets, owner)?;
        let this = Self {
            segments: core::array::from_fn(|_| AtomicUsize::new(0)),
            shift: buckets.ilog2(),
        };
        this.segments[0].store(first.as_ptr() as usize, Ordering::Release);
        this.link(0)?.next.store(END, Ordering::Release);
        Some(this)
    }

    /// Number of the segment that a bucket is in, and the first bucket of that.
    #[inline]
    fn place(&self, number: usize) -> (usize, usize) {
        let above = number >> self.shift;
        if above == 0 { (0, 0) } else { (above.ilog2() as usize + 1, 1 << number.ilog2()) }
    }

    /// A segment, if it is there.
    #[inline(always)]
    fn at<'g>(&self, number: usize) -> Option<&'g Segment> {
        let segment = self.segments[number].load(Ordering::Acquire) as *const Segment;
        // SAFETY: segments stay for as long as somebody reads who could have found them.
        unsafe { segment.as_ref() }
    }

    /// The sentinel of a chain, if there is room for one.
    pub(super) fn link<'g>(&self, chain: usize) -> Option<&'g Link> {
        let (segment, first) = self.place(chain * SHARE);
        self.at(segment).map(|found| found.link(chain - first / SHARE))
    }

    /// The hints that a bucket shares, and the number of the segment they are in, if there is room for them.
    #[inline(always)]
    pub(super) fn hints<'g>(&self, number: usize) -> Option<(&'g Hints, usize)> {
        let (segment, first) = self.place(number);
        self.at(segment).map(|found| (found.hints(number - first), segment))
    }

    /// The hints of the bucket in a segment that elements with that hash are in, or were when there were fewer.
    pub(super) fn hints_in<'g>(&self, segment: usize, hash: u64) -> Option<&'g Hints> {
        let bits = self.shift + segment.saturating_sub(1) as u32;
        self.at(segment).map(|found| found.hints((hash & ((1 << bits) - 1)) as usize))
    }

    /// Makes room for as many buckets as there are. False: no memory.
    pub(super) fn add(&self, source: &impl Source, buckets: usize, owner: Caller) -> bool {
        let (number, _) = self.place(buckets);
        let Some(place) = self.segments.get(number) else { return false };
        if place.load(Ordering::Acquire) != 0 {
            return true;
        }
        let Some(segment) = make(source, buckets, buckets, owner) else { return false };
        place.store(segment.as_ptr() as usize, Ordering::Release);
        true
    }

    /// Takes the segment from that bucket on away: nobody finds it any more.
    pub(super) fn take<'g>(&self, first: usize) -> Option<&'g Segment> {
        let (number, _) = self.place(first);
        let segment = self.segments[number].swap(0, Ordering::AcqRel) as *const Segment;
        // SAFETY: ours, until it is released.
        unsafe { segment.as_ref() }
    }

    /// Gives all back.
    pub(super) fn close(&self, source: &impl Source) {
        for segment in &self.segments {
            let segment = segment.swap(0, Ordering::Acquire) as *const Segment;
            // SAFETY: nobody uses it any more.
            unsafe {
                if let Some(segment) = segment.as_ref() {
                    release(segment, source);
                }
            }
        }
    }
}
