//! The black box of a process: the file that the process kept while it ran
//! (`KMEM_CONF=blackbox:PATH`). It can be read while the process runs and after it has ended.
//!
//! ```text
//! header     BoxHeader: identity of the process, places of the parts
//! record     the whole BoxRecords: rows, mappings of the program, text of all mappings
//! groups     the BoxGroup[] of a record: memory charged to each group
//! site       BoxSite[]: meaning of the tags
//! files      first pages of the files that had code
//! counters   Counter[][]: allocations and frees since the start, with `cumulative:1`
//! ```
//!
//! Layout: [`kmem_layout::blackbox`]. The reader trusts nothing in the file: it compares offsets,
//! counts and lengths with each other and with the file's length.

mod counters;
mod files;
mod groups;
mod header;
mod live;
#[allow(clippy::indexing_slicing, reason = "by numbers of the slots of a header")]
mod record;
mod site;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

pub use counters::Counts;
pub use live::LiveBox;
pub use record::{Moment, Reason};

use kmem_layout::blackbox::{BoxMisuse, BoxRefusal};
use kmem_layout::mapping::FIRST_ADDRESS;
use kmem_layout::word::TAG_OTHER;

use crate::books::{
    Accounting, Books, Groups, Key, MappingOwner, MappingRow, Mappings, Parts, Profiling, SiteRow,
    Snapshot,
};
use crate::budget::Budget;
use crate::error::ReadError;
use crate::maps::{Maps, PAGE};
use crate::process::open_regular;
pub(crate) use files::FirstPages;
use header::Header;
use record::{Mapped, Record, Records, Row};

/// A black box, opened.
#[derive(Debug)]
pub struct BlackBox {
    file: File,
    path: String,
    len: u64,
    header: Header,
    records: Option<Records>,
    remarks: Vec<String>,
    budget: Budget,
}

impl BlackBox {
    /// Opens a black box and reads its whole records, if it has any.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when it cannot be opened; [`ReadError::BadFile`] when it is no black
    /// box, or its header contradicts itself.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let path_name = path.to_string_lossy().into_owned();
        let (file, metadata) = open_regular(path, 0)
            .map_err(|source| ReadError::File { path: path_name.clone(), source })?;
        let len = metadata.len();
        let bad = |what| ReadError::BadFile { path: path_name.clone(), what };
        let header = Header::read(&file, len).map_err(bad)?;
        let mut remarks = Vec::new();
        let records = record::read_all(&file, len, &header, &mut remarks);
        let budget = Budget::default();
        Ok(Self { file, path: path_name, len, header, records, remarks, budget })
    }

    /// This box, with the record of the peak in the place of the newest one.
    #[must_use]
    pub fn turned_to_peak(mut self) -> Self {
        self.records = self.records.map(Records::turned_to_peak);
        self
    }

    /// Pid of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    /// Path of its executable.
    #[must_use]
    pub fn exe(&self) -> &str {
        &self.header.exe
    }

    /// Start of the process, in nanoseconds since 1970.
    #[must_use]
    pub fn started_ns(&self) -> u64 {
        self.header.started_ns
    }

    /// Moment of the newest whole record.
    #[must_use]
    pub fn moment(&self) -> Option<&Moment> {
        self.records.as_ref().map(|records| &records.newest().moment)
    }

    /// Moment of the whole record with most live bytes and memory mapped by the program.
    #[must_use]
    pub fn peak(&self) -> Option<&Moment> {
        self.records.as_ref().map(|records| &records.peak().moment)
    }

    /// Start of a forked child, with what it inherited. None for a program of its own.
    #[must_use]
    pub fn inherited(&self) -> Option<&Moment> {
        Some(&self.records.as_ref()?.inherited()?.moment)
    }

    /// The books of the newest record, without what the process inherited when it was forked. None
    /// when no record is whole.
    #[must_use]
    pub fn own(&self) -> Option<Snapshot> {
        self.records.as_ref().map(|records| self.own_of(records, records.newest()))
    }

    /// The books of the record of [`Self::peak`], without what the process inherited when it
    /// was forked. None when no record is whole.
    #[must_use]
    pub fn own_at_peak(&self) -> Option<Snapshot> {
        self.records.as_ref().map(|records| self.own_of(records, records.peak()))
    }

    /// Takes out of a snapshot of the running process what it inherited when it was forked.
    pub fn take_inherited_out(&self, snapshot: &mut Snapshot) {
        let Some(inherited) = self.records.as_ref().and_then(Records::inherited) else { return };
        let before: BTreeMap<u32, &Row> = inherited.rows.iter().map(|r| (r.tag, r)).collect();
        for books in &mut snapshot.books {
            books.used_pages = books.used_pages.saturating_sub(inherited.moment.used / PAGE);
            for row in &mut books.rows {
                if let Some(before) = before.get(&row.tag) {
                    row.bytes = row.bytes.saturating_sub(signed(before.bytes)).max(0);
                    row.calls = row.calls.saturating_sub(before.calls);
                }
            }
            books.rows.retain(|row| row.bytes != 0 || row.calls != 0);
        }
        let before = by_site(inherited);
        if let Some(mappings) = &mut snapshot.mappings {
            for row in &mut mappings.rows {
                if let Some(before) = row.owner.site().and_then(|site| before.get(&site)) {
                    take_out(row, before);
                }
            }
        }
    }

    /// The books of `record` without the memory that was inherited, site by site. A site that has
    /// freed inherited memory meanwhile holds that much more of its own than is shown.
    fn own_of(&self, records: &Records, record: &Record) -> Snapshot {
        let Some(inherited) = records.inherited() else { return self.snapshot_of_record(record) };
        let before: BTreeMap<u32, &Row> = inherited.rows.iter().map(|r| (r.tag, r)).collect();
        let mut rows = record.rows.clone();
        for row in &mut rows {
            if let Some(before) = before.get(&row.tag) {
                row.bytes = row.bytes.saturating_sub(before.bytes);
                row.calls = row.calls.saturating_sub(before.calls);
            }
        }
        rows.retain(|row| row.bytes != 0 || row.calls != 0);
        let rest = |record: &Record| {
            let bytes = record.moment.bytes.saturating_sub(record.moment.named_bytes);
            (bytes, record.moment.calls.saturating_sub(record.named_calls))
        };
        let (now, before) = (rest(record), rest(inherited));
        let rest = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        let used = record.moment.used.saturating_sub(inherited.moment.used);
        let bytes = rows.iter().fold(rest.0, |sum, row| sum.saturating_add(row.bytes));
        let moment = Moment { bytes, used, ..record.moment.clone() };
        let mappings = self.mappings_of(record, Some(inherited));
        self.snapshot_of(self.rows(&rows, rest), &moment, Some(mappings))
    }

    fn snapshot_of_record(&self, record: &Record) -> Snapshot {
        let bytes = record.moment.bytes.saturating_sub(record.moment.named_bytes);
        let calls = record.moment.calls.saturating_sub(record.named_calls);
        let mappings = self.mappings_of(record, None);
        self.snapshot_of(self.rows(&record.rows, (bytes, calls)), &record.moment, Some(mappings))
    }

    /// Memory that the program itself had mapped, by call, without what was inherited.
    fn mappings_of(&self, record: &Record, inherited: Option<&Record>) -> Mappings {
        let before = inherited.map(by_site).unwrap_or_default();
        let mut rows: Vec<MappingRow> = Vec::new();
        for one in &record.mappings {
            let (owner, key) = match u32::try_from(one.site) {
                Ok(tag) if one.site < FIRST_ADDRESS => (MappingOwner::Tag(tag), self.key(tag)),
                _ => (MappingOwner::Address(one.site), Key::Caller(one.site)),
            };
            let Mapped { mapped, resident, ranges: count, .. } = *one;
            let mut row = MappingRow { owner, key, mapped, resident, count };
            if let Some(before) = before.get(&one.site) {
                take_out(&mut row, before);
            }
            rows.push(row);
        }
        // The sums of a record are of all calls, and its rows are not.
        let rest = |record: &Record| {
            let sum = |of: fn(&Mapped) -> u64| {
                record.mappings.iter().map(of).fold(0, u64::saturating_add)
            };
            let Moment { mapped, mapped_resident, .. } = record.moment;
            (
                mapped.saturating_sub(sum(|one| one.mapped)),
                mapped_resident.saturating_sub(sum(|one| one.resident)),
            )
        };
        let (now, before) = (rest(record), inherited.map_or((0, 0), rest));
        let (mapped, resident) = (now.0.saturating_sub(before.0), now.1.saturating_sub(before.1));
        let (owner, key) = (MappingOwner::Anonymous, Key::None);
        rows.push(MappingRow { owner, key, mapped, resident: resident.min(mapped), count: 1 });
        rows.retain(|row| row.mapped != 0);
        let mappings = rows.iter().map(|row| row.resident).fold(0, u64::saturating_add);
        let parts = Parts { mappings, ..Parts::default() };
        Mappings { rows, parts, lost: record.mappings_lost, faults: Vec::new() }
    }

    /// Rows of a record, and one for the `rest` of its bytes and objects.
    fn rows(&self, rows: &[Row], rest: (u64, u64)) -> Vec<SiteRow> {
        let row = |row: &Row| self.row(row.tag, signed(row.bytes), row.calls);
        let mut rows: Vec<SiteRow> = rows.iter().map(row).collect();
        if rest != (0, 0) {
            rows.push(self.row(TAG_OTHER, signed(rest.0), rest.1));
        }
        rows
    }

    /// The first call sites whose requests were refused.
    #[must_use]
    pub fn refusals(&self) -> Vec<Refusal> {
        let groups = self.records.as_ref().map(|records| &records.newest().groups);
        let refusal = |of: &BoxRefusal| Refusal {
            row: self.row(of.tag, signed(of.bytes), of.count),
            bytes: of.bytes,
            at_max: (of.group != 0)
                .then(|| groups.map_or_else(|| "/".to_owned(), |all| all.path_of(of.group))),
        };
        self.header.refusals.iter().map(refusal).collect()
    }

    /// The call that misused memory, for which kmem ended the process.
    #[must_use]
    pub fn misuse(&self) -> Option<Misuse> {
        let BoxMisuse { tag, is_here } = self.header.misuse?;
        Some(Misuse { row: self.row(tag, 0, 1), is_here: is_here != 0 })
    }

    /// First pages of the files that had code.
    pub(crate) fn first_pages(&self) -> FirstPages<'_> {
        FirstPages::read(&self.file, &self.header)
    }

    /// Sentences about damage to the file, the rest of which can be read.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Live bytes in the rows of the record, and live bytes altogether.
    #[must_use]
    pub fn named(&self) -> Option<(u64, u64)> {
        self.moment().map(|moment| (moment.named_bytes, moment.bytes))
    }

    /// The books of the newest record. The tag of other sites holds all that its rows do not, so
    /// that rows add up to the record's sums.
    ///
    /// # Errors
    ///
    /// [`ReadError::NothingRecorded`] when no record is whole.
    pub fn snapshot(&self) -> Result<Snapshot, ReadError> {
        let records = self.records.as_ref().ok_or_else(|| {
            self.nothing(
                "no record in it is whole: the process wrote none, or the file was cut off. Run it \
                 again: the first record comes with 256 KiB of allocations, or at the exit",
            )
        })?;
        Ok(self.snapshot_of_record(records.newest()))
    }

    /// Allocations and frees since the process started, by tag; and the books that follow from
    /// them: all that was allocated and not freed.
    ///
    /// # Errors
    ///
    /// [`ReadError::NothingRecorded`] when the process kept no counters; [`ReadError::BadFile`]
    /// when the file ends before they do.
    pub fn counters(&self) -> Result<(Snapshot, BTreeMap<u32, Counts>), ReadError> {
        if self.header.cpus == 0 {
            let what = "it has no counters: the process ran without KMEM_CONF=cumulative:1";
            return Err(self.nothing(what));
        }
        let counts = counters::read(&self.file, self.len, &self.header, &self.budget)
            .map_err(|what| ReadError::BadFile { path: self.path.clone(), what })?;
        let rows = counts.iter().map(|(&tag, counts)| {
            let (bytes, calls) = counts.live();
            self.row(tag, bytes, calls)
        });
        let rows: Vec<SiteRow> = rows.collect();
        let sum = |of: fn(&Counts) -> u64| {
            counts.values().fold(0_u64, |sum, counts| sum.saturating_add(of(counts)))
        };
        let moment = Moment {
            bytes: sum(|c| c.allocated_bytes).saturating_sub(sum(|c| c.freed_bytes)),
            calls: sum(|c| c.allocations).saturating_sub(sum(|c| c.frees)),
            ..Moment::default()
        };
        Ok((self.snapshot_of(rows, &moment, None), counts))
    }

    fn nothing(&self, what: &str) -> ReadError {
        ReadError::NothingRecorded { path: self.path.clone(), what: what.to_owned() }
    }

    fn row(&self, tag: u32, bytes: i64, calls: u64) -> SiteRow {
        SiteRow { tag, key: self.key(tag), bytes, calls }
    }

    fn key(&self, tag: u32) -> Key {
        site::read(&self.file, self.len, &self.header, tag).unwrap_or_default()
    }

    fn snapshot_of(
        &self,
        rows: Vec<SiteRow>,
        moment: &Moment,
        mappings: Option<Mappings>,
    ) -> Snapshot {
        let record = self.records.as_ref().map(Records::newest);
        let exe = self.header.exe.clone();
        let comm = exe.rsplit('/').next().unwrap_or_default().to_owned();
        let accounting = Accounting { tracked: moment.bytes, ..Accounting::default() };
        let books = Books {
            profiling: Profiling::On,
            used_pages: moment.used / PAGE,
            rows,
            accounting,
            groups: record.map_or_else(Groups::default, |record| record.groups.clone()),
            ..Books::default()
        };
        let maps = record.map_or_else(Maps::default, |record| Maps::parse(&record.maps));
        let (pid, books) = (self.header.pid, vec![books]);
        let budget = self.budget.clone();
        let faults = Vec::new();
        Snapshot { pid, exe, comm, time_ns: 0, maps, books, faults, mappings, accounting, budget }
    }
}

/// Rows of mapped memory of a record, by call.
fn by_site(record: &Record) -> BTreeMap<u64, Mapped> {
    record.mappings.iter().map(|one| (one.site, *one)).collect()
}

/// Takes memory that was inherited out of the row of a call.
fn take_out(row: &mut MappingRow, before: &Mapped) {
    row.mapped = row.mapped.saturating_sub(before.mapped);
    row.resident = row.resident.saturating_sub(before.resident).min(row.mapped);
    row.count = row.count.saturating_sub(before.ranges).max(u64::from(row.mapped != 0));
}

/// Requests of one call site that were refused for one reason.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// The call site, with the number of requests. Between two records it is a power of two.
    pub row: SiteRow,
    /// Bytes of the last request.
    pub bytes: u64,
    /// Path of the group that was at its limit; `/`: not known. None: there was no memory.
    pub at_max: Option<String>,
}

/// The call that misused memory, or found that memory was misused.
#[derive(Debug, Clone)]
pub struct Misuse {
    /// The call site, whose chain begins in the allocator.
    pub row: SiteRow,
    /// True: this call is the wrong one. False: an earlier one may be.
    pub is_here: bool,
}

/// The process that a black box is of, and how far the box is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// Pid in the process's own namespace.
    pub pid: u32,
    /// Inode of that namespace, as in `/proc/PID/ns/pid`; 0: not known.
    pub pid_namespace: u64,
    /// Start of the process in clock ticks since boot; 0: not known.
    pub start_ticks: u64,
    /// Path of the executable.
    pub exe: String,
    /// Number of records that the box has had so far.
    pub written: u32,
}

/// Reads the head of the black box at a path. None when it is no black box.
#[must_use]
pub fn head(path: &Path) -> Option<Head> {
    let (file, metadata) = open_regular(path, 0).ok()?;
    let Header { pid, pid_namespace, start_ticks, exe, written, .. } =
        Header::read(&file, metadata.len()).ok()?;
    Some(Head { pid, pid_namespace, start_ticks, exe, written })
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Formats nanoseconds since 1970 as RFC 3339, such as `2001-09-09T01:46:40Z`.
#[must_use]
pub fn time(ns: u64) -> String {
    // 2^64 nanoseconds end in the year 2554, which the format can express.
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(ns)).to_string()
}
