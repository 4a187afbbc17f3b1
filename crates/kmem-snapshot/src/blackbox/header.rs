//! The header of a black box, checked.

use std::fs::File;
use std::mem::offset_of;
use std::os::unix::fs::FileExt as _;

use kmem_layout::blackbox::{
    BOX_EXE, BOX_FILES, BOX_RECORDS, BoxGroup, BoxHeader, BoxMisuse, BoxRefusal, BoxSite, MAGIC,
    MAPS_AT, VERSION,
};
use kmem_layout::group::MAX_GROUPS;
use kmem_layout::word::{TAG_BITS, TAG_MASK};

use crate::memory::{self, field, u64_at};

/// Largest header, and largest entry of the site table, in bytes.
const MAX_SIZE: u32 = 4096;
/// Offset of the refusals. The header of an older process ends there.
const REFUSALS: usize = offset_of!(BoxHeader, refusals);
/// Offset of the misuse, where the header of a process in between ends.
const MISUSE: usize = offset_of!(BoxHeader, misuse);
/// End of the header's words about files. The header of an older process ends before.
const FILES_END: usize = offset_of!(BoxHeader, reserved_too);
/// Largest record, in bytes.
const MAX_RECORD: u64 = 64 << 20;
/// Most files: eight times as many as kmem's own boxes have.
const MAX_FILES: u32 = 8 * BOX_FILES as u32;
/// Most CPUs: eight times the limit of Linux (`NR_CPUS`).
const MAX_CPUS: u32 = 1 << 16;

/// The header of a black box: identity of the process, and places of the parts in the file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) pid: u32,
    pub(super) start_ticks: u64,
    pub(super) pid_namespace: u64,
    pub(super) exe: String,
    pub(super) started_ns: u64,
    pub(super) written: u32,
    pub(super) site_capacity: u32,
    pub(super) site_count: u32,
    pub(super) site_size: u32,
    pub(super) cpus: u32,
    pub(super) sites: u64,
    pub(super) records: [u64; BOX_RECORDS],
    pub(super) record_size: u64,
    pub(super) groups: [u64; BOX_RECORDS],
    pub(super) group_capacity: u32,
    pub(super) group_size: u32,
    pub(super) counters: u64,
    pub(super) refusals: Vec<BoxRefusal>,
    pub(super) misuse: Option<BoxMisuse>,
    /// Offset of the files, and their number.
    pub(super) files: (u64, u32),
}

impl Header {
    /// Reads and checks the header of a file of `len` bytes. The parts may lie beyond the end of a
    /// file that was cut off.
    pub(super) fn read(file: &File, len: u64) -> Result<Self, String> {
        if len == 0 {
            return Err("empty file: the process never wrote to it".to_owned());
        }
        let mut bytes = [0; size_of::<BoxHeader>()];
        let there = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
        let head = bytes.get_mut(..there).unwrap_or_default();
        file.read_exact_at(head, 0).map_err(|e| format!("header: {e}"))?;
        check_magic(&bytes)?;
        if there < bytes.len() {
            return Err(format!("truncated: the header has {} bytes, the file {len}", bytes.len()));
        }
        let header = Self::parse(&bytes)?;
        header.check()?;
        Ok(header)
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let version = field!(bytes, BoxHeader.version: u32);
        if version != VERSION {
            return Err(format!("layout version {version}; this kmem reads version {VERSION}"));
        }
        let size = field!(bytes, BoxHeader.size: u32);
        check_size("size", size, REFUSALS)?;
        let own = bytes.get(..size as usize).unwrap_or(bytes);
        let each = |offset| std::array::from_fn(|slot| u64_at(bytes, offset + slot * 8));
        Ok(Self {
            pid: field!(bytes, BoxHeader.pid: u32),
            start_ticks: field!(bytes, BoxHeader.start_ticks: u64),
            pid_namespace: field!(bytes, BoxHeader.pid_namespace: u64),
            exe: exe(bytes),
            started_ns: field!(bytes, BoxHeader.started_ns: u64),
            written: field!(bytes, BoxHeader.written: u32),
            site_capacity: field!(bytes, BoxHeader.site_capacity: u32),
            site_count: field!(bytes, BoxHeader.site_count: u32),
            site_size: field!(bytes, BoxHeader.site_size: u32),
            cpus: field!(bytes, BoxHeader.cpus: u32),
            sites: field!(bytes, BoxHeader.sites: u64),
            records: each(offset_of!(BoxHeader, records)),
            record_size: field!(bytes, BoxHeader.record_size: u64),
            groups: each(offset_of!(BoxHeader, groups)),
            group_capacity: field!(bytes, BoxHeader.group_capacity: u32),
            group_size: field!(bytes, BoxHeader.group_size: u32),
            counters: field!(bytes, BoxHeader.counters: u64),
            refusals: refusals(own),
            misuse: misuse(own),
            files: files(own),
        })
    }

    fn check(&self) -> Result<(), String> {
        check_size("site_size", self.site_size, size_of::<BoxSite>())?;
        check_size("group_size", self.group_size, size_of::<BoxGroup>())?;
        let least = MAPS_AT as u64;
        if self.record_size < least || self.record_size > MAX_RECORD {
            return Err(format!("record_size is {}, expected {least} and more", self.record_size));
        }
        for (name, count, most) in [
            ("site_capacity", self.site_capacity, 1 << TAG_BITS),
            ("site_count", self.site_count, self.site_capacity),
            ("group_capacity", self.group_capacity, MAX_GROUPS),
            ("cpus", self.cpus, MAX_CPUS),
            ("file_capacity", self.files.1, MAX_FILES),
        ] {
            if count > most {
                return Err(format!("{name} is {count}, above {most}"));
            }
        }
        Ok(())
    }
}

fn check_magic(bytes: &[u8]) -> Result<(), String> {
    let magic = field!(bytes, BoxHeader.magic: u64);
    if magic == 0 {
        return Err("no black box, or one that was never finished (magic is 0)".to_owned());
    }
    if magic == MAGIC.swap_bytes() {
        return Err("a black box of the other byte order".to_owned());
    }
    if magic != MAGIC {
        return Err(format!("not a black box (magic is {magic:#x}, not \"kmem box\")"));
    }
    Ok(())
}

/// Checks the size of a record, `least` bytes in this version of the layout.
fn check_size(name: &str, size: u32, least: usize) -> Result<(), String> {
    if (size as usize) < least || size > MAX_SIZE || !size.is_multiple_of(8) {
        return Err(format!("{name} is {size}, expected {least}"));
    }
    Ok(())
}

/// Refusals in the bytes of a header, which may end before them.
fn refusals(header: &[u8]) -> Vec<BoxRefusal> {
    let entries = header.get(REFUSALS..header.len().min(MISUSE)).unwrap_or_default();
    let entries = entries.chunks_exact(size_of::<BoxRefusal>()).map(|entry| BoxRefusal {
        tag: field!(entry, BoxRefusal.tag: u32),
        group: field!(entry, BoxRefusal.group: u32),
        count: field!(entry, BoxRefusal.count: u64),
        bytes: field!(entry, BoxRefusal.bytes: u64),
    });
    entries.filter(|entry| entry.count != 0 && entry.tag <= TAG_MASK).collect()
}

/// The misuse in the bytes of a header, which may end before it.
fn misuse(header: &[u8]) -> Option<BoxMisuse> {
    let entry = header.get(MISUSE..MISUSE + size_of::<BoxMisuse>())?;
    let tag = field!(entry, BoxMisuse.tag: u32);
    let is_here = field!(entry, BoxMisuse.is_here: u32);
    (tag != 0 && tag <= TAG_MASK).then_some(BoxMisuse { tag, is_here })
}

/// Offset of the files in the bytes of a header, which may end before it, and their number.
fn files(header: &[u8]) -> (u64, u32) {
    if header.len() < FILES_END {
        return (0, 0);
    }
    (field!(header, BoxHeader.files: u64), field!(header, BoxHeader.file_capacity: u32))
}

fn exe(header: &[u8]) -> String {
    let len = field!(header, BoxHeader.exe_len: u32);
    let len = usize::try_from(len).unwrap_or(BOX_EXE).min(BOX_EXE);
    let bytes = header.get(offset_of!(BoxHeader, exe)..).and_then(|b| b.get(..len));
    memory::name(bytes.unwrap_or_default())
}
