//! Sums by tag, made by a census: the peak table, and a scratch table for reports.

use crate::os::Memory;
use crate::os::stepped::{Part, Stepped};
use crate::sync::{AtomicU32, Ordering, const_fn, fence};
use crate::units::TagId;
use kmem_layout::root::RootBlock;
use kmem_layout::site::PEAK_PAGES;
use kmem_layout::site::{PeakEntry, PeakTable};

/// Bytes of a peak table for `sites` sites.
pub const fn peak_bytes(sites: u32) -> usize {
    size_of::<PeakTable>() + scratch_bytes(sites)
}

/// Bytes of a scratch table for `sites` sites.
pub const fn scratch_bytes(sites: u32) -> usize {
    sites as usize * size_of::<PeakEntry>()
}

/// Number of tags in use.
pub(super) fn tags_of(root: &RootBlock) -> u32 {
    root.site_count.load(Ordering::Acquire).min(root.site_capacity)
}

/// Sums by tag, in a table that the caller alone writes to.
///
/// # Invariants
/// `entries` points to `len` entries, to which only this tally writes.
pub struct Tally<'a> {
    entries: *const PeakEntry,
    len: usize,
    bytes: u64,
    calls: u64,
    _table: core::marker::PhantomData<&'a PeakEntry>,
}

impl Tally<'_> {
    /// An empty tally of all tags in use, up to the number of entries.
    ///
    /// # Safety
    /// `entries` points to `most` entries. Only this tally writes to them as long as it lives.
    unsafe fn over(entries: *const PeakEntry, most: usize, root: &RootBlock) -> Self {
        let len = (tags_of(root) as usize).min(most);
        // INVARIANT: `len` is at most the number of entries, by the contract.
        let tally = Self { entries, len, bytes: 0, calls: 0, _table: core::marker::PhantomData };
        for i in 0..len {
            tally.entry(i).bytes.store(0, Ordering::Relaxed);
            tally.entry(i).calls.store(0, Ordering::Relaxed);
        }
        tally
    }

    /// Entry of a tag, whose number is below `len`.
    fn entry(&self, i: usize) -> &PeakEntry {
        debug_assert!(i < self.len);
        // SAFETY: there are `len` entries, by the invariant; callers pass a number below that.
        unsafe { &*self.entries.add(i) }
    }

    /// Adds to a tag's sums and to the total. A tag that is newer than the tally counts in the
    /// total only.
    pub fn add(&mut self, tag: TagId, bytes: u64, calls: u64) {
        self.bytes += bytes;
        self.calls += calls;
        if (tag.0 as usize) < self.len {
            let entry = self.entry(tag.0 as usize);
            entry.bytes.store(entry.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
            entry.calls.store(entry.calls.load(Ordering::Relaxed) + calls, Ordering::Relaxed);
        }
    }

    /// Returns whether there is an entry for each tag in use.
    #[cfg_attr(loom, allow(dead_code, reason = "records are not built"))]
    pub(super) fn is_whole(&self, root: &RootBlock) -> bool {
        self.len >= tags_of(root) as usize
    }

    /// Takes over the sums of another tally.
    pub fn copy(&mut self, from: &Tally<'_>) {
        for tag in (0..self.len as u32).map(TagId) {
            let (bytes, calls) = from.get(tag);
            self.entry(tag.0 as usize).bytes.store(bytes, Ordering::Relaxed);
            self.entry(tag.0 as usize).calls.store(calls, Ordering::Relaxed);
        }
        (self.bytes, self.calls) = from.total();
    }

    /// Bytes and allocations of a tag.
    pub fn get(&self, tag: TagId) -> (u64, u64) {
        if tag.0 as usize >= self.len {
            return (0, 0);
        }
        let entry = self.entry(tag.0 as usize);
        (entry.bytes.load(Ordering::Relaxed), entry.calls.load(Ordering::Relaxed))
    }

    /// The tags that have sums.
    pub fn tags(&self) -> impl Iterator<Item = TagId> {
        (0..self.len as u32).map(TagId)
    }

    /// Bytes and allocations of all tags.
    pub fn total(&self) -> (u64, u64) {
        (self.bytes, self.calls)
    }

    /// Writes the tags that hold most bytes into `out`, largest first. Returns the count written.
    pub fn largest(&self, out: &mut [TagId]) -> usize {
        let mut found = 0;
        for tag in self.tags() {
            let bytes = self.get(tag).0;
            if bytes == 0 {
                continue;
            }
            let rank = out[..found].partition_point(|&other| self.get(other).0 >= bytes);
            if rank == out.len() {
                continue;
            }
            found = (found + 1).min(out.len());
            out[rank..found].rotate_right(1);
            out[rank] = tag;
        }
        found
    }
}

/// The scratch table of an instance, for one user at a time. Zeroed, it has no memory.
///
/// # Invariants
/// `entries` are those of tags. The thread that set `busy` alone uses them.
pub struct Scratch {
    entries: Stepped,
    busy: AtomicU32,
}

impl Scratch {
    const_fn! {
        /// A table without memory.
        pub const fn new() -> Self {
            Self { entries: Stepped::new(), busy: AtomicU32::new(0) }
        }
    }

    /// Gives the table its memory.
    ///
    /// # Safety
    /// The contract of [`Stepped::start`].
    pub unsafe fn start(&self, entries: Part) {
        // SAFETY: the same contract.
        unsafe { self.entries.start(entries) };
    }

    /// Commits the entry of a tag, so that there is one when memory is short. Best effort.
    /// Not inlined: callers of `malloc` may have little stack.
    #[inline(never)]
    pub fn prepare(&self, platform: &impl Memory, tag: TagId) {
        self.entries.ensure(platform, scratch_bytes(tag.0 + 1));
    }

    /// Calls `work` with an empty tally of the tags of `root`. Where there is no memory for all of
    /// them, the last ones count in the total only. False: another thread has the table, or it has
    /// no memory.
    pub fn with(
        &self,
        platform: &impl Memory,
        root: &RootBlock,
        work: impl FnOnce(&mut Tally<'_>),
    ) -> bool {
        let entries = self.entries.base() as *const PeakEntry;
        if entries.is_null()
            || self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        self.entries.ensure(platform, scratch_bytes(tags_of(root)));
        let most = self.entries.committed() / size_of::<PeakEntry>();
        // SAFETY: this thread set `busy`, so it alone uses the entries, of which `most` are
        // committed.
        work(&mut unsafe { Tally::over(entries, most, root) });
        self.busy.store(0, Ordering::Release);
        // A thread that finds the table in use leaves its report to this one. It does so before it
        // looks at `busy`, and this thread looks for reports after this.
        fence(Ordering::SeqCst);
        true
    }

    /// In a forked child: takes the table back from a thread of the parent.
    pub fn forget(&self) {
        self.busy.store(0, Ordering::Relaxed);
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

/// Begins a new peak table of `used` pages if they exceed those of the last one by one in `step`.
/// Without a step, any number above is enough. The caller fills and finishes the table. `None`:
/// there are too few pages, or another thread writes the table.
///
/// # Safety
/// Behind `peak` are `most` entries. Threads write to the table only by this function.
pub unsafe fn begin_peak<'a>(
    root: &RootBlock,
    peak: &'a PeakTable,
    most: usize,
    used: u64,
    step: Option<u64>,
) -> Option<PeakUpdate<'a>> {
    let before = peak.used_pages.load(Ordering::Relaxed);
    if used <= before || step.is_some_and(|step| !is_higher(used, before, step)) {
        return None;
    }
    let seq = peak.seq.load(Ordering::Acquire);
    if seq % 2 == 1 {
        return None;
    }
    peak.seq.compare_exchange(seq, seq + 1, Ordering::AcqRel, Ordering::Relaxed).ok()?;
    // A reader that sees a store below must also see that `seq` is odd.
    fence(Ordering::Release);
    let entries = (&raw const *peak).wrapping_add(1).cast::<PeakEntry>();
    // SAFETY: entries follow the table, by the contract. While `seq` is odd, only the thread that
    // made it odd writes to them.
    let tally = unsafe { Tally::over(entries, most, root) };
    Some(PeakUpdate { peak, tally, seq, used })
}

/// A new peak exceeds the last one by one in this many pages.
pub(super) const PEAK_STEP: u64 = 20;

/// Returns whether `used` pages exceed `before` pages by one in `part`, and by at least
/// [`PEAK_PAGES`]: by enough to be worth a census.
pub fn is_higher(used: u64, before: u64, part: u64) -> bool {
    used >= before + (before / part).max(PEAK_PAGES)
}

/// Notes the most pages in use so far, and when that was. `now_ms` gives the time since the start.
pub fn note_highest(root: &RootBlock, peak: &PeakTable, now_ms: impl Fn() -> u64) {
    let used = u64::from(root.used_pages.load(Ordering::Relaxed));
    if used > peak.highest_pages.load(Ordering::Relaxed)
        && used > peak.highest_pages.fetch_max(used, Ordering::Relaxed)
    {
        // Another thread may note more in between. Then the time is that of either.
        peak.highest_ms.store(now_ms(), Ordering::Relaxed);
    }
}

/// A peak table that the caller fills.
pub struct PeakUpdate<'a> {
    peak: &'a PeakTable,
    /// Its sums by tag.
    pub tally: Tally<'a>,
    seq: u64,
    used: u64,
}

impl PeakUpdate<'_> {
    /// Completes the table: readers may use it. `now_ms` is the time since the start.
    pub fn finish(self, now_ms: u64) {
        self.peak.written_ms.store(now_ms, Ordering::Relaxed);
        self.peak.used_pages.store(self.used, Ordering::Relaxed);
        self.peak.len.store(self.tally.len as u64, Ordering::Relaxed);
        self.peak.seq.store(self.seq + 2, Ordering::Release);
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn the_highest_use_keeps_its_time_until_it_is_exceeded() {
        // SAFETY: a zeroed root block and a zeroed table are valid values.
        let (root, peak): (RootBlock, PeakTable) = unsafe { core::mem::zeroed() };
        let noted = |used, now| {
            root.used_pages.store(used, Ordering::Relaxed);
            note_highest(&root, &peak, || now);
            let load = |at: &crate::sync::AtomicU64| at.load(Ordering::Relaxed);
            (load(&peak.highest_pages), load(&peak.highest_ms))
        };
        assert_eq!(noted(100, 7), (100, 7));
        assert_eq!(noted(100, 8), (100, 7));
        assert_eq!(noted(20, 9), (100, 7));
        assert_eq!(noted(101, 10), (101, 10));
    }

    #[test]
    fn a_table_from_other_sums_needs_no_step_and_has_them_all() {
        #[repr(C)]
        struct Table {
            peak: PeakTable,
            entries: [PeakEntry; 10],
        }
        // SAFETY: a zeroed root block and a zeroed table are valid values.
        let (mut root, table): (RootBlock, Table) = unsafe { core::mem::zeroed() };
        root.site_capacity = 10;
        root.site_count.store(10, Ordering::Relaxed);
        let entries: Vec<PeakEntry> =
            (0..10).map(|_| PeakEntry { bytes: 0.into(), calls: 0.into() }).collect();
        // SAFETY: the vector has that many entries, and only this tally uses them.
        let mut sums = unsafe { Tally::over(entries.as_ptr(), entries.len(), &root) };
        assert!(sums.is_whole(&root));
        sums.add(TagId(9), 500, 5);
        // SAFETY: the entries lie behind the table, and one thread writes to it.
        let begin = |used, step| unsafe { begin_peak(&root, &table.peak, 10, used, step) };
        assert!(begin(63, Some(PEAK_STEP)).is_none());
        let mut update = begin(63, None).expect("an update");
        assert!(begin(64, None).is_none(), "two at a time");
        update.tally.copy(&sums);
        assert_eq!((update.tally.get(TagId(9)), update.tally.total()), ((500, 5), (500, 5)));
        update.finish(7);
        assert!(begin(63, None).is_none(), "no more pages than before");
        assert!(begin(126, Some(PEAK_STEP)).is_none() && begin(127, Some(PEAK_STEP)).is_some());
        root.site_count.store(11, Ordering::Relaxed);
        root.site_capacity = 11;
        assert!(!sums.is_whole(&root));
    }

    #[test]
    fn largest_tags_come_first_as_far_as_there_is_room() {
        let entries: Vec<PeakEntry> =
            (0..200).map(|_| PeakEntry { bytes: 0.into(), calls: 0.into() }).collect();
        // SAFETY: a zeroed root block is a valid value.
        let mut root: RootBlock = unsafe { core::mem::zeroed() };
        root.site_capacity = 200;
        root.site_count.store(100, Ordering::Relaxed);
        // SAFETY: the vector has that many entries, and only this tally uses them.
        let mut tally = unsafe { Tally::over(entries.as_ptr(), entries.len(), &root) };
        for tag in 8..100 {
            tally.add(TagId(tag), u64::from(tag * 37 % 101), 1);
        }
        tally.add(TagId(100), 7, 1);
        let mut out = [TagId(0); 10];
        assert_eq!(tally.largest(&mut out), 10);
        let bytes: Vec<u64> = out.iter().map(|&tag| tally.get(tag).0).collect();
        let mut all: Vec<u64> = (8..100).map(|tag| u64::from(tag * 37 % 101u32)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        assert_eq!(bytes, all[..10]);
        assert_eq!(tally.total(), (all.iter().sum::<u64>() + 7, 93));
        assert_eq!(tally.largest(&mut [TagId(0); 200]), all.iter().filter(|&&b| b > 0).count());
    }
}
