//! The bytes around a block in the pages of its area: those in front of it and those behind it.
//! They are filled when it is allocated, and looked at when it is freed.

use super::Ledger;
use super::object_checks::Damage;
use crate::os::Platform;
use crate::page::Bounds;
use crate::slab::bytes;
use crate::slab::guard::PATTERN;
use crate::units::PageCount;

/// The bytes in front of and behind the block of a live area, or of one that the caller took. No
/// user may write them.
fn around<'a>(area: usize, pages: PageCount, bounds: Bounds) -> [&'a mut [u8]; 2] {
    let (front, behind) = (usize::from(bounds.front), usize::from(bounds.behind));
    [(area, front), (area + pages.bytes() - behind, behind)]
        // SAFETY: bytes of the area, which the caller alone uses, as it allocates or frees it.
        .map(|(at, len)| unsafe { core::slice::from_raw_parts_mut(at as *mut u8, len) })
}

impl<P: Platform> Ledger<P> {
    /// Fills the bytes around the block of an area that the caller took.
    pub fn draw_fence(&self, area: usize, pages: PageCount, bounds: Bounds) {
        around(area, pages, bounds).into_iter().for_each(|bytes| bytes.fill(PATTERN));
    }

    /// Ends the program if the bytes around the block of a live area were written to. `word` is its
    /// extension word.
    pub fn check_fence(&'static self, area: usize, pages: PageCount, bounds: Bounds, word: u32) {
        let object = area + usize::from(bounds.front);
        for fence in around(area, pages, bounds) {
            if bytes::are_all(fence, PATTERN) {
                continue;
            }
            if let Some(bad) = fence.iter().position(|&byte| byte != PATTERN) {
                let found = &fence[bad..];
                let offset = (found.as_ptr() as usize).wrapping_sub(object) as isize;
                let place = if offset < 0 { "left redzone" } else { "right redzone" };
                let (size, len, front) = (pages.bytes(), Some(bounds.room(pages)), None);
                self.overwritten(Damage { place, object, size, len, offset, front, found, word });
            }
        }
    }
}
