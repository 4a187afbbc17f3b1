//! Writing the black box; its layout is in [`crate::blackbox`].
//!
//! The file is allocated as a whole when it is made, and mapped shared: writing to it needs no
//! descriptor, fails in no way, and what was written survives the process.

mod groups;

use super::{Held, Kind, Tally};
use crate::blackbox::{
    BOX_EXE, BOX_GROUPS, BOX_MAPS, BOX_ROWS, BOX_TEXT, BoxGroup, BoxHeader, BoxRecord, BoxRow,
    BoxSite, Counter, MAGIC, RECORD_SIZE, VERSION,
};
use crate::codetag::{Names, Sites};
use crate::os::{File, Platform};
use crate::root::{GroupBlock, Text, site_kind};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::units::{CpuId, TagId};
use core::ptr::NonNull;
use groups::GroupPart;

/// Sites that the box has room for; others are counted under the last of the reserved tags.
const BOX_SITES: u32 = 1 << 14;
/// A new record at each such part of use: objects may fill what slabs have room for before pages
/// are taken, and 95 % of what lives is to be in the last record all the same.
const STEP: u64 = 32;
const PAGE: usize = crate::units::PAGE_SIZE;

/// The box of an instance. Zeroed, there is none.
pub struct BlackBox {
    base: AtomicUsize,
    cpus: AtomicU32,
    /// One writer of records at a time.
    busy: AtomicU32,
    /// Pages in use at the last record.
    used_pages: AtomicU64,
}

/// Where the parts are.
struct Layout {
    sites: usize,
    records: [usize; 2],
    groups: [usize; 2],
    counters: usize,
    bytes: usize,
}

impl Layout {
    const fn new(cpus: u32) -> Self {
        let sites = size_of::<BoxHeader>().next_multiple_of(PAGE);
        let record = sites + (BOX_SITES as usize * size_of::<BoxSite>()).next_multiple_of(PAGE);
        let groups = record + 2 * RECORD_SIZE;
        let all = (BOX_GROUPS as usize * size_of::<BoxGroup>()).next_multiple_of(PAGE);
        let counters = groups + 2 * all;
        let each = BOX_SITES as usize * size_of::<Counter>();
        Self {
            sites,
            records: [record, record + RECORD_SIZE],
            groups: [groups, groups + all],
            counters,
            bytes: counters + each * cpus as usize,
        }
    }
}

impl BlackBox {
    /// No box.
    pub const fn new() -> Self {
        Self {
            base: AtomicUsize::new(0),
            cpus: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            used_pages: AtomicU64::new(0),
        }
    }

    /// Makes the file, with counters for so many CPUs.
    ///
    /// # Errors
    /// Why there is none.
    pub fn start(
        &self,
        platform: &impl Platform,
        path: &[u8],
        cpus: u32,
    ) -> Result<(), &'static str> {
        let layout = Layout::new(cpus);
        let base = platform.map_file(path, layout.bytes, |first| {
            let magic = first.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
            match magic {
                // An older box; the process that wrote it must be gone.
                Some(MAGIC) => match first[16..].first_chunk::<4>() {
                    Some(pid) => File::Replace { unless_alive: u32::from_le_bytes(*pid) },
                    None => File::Keep,
                },
                _ => File::Keep,
            }
        })?;
        // SAFETY: a fresh file of zeroes, as long as the layout; nobody else has it.
        let header = unsafe { &mut *base.as_ptr().cast::<BoxHeader>() };
        header.version = VERSION;
        header.size = size_of::<BoxHeader>() as u32;
        header.pid = platform.process();
        header.site_capacity = BOX_SITES;
        header.site_size = size_of::<BoxSite>() as u32;
        header.cpus = cpus;
        header.sites = layout.sites as u64;
        header.records = layout.records.map(|at| at as u64);
        header.record_size = RECORD_SIZE as u64;
        header.groups = layout.groups.map(|at| at as u64);
        header.group_capacity = BOX_GROUPS;
        header.group_size = size_of::<BoxGroup>() as u32;
        header.counters = layout.counters as u64;
        header.started_ns = platform.wall_ns();
        header.exe_len = platform.executable(&mut header.exe).min(BOX_EXE) as u32;
        header.site_count.store(BOX_SITES, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        self.cpus.store(cpus, Ordering::Relaxed);
        self.base.store(base.as_ptr() as usize, Ordering::Release);
        Ok(())
    }

    /// In a forked child: the file is the parent's.
    pub fn leave(&self) {
        self.base.store(0, Ordering::Relaxed);
    }

    fn base(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.base.load(Ordering::Acquire) as *mut u8)
    }

    /// Whether there is a box.
    pub fn is_there(&self) -> bool {
        self.base().is_some()
    }

    /// Writes down what a tag stands for, once.
    pub fn note_site(&self, sites: &Sites, tag: TagId) {
        let Some(base) = self.base() else { return };
        if tag.0 >= BOX_SITES {
            return;
        }
        let at = Layout::new(0).sites + tag.0 as usize * size_of::<BoxSite>();
        // SAFETY: below the capacity.
        let site = unsafe { base.add(at).cast::<BoxSite>() };
        // SAFETY: as above; atomic.
        let kind = unsafe { &(*site.as_ptr()).kind };
        if kind.load(Ordering::Relaxed) != 0 {
            return;
        }
        let mut whole = BoxSite {
            kind: AtomicU32::new(0),
            count: 0,
            addr: 0,
            tag: Text { line: 0, module_len: 0, file_len: 0, function_len: 0, reserved: [0; 3] },
            text: [0; BOX_TEXT],
        };
        let frames = sites.frames(tag);
        let is = if let Some(names) = sites.names(tag) {
            write_names(&mut whole, names);
            site_kind::STATIC
        } else if let Some(&first) = frames.first() {
            whole.addr = first;
            if frames.len() == 1 {
                site_kind::CALLER
            } else {
                for (bytes, frame) in whole.text.chunks_exact_mut(8).zip(frames) {
                    bytes.copy_from_slice(&frame.to_le_bytes());
                    whole.count += 1;
                }
                site_kind::CHAIN
            }
        } else {
            return;
        };
        // SAFETY: as above; two threads write the same.
        unsafe { site.write(whole) };
        kind.store(is, Ordering::Release);
    }

    /// Counts a call for a tag, where calls are counted: bytes allocated, or freed.
    pub fn count(&self, cpu: Option<CpuId>, tag: TagId, bytes: u64, freed: bool) {
        let Some(base) = self.base() else { return };
        let cpus = self.cpus.load(Ordering::Relaxed);
        if cpus == 0 {
            return;
        }
        // A CPU only spreads the writers: the sum is what counts.
        let cpu = cpu.map_or(0, |cpu| cpu.0) % cpus;
        let tag = if tag.0 < BOX_SITES { tag.0 } else { crate::root::TAG_OTHER };
        let at = (cpu as usize * BOX_SITES as usize + tag as usize) * size_of::<Counter>();
        // SAFETY: both below the box's own counts.
        let counter = unsafe { base.add(Layout::new(0).counters + at).cast::<Counter>().as_ref() };
        let (calls, sum) =
            if freed { (&counter.frees, &counter.freed) } else { (&counter.calls, &counter.bytes) };
        calls.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether so many pages in use are a new peak.
    pub fn is_peak(&self, used: u32) -> bool {
        let before = self.used_pages.load(Ordering::Relaxed);
        self.is_there() && super::is_higher(used.into(), before, STEP)
    }

    /// Begins a record, unless somebody else is writing one. `groups` are the entries in use, by id.
    pub fn begin<'a>(&'a self, groups: &'a [GroupBlock]) -> Option<Recording<'a>> {
        let base = self.base()?;
        if self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: the file begins with its header.
        let written = unsafe { &(*base.cast::<BoxHeader>().as_ptr()).written };
        let number = written.load(Ordering::Relaxed) + 1;
        let (layout, turn) = (Layout::new(0), (number - 1) as usize % 2);
        // SAFETY: inside the file; we are the only writer.
        let record = unsafe { base.add(layout.records[turn]).cast::<BoxRecord>().as_mut() };
        record.number.store(0, Ordering::Relaxed);
        // What is written below must not be seen before that.
        fence(Ordering::Release);
        // SAFETY: as above.
        let room = unsafe { base.add(layout.groups[turn]).cast().as_mut() };
        record.groups_beyond = groups.len().saturating_sub(BOX_GROUPS as usize) as u32;
        let groups = GroupPart::new(room, groups);
        Some(Recording { black_box: self, written, number, record, groups })
    }
}

/// A record that is being written: the census goes on. The other record is whole.
pub struct Recording<'a> {
    black_box: &'a BlackBox,
    written: &'a AtomicU32,
    number: u32,
    record: &'a mut BoxRecord,
    groups: GroupPart<'a>,
}

impl Recording<'_> {
    /// Counts what a group holds.
    pub fn add(&mut self, held: &Held, kind: Kind) {
        self.groups.add(held, kind);
    }

    /// Writes the rest, now that the census is in `tally`.
    pub fn finish(
        self,
        platform: &impl Platform,
        reason: u32,
        used: u32,
        tally: &Tally<'_>,
        sites: &Sites,
    ) {
        let Self { black_box, written, number, record, groups } = self;
        black_box.used_pages.store(used.into(), Ordering::Relaxed);
        // SAFETY: rows and mappings follow the record.
        let (table, maps) = unsafe {
            let table = NonNull::from(&mut *record).add(1);
            let maps = table.cast::<u8>().add(BOX_ROWS * size_of::<BoxRow>());
            (core::slice::from_raw_parts_mut(table.cast::<BoxRow>().as_ptr(), BOX_ROWS), maps)
        };
        // Stacks may be small: the order of the rows is where the mappings will be.
        // SAFETY: larger than that, aligned, and not used before.
        let tags =
            unsafe { core::slice::from_raw_parts_mut(maps.cast::<TagId>().as_ptr(), BOX_ROWS) };
        let rows = tally.largest(tags);
        for (row, &tag) in table.iter_mut().zip(&tags[..rows]) {
            let (bytes, calls) = tally.get(tag);
            *row = BoxRow { tag: tag.0, reserved: 0, bytes, calls };
            black_box.note_site(sites, tag);
        }
        // SAFETY: as above; the order of the rows is not looked at again.
        let maps = unsafe { core::slice::from_raw_parts_mut(maps.as_ptr(), BOX_MAPS) };
        record.time_ns = platform.wall_ns();
        record.reason = reason;
        record.rows = rows as u32;
        (record.bytes, record.calls) = tally.total();
        record.used = u64::from(used) * PAGE as u64;
        record.maps_len = platform.mappings(maps) as u64;
        record.groups = groups.finish();
        record.number.store(number.into(), Ordering::Release);
        written.store(number, Ordering::Release);
        black_box.busy.store(0, Ordering::Release);
    }
}

impl Default for BlackBox {
    fn default() -> Self {
        Self::new()
    }
}

/// Copies names as far as there is room; the function and the module come before the file's
/// directories.
fn write_names(site: &mut BoxSite, names: Names<'_>) {
    let module = &names.module[..names.module.len().min(64)];
    let function = &names.function[..names.function.len().min(96)];
    let room = BOX_TEXT - module.len() - function.len();
    let file = &names.file[names.file.len().saturating_sub(room)..];
    site.tag = Text {
        line: names.line,
        module_len: module.len() as u16,
        file_len: file.len() as u16,
        function_len: function.len() as u16,
        reserved: [0; 3],
    };
    let mut at = 0;
    for name in [module, file, function] {
        site.text[at..at + name.len()].copy_from_slice(name);
        at += name.len();
    }
}
