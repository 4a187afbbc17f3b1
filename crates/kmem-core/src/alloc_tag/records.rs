//! Records: sums of the books at a moment, in the peak table and in the black box.

use kmem_layout::blackbox::reason;
use kmem_layout::root::RootBlock;
use kmem_layout::site::{PeakEntry, PeakTable};

use super::tally::{PEAK_STEP, PeakUpdate, begin_peak, note_highest, peak_bytes, tags_of};
use super::{Books, Census, Change, Tally};
use crate::memcg::Groups;
use crate::os::Platform;
use crate::sync::Ordering;

/// Bytes in use from which sites are probed.
const PROBED_FROM: u64 = 1 << 20;
/// A site is probed if it holds one in this many parts of the memory.
const PROBED_PART: u64 = 8;

impl Books {
    /// In a forked child whose parent has a black box in a directory: makes its own, with a record
    /// of what it inherited. Called before the child's first allocation.
    #[inline]
    pub fn note_fork(
        &'static self,
        platform: &impl Platform,
        census: &Census<'_>,
        groups: &Groups,
    ) {
        if self.blackbox.is_left() && self.blackbox.start_in_child(platform) {
            self.write_record(platform, census, groups, reason::FORK);
        }
    }

    /// Writes the peak table and a record to the black box, as configured, if use is higher than
    /// the last time. Also writes a record if the last one is old. A record updates the table, too.
    #[inline]
    pub fn note_peak(&self, platform: &impl Platform, census: &Census<'_>, groups: &Groups) {
        if self.keep_peak.load(Ordering::Relaxed) != 0 || self.blackbox.is_there() {
            self.note_peak_slow(platform, census, groups);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_peak_slow(&self, platform: &impl Platform, census: &Census<'_>, groups: &Groups) {
        let Some(root) = self.root() else { return };
        let used = root.used_pages.load(Ordering::Relaxed);
        let reason = match () {
            () if self.blackbox.is_peak(used) => Some(reason::PEAK),
            () if self.blackbox.is_due(platform) => Some(reason::TIME),
            () => None,
        };
        if let Some(reason) = reason {
            let began_ms = self.age_ms(platform);
            self.with_tally(platform, |tally| {
                self.record(platform, census, groups, tally, reason);
                self.copy_to_peak(platform, root, used, tally, began_ms);
            });
        }
        self.count_for_peak(platform, root, census);
    }

    /// Writes the sums of a record into the peak table. Another census would cost as much again.
    /// Not inlined: callers of `malloc` may have little stack.
    #[inline(never)]
    fn copy_to_peak(
        &self,
        platform: &impl Platform,
        root: &RootBlock,
        used: u32,
        tally: &Tally<'_>,
        began_ms: u64,
    ) {
        if tally.is_whole(root)
            && let Some(mut update) = self.begin_peak(platform, root, used, None)
        {
            update.tally.copy(tally);
            update.finish(began_ms);
        }
    }

    /// Writes the peak table by a census, if use is higher than that of the table. Not inlined:
    /// callers of `malloc` may have little stack.
    #[inline(never)]
    fn count_for_peak(&self, platform: &impl Platform, root: &RootBlock, census: &Census<'_>) {
        let used = root.used_pages.load(Ordering::Relaxed);
        if let Some(mut update) = self.begin_peak(platform, root, used, Some(PEAK_STEP)) {
            let began_ms = self.age_ms(platform);
            census.each(|held, _| update.tally.add(held.tag, held.bytes, held.calls));
            update.finish(began_ms);
        }
    }

    /// Time since the start, in milliseconds.
    pub fn age_ms(&self, platform: &impl Platform) -> u64 {
        platform.now_ms().saturating_sub(self.started_ms.load(Ordering::Relaxed))
    }

    /// Notes the highest use. Begins a new peak table of `used` pages, if there is to be one; see
    /// [`begin_peak`].
    fn begin_peak(
        &self,
        platform: &impl Platform,
        root: &RootBlock,
        used: u32,
        step: Option<u64>,
    ) -> Option<PeakUpdate<'_>> {
        // A table without entries for all tags would not add up.
        if self.keep_peak.load(Ordering::Relaxed) == 0
            || !self.peak.ensure(platform, peak_bytes(tags_of(root)))
        {
            return None;
        }
        let most = (self.peak.committed() - size_of::<PeakTable>()) / size_of::<PeakEntry>();
        // SAFETY: the table was started, as there is a root block, and is never freed. The first
        // `committed` bytes of it may be written, by this function alone.
        unsafe {
            let table = &*self.peak.base().cast::<PeakTable>();
            note_highest(root, table, || self.age_ms(platform));
            begin_peak(root, table, most, used.into(), step)
        }
    }

    /// Notes that the program maps or unmaps memory itself. Writes a record to the black box if
    /// that makes a new peak, or if the last record is old.
    #[inline]
    pub fn note_mapping(
        &'static self,
        platform: &impl Platform,
        census: &Census<'_>,
        groups: &Groups,
        change: Change,
    ) {
        if self.blackbox.is_moved(change) {
            self.note_mapping_slow(platform, census, groups, change);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_mapping_slow(
        &'static self,
        platform: &impl Platform,
        census: &Census<'_>,
        groups: &Groups,
        change: Change,
    ) {
        self.note_fork(platform, census, groups);
        let Some(root) = self.root() else { return };
        let used = root.used_pages.load(Ordering::Relaxed);
        if self.blackbox.is_mapped_peak(platform, used, change) {
            self.write_record(platform, census, groups, reason::PEAK);
        } else if self.blackbox.is_due(platform) {
            self.write_record(platform, census, groups, reason::TIME);
        }
    }

    /// Writes a record to the black box, if there is one. `reason` is one of
    /// [`kmem_layout::blackbox::reason`]. False: another thread writes one.
    pub fn write_record(
        &self,
        platform: &impl Platform,
        census: &Census<'_>,
        groups: &Groups,
        reason: u32,
    ) -> bool {
        if !self.blackbox.is_there() {
            return true;
        }
        let mut is_written = false;
        self.with_tally(platform, |tally| {
            is_written = self.record(platform, census, groups, tally, reason);
        });
        is_written
    }

    /// Counts everything live into `tally`. Writes a record of that and of the groups to the black
    /// box, if there is one. False: there is none, or another thread writes a record.
    pub fn record(
        &self,
        platform: &impl Platform,
        census: &Census<'_>,
        groups: &Groups,
        tally: &mut Tally<'_>,
        reason: u32,
    ) -> bool {
        let mut recording = self.blackbox.begin(platform, groups.entries());
        census.each(|held, kind| {
            tally.add(held.tag, held.bytes, held.calls);
            if let Some(recording) = &mut recording {
                recording.add(&held, kind);
            }
        });
        if let Some(recording) = recording
            && let Some(root) = self.root()
        {
            let used = root.used_pages.load(Ordering::Relaxed);
            recording.finish(platform, reason, used, tally, &self.sites, self.mappings());
            self.probe_large(tally);
            return true;
        }
        false
    }

    /// Has the callers looked at of sites that hold a large part of the memory. One block may be
    /// that large: a function that makes few of them is probed, too. Not inlined: the census of
    /// [`Self::record`] is inlined as it is.
    #[inline(never)]
    fn probe_large(&self, tally: &Tally<'_>) {
        let all = tally.total().0;
        if all < PROBED_FROM {
            return;
        }
        for tag in tally.tags() {
            if tally.get(tag).0 >= all / PROBED_PART {
                self.sites.probe(tag);
            }
        }
    }
}
