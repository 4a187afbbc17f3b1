//! Black boxes made by hand, as the allocator lays them out.

// Each test program uses a part of this.
#![allow(dead_code)]

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use kmem_layout::blackbox::{
    BOX_RECORDS, BoxFile, BoxGroup, BoxHeader, BoxHeld, BoxMapping, BoxRecord, BoxSite, Counter,
    MAGIC, MAPPINGS_AT, MAPS_AT, RECORD_SIZE, VERSION, reason,
};
use kmem_layout::group::{GroupBlock, NO_LIMIT, group_state};
use kmem_layout::site::{Text, site_kind};

pub(crate) const PID: u32 = 4711;
pub(crate) const CALLER: u32 = 8;
pub(crate) const STATIC: u32 = 9;
pub(crate) const CHAIN: u32 = 10;
/// Groups that the box has room for.
pub(crate) const GROUPS: u32 = 8;
/// 2001-09-09T01:46:40Z.
pub(crate) const TIME: u64 = 1_000_000_000_000_000_000;

/// A function that the address of a caller lies in.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn fake_box_caller(n: u32) -> u32 {
    std::hint::black_box(n) * 7
}

fn caller() -> u64 {
    fake_box_caller as extern "C" fn(u32) -> u32 as usize as u64 + 1
}

pub(crate) struct FakeBox {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    _dir: tempfile::TempDir,
    pub(crate) capacity: u32,
}

impl FakeBox {
    /// A box with three sites, no record, and no counts.
    pub(crate) fn new(capacity: u32, cpus: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("box");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let this = Self { file, path, _dir: dir, capacity };
        let counters = u64::from(cpus) * u64::from(capacity) * size_of::<Counter>() as u64;
        this.file.set_len(this.counters() + counters).unwrap();
        let exe = std::env::current_exe().unwrap();
        let exe = exe.to_str().unwrap().as_bytes();
        this.u32(offset_of!(BoxHeader, version), VERSION);
        this.u32(offset_of!(BoxHeader, size), size_of::<BoxHeader>() as u32);
        this.u32(offset_of!(BoxHeader, pid), PID);
        this.u32(offset_of!(BoxHeader, site_capacity), capacity);
        this.u32(offset_of!(BoxHeader, site_size), size_of::<BoxSite>() as u32);
        this.u32(offset_of!(BoxHeader, cpus), cpus);
        this.u64(offset_of!(BoxHeader, sites), this.site(0) as u64);
        for slot in 0..BOX_RECORDS {
            this.u64(offset_of!(BoxHeader, records) + slot * 8, this.record(slot) as u64);
            this.u64(offset_of!(BoxHeader, groups) + slot * 8, this.group(slot, 0) as u64);
        }
        this.u64(offset_of!(BoxHeader, record_size), RECORD_SIZE as u64);
        this.u32(offset_of!(BoxHeader, group_capacity), GROUPS);
        this.u32(offset_of!(BoxHeader, group_size), size_of::<BoxGroup>() as u32);
        this.u64(offset_of!(BoxHeader, counters), this.counters());
        this.u64(offset_of!(BoxHeader, started_ns), TIME);
        this.u32(offset_of!(BoxHeader, site_count), capacity);
        this.u32(offset_of!(BoxHeader, exe_len), exe.len() as u32);
        this.bytes(offset_of!(BoxHeader, exe), exe);
        this.put_site(CALLER, site_kind::CALLER, 0, caller(), &[]);
        this.put_site(STATIC, site_kind::STATIC, 0, 0, b"libplug.sosrc/plug.cplug_open");
        let tag = this.site(STATIC) + offset_of!(BoxSite, tag);
        this.u32(tag + offset_of!(Text, line), 12);
        for (offset, len) in [
            (offset_of!(Text, module_len), 10_u16),
            (offset_of!(Text, file_len), 10),
            (offset_of!(Text, function_len), 9),
        ] {
            this.bytes(tag + offset, &len.to_le_bytes());
        }
        let chain: Vec<u8> = [caller(), 0x77].iter().flat_map(|w| w.to_le_bytes()).collect();
        this.put_site(CHAIN, site_kind::CHAIN, 2, caller(), &chain);
        this.u64(offset_of!(BoxHeader, magic), MAGIC);
        this
    }

    pub(crate) fn bytes(&self, at: usize, bytes: &[u8]) {
        self.file.write_all_at(bytes, at as u64).unwrap();
    }

    pub(crate) fn u32(&self, at: usize, value: u32) {
        self.bytes(at, &value.to_le_bytes());
    }

    pub(crate) fn u64(&self, at: usize, value: u64) {
        self.bytes(at, &value.to_le_bytes());
    }

    pub(crate) fn site(&self, tag: u32) -> usize {
        4096 + tag as usize * size_of::<BoxSite>()
    }

    pub(crate) fn record(&self, slot: usize) -> usize {
        self.site(self.capacity).next_multiple_of(4096) + slot * RECORD_SIZE
    }

    /// Offset of a group in one of the records.
    pub(crate) fn group(&self, slot: usize, objcg: u32) -> usize {
        self.record(BOX_RECORDS) + (slot * GROUPS as usize + objcg as usize) * size_of::<BoxGroup>()
    }

    /// Offset of the counters, no multiple of the file system's blocks.
    pub(crate) fn counters(&self) -> u64 {
        self.group(BOX_RECORDS, 0) as u64 + 40
    }

    /// Adds the first page of a file, behind the counters: where it is mapped, and its inode.
    pub(crate) fn put_file(&self, (start, inode): (u64, u64), page: &[u8]) {
        let at = self.file.metadata().unwrap().len().next_multiple_of(8) as usize;
        self.u64(offset_of!(BoxHeader, files), at as u64);
        self.u32(offset_of!(BoxHeader, file_capacity), 1);
        self.u64(at + offset_of!(BoxFile, start), start);
        self.u64(at + offset_of!(BoxFile, inode), inode);
        self.bytes(at + BoxHeader::file_entries(1), page);
    }

    /// Adds the next group to a record: its parent, state, name, and bytes of objects in slabs.
    pub(crate) fn put_group(&self, number: u64, parent: u32, state: u32, name: &str, slab: u64) {
        let slot = (number as usize - 1) % 2;
        let groups = self.record(slot) + offset_of!(BoxRecord, groups);
        let mut count = [0; 4];
        self.file.read_exact_at(&mut count, groups as u64).unwrap();
        let objcg = u32::from_le_bytes(count);
        self.u32(groups, objcg + 1);
        let at = self.group(slot, objcg);
        let block = at + offset_of!(BoxGroup, block);
        self.u32(block + offset_of!(GroupBlock, state), 1 << group_state::BITS | state);
        self.u32(block + offset_of!(GroupBlock, parent), parent);
        self.u64(block + offset_of!(GroupBlock, max), NO_LIMIT);
        self.u64(block + offset_of!(GroupBlock, high), NO_LIMIT);
        self.bytes(block + offset_of!(GroupBlock, name_len), &[name.len() as u8]);
        self.bytes(block + offset_of!(GroupBlock, name), name.as_bytes());
        self.u64(at + offset_of!(BoxGroup, held) + offset_of!(BoxHeld, slab), slab);
    }

    fn put_site(&self, tag: u32, kind: u32, count: u32, addr: u64, text: &[u8]) {
        let at = self.site(tag);
        self.u32(at + offset_of!(BoxSite, count), count);
        self.u64(at + offset_of!(BoxSite, addr), addr);
        self.bytes(at + offset_of!(BoxSite, text), text);
        self.u32(at + offset_of!(BoxSite, kind), kind);
    }

    /// Writes record `number` as the allocator does: rows of tag, bytes, calls.
    pub(crate) fn put_record(&self, number: u64, rows: &[(u32, u64, u64)], sums: (u64, u64)) {
        let reason = reason::PEAK + (number as u32 - 1) % 3;
        self.put_record_at((number as usize - 1) % 2, reason, number, rows, sums);
    }

    /// Writes record `number` into a place.
    pub(crate) fn put_record_at(
        &self,
        slot: usize,
        reason: u32,
        number: u64,
        rows: &[(u32, u64, u64)],
        sums: (u64, u64),
    ) {
        let at = self.record(slot);
        self.u64(at, 0);
        self.u64(at + offset_of!(BoxRecord, time_ns), TIME + number);
        self.u32(at + offset_of!(BoxRecord, reason), reason);
        self.u32(at + offset_of!(BoxRecord, rows), rows.len() as u32);
        self.u64(at + offset_of!(BoxRecord, bytes), sums.0);
        self.u64(at + offset_of!(BoxRecord, calls), sums.1);
        self.u64(at + offset_of!(BoxRecord, used), sums.0.max(1 << 20));
        let mut out = Vec::new();
        for &(tag, bytes, calls) in rows {
            out.extend_from_slice(&u64::from(tag).to_le_bytes());
            out.extend_from_slice(&bytes.to_le_bytes());
            out.extend_from_slice(&calls.to_le_bytes());
        }
        self.bytes(at + size_of::<BoxRecord>(), &out);
        let maps = std::fs::read("/proc/self/maps").unwrap();
        self.u64(at + offset_of!(BoxRecord, maps_len), maps.len() as u64);
        self.bytes(at + MAPS_AT, &maps);
        self.u64(at, number);
    }

    /// Adds mapped memory to the record in a place: rows of site, address space, bytes in memory;
    /// and the sums of the last two.
    pub(crate) fn put_mappings(&self, slot: usize, rows: &[(u64, u64, u64)], sums: (u64, u64)) {
        let at = self.record(slot);
        self.u32(at + offset_of!(BoxRecord, mapping_rows), rows.len() as u32);
        self.u64(at + offset_of!(BoxRecord, mapped), sums.0);
        self.u64(at + offset_of!(BoxRecord, mapped_resident), sums.1);
        for (nth, &(site, mapped, resident)) in rows.iter().enumerate() {
            let row = at + MAPPINGS_AT + nth * size_of::<BoxMapping>();
            self.u64(row + offset_of!(BoxMapping, site), site);
            self.u64(row + offset_of!(BoxMapping, mapped), mapped);
            self.u64(row + offset_of!(BoxMapping, resident), resident);
            self.u32(row + offset_of!(BoxMapping, ranges), 1);
        }
    }

    /// Writes the counters of a CPU for a tag: calls, bytes, frees, freed.
    pub(crate) fn put_counter(&self, cpu: u32, tag: u32, counts: [u64; 4]) {
        let index = u64::from(cpu) * u64::from(self.capacity) + u64::from(tag);
        let at = self.counters() + index * size_of::<Counter>() as u64;
        for (i, count) in counts.into_iter().enumerate() {
            self.u64(at as usize + i * 8, count);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
