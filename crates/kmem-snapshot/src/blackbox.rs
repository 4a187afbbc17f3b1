//! The black box of a process: the file that it kept while it ran (`KMEM_CONF=blackbox:PATH`),
//! read after it has ended, or while it goes on.
//!
//! ```text
//! header     BoxHeader: who it was, where the parts are
//! record     the newest whole BoxRecord: rows, mappings' text
//! groups     the BoxGroup[] of that record: who paid
//! site       BoxSite[]: what the tags of the rows stand for
//! counters   Counter[][]: what was allocated and freed since the start, with `cumulative:1`
//! ```
//!
//! The layout is that of [`kmem::blackbox`]. Nothing in the file is trusted: offsets, counts
//! and lengths are checked against each other and against the file's length.

mod counters;
mod groups;
mod header;
mod record;
mod site;

use std::fs::File;
use std::path::Path;

pub use counters::Counts;
pub use record::{Moment, Reason};

use std::collections::BTreeMap;

use kmem::root::TAG_OTHER;

use crate::books::{Accounting, Books, Groups, Key, Profiling, SiteRow, Snapshot};
use crate::core_file::open_regular;
use crate::error::ReadError;
use crate::process::Maps;
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
}

impl BlackBox {
    /// Opens a black box and reads its newest whole record, if there is one.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when it cannot be opened, [`ReadError::BadFile`] when it is no black
    /// box, or one that says impossible things.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let path_name = path.to_string_lossy().into_owned();
        let (file, len) = open_regular(path)
            .map_err(|source| ReadError::File { path: path_name.clone(), source })?;
        let bad = |what| ReadError::BadFile { path: path_name.clone(), what };
        let header = Header::read(&file, len).map_err(bad)?;
        let mut remarks = Vec::new();
        let record = record::newest(&file, len, &header, &mut remarks);
        Ok(Self { file, path: path_name, len, header, record, remarks })
    }

    /// The pid the process had.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.header.pid
    }

    /// Its executable.
    #[must_use]
    pub fn exe(&self) -> &str {
        &self.header.exe
    }

    /// When the process started, in nanoseconds since 1970.
    #[must_use]
    pub fn started_ns(&self) -> u64 {
        self.header.started_ns
    }

    /// Which moment the newest record shows.
    #[must_use]
    pub fn moment(&self) -> Option<&Moment> {
        self.record.as_ref().map(|record| &record.moment)
    }

    /// What is wrong with the file, though the rest of it can be read.
    #[must_use]
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Live bytes that the record's rows name, of those it holds altogether.
    #[must_use]
    pub fn named(&self) -> Option<(u64, u64)> {
        let record = self.record.as_ref()?;
        Some((record.named.0, record.moment.bytes))
    }

    /// The books of the newest record. What its rows do not name is in the row of the tag that
    /// stands for other sites, so that the rows add up to what the record says.
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
        let bytes = record.moment.bytes.saturating_sub(record.named.0);
        let calls = record.moment.calls.saturating_sub(record.named.1);
        if bytes != 0 || calls != 0 {
            rows.push(self.row(TAG_OTHER, signed(bytes), calls));
        }
        Ok(self.snapshot_of(rows, &record.moment))
    }

    /// What was allocated and freed since the process started, by tag, with the books that
    /// follow from it: what was allocated and not freed.
    ///
    /// # Errors
    ///
    /// [`ReadError::NothingRecorded`] when the process kept no counters,
    /// [`ReadError::BadFile`] when they are not where they should be.
    pub fn counters(&self) -> Result<(Snapshot, BTreeMap<u32, Counts>), ReadError> {
        if self.header.cpus == 0 {
            let what = "it has no counters: the process ran without KMEM_CONF=cumulative:1";
            return Err(self.nothing(what));
        }
        let counts = counters::read(&self.file, self.len, &self.header)
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
        let key = site::read(&self.file, self.len, &self.header, tag);
        SiteRow { tag, key: key.unwrap_or(Key::None), bytes, calls }
    }

    fn snapshot_of(&self, rows: Vec<SiteRow>, moment: &Moment) -> Snapshot {
        let exe = self.header.exe.clone();
        let comm = exe.rsplit('/').next().unwrap_or_default().to_owned();
        let accounting = Accounting { tracked: moment.bytes, ..Accounting::default() };
        let books = Books {
            profiling: Profiling::On,
            used_pages: moment.used / 4096,
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
        Snapshot { pid, exe, comm, maps, books, accounting, ..Snapshot::default() }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
