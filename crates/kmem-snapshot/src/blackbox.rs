//! The black box of a process: the file that the process kept while it ran
//! (`KMEM_CONF=blackbox:PATH`). It can be read while the process runs and after it has ended.
//!
//! ```text
//! header     BoxHeader: identity of the process, places of the parts
//! record     the newest whole BoxRecord: rows, text of the mappings
//! groups     the BoxGroup[] of that record: memory charged to each group
//! site       BoxSite[]: meaning of the tags
//! counters   Counter[][]: allocations and frees since the start, with `cumulative:1`
//! ```
//!
//! Layout: [`kmem_layout::blackbox`]. The reader trusts nothing in the file: it compares offsets,
//! counts and lengths with each other and with the file's length.

mod counters;
mod groups;
mod header;
mod record;
mod site;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

pub use counters::Counts;
pub use record::{Moment, Reason};

use kmem_layout::word::TAG_OTHER;

use crate::books::{Accounting, Books, Groups, Profiling, SiteRow, Snapshot};
use crate::budget::Budget;
use crate::error::ReadError;
use crate::process::{Maps, PAGE, open_regular};
use header::Header;
use record::Record;

/// A black box, opened.
#[derive(Debug)]
pub struct BlackBox {
    file: File,
    path: String,
    len: u64,
    header: Header,
    record: Option<Record>,
    remarks: Vec<String>,
    budget: Budget,
}

impl BlackBox {
    /// Opens a black box and reads its newest whole record, if it has one.
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
        let record = record::newest(&file, len, &header, &mut remarks);
        let budget = Budget::default();
        Ok(Self { file, path: path_name, len, header, record, remarks, budget })
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
        self.record.as_ref().map(|record| &record.moment)
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
        let record = self.record.as_ref().ok_or_else(|| {
            self.nothing(
                "no record in it is whole: the process wrote none, or the file was cut off",
            )
        })?;
        let mut rows: Vec<SiteRow> = Vec::new();
        for row in &record.rows {
            rows.push(self.row(row.tag, signed(row.bytes), row.calls));
        }
        let bytes = record.moment.bytes.saturating_sub(record.moment.named_bytes);
        let calls = record.moment.calls.saturating_sub(record.named_calls);
        if bytes != 0 || calls != 0 {
            rows.push(self.row(TAG_OTHER, signed(bytes), calls));
        }
        Ok(self.snapshot_of(rows, &record.moment))
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
        Ok((self.snapshot_of(rows, &moment), counts))
    }

    fn nothing(&self, what: &str) -> ReadError {
        ReadError::NothingRecorded { path: self.path.clone(), what: what.to_owned() }
    }

    fn row(&self, tag: u32, bytes: i64, calls: u64) -> SiteRow {
        let key = site::read(&self.file, self.len, &self.header, tag).unwrap_or_default();
        SiteRow { tag, key, bytes, calls }
    }

    fn snapshot_of(&self, rows: Vec<SiteRow>, moment: &Moment) -> Snapshot {
        let exe = self.header.exe.clone();
        let comm = exe.rsplit('/').next().unwrap_or_default().to_owned();
        let accounting = Accounting { tracked: moment.bytes, ..Accounting::default() };
        let books = Books {
            profiling: Profiling::On,
            used_pages: moment.used / PAGE,
            rows,
            accounting,
            groups: self
                .record
                .as_ref()
                .map_or_else(Groups::default, |record| record.groups.clone()),
            ..Books::default()
        };
        let maps = self.record.as_ref().map_or_else(Maps::default, |r| Maps::parse(&r.maps));
        let (pid, books) = (self.header.pid, vec![books]);
        let budget = self.budget.clone();
        Snapshot { pid, exe, comm, maps, books, accounting, budget, ..Snapshot::default() }
    }
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
