//! Growing and shrinking: sentinels enter the list and leave it, segments come and go.

use super::list::{END, ENTERING, GONE, Link, fetch, target, word};
use super::{RHashTable, parent, segment, sentinel_order};
use crate::source::Source;
use crate::sync::Ordering;

/// Sentinels by which prefetching is ahead while the sentinels of a segment leave the list.
const AHEAD: usize = 8;

impl<K, V, S: Source, H> RHashTable<K, V, S, H> {
    /// Brings a sentinel into the list. False: another thread brings it in, or gave it up.
    pub(super) fn enter<'g>(&'g self, number: usize, link: &'g Link) -> bool {
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

    /// Advances a segment whose grace period is over. After the first period, its sentinels leave
    /// the list; after the second, it is released. Returns the next retired thing of its batch.
    ///
    /// # Safety
    /// `retired` is the word of a segment in a batch of this table's grace period. If `closing`, no
    /// other thread uses the table.
    pub(super) unsafe fn drop_segment(&self, retired: usize, closing: bool) -> usize {
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

    pub(super) fn added(&self) {
        self.counts.len.fetch_add(1, Ordering::Relaxed);
        if self.len() * 4 > self.buckets() * 3 {
            self.grow();
        }
    }

    pub(super) fn removed(&self) {
        self.counts.len.fetch_sub(1, Ordering::Relaxed);
        if self.parameters.shrinks && self.len() * 10 < self.buckets() * 3 {
            self.shrink();
        }
    }
}
