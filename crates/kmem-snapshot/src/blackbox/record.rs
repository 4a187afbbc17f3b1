//! The newest whole record of a black box.

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt as _;

use kmem::blackbox::{BOX_ROWS, BoxRecord, BoxRow, reason};

use super::groups;
use super::header::Header;
use crate::books::Groups;
use crate::books::record::{u32_at, u64_at};

/// Times both records are looked at, when each was being written each time; 1 ms in between.
const ROUNDS: u32 = 100;

const ROWS: usize = size_of::<BoxRecord>();
const MAPS: usize = ROWS + BOX_ROWS * size_of::<BoxRow>();

/// Why a record was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reason {
    /// Use was higher than ever before.
    Peak,
    /// An allocation failed.
    OutOfMemory,
    /// The program ended in its own time.
    Exit,
    /// None that this reader knows.
    #[default]
    Unknown,
}

/// When a record was written, and what it sums up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Moment {
    /// Number of the record, from 1.
    pub number: u64,
    /// Nanoseconds since 1970.
    pub time_ns: u64,
    /// Why it was written.
    pub reason: Reason,
    /// Live bytes of all sites.
    pub bytes: u64,
    /// Live objects of all sites.
    pub calls: u64,
    /// Bytes handed out by the zones.
    pub used: u64,
    /// Sites that it names.
    pub rows: usize,
}

#[derive(Debug)]
pub(super) struct Row {
    pub(super) tag: u32,
    pub(super) bytes: u64,
    pub(super) calls: u64,
}

/// A whole record.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) moment: Moment,
    pub(super) rows: Vec<Row>,
    /// Bytes and calls of the rows together.
    pub(super) named: (u64, u64),
    /// The text of `/proc/self/maps`.
    pub(super) maps: String,
    /// Who paid.
    pub(super) groups: Groups,
    /// Groups that it has no place for.
    groups_beyond: u32,
}

/// Why there is no record in a place.
enum NoRecord {
    /// It is being written, or never was.
    Torn,
    Damaged(String),
}

/// The newest whole record; of what is damaged `remarks` tells.
pub(super) fn newest(
    file: &File,
    len: u64,
    header: &Header,
    remarks: &mut Vec<String>,
) -> Option<Record> {
    for round in 0..ROUNDS {
        let mut newest: Option<Record> = None;
        let mut torn = false;
        remarks.clear();
        for slot in 0..header.records.len() {
            match read(file, len, header, slot) {
                Ok(record) => {
                    if newest.as_ref().is_none_or(|n| n.moment.number < record.moment.number) {
                        newest = Some(record);
                    }
                }
                Err(NoRecord::Torn) => torn = true,
                Err(NoRecord::Damaged(what)) => remarks.push(format!("record {slot}: {what}")),
            }
        }
        if let Some(record) = newest {
            if record.named.0 > record.moment.bytes || record.named.1 > record.moment.calls {
                remarks.push(format!(
                    "the rows of record {} hold {} bytes, its sum is {}",
                    record.moment.number, record.named.0, record.moment.bytes
                ));
            }
            if record.groups_beyond > 0 {
                remarks.push(format!(
                    "{} groups have no place in the record: what they hold is shown as their ancestors'",
                    record.groups_beyond
                ));
            }
            return Some(record);
        }
        // A process that died in the first write leaves nothing to wait for, but who knows.
        if !torn || round + 1 == ROUNDS {
            return None;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    None
}

fn read(file: &File, len: u64, header: &Header, slot: usize) -> Result<Record, NoRecord> {
    let (at, size) = (header.records[slot], header.record_size);
    if at.checked_add(size).is_none_or(|end| end > len) {
        return Err(NoRecord::Damaged(format!(
            "truncated: {size} bytes at offset {at}, the file has {len} bytes"
        )));
    }
    let failed = |e: std::io::Error| NoRecord::Damaged(e.to_string());
    let mut number = [0; 8];
    file.read_exact_at(&mut number, at).map_err(failed)?;
    if number == [0; 8] {
        return Err(NoRecord::Torn);
    }
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    file.read_exact_at(&mut bytes, at).map_err(failed)?;
    let count = u32_at(&bytes, offset_of!(BoxRecord, groups));
    let groups = groups::read(file, len, header, slot, count);
    // Again, now that the rest has been read: unchanged means that nobody wrote meanwhile.
    let mut after = [0; 8];
    file.read_exact_at(&mut after, at + offset_of!(BoxRecord, number) as u64).map_err(failed)?;
    if number != after || bytes.get(..8) != Some(&number) {
        return Err(NoRecord::Torn);
    }
    groups.and_then(|groups| parse(&bytes, groups)).map_err(NoRecord::Damaged)
}

fn parse(bytes: &[u8], groups: Groups) -> Result<Record, String> {
    let count = u32_at(bytes, offset_of!(BoxRecord, rows));
    let count = usize::try_from(count)
        .ok()
        .filter(|&count| count <= BOX_ROWS)
        .ok_or_else(|| format!("{count} rows, above {BOX_ROWS}"))?;
    let maps_len = u64_at(bytes, offset_of!(BoxRecord, maps_len));
    let maps = usize::try_from(maps_len).ok().and_then(|len| bytes.get(MAPS..)?.get(..len));
    let maps = maps.ok_or_else(|| format!("{maps_len} bytes of mappings' text, above its room"))?;
    let rows = bytes.get(ROWS..MAPS).unwrap_or_default().chunks_exact(size_of::<BoxRow>());
    let rows: Vec<Row> = rows
        .take(count)
        .map(|row| Row {
            tag: u32_at(row, offset_of!(BoxRow, tag)),
            bytes: u64_at(row, offset_of!(BoxRow, bytes)),
            calls: u64_at(row, offset_of!(BoxRow, calls)),
        })
        .collect();
    let sum = |of: fn(&Row) -> u64| rows.iter().fold(0_u64, |sum, r| sum.saturating_add(of(r)));
    Ok(Record {
        moment: Moment {
            number: u64_at(bytes, offset_of!(BoxRecord, number)),
            time_ns: u64_at(bytes, offset_of!(BoxRecord, time_ns)),
            reason: match u32_at(bytes, offset_of!(BoxRecord, reason)) {
                reason::PEAK => Reason::Peak,
                reason::OUT_OF_MEMORY => Reason::OutOfMemory,
                reason::EXIT => Reason::Exit,
                _ => Reason::Unknown,
            },
            bytes: u64_at(bytes, offset_of!(BoxRecord, bytes)),
            calls: u64_at(bytes, offset_of!(BoxRecord, calls)),
            used: u64_at(bytes, offset_of!(BoxRecord, used)),
            rows: count,
        },
        named: (sum(|r| r.bytes), sum(|r| r.calls)),
        rows,
        maps: String::from_utf8_lossy(maps).into_owned(),
        groups,
        groups_beyond: u32_at(bytes, offset_of!(BoxRecord, groups_beyond)),
    })
}
