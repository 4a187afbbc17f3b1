//! The sentinels of a table, in segments: the first has the fewest buckets there can be, each other one as many as all
//! before it.

use core::ptr::NonNull;

use super::list::END;
use super::list::Link;
use crate::source::{Caller, Source};
use crate::sync::{AtomicUsize, Ordering};

/// Marks a segment among what is retired.
pub(super) const RETIRED: usize = 1;
/// Segments of a table.
const MOST: usize = 40;

/// What is in front of the sentinels of a segment.
#[repr(C, align(16))]
pub(super) struct Segment {
    /// Its place among what is retired.
    pub(super) retired: AtomicUsize,
    /// 1 when its sentinels are out of the list.
    out: AtomicUsize,
    /// Number of the first bucket, and how many there are.
    first: usize,
    count: usize,
}

impl Segment {
    fn bytes(count: usize) -> Option<usize> {
        count.checked_mul(size_of::<Link>())?.checked_add(size_of::<Self>())
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

    fn link(&self, index: usize) -> &Link {
        debug_assert!(index < self.count);
        // SAFETY: `count` links follow.
        unsafe { &*(&raw const *self).add(1).cast::<Link>().add(index) }
    }

    /// All sentinels, and the numbers of their buckets.
    pub(super) fn links(&self) -> impl Iterator<Item = (&Link, usize)> {
        (0..self.count).map(|index| (self.link(index), self.first + index))
    }
}

fn make(
    source: &impl Source,
    first: usize,
    count: usize,
    owner: Caller,
) -> Option<NonNull<Segment>> {
    let at = source.obtain(Segment::bytes(count)?, owner)?.cast::<Segment>();
    let segment = Segment { retired: AtomicUsize::new(0), out: AtomicUsize::new(0), first, count };
    // SAFETY: fresh memory of that size; links of zeroes are sentinels that are not in the list.
    unsafe {
        at.write(segment);
        #[cfg(loom)]
        for index in 0..count {
            at.add(1).cast::<Link>().add(index).write(Link::new(0, 0));
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

    /// The sentinel of a bucket, if there is room for one.
    #[inline]
    pub(super) fn link<'g>(&self, number: usize) -> Option<&'g Link> {
        let (segment, first) = self.place(number);
        let segment = self.segments[segment].load(Ordering::Acquire) as *const Segment;
        // SAFETY: segments stay for as long as somebody reads who could have found them.
        unsafe { segment.as_ref::<'g>() }.map(|segment| segment.link(number - first))
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
