//! Memory that the program mapped itself, in records of the black box.
//!
//! ```text
//! MappingTable       -> ranges, and the call that mapped each
//! resident_in        -> their pages in memory: exact, asked when a record is written
//! resident_pages     -> all pages in memory: cheap, asked when the program maps and unmaps
//! ```
//!
//! A peak of mappings is over when the program unmaps them. So it is looked for before that, and
//! only when enough memory was mapped and unmapped since the last look. The address space bounds
//! the pages in memory, so a program that maps and unmaps the same again costs no question. Between
//! two records, pages in memory that the heap does not explain count as mapped ones.

use crate::os::{Platform, Residency};
use crate::sync::{AtomicU64, Ordering};
use crate::units::PAGE_SIZE;
use kmem_layout::blackbox::BoxMapping;
use kmem_layout::mapping::{MappingRecord, MappingTable, record_state};

const PAGE: u64 = PAGE_SIZE as u64;
/// Least number of pages mapped and unmapped between two questions.
const LEAST_MOVED: u64 = 64;
/// The same, as a part of the memory at the last peak.
const MOVED: u64 = 64;
/// Least ticks between two questions. In that time, a CPU cannot fill a megabyte.
const ASK_EVERY: u64 = 200_000;
/// Pages that one call to the platform counts.
const AT_ONCE: usize = 1 << 14;
/// The same, in a range that is partly unmapped.
const AT_ONCE_IN_HOLES: usize = 1 << 6;
/// Most calls to the platform for a record. The pages of further ranges are not counted.
const MOST_CALLS: u32 = 1024;
/// Longest range that is counted, in bytes. Longer ones are address space for later use.
const LONGEST: u64 = 16 << 30;

/// A change of the memory that the program mapped.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Bytes that it maps or unmaps.
    pub bytes: u64,
    /// Bytes that it has mapped, as far as there are records of them.
    pub total: u64,
    /// True before memory is unmapped, false after it was mapped.
    pub is_loss: bool,
}

impl Change {
    /// Bytes from which one change may be worth a record.
    pub const MUCH: u64 = LEAST_MOVED * PAGE;
}

/// Sums over the table of mappings.
#[derive(Default)]
pub(super) struct Sums {
    /// Number of rows: calls that mapped something.
    pub(super) rows: usize,
    /// Bytes of address space.
    pub(super) mapped: u64,
    /// Bytes in memory.
    pub(super) resident: u64,
    /// Bytes of ranges whose pages were not counted.
    pub(super) uncounted: u64,
    /// Number of mappings without a record.
    pub(super) lost: u64,
    calls: u32,
}

/// Memory of the program outside of the heap, as far as it is known between two records. Zeroed,
/// nothing is known.
pub(super) struct Outside {
    /// Pages mapped and unmapped since the last question.
    moved: AtomicU64,
    /// Value of `moved` from which to ask.
    gate: AtomicU64,
    /// Counter of the platform at the last question.
    asked: AtomicU64,
    /// Pages of the program's mappings in memory, by the last count or the last estimate.
    pages: AtomicU64,
    /// Pages of the process in memory at the last count, without those in use on the heap, and
    /// without those that the program mapped. The heap may have pages that are not in memory, so
    /// this is a number modulo 2^64.
    base: AtomicU64,
}

impl Outside {
    pub(super) const fn new() -> Self {
        Self {
            moved: AtomicU64::new(0),
            gate: AtomicU64::new(0),
            asked: AtomicU64::new(0),
            pages: AtomicU64::new(0),
            base: AtomicU64::new(0),
        }
    }

    /// Forgets what is known, for a new file.
    pub(super) fn forget(&self) {
        for word in [&self.moved, &self.gate, &self.pages, &self.base] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Pages of the program's mappings in memory.
    pub(super) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    /// See [`super::BlackBox::is_moved`].
    #[inline]
    pub(super) fn is_moved(&self, change: Change) -> bool {
        let pages = change.bytes / PAGE;
        self.moved.fetch_add(pages, Ordering::Relaxed).saturating_add(pages)
            >= self.gate.load(Ordering::Relaxed).max(LEAST_MOVED)
    }

    /// Estimates the pages of mappings in memory. `total` is their address space in bytes, and
    /// `used` the number of pages in use on the heap. False: the last estimate is not long ago.
    pub(super) fn estimate(&self, platform: &impl Platform, used: u32, total: u64) -> bool {
        let ticks = platform.ticks();
        if ticks.wrapping_sub(self.asked.load(Ordering::Relaxed)) < ASK_EVERY {
            return false;
        }
        self.asked.store(ticks, Ordering::Relaxed);
        self.moved.store(0, Ordering::Relaxed);
        let Some(resident) = platform.resident_pages() else { return false };
        let base = self.base.load(Ordering::Relaxed);
        let rest = resident.wrapping_sub(u64::from(used)).wrapping_sub(base) as i64;
        let pages = u64::try_from(rest).unwrap_or(0).min(total / PAGE);
        self.pages.store(pages, Ordering::Relaxed);
        self.gate.store((u64::from(used) + pages) / MOVED, Ordering::Relaxed);
        true
    }

    /// Takes over the sums of a record. `resident` is the number of the process's pages in memory;
    /// 0: not known.
    #[inline(never)]
    pub(super) fn counted(&self, resident: u32, used: u64, sums: &Sums) {
        let pages = sums.resident / PAGE;
        self.pages.store(pages, Ordering::Relaxed);
        self.gate.store((used + pages) / MOVED, Ordering::Relaxed);
        if sums.mapped != 0 && resident != 0 {
            let base = u64::from(resident).wrapping_sub(used).wrapping_sub(pages);
            self.base.store(base, Ordering::Relaxed);
        }
    }
}

/// Adds up the ranges of `table` by the call that mapped them, into `rows`, and over all. `room` is
/// memory for the platform. Calls that find no row count in the sums only.
#[inline(never)]
pub(super) fn sum_up(
    platform: &impl Platform,
    table: &MappingTable,
    rows: &mut [BoxMapping],
    room: &mut [u8],
    sums: &mut Sums,
) {
    sums.lost = table.lost.load(Ordering::Relaxed);
    for (word, used) in table.used.iter().enumerate() {
        let mut used = used.load(Ordering::Relaxed);
        while used != 0 {
            let record = &table.records[word * 64 + used.trailing_zeros() as usize];
            used &= used - 1;
            let Some((start, end, site)) = whole(record) else { continue };
            let (mapped, resident) = count(platform, start, end, room, sums);
            if mapped == 0 {
                continue;
            }
            sums.mapped = sums.mapped.saturating_add(mapped);
            sums.resident = sums.resident.saturating_add(resident);
            let known = rows[..sums.rows].iter().position(|row| row.site == site);
            let at = known.unwrap_or(sums.rows);
            let Some(row) = rows.get_mut(at) else { continue };
            if known.is_none() {
                *row = BoxMapping { site, ..BoxMapping::default() };
                sums.rows += 1;
            }
            row.mapped = row.mapped.saturating_add(mapped);
            row.resident = row.resident.saturating_add(resident);
            row.ranges += 1;
        }
    }
}

/// Start, end and site of a record, if no thread changes it.
fn whole(record: &MappingRecord) -> Option<(u64, u64, u64)> {
    let seq = record.seq.load(Ordering::Acquire);
    let start = record.start.load(Ordering::Relaxed).checked_next_multiple_of(PAGE)?;
    let end = record.end.load(Ordering::Relaxed).checked_next_multiple_of(PAGE)?;
    let site = record.site.load(Ordering::Acquire);
    let is_whole = seq >= record_state::FIRST && record.seq.load(Ordering::Relaxed) == seq;
    (is_whole && start < end).then_some((start, end, site))
}

/// Bytes of a range that are mapped, and that are in memory. A range of which the platform knows
/// nothing counts as mapped, and as uncounted.
fn count(
    platform: &impl Platform,
    start: u64,
    end: u64,
    room: &mut [u8],
    sums: &mut Sums,
) -> (u64, u64) {
    let (mut mapped, mut resident) = (0, 0);
    let mut at = start;
    // End of the part that is counted in small steps.
    let mut small_to = start;
    if end - start > LONGEST {
        sums.uncounted = sums.uncounted.saturating_add(end - start);
        return (end - start, 0);
    }
    while at < end {
        if sums.calls >= MOST_CALLS {
            sums.uncounted = sums.uncounted.saturating_add(end - at);
            return (mapped + (end - at), resident);
        }
        sums.calls += 1;
        let step = if at < small_to { AT_ONCE_IN_HOLES } else { AT_ONCE };
        let pages = ((end - at) / PAGE).min(step as u64);
        let Some(room) = room.get_mut(..pages as usize) else { break };
        match platform.resident_in(at as usize, room) {
            Residency::Pages(found) => {
                mapped += pages * PAGE;
                resident += found * PAGE;
            }
            // A page of it is: look at smaller parts.
            Residency::NotMapped if at >= small_to && pages > 1 => {
                small_to = at + pages * PAGE;
                continue;
            }
            Residency::NotMapped => {}
            Residency::Unknown => {
                sums.uncounted = sums.uncounted.saturating_add(pages * PAGE);
                mapped += pages * PAGE;
            }
        }
        at += pages * PAGE;
    }
    (mapped, resident)
}

#[cfg(all(test, kmem_linux, not(miri)))]
mod tests {
    extern crate std;
    use super::*;
    use crate::os::Memory;
    use crate::os::linux::Linux;
    use core::ptr::NonNull;
    use std::vec;

    /// A table with one record for each range, by one call.
    fn table(ranges: &[(u64, u64)]) -> std::boxed::Box<MappingTable> {
        // SAFETY: a zeroed table is a valid, empty one.
        let table = unsafe { std::boxed::Box::<MappingTable>::new_zeroed().assume_init() };
        for (nth, &(start, end)) in ranges.iter().enumerate() {
            let record = &table.records[nth];
            record.start.store(start, Ordering::Relaxed);
            record.end.store(end, Ordering::Relaxed);
            record.site.store(nth as u64 % 2 + 8, Ordering::Relaxed);
            record.seq.store(record_state::FIRST, Ordering::Relaxed);
            table.used[0].fetch_or(1 << nth, Ordering::Relaxed);
        }
        table
    }

    fn sums_of(platform: &Linux, table: &MappingTable, rows: usize) -> (Sums, [BoxMapping; 2]) {
        let (mut sums, mut all) = (Sums::default(), [BoxMapping::default(); 2]);
        let mut room = vec![0; AT_ONCE];
        sum_up(platform, table, &mut all[..rows], &mut room, &mut sums);
        (sums, all)
    }

    /// Pages of which the first `touched` are in memory.
    fn mapped(platform: &Linux, pages: usize, touched: usize) -> NonNull<u8> {
        let at = platform.allocate(pages * PAGE_SIZE, PAGE_SIZE).expect("memory");
        for page in 0..touched {
            // SAFETY: within the pages, which this function alone uses.
            unsafe { at.add(page * PAGE_SIZE).write(1) };
        }
        at
    }

    #[test]
    fn pages_in_memory_are_counted_by_call_and_holes_are_not_mapped() {
        let platform = Linux::new();
        let (one, two) = (mapped(&platform, 300, 200), mapped(&platform, 40, 7));
        let range = |at: NonNull<u8>, pages: u64| {
            let start = at.as_ptr() as u64;
            (start, start + pages * PAGE)
        };
        let all = [range(one, 300), range(two, 40)];
        let (sums, rows) = sums_of(&platform, &table(&all), 2);
        assert_eq!((sums.mapped, sums.resident, sums.rows), (340 * PAGE, 207 * PAGE, 2));
        let row = |row: &BoxMapping| (row.site, row.mapped / PAGE, row.resident / PAGE, row.ranges);
        assert_eq!([row(&rows[0]), row(&rows[1])], [(8, 300, 200, 1), (9, 40, 7, 1)]);
        // Calls without a row count in the sums.
        let (sums, _) = sums_of(&platform, &table(&all), 1);
        assert_eq!((sums.mapped, sums.resident, sums.rows), (340 * PAGE, 207 * PAGE, 1));
        // A record of memory that was unmapped without the library's knowledge.
        // SAFETY: the second mapping, whole, which nothing uses any more.
        unsafe { platform.release(two, 40 * PAGE_SIZE) };
        let (sums, rows) = sums_of(&platform, &table(&all), 2);
        assert_eq!((sums.mapped, sums.resident, sums.rows), (300 * PAGE, 200 * PAGE, 1));
        assert_eq!(rows[0].resident, 200 * PAGE);
    }

    #[test]
    fn ranges_too_long_to_count_and_records_that_make_no_sense_cost_no_calls() {
        let platform = Linux::new();
        let end = 1 << 46;
        let (sums, _) = sums_of(&platform, &table(&[(4096, end), (9, 5), (5, u64::MAX)]), 2);
        assert_eq!((sums.calls, sums.mapped), (0, end - 4096));
        assert_eq!((sums.uncounted, sums.resident), (sums.mapped, 0));
    }
}
