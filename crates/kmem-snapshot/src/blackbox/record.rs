//! The whole records of a black box.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;

use kmem_layout::blackbox::{
    BOX_MAPPINGS, BOX_ROWS, BoxMapping, BoxRecord, BoxRow, FORK_RECORD, MAPPINGS_AT, MAPS_AT,
    reason,
};
use kmem_layout::word::TAG_MASK;

use super::groups;
use super::header::Header;
use crate::books::Groups;
use crate::maps::PAGE;
use crate::memory::field;

/// Reads of all records, 1 ms apart, while none of them is whole.
const ROUNDS: u32 = 100;

/// Offset of the rows in a record.
const ROWS: usize = size_of::<BoxRecord>();

/// Reason for which a record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reason {
    /// Memory in use reached a new peak.
    Peak,
    /// An allocation failed.
    OutOfMemory,
    /// The program exited.
    Exit,
    /// Memory was allocated, and the record before was old.
    Time,
    /// A process was forked; the record has what it inherited.
    Fork,
    /// The program misused memory, and kmem ended it.
    Misuse,
    /// A reason that this reader does not know.
    #[default]
    Unknown,
}

/// Moment of a record: when and why it was written, and its sums.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moment {
    /// Number of the record, from 1.
    pub number: u64,
    /// Time of the record, in nanoseconds since 1970.
    pub time_ns: u64,
    /// Reason for the record.
    pub reason: Reason,
    /// Live bytes of all sites.
    pub bytes: u64,
    /// Live objects of all sites.
    pub calls: u64,
    /// Bytes handed out by the zones.
    pub used: u64,
    /// Count of its rows: the sites that it names.
    pub rows: usize,
    /// Live bytes of these sites.
    pub named_bytes: u64,
    /// Return address of the call that allocated the memory that the program misused; 0: none is
    /// known.
    pub misused: u64,
    /// Bytes of address space that the program itself had mapped.
    pub mapped: u64,
    /// Bytes of it that were in memory, as far as the process counted them.
    pub mapped_resident: u64,
    /// Bytes of it of which it is not known whether they were in memory.
    pub mapped_uncounted: u64,
    /// Bytes of the process in memory; 0: not known.
    pub resident: u64,
}

impl Moment {
    /// Live bytes, and bytes in memory of those that the program mapped.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.bytes.saturating_add(self.mapped_resident)
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) tag: u32,
    pub(super) bytes: u64,
    pub(super) calls: u64,
}

/// Memory that one call of the program mapped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mapped {
    /// See [`kmem_layout::mapping::MappingRecord::site`].
    pub(super) site: u64,
    pub(super) mapped: u64,
    pub(super) resident: u64,
    pub(super) ranges: u64,
}

/// A whole record.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) moment: Moment,
    pub(super) rows: Vec<Row>,
    /// Live objects of the rows together.
    pub(super) named_calls: u64,
    pub(super) mappings: Vec<Mapped>,
    /// Number of mappings that have no name, since there was no room for them.
    pub(super) mappings_lost: u64,
    /// Number of rows of mappings that make no sense.
    mappings_wrong: usize,
    /// Text of `/proc/self/maps`.
    pub(super) maps: String,
    /// The groups, and the memory charged to each.
    pub(super) groups: Groups,
    /// Count of groups that found no room in the record.
    groups_beyond: u32,
    /// Count of rows without a possible tag.
    untold: usize,
}

/// The whole records that matter to a reader.
#[derive(Debug)]
pub(super) struct Records {
    /// The records; never empty.
    all: Vec<Record>,
    newest: usize,
    peak: usize,
    inherited: Option<usize>,
}

impl Records {
    /// These records, with the peak in the place of the newest one.
    pub(super) fn turned_to_peak(self) -> Self {
        Self { newest: self.peak, ..self }
    }

    /// The record that was written last.
    pub(super) fn newest(&self) -> &Record {
        &self.all[self.newest]
    }

    /// The record with most live bytes.
    pub(super) fn peak(&self) -> &Record {
        &self.all[self.peak]
    }

    /// The record of the start of a forked child.
    pub(super) fn inherited(&self) -> Option<&Record> {
        self.inherited.map(|at| &self.all[at])
    }
}

/// Reason for which a slot has no whole record.
enum NoRecord {
    /// The process is writing it, or never wrote one.
    Torn,
    Damaged(String),
}

/// Reads the whole records. Adds a sentence to `remarks` for each damaged part.
pub(super) fn read_all(
    file: &File,
    len: u64,
    header: &Header,
    remarks: &mut Vec<String>,
) -> Option<Records> {
    for round in 0..ROUNDS {
        // Places and their records.
        let mut found: Vec<(usize, Record)> = Vec::new();
        let mut torn = false;
        remarks.clear();
        for slot in 0..header.records.len() {
            match read(file, len, header, slot) {
                Ok(record) => found.push((slot, record)),
                Err(NoRecord::Torn) => torn = true,
                Err(NoRecord::Damaged(what)) => remarks.push(format!("record {slot}: {what}")),
            }
        }
        // The process writes two slots in turn. If it began to write the other one, the record
        // found is the newest only as long as its slot still has it.
        let last = round + 1 == ROUNDS;
        let superseded = |slot: usize, record: &Record| {
            torn && !last && number(file, header.records[slot]).ok() != Some(record.moment.number)
        };
        let places = || 0..found.len();
        let newest = places().max_by_key(|&at| found[at].1.moment.number);
        if let Some(newest) = newest {
            let (slot, record) = &found[newest];
            if superseded(*slot, record) {
                continue;
            }
            // The later of two equal moments is the last one that was the peak.
            let peak = places().max_by_key(|&at| {
                let (slot, record) = &found[at];
                // A child's own memory counts, of which it has none at its start.
                (*slot != FORK_RECORD, record.moment.held(), record.moment.number)
            });
            let inherited = places().find(|&at| found[at].0 == FORK_RECORD);
            let Moment { number, bytes, calls, named_bytes, .. } = record.moment;
            if named_bytes > bytes || record.named_calls > calls {
                remarks.push(format!(
                    "the rows of record {number} hold {named_bytes} bytes, its sum is {bytes}"
                ));
            }
            if record.mappings_wrong > 0 {
                remarks.push(format!(
                    "{} rows of mappings in record {number} make no sense: their memory is in \
                     anonymous_mappings",
                    record.mappings_wrong
                ));
            }
            if record.untold > 0 {
                remarks.push(format!(
                    "{} rows of record {number} have a tag above {TAG_MASK}: they are left out, \
                     and their memory is in other_sites",
                    record.untold
                ));
            }
            if record.groups_beyond > 0 {
                remarks.push(format!(
                    "{} groups have no place in the record: their memory is shown as their \
                     ancestors'",
                    record.groups_beyond
                ));
            }
            let all = found.into_iter().map(|(_, record)| record).collect();
            return Some(Records { all, newest, peak: peak.unwrap_or(newest), inherited });
        }
        // A process that died in its first write will not finish it; the rounds are bounded.
        if !torn || last {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}

/// Number of the record at an offset; 0 while the process writes it.
fn number(file: &File, at: u64) -> std::io::Result<u64> {
    let mut number = [0; 8];
    file.read_exact_at(&mut number, at + offset_of!(BoxRecord, number) as u64)?;
    Ok(u64::from_ne_bytes(number))
}

/// Reads the record in `slot`. It is whole when its number is equal before and after the rest is
/// read.
fn read(file: &File, len: u64, header: &Header, slot: usize) -> Result<Record, NoRecord> {
    let (at, size) = (header.records[slot], header.record_size);
    if at.checked_add(size).is_none_or(|end| end > len) {
        return Err(NoRecord::Damaged(format!(
            "truncated: {size} bytes at offset {at}, the file has {len} bytes"
        )));
    }
    let failed = |e: std::io::Error| NoRecord::Damaged(e.to_string());
    let at_first = number(file, at).map_err(failed)?;
    if at_first == 0 {
        return Err(NoRecord::Torn);
    }
    let mut bytes = vec![0; MAPS_AT];
    file.read_exact_at(&mut bytes, at).map_err(failed)?;
    let maps_len = field!(&bytes, BoxRecord.maps_len: u64);
    let room = size.checked_sub(MAPS_AT as u64);
    let maps = match usize::try_from(maps_len) {
        Ok(len) if room.is_some_and(|room| maps_len <= room) => {
            let mut maps = vec![0; len];
            file.read_exact_at(&mut maps, at + MAPS_AT as u64).map_err(failed)?;
            Some(maps)
        }
        _ => None,
    };
    let count = field!(&bytes, BoxRecord.groups: u32);
    let groups = groups::read(file, len, header, slot, count);
    let copied = field!(&bytes, BoxRecord.number: u64);
    if at_first != copied || at_first != number(file, at).map_err(failed)? {
        return Err(NoRecord::Torn);
    }
    let maps = maps.ok_or_else(|| format!("{maps_len} bytes of mappings' text, above its room"));
    let parsed = maps.and_then(|maps| parse(&bytes, &maps, groups?));
    parsed.map_err(NoRecord::Damaged)
}

/// Parses a record of which `bytes` are those before the mappings' text, and `maps` that text.
fn parse(bytes: &[u8], maps: &[u8], groups: Groups) -> Result<Record, String> {
    let count = field!(bytes, BoxRecord.rows: u32);
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= BOX_ROWS)
        .ok_or_else(|| format!("{count} rows, above {BOX_ROWS}"))?;
    let rows = bytes.get(ROWS..MAPPINGS_AT).unwrap_or_default().chunks_exact(size_of::<BoxRow>());
    let mut rows: Vec<Row> = rows
        .take(count)
        .map(|row| Row {
            tag: field!(row, BoxRow.tag: u32),
            bytes: field!(row, BoxRow.bytes: u64),
            calls: field!(row, BoxRow.calls: u64),
        })
        .collect();
    // Readers have tables by tag. No allocator writes a tag beyond them.
    rows.retain(|row| row.tag <= TAG_MASK);
    let untold = count - rows.len();
    let (mappings, mappings_wrong) = parse_mappings(bytes)?;
    let mapped = field!(bytes, BoxRecord.mapped: u64);
    let sum = |of: fn(&Row) -> u64| rows.iter().fold(0_u64, |sum, r| sum.saturating_add(of(r)));
    Ok(Record {
        moment: Moment {
            number: field!(bytes, BoxRecord.number: u64),
            misused: field!(bytes, BoxRecord.misused: u64),
            time_ns: field!(bytes, BoxRecord.time_ns: u64),
            reason: match field!(bytes, BoxRecord.reason: u32) {
                reason::PEAK => Reason::Peak,
                reason::OUT_OF_MEMORY => Reason::OutOfMemory,
                reason::EXIT => Reason::Exit,
                reason::TIME => Reason::Time,
                reason::FORK => Reason::Fork,
                reason::MISUSE => Reason::Misuse,
                _ => Reason::Unknown,
            },
            bytes: field!(bytes, BoxRecord.bytes: u64),
            calls: field!(bytes, BoxRecord.calls: u64),
            used: field!(bytes, BoxRecord.used: u64),
            rows: rows.len(),
            named_bytes: sum(|r| r.bytes),
            mapped,
            mapped_resident: field!(bytes, BoxRecord.mapped_resident: u64).min(mapped),
            mapped_uncounted: field!(bytes, BoxRecord.mapped_uncounted: u64).min(mapped),
            resident: u64::from(field!(bytes, BoxRecord.resident_pages: u32)) * PAGE,
        },
        named_calls: sum(|r| r.calls),
        mappings,
        mappings_lost: field!(bytes, BoxRecord.mapped_lost: u64),
        mappings_wrong,
        rows,
        maps: String::from_utf8_lossy(maps).into_owned(),
        groups,
        groups_beyond: field!(bytes, BoxRecord.groups_beyond: u32),
        untold,
    })
}

/// Reads the rows of mapped memory. Also returns the number of rows that are left out: of no site,
/// or with more in memory than is mapped.
fn parse_mappings(bytes: &[u8]) -> Result<(Vec<Mapped>, usize), String> {
    let count = field!(bytes, BoxRecord.mapping_rows: u32);
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= BOX_MAPPINGS)
        .ok_or_else(|| format!("{count} rows of mappings, above {BOX_MAPPINGS}"))?;
    let rows = bytes.get(MAPPINGS_AT..MAPS_AT).unwrap_or_default();
    let rows = rows.chunks_exact(size_of::<BoxMapping>()).take(count).map(|row| Mapped {
        site: field!(row, BoxMapping.site: u64),
        mapped: field!(row, BoxMapping.mapped: u64),
        resident: field!(row, BoxMapping.resident: u64),
        ranges: field!(row, BoxMapping.ranges: u32).into(),
    });
    let rows: Vec<Mapped> =
        rows.filter(|row| row.site != 0 && row.resident <= row.mapped).collect();
    let wrong = count - rows.len();
    Ok((rows, wrong))
}
