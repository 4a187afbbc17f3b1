//! The header of a black box, checked.

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt as _;

use kmem::blackbox::{
    BOX_EXE, BOX_ROWS, BoxGroup, BoxHeader, BoxRecord, BoxRow, BoxSite, MAGIC, VERSION,
};
use kmem::root::TAG_BITS;
use kmem::units::ObjcgId;

use crate::books::record::{u32_at, u64_at};
use crate::escape;

/// Largest header, and largest entry of the site table: bigger ones are nonsense.
const MAX_SIZE: u32 = 4096;
/// Largest record.
const MAX_RECORD: u64 = 64 << 20;
/// Most CPUs: eight times what Linux knows.
const MAX_CPUS: u32 = 1 << 16;

/// Where the parts are.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) pid: u32,
    pub(super) exe: String,
    pub(super) started_ns: u64,
    pub(super) site_capacity: u32,
    pub(super) site_count: u32,
    pub(super) site_size: u32,
    pub(super) cpus: u32,
    pub(super) sites: u64,
    pub(super) records: [u64; 2],
    pub(super) record_size: u64,
    pub(super) groups: [u64; 2],
    pub(super) group_capacity: u32,
    pub(super) group_size: u32,
    pub(super) counters: u64,
}

impl Header {
    /// Reads and checks the header of a file of `len` bytes. The parts may lie beyond its end:
    /// the file may have been cut off.
    pub(super) fn read(file: &File, len: u64) -> Result<Self, String> {
        if len == 0 {
            return Err("empty file: the process never wrote to it".to_owned());
        }
        let mut bytes = [0; size_of::<BoxHeader>()];
        let there = usize::try_from(len).unwrap_or(usize::MAX).min(bytes.len());
        file.read_exact_at(&mut bytes[..there], 0).map_err(|e| format!("header: {e}"))?;
        let u32_of = |offset| u32_at(&bytes, offset);
        let u64_of = |offset| u64_at(&bytes, offset);

        let magic = u64_of(offset_of!(BoxHeader, magic));
        if magic == 0 {
            return Err("no black box, or one that was never finished (magic is 0)".to_owned());
        }
        if magic == MAGIC.swap_bytes() {
            return Err("a black box of the other byte order".to_owned());
        }
        if magic != MAGIC {
            return Err(format!("not a black box (magic is {magic:#x}, not \"kmem box\")"));
        }
        if there < bytes.len() {
            return Err(format!("truncated: the header has {} bytes, the file {len}", bytes.len()));
        }
        let version = u32_of(offset_of!(BoxHeader, version));
        if version != VERSION {
            return Err(format!("layout version {version}; this kmem reads version {VERSION}"));
        }
        let header = Self {
            pid: u32_of(offset_of!(BoxHeader, pid)),
            exe: exe(&bytes),
            started_ns: u64_of(offset_of!(BoxHeader, started_ns)),
            site_capacity: u32_of(offset_of!(BoxHeader, site_capacity)),
            site_count: u32_of(offset_of!(BoxHeader, site_count)),
            site_size: u32_of(offset_of!(BoxHeader, site_size)),
            cpus: u32_of(offset_of!(BoxHeader, cpus)),
            sites: u64_of(offset_of!(BoxHeader, sites)),
            records: [0, 1].map(|i| u64_of(offset_of!(BoxHeader, records) + i * 8)),
            record_size: u64_of(offset_of!(BoxHeader, record_size)),
            groups: [0, 1].map(|i| u64_of(offset_of!(BoxHeader, groups) + i * 8)),
            group_capacity: u32_of(offset_of!(BoxHeader, group_capacity)),
            group_size: u32_of(offset_of!(BoxHeader, group_size)),
            counters: u64_of(offset_of!(BoxHeader, counters)),
        };
        for (name, size, least) in [
            ("size", u32_of(offset_of!(BoxHeader, size)), size_of::<BoxHeader>()),
            ("site_size", header.site_size, size_of::<BoxSite>()),
            ("group_size", header.group_size, size_of::<BoxGroup>()),
        ] {
            if (size as usize) < least || size > MAX_SIZE || !size.is_multiple_of(8) {
                return Err(format!("{name} is {size}, expected {least}"));
            }
        }
        let least = (size_of::<BoxRecord>() + BOX_ROWS * size_of::<BoxRow>()) as u64;
        if header.record_size < least || header.record_size > MAX_RECORD {
            return Err(format!(
                "record_size is {}, expected {least} and more",
                header.record_size
            ));
        }
        for (name, count, most) in [
            ("site_capacity", header.site_capacity, 1 << TAG_BITS),
            ("site_count", header.site_count, header.site_capacity),
            ("group_capacity", header.group_capacity, 1 << ObjcgId::BITS),
            ("cpus", header.cpus, MAX_CPUS),
        ] {
            if count > most {
                return Err(format!("{name} is {count}, above {most}"));
            }
        }
        Ok(header)
    }
}

fn exe(header: &[u8]) -> String {
    let len = u32_at(header, offset_of!(BoxHeader, exe_len));
    let len = usize::try_from(len).unwrap_or(BOX_EXE).min(BOX_EXE);
    let bytes = header.get(offset_of!(BoxHeader, exe)..).and_then(|b| b.get(..len));
    escape::bounded(&String::from_utf8_lossy(bytes.unwrap_or_default())).into_owned()
}
