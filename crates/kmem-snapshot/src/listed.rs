//! Rows that others counted and a file lists, without the memory behind them.
//!
//! ```text
//! text     allocinfo text, of a kernel or of `kmem dump`
//! json     JSON of `kmem dump` and `kmem top`
//! log      the list of a kernel's report on lack of memory, out of its log
//! recorded one moment of a recording
//! kind     the kind of a file, by its content
//! limits   the most that a list can make its reader keep
//! ```
//!
//! A list has rows by place alone: no groups, no nodes, no account of the process. Lines of one
//! place are one row, so the sums are those of the file. A line of text names its place by file
//! and line, as a static tag does, so such a row becomes one ([`Origin::Static`]). The names that
//! kmem itself writes become what they stand for: `libx.so+0x1234:0` a call without a source,
//! `kmem:0 func:not_tagged` memory without a tag.

mod json;
mod kind;
mod limits;
mod log;
mod recorded;
mod text;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::Path;

pub(crate) use kind::{Kind, recognise};

use crate::books::Accounting;
use crate::error::ReadError;
use crate::notes::Note;
use crate::recording::At;
use crate::sites::{Origin, Site};
use limits::Limits;

/// The key of a row's place; see [`Origin::key`].
type Key = (bool, String, String, String);

/// Rows of a list, and the process that it names.
#[derive(Debug, Default)]
pub(crate) struct List {
    /// Pid of the process; 0 for none.
    pub(crate) pid: u32,
    /// Executable of the process; empty for none.
    pub(crate) exe: String,
    /// Name of the machine on which the rows were read, where the file tells.
    pub(crate) host: Option<String>,
    /// Time of the rows in nanoseconds since 1970, where the file tells.
    pub(crate) time_ns: Option<u64>,
    /// The equation of the process, where the file tells.
    pub(crate) accounting: Option<Accounting>,
    /// Build ids in hexadecimal digits, by the paths of the files, where the file tells.
    pub(crate) build_ids: BTreeMap<String, String>,
    /// Live objects.
    pub(crate) heap: Rows,
    /// The allocator's own memory.
    pub(crate) metadata: Rows,
    /// Memory outside of the heap.
    pub(crate) mappings: Rows,
    limits: Limits,
}

/// Rows by place, in order of appearance.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    pub(crate) sites: Vec<Site>,
    known: HashMap<Key, usize>,
}

impl Rows {
    /// Adds a row to that of its place.
    fn add(&mut self, site: Site, limits: &mut Limits) -> Result<(), String> {
        limits.parts(&site)?;
        let sum = match self.known.entry(site.origin.key()) {
            Entry::Occupied(at) => {
                self.sites.get_mut(*at.get()).ok_or("a row of a place is not there")?
            }
            Entry::Vacant(at) => {
                limits.row(at.key())?;
                at.insert(self.sites.len());
                self.sites.push(site);
                return Ok(());
            }
        };
        let bytes = sum.bytes.checked_add(site.bytes);
        sum.bytes = bytes.ok_or("the bytes of a row add up to more than a 64-bit number")?;
        // Modulo 2^64, because the kernel writes -1 as 2^64 - 1.
        sum.calls = sum.calls.wrapping_add(site.calls);
        sum.mapped = match (sum.mapped, site.mapped) {
            (Some(a), Some(b)) => Some(a.saturating_add(b)),
            (a, b) => a.or(b),
        };
        sum.accurate &= site.accurate;
        sum.tags.extend(site.tags);
        sum.chains.extend(site.chains);
        Ok(())
    }
}

/// Adds up rows of one place.
pub(crate) fn added_up(sites: impl IntoIterator<Item = Site>) -> Result<Vec<Site>, String> {
    let (mut rows, mut limits) = (Rows::default(), Limits::default());
    sites.into_iter().try_for_each(|site| rows.add(site, &mut limits))?;
    Ok(rows.sites)
}

impl List {
    /// Adds a row to those of its kind.
    fn add(&mut self, site: Site) -> Result<(), String> {
        let rows = if site.mapped.is_some() || matches!(site.origin, Origin::Mapped(_)) {
            &mut self.mappings
        } else if matches!(site.origin, Origin::Metadata(_)) {
            &mut self.metadata
        } else {
            &mut self.heap
        };
        rows.add(site, &mut self.limits)
    }

    /// Count of rows.
    fn len(&self) -> usize {
        self.heap.sites.len() + self.metadata.sites.len() + self.mappings.sites.len()
    }

    /// Reads allocinfo text, JSON or a kernel's log, by its content.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when the file cannot be read, [`ReadError::BadFile`] when it is another
    /// one or damaged.
    pub(crate) fn open(path: &Path, notes: &mut Vec<Note>) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|source| unreadable(path, source))?;
        let source = BufReader::new(file);
        Self::read(source, path, notes)
    }

    /// Reads allocinfo text, JSON or a kernel's log. `path` names the source.
    pub(crate) fn read(
        mut source: impl BufRead,
        path: &Path,
        notes: &mut Vec<Note>,
    ) -> Result<Self, ReadError> {
        let head = source.fill_buf().map_err(|error| unreadable(path, error))?;
        match kind::of_head(head) {
            Ok(Kind::Allocinfo) => text::read(source, path, notes),
            Ok(Kind::Json) => json::read(source, path, notes),
            Ok(Kind::Text) => log::read(source, path, None, notes),
            Ok(other) => Err(bad(path, other.advice().to_owned())),
            Err(found) => Err(bad(path, found)),
        }
    }

    /// Reads a moment of a recording.
    ///
    /// # Errors
    ///
    /// Those of [`Recording::open`](crate::recording::Recording::open).
    pub(crate) fn of_recording(
        path: &Path,
        at: At,
        notes: &mut Vec<Note>,
    ) -> Result<Self, ReadError> {
        recorded::read(path, at, notes)
    }

    /// Reads a list of a kernel's log: the one with this number, or the last one.
    ///
    /// # Errors
    ///
    /// Those of [`List::open`]; [`ReadError::NothingRecorded`] when the log has no such list.
    pub(crate) fn of_log(
        path: &Path,
        list: Option<NonZeroUsize>,
        notes: &mut Vec<Note>,
    ) -> Result<Self, ReadError> {
        let file = File::open(path).map_err(|source| unreadable(path, source))?;
        log::read(BufReader::new(file), path, list, notes)
    }
}

fn unreadable(path: &Path, source: io::Error) -> ReadError {
    ReadError::File { path: path.display().to_string(), source }
}

fn bad(path: &Path, what: String) -> ReadError {
    ReadError::BadFile { path: path.display().to_string(), what }
}

fn note(path: &Path, what: String) -> Note {
    Note::Listed { path: path.display().to_string(), what }
}

/// Notes that a file has several lines or rows of one place.
fn note_merged(path: &Path, count: usize, of: &str, list: &List, notes: &mut Vec<Note>) {
    if count != list.len() {
        let rows = list.len();
        notes.push(note(
            path,
            format!("{count} {of} are {rows} rows: {of} of one place are added up"),
        ));
    }
}
