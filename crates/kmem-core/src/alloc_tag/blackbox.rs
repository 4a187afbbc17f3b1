//! Writing the black box; its layout is in [`kmem_layout::blackbox`].
//!
//! Records and sites are put together in memory. The platform copies them into the file, which is
//! sparse, and they survive the process. A copy fails where the file was cut off or the disk is
//! full. Then the older record is still whole. Only counters are in a mapping of the file: a copy
//! for each call would cost a system call.

mod files;
mod groups;
mod mappings;
mod misuse;
mod recording;
mod refusals;
mod site;

use super::watch::Call;
use crate::codetag::Sites;
use crate::conf::MAX_PATH;
use crate::os::{File, Owner, Platform, Shape, SharedFile};
use crate::page::LOOK_EVERY;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use crate::units::{CpuId, TagId};
use core::mem::offset_of;
use core::ptr::NonNull;
use groups::GroupPart;
use kmem_layout::blackbox::{
    BOX_EXE, BOX_FILES, BOX_GROUPS, BOX_PAGE, BOX_RECORDS, BOX_REFUSALS, BoxFile, BoxGroup,
    BoxHeader, BoxMisuse, BoxRecord, BoxRefusal, BoxSite, Counter, FORK_RECORD, LAST_RECORDS,
    MAGIC, MAPPED_PART, MAPPINGS_AT, MAPS_AT, PEAK_PART, PEAK_RECORDS, RECORD_SIZE, VERSION,
    reason,
};
use kmem_layout::group::GroupBlock;
pub use mappings::Change;
use mappings::Outside;
use recording::Lens;
pub use recording::Recording;
use refusals::Refusals;
use site::write_site;

/// Number of sites that the box has room for. Others count as the last reserved tag.
const BOX_SITES: u32 = 1 << 14;
/// Age of the last record in milliseconds from which an allocation makes the next one.
const MAX_AGE_MS: u64 = 500;
/// Records for their age take at most one in this many parts of the time.
const SHARE: u64 = 20;
/// Name of a box in the directory of `boxes`. The time tells processes of one number apart, such as
/// those of two namespaces, and the programs that one process becomes by `exec`.
const IN_DIRECTORY: &[u8] = b"/%p-%n.box";
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
    /// Number of records written for reasons other than a peak.
    turn: AtomicU32,
    /// Bytes in each of the records of peaks: live, and resident of those that the program mapped.
    peaks: [AtomicU64; 2],
    /// Pages in use at the last record for a peak, with those that the program mapped.
    used_pages: AtomicU64,
    /// Memory that the program mapped.
    outside: Outside,
    /// Pages in use that the process inherited from its parent.
    inherited_pages: AtomicU64,
    /// Counter of the platform at the last look at the clock.
    looked: AtomicU64,
    /// Time from which an allocation makes a record, in milliseconds of the platform's clock.
    due_ms: AtomicU64,
    /// Return address of the call that allocated the memory that was misused.
    misused: AtomicU64,
    refusals: Refusals,
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
    /// The files whose first pages are in the box.
    const FILES: usize = Self::NOTED + BOX_SITES as usize / 8;
    /// Length.
    const BYTES: usize = (Self::FILES + BOX_FILES * size_of::<BoxFile>()).next_multiple_of(PAGE);
}

/// The file without counters. Its parts are where they are in a file with counters.
const FILE: Layout = Layout::new(0);
/// Length of the number of a record, with which the record begins.
const NUMBER: usize = size_of::<u64>();
/// Length of the kind of a site, with which the site begins.
const KIND: usize = size_of::<u32>();
const _: () = assert!(offset_of!(BoxRecord, number) == 0 && offset_of!(BoxSite, kind) == 0);
const _: () = assert!(FILE.counters.is_multiple_of(PAGE), "the counters are mapped apart");

/// Offsets of the parts of the file, and its length, in bytes.
struct Layout {
    sites: usize,
    records: [usize; BOX_RECORDS],
    groups: [usize; BOX_RECORDS],
    files: usize,
    counters: usize,
    bytes: usize,
}

impl Layout {
    /// Bytes of the files.
    const FILES: usize = BoxHeader::file_entries(BOX_FILES as u32) + BOX_FILES * BOX_PAGE;
    /// Bytes of the counters of one CPU.
    const COUNTERS: usize = BOX_SITES as usize * size_of::<Counter>();

    const fn new(cpus: u32) -> Self {
        let sites = size_of::<BoxHeader>().next_multiple_of(PAGE);
        let record = sites + (BOX_SITES as usize * size_of::<BoxSite>()).next_multiple_of(PAGE);
        let group = record + BOX_RECORDS * RECORD_SIZE;
        let all = (BOX_GROUPS as usize * size_of::<BoxGroup>()).next_multiple_of(PAGE);
        let files = group + BOX_RECORDS * all;
        let counters = files + Self::FILES;
        let mut layout = Self {
            sites,
            records: [0; BOX_RECORDS],
            groups: [0; BOX_RECORDS],
            files,
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
            turn: AtomicU32::new(0),
            peaks: [AtomicU64::new(0), AtomicU64::new(0)],
            used_pages: AtomicU64::new(0),
            outside: Outside::new(),
            inherited_pages: AtomicU64::new(0),
            looked: AtomicU64::new(0),
            due_ms: AtomicU64::new(0),
            misused: AtomicU64::new(0),
            refusals: Refusals::new(),
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
            refusals: [BoxRefusal::default(); BOX_REFUSALS],
            misuse: BoxMisuse::default(),
            files: layout.files as u64,
            file_capacity: BOX_FILES as u32,
            reserved_too: 0,
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
        self.turn.store(0, Ordering::Relaxed);
        self.peaks.iter().for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        self.used_pages.store(0, Ordering::Relaxed);
        self.outside.forget();
        self.refusals.forget();
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

    /// Returns whether `used` pages of the heap, and the pages that the program mapped, are a new
    /// peak, for which a record is due.
    pub fn is_peak(&self, used: u32) -> bool {
        self.is_peak_by(u64::from(used) + self.outside.pages(), PEAK_PART)
    }

    /// [`Self::is_peak`] of `used` pages, where a peak exceeds the last one by one in `step` pages.
    /// Objects that fill free places of slabs take no pages. So the step is less than the 5 % by
    /// which what is live may exceed the record.
    fn is_peak_by(&self, used: u64, step: u64) -> bool {
        // The step is a part of the process's own memory. A child of a large parent would have no
        // record of a peak otherwise.
        let inherited = self.inherited_pages.load(Ordering::Relaxed);
        let own = |pages: u64| pages.saturating_sub(inherited);
        let before = self.used_pages.load(Ordering::Relaxed);
        self.is_there() && super::is_higher(own(used), own(before), step)
    }

    /// Notes that the program maps or unmaps memory. Returns whether that is enough to ask how
    /// much of it is in memory.
    #[inline]
    pub fn is_moved(&self, change: Change) -> bool {
        (self.is_there() || self.is_left()) && self.outside.is_moved(change)
    }

    /// Returns whether the memory that the program mapped is a new peak, together with `used` pages
    /// of the heap. Asks how much of it is in memory, if it can be one, and if the last question is
    /// long enough ago.
    pub fn is_mapped_peak(&self, platform: &impl Platform, used: u32, change: Change) -> bool {
        let step = if change.is_loss { PEAK_PART } else { MAPPED_PART };
        self.is_peak_by(u64::from(used).saturating_add(change.total / PAGE as u64), step)
            && self.outside.estimate(platform, used, change.total)
            && self.is_peak_by(u64::from(used) + self.outside.pages(), step)
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

    /// Writes the record in `staging` into the file. Of the two records of peaks it takes the place
    /// of the lower one, of two others that of the older one. `bytes` is the height of a peak.
    fn write_record(
        &self,
        platform: &impl Platform,
        staging: NonNull<u8>,
        reason: u32,
        bytes: u64,
        lens: &Lens,
    ) -> bool {
        let number = self.written.load(Ordering::Relaxed) + 1;
        let [first, second] = &self.peaks;
        let lower = first.load(Ordering::Relaxed) > second.load(Ordering::Relaxed);
        let turn = self.turn.load(Ordering::Relaxed);
        let place = match reason {
            reason::PEAK => PEAK_RECORDS[usize::from(lower)],
            reason::FORK => FORK_RECORD,
            _ => LAST_RECORDS[turn as usize % 2],
        };
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
            && copy(record + MAPPINGS_AT, Staging::RECORD + MAPPINGS_AT, lens.mappings)
            && copy(record + MAPS_AT, Staging::RECORD + MAPS_AT, lens.maps)
            && copy(groups, Staging::GROUPS, lens.groups)
            && write_number(number)
            && self.write(platform, offset_of!(BoxHeader, written), &number.to_le_bytes());
        if done {
            self.written.store(number, Ordering::Relaxed);
            match reason {
                reason::PEAK => self.peaks[usize::from(lower)].store(bytes, Ordering::Relaxed),
                reason::FORK => {}
                _ => self.turn.store(turn.wrapping_add(1), Ordering::Relaxed),
            }
        } else if reason == reason::PEAK {
            self.peaks[usize::from(lower)].store(0, Ordering::Relaxed);
        }
        done
    }
}

impl Default for BlackBox {
    fn default() -> Self {
        Self::new()
    }
}
