//! Putting a record together: rows of sites, mapped memory, groups, and the text of the mappings.

use super::groups::GroupPart;
use super::mappings::{Sums, sum_up};
use super::{BlackBox, MAX_AGE_MS, PAGE, SHARE, Staging};
use crate::alloc_tag::{Held, Kind, Tally};
use crate::codetag::Sites;
use crate::os::Platform;
use crate::sync::Ordering;
use crate::units::TagId;
use core::ptr::NonNull;
use kmem_layout::blackbox::{
    BOX_MAPPINGS, BOX_MAPS, BOX_ROWS, BoxGroup, BoxMapping, BoxRecord, BoxRow, MAPPINGS_AT,
    MAPS_AT, reason,
};
use kmem_layout::mapping::{FIRST_ADDRESS, MappingTable};

/// Lengths of the parts of a record that are in use, in bytes.
pub(super) struct Lens {
    /// The record up to the end of its rows.
    pub(super) rows: usize,
    pub(super) mappings: usize,
    pub(super) maps: usize,
    pub(super) groups: usize,
}

/// A record that is being put together, while a census runs.
pub struct Recording<'a> {
    pub(super) black_box: &'a BlackBox,
    pub(super) record: &'a mut BoxRecord,
    pub(super) groups: GroupPart<'a>,
    /// Time at which it was begun.
    pub(super) began_ms: u64,
}

impl Recording<'_> {
    /// Adds allocations to the sums of their group.
    #[inline(always)]
    pub fn add(&mut self, held: &Held, kind: Kind) {
        self.groups.add(held, kind);
    }

    /// Completes the record with the sums of `tally`, and writes it into the file; `used` is the
    /// number of pages in use, and `mapped` the table of memory that the program mapped.
    pub fn finish(
        self,
        platform: &impl Platform,
        reason: u32,
        used: u32,
        tally: &Tally<'_>,
        sites: &Sites,
        mapped: Option<&MappingTable>,
    ) {
        let Self { black_box, record, groups, began_ms } = self;
        let staging = NonNull::from(&mut *record).cast::<u8>();
        // SAFETY: rows, mappings and their text follow the record in its place, and then the groups
        // and the files. This thread alone uses all of it. Files are zeroed at first.
        let (table, mapping_rows, maps, noted) = unsafe {
            let table = staging.add(size_of::<BoxRecord>()).cast::<BoxRow>();
            let mappings = staging.add(MAPPINGS_AT).cast::<BoxMapping>();
            (
                core::slice::from_raw_parts_mut(table.as_ptr(), BOX_ROWS),
                core::slice::from_raw_parts_mut(mappings.as_ptr(), BOX_MAPPINGS),
                staging.add(MAPS_AT),
                staging.add(Staging::FILES).cast().as_mut(),
            )
        };
        // Stacks may be small: sort the tags in the room for the mappings, which are written later.
        // SAFETY: that room is larger, aligned, and not used yet.
        let tags =
            unsafe { core::slice::from_raw_parts_mut(maps.cast::<TagId>().as_ptr(), BOX_ROWS) };
        let rows = black_box.put_rows(platform, sites, tally, table, tags);
        // SAFETY: the room for the text follows the mappings; `tags` is used no longer.
        let maps = unsafe { core::slice::from_raw_parts_mut(maps.as_ptr(), BOX_MAPS) };
        record.used = u64::from(used) * PAGE as u64;
        record.resident_pages = platform.resident_pages().map_or(0, |pages| pages as u32);
        black_box.put_mappings(platform, sites, mapped, record, mapping_rows, maps);
        let pages = u64::from(used) + black_box.outside.pages();
        // Peaks have two places of their own, one of which is to have the highest use. So records
        // for other reasons do not delay the next one.
        if matches!(reason, reason::PEAK | reason::FORK) {
            black_box.used_pages.store(pages, Ordering::Relaxed);
        }
        if reason == reason::FORK {
            black_box.inherited_pages.store(pages, Ordering::Relaxed);
        }
        let maps_len = platform.mappings(maps);
        record.time_ns = platform.wall_ns();
        record.reason = reason;
        record.rows = rows as u32;
        (record.bytes, record.calls) = tally.total();
        record.maps_len = maps_len as u64;
        record.groups = groups.finish();
        record.misused = black_box.misused.load(Ordering::Relaxed);
        let lens = Lens {
            rows: size_of::<BoxRecord>() + rows * size_of::<BoxRow>(),
            mappings: record.mapping_rows as usize * size_of::<BoxMapping>(),
            maps: maps_len,
            groups: record.groups as usize * size_of::<BoxGroup>(),
        };
        if let Some(staging) = black_box.staging() {
            let bytes = record.bytes.saturating_add(record.mapped_resident);
            black_box.write_record(platform, staging, reason, bytes, &lens);
            black_box.note_files(platform, maps.get(..maps_len).unwrap_or(maps), noted);
        }
        black_box.write_refusals(platform);
        let now = platform.now_ms();
        let age = MAX_AGE_MS.max(now.saturating_sub(began_ms).saturating_mul(SHARE));
        black_box.due_ms.store(now + age, Ordering::Relaxed);
        // The program ends for a misuse: no other record is to be newer than this one.
        if reason != reason::MISUSE {
            black_box.busy.store(0, Ordering::Release);
        }
    }
}

impl BlackBox {
    /// Fills in the rows of the largest sites. Returns their number. `tags` is room for as many.
    /// Not inlined: callers of `malloc` may have little stack.
    #[inline(never)]
    fn put_rows(
        &self,
        platform: &impl Platform,
        sites: &Sites,
        tally: &Tally<'_>,
        table: &mut [BoxRow],
        tags: &mut [TagId],
    ) -> usize {
        let rows = tally.largest(tags);
        for (row, &tag) in table.iter_mut().zip(&tags[..rows]) {
            let (bytes, calls) = tally.get(tag);
            *row = BoxRow { tag: tag.0, reserved: 0, bytes, calls };
            self.note_site(platform, sites, tag);
        }
        rows
    }

    /// Fills in the rows and the sums of the memory that the program mapped, by the table `mapped`.
    /// `room` is room for the platform. Not inlined: callers of `malloc` may have little stack.
    #[inline(never)]
    fn put_mappings(
        &self,
        platform: &impl Platform,
        sites: &Sites,
        mapped: Option<&MappingTable>,
        record: &mut BoxRecord,
        rows: &mut [BoxMapping],
        room: &mut [u8],
    ) {
        let mut sums = Sums::default();
        if let Some(mapped) = mapped {
            sum_up(platform, mapped, rows, room, &mut sums);
            self.outside.counted(record.resident_pages, record.used / PAGE as u64, &sums);
        }
        for row in rows.iter().take(sums.rows).filter(|row| row.site < FIRST_ADDRESS) {
            self.note_site(platform, sites, TagId(row.site as u32));
        }
        record.mapped = sums.mapped;
        record.mapped_resident = sums.resident;
        record.mapped_uncounted = sums.uncounted;
        record.mapped_lost = sums.lost;
        record.mapping_rows = sums.rows as u32;
    }
}
