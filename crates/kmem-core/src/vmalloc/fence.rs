//! Fences: a block that ends in front of the guard of its area, as those of Electric Fence. An
//! access behind it faults at once. The bytes of its pages in front of it, and those that its
//! alignment leaves behind it, hold a pattern. A free looks at them.
//!
//! ```text
//! | pattern .. | block | pattern, below the alignment | guard |
//! ```
//!
//! The zone has a word for the place of each block, its [`Bounds`].

use kmem_layout::word::TAG_MASK;

use super::Kind;
use super::area::On;
use crate::heap::ZoneSet;
use crate::os::Platform;
use crate::page::{Bounds, PageWords, Run};
use crate::report::Fault;
use crate::units::{PAGE_SIZE, PageCount, Pfn, TagId};

/// A block beside an address.
struct Block {
    at: usize,
    size: usize,
    /// Length of its area.
    pages: PageCount,
    /// Tag of its last allocation.
    last: TagId,
    /// Tag of its free; `None` if it lives.
    freed: Option<TagId>,
}

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
        let bounds = Bounds { front: front_bytes, behind, is_fenced: true, owner: 0 };
        words.set_bounds(bounds);
        self.ledger.draw_fence(set.zone.address(run.start), run.pages, bounds);
        front
    }

    /// Notes at the guard of an area which call frees it.
    pub(super) fn note_free(self, set: &ZoneSet, guard: Pfn) {
        if let Some(words) = set.zone.words(guard) {
            words.note_freed_by(self.ledger.call_tag_here().map_or(0, |tag| tag.0));
        }
    }

    /// The block that an access to an inaccessible address was most likely meant for.
    pub fn block_beside(self, at: usize) -> Option<Fault> {
        let set = self.zone()?;
        let page = set.zone.pfn(at)?;
        // The word of a page behind the first one, and of a guard, is the distance from there.
        let distance = PageCount(set.zone.words(page)?.word());
        let is_of = |distance: PageCount, block: &Block| distance <= block.pages;
        let in_front = [PageCount::ZERO, distance].into_iter().find_map(|distance| {
            let start = (distance <= page.index()).then(|| page - distance)?;
            self.block_at(set, start).filter(|block| is_of(distance, block))
        });
        // An access in front of a block meets the guard of the area in front.
        let is_guard = self.guard_bits(set).has(page);
        let behind = if is_guard { self.block_at(set, page + PageCount::ONE) } else { None };
        let distance = |block: &Block| match at {
            _ if at < block.at => block.at - at,
            _ => (at - block.at).saturating_sub(block.size),
        };
        let Block { at: object, size, last, freed, .. } =
            [in_front, behind].into_iter().flatten().min_by_key(distance)?;
        Some(Fault::Beside { object, size, last, freed })
    }

    /// The block of the area that begins at a page, if that lives or is held.
    fn block_at(self, set: &ZoneSet, start: Pfn) -> Option<Block> {
        let words = set.zone.words(start)?;
        let live = words.length();
        let is_free = live == PageCount::ZERO;
        let pages = if !is_free {
            live
        } else if self.held_bits(set).has(start) {
            self.length_of_held(set, start)?
        } else {
            return None;
        };
        let bounds = words.bounds();
        let at = set.zone.address(start) + usize::from(bounds.front);
        let last = TagId(words.word() & TAG_MASK);
        let guard = set.zone.words(start + pages).filter(|_| is_free);
        let freed = guard.map(|words| TagId(words.freed_by()));
        Some(Block { at, size: bounds.room(pages), pages, last, freed })
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
        if bounds.is_fenced {
            let area = set.zone.address(start);
            self.ledger.check_fence(area, words.length(), bounds, words.word());
        }
    }
}
