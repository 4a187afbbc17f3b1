//! The peak table: the books at the highest use so far, under a sequence lock.

use std::mem::{offset_of, size_of};

use kmem::root::{PeakEntry, PeakTable};

use super::record::u64_at;
use super::root::{Root, bad};
use super::{Key, SiteRow, Source, TagTotal, rows};
use crate::error::ReadError;

/// Times a table that is being written is looked at again, a pause in between: 100 ms.
const RETRIES: u32 = 100;

/// The books at the highest use so far.
#[derive(Debug, Clone)]
pub struct Peak {
    /// Pages handed out at that time.
    pub used_pages: u64,
    /// What lived at that time, by tag.
    pub rows: Vec<SiteRow>,
    /// The table was being written each time it was looked at; rows may be of two times.
    pub torn: bool,
}

/// Reads the peak table; none when no peak was recorded.
pub(super) fn read(
    source: &Source<'_>,
    root: &Root,
    sites: &[Key],
) -> Result<Option<Peak>, ReadError> {
    let header = size_of::<PeakTable>() as u64;
    let most = u64::from(root.site_capacity) * size_of::<PeakEntry>() as u64;
    if root.peak == 0 {
        return Ok(None);
    }
    if !source.maps.is_readable_memory(root.peak, header + most) {
        let what = format!("peak table at {:#x} is not in the process's memory", root.peak);
        return Err(bad(root.at, what));
    }
    let mut copy = Vec::new();
    for attempt in 0..=RETRIES {
        let mut head = [0; size_of::<PeakTable>()];
        source.memory.read(root.peak, &mut head)?;
        let seq = u64_at(&head, offset_of!(PeakTable, seq));
        if seq == 0 {
            return Ok(None);
        }
        let len = u64_at(&head, offset_of!(PeakTable, len)).min(u64::from(root.site_capacity));
        copy.resize(usize::try_from(len).unwrap_or(0) * size_of::<PeakEntry>(), 0);
        source.memory.read(root.peak + header, &mut copy)?;
        let mut after = [0; 8];
        source.memory.read(root.peak + offset_of!(PeakTable, seq) as u64, &mut after)?;
        let whole = seq.is_multiple_of(2) && u64::from_le_bytes(after) == seq;
        if whole || attempt == RETRIES {
            let totals: Vec<TagTotal> = copy
                .chunks_exact(size_of::<PeakEntry>())
                .map(|entry| TagTotal {
                    bytes: u64_at(entry, offset_of!(PeakEntry, bytes)),
                    calls: u64_at(entry, offset_of!(PeakEntry, calls)),
                })
                .collect();
            return Ok(Some(Peak {
                used_pages: u64_at(&head, offset_of!(PeakTable, used_pages)),
                rows: rows(&totals, sites),
                torn: !whole,
            }));
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Ok(None)
}
