//! Fences: a block that ends in front of the guard of its area, as those of Electric Fence. An
//! access behind it faults at once. The bytes of its pages in front of it, and those that its
//! alignment leaves behind it, hold a pattern. A free looks at them.
//!
//! ```text
//! | pattern .. | block | pattern, below the alignment | guard |
//! ```
//!
//! The zone has a word for the place of each block, its [`Bounds`].

use super::Kind;
use super::area::On;
use crate::heap::ZoneSet;
use crate::os::Platform;
use crate::page::{Bounds, PageWords, Run};
use crate::units::{PAGE_SIZE, Pfn};

impl<P: Platform> On<P> {
    /// Notes the place of the block in an area that this thread took, and fills what is around it.
    /// `block` is its size and its alignment; `None`: it fills the area. Returns its distance from
    /// the start of the area.
    pub(super) fn enclose(self, set: &ZoneSet, run: Run, block: Option<(usize, usize)>) -> usize {
        let Some(words) = set.zone.words(run.start) else { return 0 };
        let Some((size, align)) = block else {
            words.set_bounds(Bounds::NONE);
            return 0;
        };
        let rest = run.pages.bytes() - size;
        // The area itself has a larger alignment.
        let front = rest & !(align.min(PAGE_SIZE) - 1);
        let (front_bytes, behind) = (front as u16, (rest - front) as u16);
        let bounds = Bounds { front: front_bytes, behind, owner: 0 };
        words.set_bounds(bounds);
        self.ledger.draw_fence(set.zone.address(run.start), run.pages, bounds);
        front
    }

    /// [`Self::check_fence`] for all live areas. No other thread runs.
    pub fn check_fences(self) {
        let Some(set) = self.zone() else { return };
        self.each_area(|area| {
            let start = set.zone.pfn(area.start).filter(|_| area.kind == Kind::Vmalloc);
            if let Some((start, words)) = start.and_then(|at| Some((at, set.zone.words(at)?))) {
                self.check_fence(set, start, &words);
            }
        });
    }

    /// Ends the program if the bytes around the block of a live area were written to. Does nothing
    /// for a block without a fence.
    #[inline]
    pub(super) fn check_fence(self, set: &ZoneSet, start: Pfn, words: &PageWords<'_>) {
        let bounds = words.bounds();
        if bounds != Bounds::NONE {
            let area = set.zone.address(start);
            self.ledger.check_fence(area, words.length(), bounds, words.word());
        }
    }
}
