//! The groups of a record in a black box.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;

use kmem::blackbox::{BoxGroup, BoxHeld};

use super::header::Header;
use crate::books::record::u64_at;
use crate::books::{Groups, Usage};

/// The `count` groups of one of the two records.
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
    let (at, size) = (header.groups[slot], header.group_size as usize);
    // Both are bounded: some 64 MiB at most.
    let mut table = vec![0; count as usize * size];
    if at.checked_add(table.len() as u64).is_none_or(|end| end > len) {
        return Err(format!("truncated: {count} groups at offset {at}, the file has {len} bytes"));
    }
    file.read_exact_at(&mut table, at).map_err(|e| format!("groups: {e}"))?;
    Ok(Groups::of_records(table.chunks_exact(size).map(|group| (group, held(group)))))
}

fn held(group: &[u8]) -> Usage {
    let word = |offset| u64_at(group, offset_of!(BoxGroup, held) + offset);
    Usage {
        objects: word(offset_of!(BoxHeld, objects)),
        slab: word(offset_of!(BoxHeld, slab)),
        pages: word(offset_of!(BoxHeld, pages)),
        vmalloc: word(offset_of!(BoxHeld, vmalloc)),
        percpu: word(offset_of!(BoxHeld, percpu)),
        metadata: word(offset_of!(BoxHeld, metadata)),
        reserved: 0,
    }
}
