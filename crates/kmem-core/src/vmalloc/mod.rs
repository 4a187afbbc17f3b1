//! vmalloc: areas of whole pages, each with a page behind it that faults.
//!
//! ```text
//! a zone of its own | page | page | page | guard | page | guard | ..
//!                     ^ area of three      ^ area of one
//! ```
//!
//! Areas are runs of a zone, one page longer than the request. The last page is the **guard**,
//! which is made inaccessible. A freed area keeps its guard, and lies on its CPU's array of areas
//! of that length (up to [`MAX_KEPT`] pages). A request takes it again without a call of the
//! platform. Longer areas (up to [`MAX_LONG`] pages) share a short array. A request takes one of
//! those freed last if it has the length, and the alignment of the request.
//!
//! When an array is full, half of it (of long areas, the freed one) is unmapped at once, adjacent
//! areas together. Guards are made accessible again, and the pages go to the zone, which gives them
//! back after a while.
//!
//! The extension word of each page behind the first of an area is its distance from there. So an
//! address is looked up in constant time. A distance that an earlier area left behind leads to a
//! page whose length does not match it.
//!
//! Four bits per page have facts that extension words and lengths do not have. A forked child
//! needs them, too:
//!
//! | bit      | set                                                                           |
//! |----------|-------------------------------------------------------------------------------|
//! | `guards` | the page is inaccessible                                                      |
//! | `maps`   | an area of [vmap] begins here; its length in pages is the extension word      |
//! | `splits` | an inaccessible range begins here that is a mapping of its own                |
//! | `held`   | a freed area begins here that is inaccessible up to its guard, see `hold`      |
//!
//! A guard is a mark in the page tables where the system has these. Otherwise it costs two mappings
//! of the process, of which the system allows a fixed number. Once half of these are used, or if
//! the system refuses, areas have no guard; both cases are counted. A guard that cannot be made
//! accessible again is never used again.
//!
//! | file     | what it does                                          |
//! |----------|-------------------------------------------------------|
//! | `area`   | allocates and frees areas                             |
//! | `guard`  | makes and removes guards                              |
//! | `fence`  | blocks that end in front of a guard                   |
//! | `hold`   | freed areas that stay inaccessible for a while        |
//! | `resize` | changes the length of areas                           |
//! | `space`  | the zone of areas, and that of pages for vmap         |
//! | `vmap`   | maps pages a second time                              |
//! | `info`   | areas by address, as a list, as text                  |
//! | `bits`   | the bits per page; `validate` recounts                |
//!
//! Context: any; may call the platform.
//!
//! [vmap]: https://docs.kernel.org/core-api/mm-api.html

use crate::class::{ARRAY_COUNT, ArrayId, CLASS_COUNT};
use crate::units::PageCount;

mod area;
mod bits;
mod fence;
mod guard;
mod hold;
mod info;
mod resize;
mod space;
mod validate;
mod vmap;

pub use area::{AreaRequest, Freed, On, Vmalloc};
pub use info::VmallocStats;

/// Longest areas that CPUs keep on an array of their own.
pub const MAX_KEPT: PageCount = PageCount(CLASS_COUNT as u32 - 2);
/// Longest areas that CPUs keep.
pub const MAX_LONG: PageCount = PageCount(256);
/// The array of areas that are longer than [`MAX_KEPT`].
const LONG: ArrayId = ArrayId(CLASS_COUNT as u8 - 1);
/// Most long areas that a CPU keeps.
const LONG_AREAS: u16 = 4;
/// Most pages in areas of one length that a CPU keeps, unless these are fewer than two areas.
const KEPT_PAGES: u32 = 128;

/// The array of areas of one length; `None` for areas longer than [`MAX_KEPT`].
#[inline(always)]
const fn kept(pages: PageCount) -> Option<ArrayId> {
    if pages.0 <= MAX_KEPT.0 { Some(ArrayId(pages.0 as u8)) } else { None }
}

/// The array that an area is kept on; `None` for areas longer than [`MAX_LONG`].
const fn array(pages: PageCount) -> Option<ArrayId> {
    match kept(pages) {
        None if pages.0 <= MAX_LONG.0 => Some(LONG),
        array => array,
    }
}

/// Length of the areas on an array; of [`LONG`], any.
const fn length(array: ArrayId) -> PageCount {
    PageCount(array.0 as u32)
}

/// Most areas of an array that a CPU keeps.
const fn cap(array: ArrayId) -> u16 {
    const CAPS: [u16; ARRAY_COUNT] = {
        let mut caps = [0; ARRAY_COUNT];
        caps[LONG.0 as usize] = LONG_AREAS;
        let mut pages = 1;
        while pages < LONG.0 as usize {
            let areas = KEPT_PAGES / pages as u32;
            caps[pages] = if areas > 64 {
                64
            } else if areas < 2 {
                2
            } else {
                areas as u16
            };
            pages += 1;
        }
        caps
    };
    CAPS[array.0 as usize]
}

/// Alignment of areas that are made at once. Their words lie on cache lines of their own (two of 64
/// bytes, as they are fetched). Otherwise CPUs that each use one area would share lines.
const BATCH_ALIGN: PageCount = PageCount(32);

/// Number of areas of a length that are made at once, for a CPU to keep.
const fn batch(pages: PageCount) -> u32 {
    let areas = BATCH_ALIGN.0 / (pages.0 + 1);
    if areas < 1 {
        1
    } else if areas > 8 {
        8
    } else {
        areas
    }
}

/// The use of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It has memory of its own.
    Vmalloc,
    /// It maps pages that exist elsewhere.
    Vmap,
    /// It is free, and a CPU keeps it with its guard.
    Unpurged,
}

/// An area, found by an address in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Area {
    /// Address of its first page.
    pub start: usize,
    /// Pages, without the guard.
    pub pages: PageCount,
    /// Its use.
    pub kind: Kind,
    /// True if the page behind it faults.
    pub guarded: bool,
    /// True if it is that of a block with a fence, and not of `vmalloc`.
    pub fenced: bool,
}
