//! Writing the black box; its layout is in [`kmem_layout::blackbox`].
//!
//! The file is allocated as a whole when it is made, and mapped shared. So writes to it need no
//! descriptor and cannot fail, and their results survive the process.

mod groups;

use super::watch::Call;
use super::{Held, Kind, Tally};
use crate::codetag::{Names, Sites};
use crate::os::{File, Owner, Platform};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::units::{CpuId, TagId};
use core::mem::offset_of;
use core::ptr::NonNull;
use groups::GroupPart;
use kmem_layout::blackbox::{
    BOX_EXE, BOX_GROUPS, BOX_MAPS, BOX_ROWS, BOX_TEXT, BoxGroup, BoxHeader, BoxRecord, BoxRow,
    BoxSite, Counter, MAGIC, RECORD_SIZE, VERSION,
};
use kmem_layout::group::GroupBlock;
use kmem_layout::site::{Text, site_kind};

/// Number of sites that the box has room for. Others count as the last reserved tag.
const BOX_SITES: u32 = 1 << 14;
/// A new peak exceeds the last record by one in this many pages. Objects that fill free places of
/// slabs take no pages. The last record is to have 95 % of what is live all the same.
const STEP: u64 = 32;
const PAGE: usize = crate::units::PAGE_SIZE;

/// The black box of an instance. Zeroed, there is none.
///
/// # Invariants
/// `base` is 0 or the address of a mapped file with the `Layout` for `cpus`, which is never
/// unmapped.
pub struct BlackBox {
    base: AtomicUsize,
    /// CPUs that the file has counters for.
    cpus: AtomicU32,
    /// 1 while a thread writes a record.
    busy: AtomicU32,
    /// Pages in use at the last record.
    used_pages: AtomicU64,
}

/// Offsets of the parts of the file, and its length, in bytes.
struct Layout {
    sites: usize,
    records: [usize; 2],
    groups: [usize; 2],
    counters: usize,
    bytes: usize,
}

impl Layout {
    /// Bytes of the counters of one CPU.
    const COUNTERS: usize = BOX_SITES as usize * size_of::<Counter>();

    const fn new(cpus: u32) -> Self {
        let sites = size_of::<BoxHeader>().next_multiple_of(PAGE);
        let record = sites + (BOX_SITES as usize * size_of::<BoxSite>()).next_multiple_of(PAGE);
        let groups = record + 2 * RECORD_SIZE;
        let all = (BOX_GROUPS as usize * size_of::<BoxGroup>()).next_multiple_of(PAGE);
        let counters = groups + 2 * all;
        Self {
            sites,
            records: [record, record + RECORD_SIZE],
            groups: [groups, groups + all],
            counters,
            bytes: counters + Self::COUNTERS * cpus as usize,
        }
    }
}

/// Decides about a file that has the name of the box: its first bytes, and its length.
fn older(first: &[u8], len: u64) -> File {
    let u32_at = |at: usize| Some(u32::from_le_bytes(*first.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(*first.get(at..)?.first_chunk()?));
    // The fields of a box that was cut off may be absent.
    let owner = || {
        (u32_at(offset_of!(BoxHeader, version))? == VERSION).then_some(())?;
        Some(Owner {
            pid: u32_at(offset_of!(BoxHeader, pid))?,
            start_ticks: u64_at(offset_of!(BoxHeader, start_ticks))?,
            pid_namespace: u64_at(offset_of!(BoxHeader, pid_namespace))?,
        })
    };
    let cpus = len.wrapping_sub(Layout::new(0).bytes as u64) / Layout::COUNTERS as u64;
    match u64_at(0) {
        Some(MAGIC) => File::Replace { unless_alive: owner() },
        // A box whose contents the system did not write before it went down.
        Some(0) if u32::try_from(cpus).is_ok_and(|n| Layout::new(n).bytes as u64 == len) => {
            File::Replace { unless_alive: None }
        }
        None if len == 0 => File::Replace { unless_alive: None },
        _ => File::Keep,
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

    /// Makes the file, with counters for `cpus` CPUs.
    ///
    /// # Errors
    /// The reason why the file cannot be made, as text for a diagnostic.
    pub fn start(
        &self,
        platform: &impl Platform,
        path: &[u8],
        cpus: u32,
    ) -> Result<(), &'static str> {
        let layout = Layout::new(cpus);
        let mut exe = [0; BOX_EXE];
        let exe_len = platform.executable(&mut exe).min(BOX_EXE) as u32;
        let owner = platform.owner();
        let header = BoxHeader {
            magic: AtomicU64::new(MAGIC),
            version: VERSION,
            size: size_of::<BoxHeader>() as u32,
            pid: owner.pid,
            site_capacity: BOX_SITES,
            site_size: size_of::<BoxSite>() as u32,
            cpus,
            start_ticks: owner.start_ticks,
            pid_namespace: owner.pid_namespace,
            sites: layout.sites as u64,
            records: layout.records.map(|at| at as u64),
            record_size: RECORD_SIZE as u64,
            groups: layout.groups.map(|at| at as u64),
            counters: layout.counters as u64,
            started_ns: platform.wall_ns(),
            site_count: AtomicU32::new(BOX_SITES),
            written: AtomicU32::new(0),
            exe_len,
            group_capacity: BOX_GROUPS,
            group_size: size_of::<BoxGroup>() as u32,
            reserved: 0,
            exe,
        };
        // SAFETY: the header has no padding: its words are at multiples of their sizes.
        let head = unsafe {
            core::slice::from_raw_parts((&raw const header).cast::<u8>(), size_of::<BoxHeader>())
        };
        let base = platform.map_file(path, layout.bytes, head, older)?;
        self.cpus.store(cpus, Ordering::Relaxed);
        // INVARIANT: the file has the layout for that number of CPUs.
        self.base.store(base.as_ptr() as usize, Ordering::Release);
        Ok(())
    }

    /// In a forked child: leaves the file to the parent.
    pub fn leave(&self) {
        self.base.store(0, Ordering::Relaxed);
    }

    /// Address of the file; `None` if there is no box.
    fn base(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.base.load(Ordering::Acquire) as *mut u8)
    }

    /// Returns whether there is a box.
    pub fn is_there(&self) -> bool {
        self.base().is_some()
    }

    /// Writes the site of a tag to the box, once.
    pub fn note_site(&self, sites: &Sites, tag: TagId) {
        let Some(base) = self.base() else { return };
        if tag.0 >= BOX_SITES {
            return;
        }
        let at = Layout::new(0).sites + tag.0 as usize * size_of::<BoxSite>();
        // SAFETY: the box has a place for each tag below `BOX_SITES`.
        let site = unsafe { base.add(at).cast::<BoxSite>() };
        // SAFETY: a place of the box; the word is atomic.
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
        // SAFETY: a place of the box. Two threads that write it concurrently write the same.
        unsafe { site.write(whole) };
        kind.store(is, Ordering::Release);
    }

    /// Counts a call for a tag, and its bytes, if the box has counters.
    pub fn count(&self, cpu: Option<CpuId>, tag: TagId, bytes: u64, call: Call) {
        let Some(base) = self.base() else { return };
        let cpus = self.cpus.load(Ordering::Relaxed);
        if cpus == 0 {
            return;
        }
        // The CPU's number only spreads the writers: readers sum over CPUs.
        let cpu = cpu.map_or(0, |cpu| cpu.0) % cpus;
        let tag = if tag.0 < BOX_SITES { tag.0 } else { kmem_layout::word::TAG_OTHER };
        let at = (cpu as usize * BOX_SITES as usize + tag as usize) * size_of::<Counter>();
        // SAFETY: the box has a counter for each CPU below `cpus` and each tag below `BOX_SITES`.
        let counter = unsafe { base.add(Layout::new(0).counters + at).cast::<Counter>().as_ref() };
        let (calls, sum) = match call {
            Call::Alloc => (&counter.calls, &counter.bytes),
            Call::Free => (&counter.frees, &counter.freed),
        };
        calls.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns whether `used` pages are a new peak, for which a record is due.
    pub fn is_peak(&self, used: u32) -> bool {
        let before = self.used_pages.load(Ordering::Relaxed);
        self.is_there() && super::is_higher(used.into(), before, STEP)
    }

    /// Begins a record. `groups` are the entries in use, by id. `None`: there is no box, or another
    /// thread writes a record.
    pub fn begin<'a>(&'a self, groups: &'a [GroupBlock]) -> Option<Recording<'a>> {
        let base = self.base()?;
        if self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: the file begins with its header.
        let written = unsafe { &(*base.cast::<BoxHeader>().as_ptr()).written };
        let number = written.load(Ordering::Relaxed) + 1;
        let (layout, turn) = (Layout::new(0), (number - 1) as usize % 2);
        // SAFETY: one of the file's two records, to which only the thread that set `busy` writes.
        let record = unsafe { base.add(layout.records[turn]).cast::<BoxRecord>().as_mut() };
        record.number.store(0, Ordering::Relaxed);
        // A reader that sees a write below must also see that the record has no number.
        fence(Ordering::Release);
        // SAFETY: the groups of that record, to which only the thread that set `busy` writes.
        let room = unsafe { base.add(layout.groups[turn]).cast().as_mut() };
        record.groups_beyond = groups.len().saturating_sub(BOX_GROUPS as usize) as u32;
        let groups = GroupPart::new(room, groups);
        Some(Recording { black_box: self, written, number, record, groups })
    }
}

/// A record that is being written, while a census runs. The other record is complete.
pub struct Recording<'a> {
    black_box: &'a BlackBox,
    written: &'a AtomicU32,
    number: u32,
    record: &'a mut BoxRecord,
    groups: GroupPart<'a>,
}

impl Recording<'_> {
    /// Adds allocations to the sums of their group.
    pub fn add(&mut self, held: &Held, kind: Kind) {
        self.groups.add(held, kind);
    }

    /// Completes the record with the sums of `tally`; `used` is the number of pages in use.
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
        // SAFETY: rows and mappings follow the record in the file, and this thread alone writes to
        // them.
        let (table, maps) = unsafe {
            let table = NonNull::from(&mut *record).add(1);
            let maps = table.cast::<u8>().add(BOX_ROWS * size_of::<BoxRow>());
            (core::slice::from_raw_parts_mut(table.cast::<BoxRow>().as_ptr(), BOX_ROWS), maps)
        };
        // Stacks may be small: sort the tags in the room for the mappings, which are written later.
        // SAFETY: that room is larger, aligned, and not used yet.
        let tags =
            unsafe { core::slice::from_raw_parts_mut(maps.cast::<TagId>().as_ptr(), BOX_ROWS) };
        let rows = tally.largest(tags);
        for (row, &tag) in table.iter_mut().zip(&tags[..rows]) {
            let (bytes, calls) = tally.get(tag);
            *row = BoxRow { tag: tag.0, reserved: 0, bytes, calls };
            black_box.note_site(sites, tag);
        }
        // SAFETY: the room for mappings follows the rows; `tags` is used no longer.
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

/// Copies names as far as there is room. Of a file's name the end is kept: it is cut in front.
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
