//! Claims of spans of pages anywhere in a zone, across rows and pageblocks. Other claims look
//! inside rows, or for whole pageblocks. That is fast, and leaves pages between the runs. Where
//! address space is scarce, these are wanted, too.

use super::{On, Run, Zone};
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::{PageCount, Pfn};

impl<P: Platform> On<'_, P> {
    /// Takes a run of `pages` (not 0) anywhere. `None`: the zone has no such run and cannot grow
    /// one.
    pub fn claim_anywhere(&self, pages: PageCount) -> Option<Run> {
        let start = self.until_grown(pages, PageCount::ONE, || self.zone.claim_next_span(pages))?;
        Some(Run { start, pages })
    }
}

impl Zone {
    /// Takes the next span of free pages, from where the last search ended.
    fn claim_next_span(&self, pages: PageCount) -> Option<Pfn> {
        let (end, next) =
            (Pfn::ZERO + self.committed(), Pfn(self.next_span.load(Ordering::Relaxed)));
        let found = self
            .claim_span_in(next.min(end), end, pages)
            .or_else(|| self.claim_span_in(Pfn::ZERO, end, pages))?;
        self.next_span.store((found + pages).0, Ordering::Relaxed);
        Some(found)
    }

    /// Takes the first span of free pages between two pages.
    fn claim_span_in(&self, from: Pfn, to: Pfn, pages: PageCount) -> Option<Pfn> {
        let (mut at, mut free) = (from, PageCount::ZERO);
        while at < to {
            let bits = if self.is_whole(at.pageblock()) { 0 } else { self.row(at).load() };
            let rest = bits >> (at.0 % 64);
            // Pages from here on that are all free, or else all taken, up to the end of the row.
            let left = 64 - at.0 % 64;
            let here = PageCount(rest.trailing_ones().min(left));
            if here == PageCount::ZERO {
                free = PageCount::ZERO;
                at += PageCount(rest.trailing_zeros().min(left));
                continue;
            }
            free += here;
            at += here;
            if free >= pages {
                let start = at - free;
                if self.claim_at(start, pages) {
                    return Some(start);
                }
                // Another thread took some of them.
                free = PageCount::ZERO;
            }
        }
        None
    }
}
