//! The groups of a record in a black box.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;

use kmem_layout::blackbox::{BoxGroup, BoxHeld};

use super::header::Header;
use crate::books::{Groups, Usage};
use crate::memory::field;

/// Reads the `count` groups of the record in `slot`.
pub(super) fn read(
    file: &File,
    len: u64,
    header: &Header,
    slot: usize,
    count: u32,
) -> Result<Groups, String> {
    if count > header.group_capacity {
        return Err(format!("{count} groups, above group_capacity {}", header.group_capacity));
    }
    let at = *header.groups.get(slot).ok_or_else(|| format!("no groups of record {slot}"))?;
    let size = header.group_size as usize;
    // The header bounds both: about 64 MiB at most.
    let mut table = vec![0; count as usize * size];
    if at.checked_add(table.len() as u64).is_none_or(|end| end > len) {
        return Err(format!("truncated: {count} groups at offset {at}, the file has {len} bytes"));
    }
    file.read_exact_at(&mut table, at).map_err(|e| format!("groups: {e}"))?;
    Ok(Groups::of_records(table.chunks_exact(size).map(|group| (group, held(group)))))
}

fn held(group: &[u8]) -> Usage {
    let held = group.get(offset_of!(BoxGroup, held)..).unwrap_or_default();
    Usage {
        objects: field!(held, BoxHeld.objects: u64),
        slab: field!(held, BoxHeld.slab: u64),
        pages: field!(held, BoxHeld.pages: u64),
        vmalloc: field!(held, BoxHeld.vmalloc: u64),
        percpu: field!(held, BoxHeld.percpu: u64),
        metadata: field!(held, BoxHeld.metadata: u64),
        reserved: 0,
    }
}
