//! Access to a process, for all parts of one reading.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;

use crate::budget::Budget;
use crate::maps::Maps;
use crate::memory::{Memory, Pages};

/// Access to a process that all parts of one reading share.
pub(crate) struct Source<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) maps: &'a Maps,
    /// None where the reader may not know which pages are resident.
    pub(crate) pages: Option<&'a Pages>,
    pub(crate) budget: &'a Budget,
    /// Address ranges of the zones that were met, by start, with their root block.
    pub(crate) zones: RefCell<BTreeMap<u64, (u64, u64)>>,
}

impl Source<'_> {
    /// Parts of `len` bytes of a table at `addr` that may hold anything but zeroes. Memory that the
    /// process never touched is left out where that is known.
    pub(super) fn touched(&self, addr: u64, len: u64) -> Vec<Range<u64>> {
        // Memory of a memfd may have contents and no page in the process's page table.
        let anonymous =
            |at| self.maps.find(at).is_some_and(|m| m.inode == 0 && m.end >= addr + len);
        let known = self.pages.filter(|_| anonymous(addr));
        known
            .and_then(|pages| pages.touched(addr, len))
            .unwrap_or_else(|| std::iter::once(addr..addr + len).collect())
    }
}
