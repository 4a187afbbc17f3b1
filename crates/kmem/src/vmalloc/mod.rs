//! vmalloc: areas of whole pages, each with a page behind it that faults.
//!
//! ```text
//! a zone of its own | page | page | page | guard | page | guard | ..
//!                     ^ area of three      ^ area of one
//! ```
//!
//! Areas are runs of a zone, one page longer than what is asked for; the last page is the **guard**, which is made
//! inaccessible. An area that is freed stays as it is, guard included, on its CPU's array of areas of that length (up to
//! [`MAX_KEPT`] pages), from which it is taken again without a call of the platform. Longer ones (up to [`MAX_LONG`] pages)
//! share a short array: the one that was freed last is taken again if it has the length. So is any that has the alignment that
//! is asked for. When an array is full, half of it (of long ones, what comes) is unmapped in one go, neighbours together:
//! guards are made accessible again and the pages go to the zone, which gives them back to the platform after a while.
//!
//! Each page behind the first of an area has its distance from there in its extension word, which nobody else
//! uses. An address is looked up by that, in constant time; what an earlier area left there does not
//! match the length at the page it leads to.
//!
//! Two bits per page tell what extension words and lengths do not, and what a forked child needs to know:
//!
//! | `guards` | the page is inaccessible |
//! | `maps`   | an area begins here that maps pages that exist elsewhere ([vmap]); its length is the extension word |
//!
//! A guard costs two mappings of the process, of which the system allows so many: when half of these are used up, areas go without.
//! So do they when the system refuses; both is counted. A guard that cannot be made accessible again is never used
//! for anything else.
//!
//! [vmap]: https://docs.kernel.org/core-api/mm-api.html

use crate::class::{CLASS_COUNT, ClassGeometry, SizeClass};
use crate::sync::{AtomicU64, Ordering};
use crate::units::Pfn;

/// Longest areas that CPUs keep, in pages: those of every length up to this have an array.
pub const MAX_KEPT: u32 = CLASS_COUNT as u32 - 2;
/// Longest areas that CPUs keep at all.
pub const MAX_LONG: u32 = 256;
/// The array of areas that are longer than [`MAX_KEPT`].
pub const LONG: SizeClass = SizeClass(CLASS_COUNT as u8 - 1);
/// How many of these a CPU keeps.
const LONG_AREAS: u16 = 4;
/// Pages of one length that a CPU keeps, at most, unless these are fewer than two areas.
const KEPT_PAGES: u32 = 128;

/// The array for areas of so many pages.
#[inline(always)]
pub const fn kept(pages: u32) -> Option<SizeClass> {
    if pages <= MAX_KEPT { Some(SizeClass(pages as u8)) } else { None }
}

/// The array that an area of so many pages is kept on.
pub const fn array(pages: u32) -> Option<SizeClass> {
    match kept(pages) {
        None if pages <= MAX_LONG => Some(LONG),
        class => class,
    }
}

/// How many areas of each length a CPU keeps.
pub const fn caps() -> [ClassGeometry; CLASS_COUNT] {
    let mut classes = [ClassGeometry::NONE; CLASS_COUNT];
    classes[LONG.0 as usize].cap = LONG_AREAS;
    let mut pages = 1;
    while pages < LONG.0 as usize {
        let areas = KEPT_PAGES / pages as u32;
        classes[pages].cap = if areas > 64 {
            64
        } else if areas < 2 {
            2
        } else {
            areas as u16
        };
        pages += 1;
    }
    classes
}

/// Areas that are made at once lie on pages of their own as far as cache lines of their words go (two of 64 bytes, as
/// they are fetched): else CPUs that each use one area would share them.
pub const BATCH_ALIGN: u32 = 32;

/// Areas that are made at once, of a length that CPUs keep.
pub const fn batch(pages: u32) -> u32 {
    let areas = BATCH_ALIGN / (pages + 1);
    if areas < 1 {
        1
    } else if areas > 8 {
        8
    } else {
        areas
    }
}

/// A bit per page of a zone.
///
/// # Invariants
/// `words` leads to enough of them for all pages of the zone, in memory that is never freed.
#[derive(Clone, Copy)]
pub struct Bits {
    words: *const AtomicU64,
}

impl Bits {
    /// Views zeroed memory as bits.
    ///
    /// # Safety
    /// A word for each 64 pages of the zone, for this alone, for good.
    pub const unsafe fn new(words: *const AtomicU64) -> Self {
        Self { words }
    }

    /// Bytes for a zone of so many pages.
    pub const fn bytes(pages: u32) -> usize {
        (pages as usize).div_ceil(64) * 8
    }

    fn word(&self, page: Pfn) -> &AtomicU64 {
        // SAFETY: a page of the zone, by every caller.
        unsafe { &*self.words.add(page.0 as usize / 64) }
    }

    /// Sets a page's bit.
    pub fn set(&self, page: Pfn) {
        self.word(page).fetch_or(1 << (page.0 % 64), Ordering::Release);
    }

    /// Clears a page's bit; whether it was set.
    pub fn clear(&self, page: Pfn) -> bool {
        let bit = 1 << (page.0 % 64);
        self.word(page).fetch_and(!bit, Ordering::AcqRel) & bit != 0
    }

    /// Whether a page's bit is set.
    pub fn has(&self, page: Pfn) -> bool {
        self.word(page).load(Ordering::Acquire) >> (page.0 % 64) & 1 != 0
    }

    /// The pages below `end` whose bits are set.
    pub fn all(self, end: u32) -> impl Iterator<Item = Pfn> {
        (0..end.div_ceil(64)).flat_map(move |word| {
            let mut rest = self.word(Pfn(word * 64)).load(Ordering::Acquire);
            core::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(Pfn(word * 64 + bit))
            })
        })
    }
}

/// What an area is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Memory of its own.
    Vmalloc,
    /// Pages that exist elsewhere.
    Vmap,
    /// Free, and kept as it is by a CPU.
    Unpurged,
}

/// An area, as it is found by an address in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// Address of its first page.
    pub start: usize,
    /// Pages, without the guard.
    pub pages: u32,
    /// What it is.
    pub kind: Kind,
    /// Whether the page behind it faults.
    pub guarded: bool,
}
