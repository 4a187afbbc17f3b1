//! Stamps of pages: the owner of each page, and which pages were written to.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Owner of free pages.
pub(crate) const NOBODY: u8 = 0;
/// Set in the stamp of a page that holds contents.
const WRITTEN: u8 = 0x80;

/// The stamps of the pages of a zone. The threads of a model take turns, so relaxed order suffices.
pub(crate) struct Stamps(Vec<AtomicU8>);

impl Stamps {
    pub(crate) fn new(pages: u32) -> Self {
        Self((0..pages).map(|_| AtomicU8::new(NOBODY)).collect())
    }

    /// Changes the owner of pages. With `write` the new owner writes to them.
    pub(crate) fn pass(&self, first: u32, pages: u32, from: u8, to: u8, write: bool) {
        for page in first..first + pages {
            let stamp = &self.0[page as usize];
            let was = stamp.load(Relaxed);
            assert_eq!(was & !WRITTEN, from, "the owner of page {page}, which goes to {to}");
            stamp.store(to | if write { WRITTEN } else { was & WRITTEN }, Relaxed);
        }
    }

    /// Notes that pages lost their contents.
    pub(crate) fn wipe(&self, first: u32, pages: u32) {
        for stamp in &self.0[first as usize..(first + pages) as usize] {
            stamp.fetch_and(!WRITTEN, Relaxed);
        }
    }

    /// True if none of the pages holds contents.
    pub(crate) fn are_blank(&self, first: u32, pages: u32) -> bool {
        let stamps = &self.0[first as usize..(first + pages) as usize];
        stamps.iter().all(|stamp| stamp.load(Relaxed) & WRITTEN == 0)
    }
}
