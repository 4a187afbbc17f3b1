//! Writing the black box; its layout is in [`kmem_layout::blackbox`].
//!
//! Records and sites are put together in memory. The platform copies them into the file, which is
//! sparse, and they survive the process. A copy fails where the file was cut off or the disk is
//! full. Then the older record is still whole. Only counters are in a mapping of the file: a copy
//! for each call would cost a system call.

mod groups;

use super::watch::Call;
use super::{Held, Kind, Tally};
use crate::codetag::{Names, Sites};
use crate::conf::MAX_PATH;
use crate::os::{File, Owner, Platform, Shape, SharedFile};
use crate::page::LOOK_EVERY;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{CpuId, TagId};
use core::mem::offset_of;
use core::ptr::NonNull;
use groups::GroupPart;
use kmem_layout::blackbox::{
    BOX_EXE, BOX_GROUPS, BOX_MAPS, BOX_RECORDS, BOX_ROWS, BOX_TEXT, BoxGroup, BoxHeader, BoxRecord,
    BoxRow, BoxSite, Counter, FORK_RECORD, LAST_RECORDS, MAGIC, PEAK_RECORDS, RECORD_SIZE, VERSION,
    reason,
};
use kmem_layout::group::GroupBlock;
use kmem_layout::site::{Text, site_kind};

/// Number of sites that the box has room for. Others count as the last reserved tag.
const BOX_SITES: u32 = 1 << 14;
/// A new peak exceeds the last record by one in this many pages. Objects that fill free places of
/// slabs take no pages. The last record is to have 95 % of what is live all the same.
const STEP: u64 = 32;
/// Age of the last record in milliseconds from which an allocation makes the next one.
const MAX_AGE_MS: u64 = 500;
/// Records for their age take at most one in this many parts of the time.
const SHARE: u64 = 20;
/// Name of a box in the directory of `boxes`.
const IN_DIRECTORY: &[u8] = b"/%p.box";
/// Longest pattern of a path, in bytes.
const PATTERN: usize = MAX_PATH + IN_DIRECTORY.len();
const PAGE: usize = crate::units::PAGE_SIZE;

/// The black box of an instance. Zeroed, there is none.
///
/// # Invariants
/// `staging` is 0 or the address of zeroed memory with the layout of [`Staging`], which is never
/// freed. `counters` is 0 or the address of counters for `cpus` CPUs, which are never unmapped.
pub struct BlackBox {
    file: SharedFile,
    staging: AtomicUsize,
    counters: AtomicUsize,
    /// CPUs that the file has counters for.
    cpus: AtomicU32,
    /// Number of the process that made the file.
    owner: AtomicU32,
    /// 1 while a thread writes a record.
    busy: AtomicU32,
    /// Number of records written.
    written: AtomicU32,
    /// Number of records written for peaks, and for other reasons.
    turns: [AtomicU32; 2],
    /// Pages in use at the last record for a peak.
    used_pages: AtomicU64,
    /// Pages in use that the process inherited from its parent.
    inherited_pages: AtomicU64,
    /// Counter of the platform at the last look at the clock.
    looked: AtomicU64,
    /// Time from which an allocation makes a record, in milliseconds of the platform's clock.
    due_ms: AtomicU64,
    /// Return address of the call that allocated the memory that was misused.
    misused: AtomicU64,
    /// 1 in a forked child that has left its parent's box, and may make its own.
    left: AtomicU32,
    /// Pattern of the path for forked children, and its length in bytes; 0: they have no box.
    pattern: [AtomicU8; PATTERN],
    pattern_len: AtomicU32,
}

/// The file of a box.
#[derive(Clone, Copy)]
pub enum Place<'a> {
    /// This path. A forked child has no box.
    Path(&'a [u8]),
    /// A file named after the process, in this directory. A forked child makes its own.
    In(&'a [u8]),
}

/// Offsets in the memory where the contents of the file are put together, in bytes.
struct Staging;

impl Staging {
    /// A record, its rows and its mappings.
    const RECORD: usize = 0;
    /// The groups of that record.
    const GROUPS: usize = RECORD_SIZE;
    /// A bit for each site that is in the file.
    const NOTED: usize = Self::GROUPS + BOX_GROUPS as usize * size_of::<BoxGroup>();
    /// Length.
    const BYTES: usize = (Self::NOTED + BOX_SITES as usize / 8).next_multiple_of(PAGE);
}

/// The file without counters. Its parts are where they are in a file with counters.
const FILE: Layout = Layout::new(0);
/// Length of the number of a record, with which the record begins.
const NUMBER: usize = size_of::<u64>();
/// Offset of the mappings' text in a record.
const MAPS: usize = size_of::<BoxRecord>() + BOX_ROWS * size_of::<BoxRow>();
/// Length of the kind of a site, with which the site begins.
const KIND: usize = size_of::<u32>();
const _: () = assert!(offset_of!(BoxRecord, number) == 0 && offset_of!(BoxSite, kind) == 0);
const _: () = assert!(FILE.counters.is_multiple_of(PAGE), "the counters are mapped apart");

/// Offsets of the parts of the file, and its length, in bytes.
struct Layout {
    sites: usize,
    records: [usize; BOX_RECORDS],
    groups: [usize; BOX_RECORDS],
    counters: usize,
    bytes: usize,
}

impl Layout {
    /// Bytes of the counters of one CPU.
    const COUNTERS: usize = BOX_SITES as usize * size_of::<Counter>();

    const fn new(cpus: u32) -> Self {
        let sites = size_of::<BoxHeader>().next_multiple_of(PAGE);
        let record = sites + (BOX_SITES as usize * size_of::<BoxSite>()).next_multiple_of(PAGE);
        let group = record + BOX_RECORDS * RECORD_SIZE;
        let all = (BOX_GROUPS as usize * size_of::<BoxGroup>()).next_multiple_of(PAGE);
        let counters = group + BOX_RECORDS * all;
        let mut layout = Self {
            sites,
            records: [0; BOX_RECORDS],
            groups: [0; BOX_RECORDS],
            counters,
            bytes: counters + Self::COUNTERS * cpus as usize,
        };
        let mut n = 0;
        while n < BOX_RECORDS {
            layout.records[n] = record + n * RECORD_SIZE;
            layout.groups[n] = group + n * all;
            n += 1;
        }
        layout
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
            file: SharedFile::new(),
            staging: AtomicUsize::new(0),
            counters: AtomicUsize::new(0),
            cpus: AtomicU32::new(0),
            owner: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            written: AtomicU32::new(0),
            turns: [AtomicU32::new(0), AtomicU32::new(0)],
            used_pages: AtomicU64::new(0),
            inherited_pages: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            due_ms: AtomicU64::new(0),
            misused: AtomicU64::new(0),
            left: AtomicU32::new(0),
            pattern: [const { AtomicU8::new(0) }; PATTERN],
            pattern_len: AtomicU32::new(0),
        }
    }

    /// Makes the file, with counters for `cpus` CPUs.
    ///
    /// # Errors
    /// The reason why the file cannot be made, as text for a diagnostic.
    pub fn start(
        &'static self,
        platform: &impl Platform,
        place: Place<'_>,
        cpus: u32,
    ) -> Result<(), &'static str> {
        let mut room = [0; PATTERN];
        let path = match place {
            Place::Path(path) => path,
            Place::In(directory) => {
                let len = directory.len() + IN_DIRECTORY.len();
                let pattern = room.get_mut(..len).ok_or("the path is too long")?;
                pattern[..directory.len()].copy_from_slice(directory);
                pattern[directory.len()..].copy_from_slice(IN_DIRECTORY);
                pattern
            }
        };
        let of_children = if matches!(place, Place::In(_)) { path } else { &[] };
        self.start_at(platform, path, of_children, cpus)
    }

    /// Makes the file from the pattern `path` of a path. Forked children use the pattern
    /// `of_children`; if that is empty, they have no file.
    fn start_at(
        &'static self,
        platform: &impl Platform,
        path: &[u8],
        of_children: &[u8],
        cpus: u32,
    ) -> Result<(), &'static str> {
        // A sandbox forbids the questions below, too.
        platform.may_make_files()?;
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
        let staging = platform.reserve(Staging::BYTES, PAGE).ok_or("there is no memory")?;
        // SAFETY: a fresh reservation.
        if !unsafe { platform.commit(staging, Staging::BYTES) } {
            return Err("there is no memory");
        }
        for (to, from) in self.pattern.iter().zip(of_children) {
            to.store(*from, Ordering::Relaxed);
        }
        self.pattern_len.store(of_children.len() as u32, Ordering::Relaxed);
        let shape = Shape { bytes: layout.bytes, direct: layout.counters };
        platform.make_file(path, shape, head, older, &self.file)?;
        if !platform.write_file(&self.file, 0, head) {
            return Err("the kernel does not let the process write to it (process_vm_readv)");
        }
        self.busy.store(0, Ordering::Relaxed);
        self.written.store(0, Ordering::Relaxed);
        self.turns.iter().for_each(|turn| turn.store(0, Ordering::Relaxed));
        self.used_pages.store(0, Ordering::Relaxed);
        self.inherited_pages.store(0, Ordering::Relaxed);
        self.due_ms.store(platform.now_ms() + MAX_AGE_MS, Ordering::Relaxed);
        self.cpus.store(cpus, Ordering::Relaxed);
        self.owner.store(owner.pid, Ordering::Relaxed);
        // INVARIANT: the file has counters for that number of CPUs from `direct` on.
        self.counters.store(self.file.direct(), Ordering::Release);
        // INVARIANT: the memory is new, has the layout, and is never freed.
        self.staging.store(staging.as_ptr() as usize, Ordering::Release);
        Ok(())
    }

    /// In a forked child: leaves the file to the parent. See [`Self::start_in_child`].
    pub fn leave(&self) {
        let had_one = self.staging.swap(0, Ordering::Relaxed) != 0;
        if had_one && self.pattern_len.load(Ordering::Relaxed) != 0 {
            self.left.store(1, Ordering::Relaxed);
        }
        self.counters.store(0, Ordering::Relaxed);
    }

    /// Notes the return address of the call that allocated the memory that was misused.
    pub fn note_misused(&self, ret: usize) {
        self.misused.store(ret as u64, Ordering::Relaxed);
    }

    /// Returns whether this is a forked child that has left its parent's box, and has none yet.
    #[inline]
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) != 0
    }

    /// In a forked child without a box: makes one, if the parent's was made in a directory. Returns
    /// whether this call has made it.
    #[cold]
    #[inline(never)]
    pub fn start_in_child(&'static self, platform: &impl Platform) -> bool {
        if self.left.swap(0, Ordering::Relaxed) == 0 {
            return false;
        }
        let mut pattern = [0; PATTERN];
        for (to, from) in pattern.iter_mut().zip(&self.pattern) {
            *to = from.load(Ordering::Relaxed);
        }
        let len = self.pattern_len.load(Ordering::Relaxed) as usize;
        let Some(pattern) = pattern.get(..len) else { return false };
        // A directory may be gone with its reader, or be closed to a child with less rights.
        self.start_at(platform, pattern, pattern, 0).is_ok()
    }

    /// Address of the memory with the layout of [`Staging`]; `None` if there is no box.
    fn staging(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.staging.load(Ordering::Acquire) as *mut u8)
    }

    /// Returns whether there is a box.
    pub fn is_there(&self) -> bool {
        self.staging().is_some()
    }

    /// Writes bytes into the file. The first failure is reported, but not that of a forked child.
    /// It does not have the file, and may go on with a call of its parent.
    fn write(&self, platform: &impl Platform, at: usize, bytes: &[u8]) -> bool {
        let done = platform.write_file(&self.file, at, bytes);
        let is_ours = || self.owner.load(Ordering::Relaxed) == platform.process();
        if !done && is_ours() && self.file.is_first_failure() {
            platform.print(SharedFile::FAILURE);
        }
        done
    }

    /// Writes the site of a tag to the box, once. Not inlined: callers of `malloc` may have little
    /// stack.
    #[inline(never)]
    pub fn note_site(&self, platform: &impl Platform, sites: &Sites, tag: TagId) {
        let Some(staging) = self.staging() else { return };
        if tag.0 >= BOX_SITES {
            return;
        }
        let word = Staging::NOTED + tag.0 as usize / 32 * size_of::<AtomicU32>();
        // SAFETY: there is a bit for each tag below `BOX_SITES`; the word is atomic.
        let noted = unsafe { staging.add(word).cast::<AtomicU32>().as_ref() };
        let bit = 1 << (tag.0 % 32);
        if noted.load(Ordering::Relaxed) & bit != 0 {
            return;
        }
        let mut entry = [0; size_of::<BoxSite>()];
        let Some(kind) = write_site(&mut entry, sites, tag) else { return };
        let at = FILE.sites + tag.0 as usize * size_of::<BoxSite>();
        // The kind comes last. Two threads that write a site concurrently write the same.
        if self.write(platform, at + KIND, &entry[KIND..])
            && self.write(platform, at, &kind.to_le_bytes())
        {
            noted.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Counts a call for a tag, and its bytes, if the box has counters.
    pub fn count(&self, cpu: Option<CpuId>, tag: TagId, bytes: u64, call: Call) {
        let counters = self.counters.load(Ordering::Acquire) as *mut u8;
        let Some(counters) = NonNull::new(counters) else { return };
        let cpus = self.cpus.load(Ordering::Relaxed);
        // The CPU's number only spreads the writers: readers sum over CPUs.
        let cpu = cpu.map_or(0, |cpu| cpu.0) % cpus;
        let tag = if tag.0 < BOX_SITES { tag.0 } else { kmem_layout::word::TAG_OTHER };
        let at = (cpu as usize * BOX_SITES as usize + tag as usize) * size_of::<Counter>();
        // SAFETY: there is a counter for each CPU below `cpus` and each tag below `BOX_SITES`.
        let counter = unsafe { counters.add(at).cast::<Counter>().as_ref() };
        let (calls, sum) = match call {
            Call::Alloc => (&counter.calls, &counter.bytes),
            Call::Free => (&counter.frees, &counter.freed),
        };
        calls.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns whether `used` pages are a new peak, for which a record is due.
    pub fn is_peak(&self, used: u32) -> bool {
        // The step is a part of the process's own memory. A child of a large parent would have no
        // record of a peak otherwise.
        let inherited = self.inherited_pages.load(Ordering::Relaxed);
        let own = |pages: u64| pages.saturating_sub(inherited);
        let before = self.used_pages.load(Ordering::Relaxed);
        self.is_there() && super::is_higher(own(used.into()), own(before), STEP)
    }

    /// Returns whether the last record is older than its bound, so that one is due now that memory
    /// was allocated.
    pub fn is_due(&self, platform: &impl Platform) -> bool {
        if !self.is_there() {
            return false;
        }
        let ticks = platform.ticks();
        if ticks.wrapping_sub(self.looked.load(Ordering::Relaxed)) < LOOK_EVERY {
            return false;
        }
        self.looked.store(ticks, Ordering::Relaxed);
        platform.now_ms() >= self.due_ms.load(Ordering::Relaxed)
    }

    /// Begins a record. `groups` are the entries in use, by id. `None`: there is no box, or another
    /// thread writes a record.
    pub fn begin<'a>(
        &'a self,
        platform: &impl Platform,
        groups: &'a [GroupBlock],
    ) -> Option<Recording<'a>> {
        let staging = self.staging()?;
        if self.busy.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // SAFETY: the place of the record, which only the thread that set `busy` uses.
        let record = unsafe { staging.add(Staging::RECORD).cast::<BoxRecord>().as_mut() };
        // SAFETY: the place of the groups, which only the thread that set `busy` uses.
        let room = unsafe { staging.add(Staging::GROUPS).cast().as_mut() };
        record.groups_beyond = groups.len().saturating_sub(BOX_GROUPS as usize) as u32;
        let groups = GroupPart::new(room, groups);
        Some(Recording { black_box: self, record, groups, began_ms: platform.now_ms() })
    }

    /// Writes the record in `staging` into the file, in the place of the older of the two records
    /// for such a reason.
    fn write_record(
        &self,
        platform: &impl Platform,
        staging: NonNull<u8>,
        reason: u32,
        lens: &Lens,
    ) -> bool {
        let number = self.written.load(Ordering::Relaxed) + 1;
        let (turn, places) = match reason {
            reason::PEAK => (&self.turns[0], PEAK_RECORDS),
            reason::FORK => (&self.turns[1], [FORK_RECORD; 2]),
            _ => (&self.turns[1], LAST_RECORDS),
        };
        let next = turn.load(Ordering::Relaxed);
        let place = places[next as usize % 2];
        let (record, groups) = (FILE.records[place], FILE.groups[place]);
        let write_number =
            |number: u32| self.write(platform, record, &u64::from(number).to_le_bytes());
        let copy = |to: usize, from: usize, len: usize| {
            // SAFETY: a part of the record or of its groups, which only the thread that set `busy`
            // uses. All of it is initialised.
            let bytes = unsafe { core::slice::from_raw_parts(staging.add(from).as_ptr(), len) };
            self.write(platform, to, bytes)
        };
        // A reader that sees a part of the record also sees that it has no number.
        let done = write_number(0)
            && copy(record + NUMBER, Staging::RECORD + NUMBER, lens.rows - NUMBER)
            && copy(record + MAPS, Staging::RECORD + MAPS, lens.maps)
            && copy(groups, Staging::GROUPS, lens.groups)
            && write_number(number)
            && self.write(platform, offset_of!(BoxHeader, written), &number.to_le_bytes());
        if done {
            self.written.store(number, Ordering::Relaxed);
            turn.store(next.wrapping_add(1), Ordering::Relaxed);
        }
        done
    }
}

/// Lengths of the parts of a record that are in use, in bytes.
struct Lens {
    /// The record up to the end of its rows.
    rows: usize,
    maps: usize,
    groups: usize,
}

/// A record that is being put together, while a census runs.
pub struct Recording<'a> {
    black_box: &'a BlackBox,
    record: &'a mut BoxRecord,
    groups: GroupPart<'a>,
    /// Time at which it was begun.
    began_ms: u64,
}

impl Recording<'_> {
    /// Adds allocations to the sums of their group.
    #[inline(always)]
    pub fn add(&mut self, held: &Held, kind: Kind) {
        self.groups.add(held, kind);
    }

    /// Completes the record with the sums of `tally`, and writes it into the file; `used` is the
    /// number of pages in use.
    pub fn finish(
        self,
        platform: &impl Platform,
        reason: u32,
        used: u32,
        tally: &Tally<'_>,
        sites: &Sites,
    ) {
        let Self { black_box, record, groups, began_ms } = self;
        // Peaks have two places of their own, one of which is to have the highest use. So records
        // for other reasons do not delay the next one.
        if matches!(reason, reason::PEAK | reason::FORK) {
            black_box.used_pages.store(used.into(), Ordering::Relaxed);
        }
        if reason == reason::FORK {
            black_box.inherited_pages.store(used.into(), Ordering::Relaxed);
        }
        let staging = NonNull::from(&mut *record).cast::<u8>();
        // SAFETY: rows and mappings follow the record in its place, which this thread alone uses.
        let (table, maps) = unsafe {
            let table = staging.add(size_of::<BoxRecord>()).cast::<BoxRow>();
            (core::slice::from_raw_parts_mut(table.as_ptr(), BOX_ROWS), staging.add(MAPS))
        };
        // Stacks may be small: sort the tags in the room for the mappings, which are written later.
        // SAFETY: that room is larger, aligned, and not used yet.
        let tags =
            unsafe { core::slice::from_raw_parts_mut(maps.cast::<TagId>().as_ptr(), BOX_ROWS) };
        let rows = tally.largest(tags);
        for (row, &tag) in table.iter_mut().zip(&tags[..rows]) {
            let (bytes, calls) = tally.get(tag);
            *row = BoxRow { tag: tag.0, reserved: 0, bytes, calls };
            black_box.note_site(platform, sites, tag);
        }
        // SAFETY: the room for mappings follows the rows; `tags` is used no longer.
        let maps = unsafe { core::slice::from_raw_parts_mut(maps.as_ptr(), BOX_MAPS) };
        let maps_len = platform.mappings(maps);
        record.time_ns = platform.wall_ns();
        record.reason = reason;
        record.rows = rows as u32;
        (record.bytes, record.calls) = tally.total();
        record.used = u64::from(used) * PAGE as u64;
        record.maps_len = maps_len as u64;
        record.groups = groups.finish();
        record.misused = black_box.misused.load(Ordering::Relaxed);
        let lens = Lens {
            rows: size_of::<BoxRecord>() + rows * size_of::<BoxRow>(),
            maps: maps_len,
            groups: record.groups as usize * size_of::<BoxGroup>(),
        };
        if let Some(staging) = black_box.staging() {
            black_box.write_record(platform, staging, reason, &lens);
        }
        let now = platform.now_ms();
        let age = MAX_AGE_MS.max(now.saturating_sub(began_ms).saturating_mul(SHARE));
        black_box.due_ms.store(now + age, Ordering::Relaxed);
        black_box.busy.store(0, Ordering::Release);
    }
}

impl Default for BlackBox {
    fn default() -> Self {
        Self::new()
    }
}

/// Fills in the site of a tag, but for its kind, which it returns. `None`: the tag has no site.
fn write_site(entry: &mut [u8; size_of::<BoxSite>()], sites: &Sites, tag: TagId) -> Option<u32> {
    let frames = sites.frames(tag);
    if let Some(names) = sites.names(tag) {
        write_names(entry, names);
        return Some(site_kind::STATIC);
    }
    let first = frames.first()?;
    put(entry, offset_of!(BoxSite, addr), &first.to_le_bytes());
    if frames.len() == 1 {
        return Some(site_kind::CALLER);
    }
    let mut count = 0u32;
    for frame in frames.iter().take(BOX_TEXT / size_of::<u64>()) {
        let at = offset_of!(BoxSite, text) + count as usize * size_of::<u64>();
        put(entry, at, &frame.to_le_bytes());
        count += 1;
    }
    put(entry, offset_of!(BoxSite, count), &count.to_le_bytes());
    let skip = offset_of!(BoxSite, tag) + offset_of!(Text, line);
    put(entry, skip, &sites.skip(tag).to_le_bytes());
    Some(site_kind::CHAIN)
}

/// Copies names as far as there is room. Of a file's name the end is kept: it is cut in front.
fn write_names(entry: &mut [u8], names: Names<'_>) {
    let module = &names.module[..names.module.len().min(64)];
    let function = &names.function[..names.function.len().min(96)];
    let room = BOX_TEXT - module.len() - function.len();
    let file = &names.file[names.file.len().saturating_sub(room)..];
    let tag = offset_of!(BoxSite, tag);
    put(entry, tag + offset_of!(Text, line), &names.line.to_le_bytes());
    let mut at = offset_of!(BoxSite, text);
    for (name, len) in [
        (module, offset_of!(Text, module_len)),
        (file, offset_of!(Text, file_len)),
        (function, offset_of!(Text, function_len)),
    ] {
        put(entry, tag + len, &(name.len() as u16).to_le_bytes());
        put(entry, at, name);
        at += name.len();
    }
}

fn put(entry: &mut [u8], at: usize, bytes: &[u8]) {
    entry[at..at + bytes.len()].copy_from_slice(bytes);
}
