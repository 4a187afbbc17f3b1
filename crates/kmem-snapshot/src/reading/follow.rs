//! A source that is read again and again, into a recording.
//!
//! Names cost far more than counts. So a call site gets its number once, with its module and its
//! offset for a name. Its function and line follow when there is time, and in any case at the end.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Provenance, Query, ReadFailure, Reading, Target};
use crate::books::{Key, MappingOwner, MappingRow, SiteRow, Snapshot};
use crate::budget::Budget;
use crate::clock::now_ns;
use crate::error::ReadError;
use crate::maps::Maps;
use crate::process::Process;
use crate::recording::{About, Class, Moment, Writer};
use crate::sites::{Origin, resolve_mappings};
use crate::symbols::{Modules, Place, Symbols};

/// Most groups of a moment.
const MAX_GROUPS: usize = 4096;

/// A row of a snapshot.
#[derive(Debug, Clone)]
enum Row {
    Heap(SiteRow),
    Outside(MappingRow),
}

/// The part of a code mapping that tells it apart from others.
type Code = (u64, u64, u64, u64);

/// A recording under way, of one source.
pub struct Recorder {
    writer: Writer<File>,
    path: String,
    about: About,
    symbols: Option<Symbols<'static>>,
    /// Code in memory, for which `symbols` has names.
    code: Vec<Code>,
    /// Numbers of rows, by root block and tag, with the meaning of the tag.
    heap: HashMap<(u64, u32), (Key, u32)>,
    outside: HashMap<MappingOwner, (Key, u32)>,
    /// Rows that have no function and line yet.
    unnamed: Vec<(u32, Row)>,
    moments: u64,
    live: i64,
    /// Time of the last moment.
    time_ns: u64,
}

impl Recorder {
    /// Begins a recording in a file, which is replaced. `every` is the time between two moments.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when the file cannot be written.
    pub fn create(path: &Path, every: Duration) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let fault = |source| ReadError::File { path: name.clone(), source };
        let writer = Writer::new(File::create(path).map_err(fault)?).map_err(fault)?;
        let every_ns = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        let about = About { host: Provenance::now().host, every_ns, ..About::default() };
        Ok(Self {
            writer,
            path: name,
            about,
            symbols: None,
            code: Vec::new(),
            heap: HashMap::new(),
            outside: HashMap::new(),
            unnamed: Vec::new(),
            moments: 0,
            live: 0,
            time_ns: 0,
        })
    }

    /// Moments in the recording.
    #[must_use]
    pub fn moments(&self) -> u64 {
        self.moments
    }

    /// Bytes of the recording.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.writer.written()
    }

    /// Live bytes of the last moment.
    #[must_use]
    pub fn live(&self) -> i64 {
        self.live
    }

    fn fault(&self, source: std::io::Error) -> ReadError {
        ReadError::File { path: self.path.clone(), source }
    }

    /// Reads the target and records it.
    ///
    /// # Errors
    ///
    /// Those of [`Target::read`]; [`ReadError::File`] when the recording cannot be written.
    pub fn read(&mut self, target: &Target) -> Result<(), ReadFailure> {
        if let Target::Process(pid) = target {
            return Ok(self.process(&Process::open(*pid)?)?);
        }
        Ok(self.reading(&target.read(&Query { mappings: true, ..Query::default() })?)?)
    }

    /// Reads a process and records it.
    ///
    /// # Errors
    ///
    /// Those of [`Snapshot::take`]; [`ReadError::ProfilingNever`];
    /// [`ReadError::File`] when the recording cannot be written.
    pub fn process(&mut self, process: &Process) -> Result<(), ReadError> {
        self.snapshot(process, &Snapshot::take(process)?)
    }

    /// Records books that were just copied from a process, which is still there.
    ///
    /// # Errors
    ///
    /// [`ReadError::ProfilingNever`]; [`ReadError::File`] when the recording cannot be written.
    pub fn snapshot(&mut self, process: &Process, snapshot: &Snapshot) -> Result<(), ReadError> {
        if snapshot.never() {
            return Err(ReadError::ProfilingNever { pid: snapshot.pid });
        }
        self.open(process, snapshot)?;
        let mut moment = self.account(snapshot);
        for books in &snapshot.books {
            for row in &books.rows {
                let number = self.heap_row(books.root, row);
                moment.add(number, row.bytes, row.calls, 0);
            }
        }
        for row in snapshot.mappings.iter().flat_map(|mappings| &mappings.rows) {
            let number = self.outside_row(row);
            let bytes = i64::try_from(row.resident).unwrap_or(i64::MAX);
            moment.add(number, bytes, row.count, row.mapped);
        }
        self.live = snapshot.totals().0;
        self.write(moment)
    }

    /// Records rows that have their names. The record of a black box that is older than the last
    /// moment is left out.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when the recording cannot be written.
    pub fn reading(&mut self, reading: &Reading) -> Result<(), ReadError> {
        let files = &reading.provenance.build_ids;
        let about = match reading.pid() {
            Some(pid) => self.process_with(pid, &reading.snapshot.exe, files),
            None => {
                About { source: reading.name(), build_ids: files.clone(), ..self.about.clone() }
            }
        };
        self.set_about(about)?;
        let mut moment = self.account(&reading.snapshot);
        if reading.accounting().is_none() {
            moment = Moment::default();
        }
        moment.time_ns = match reading.moment {
            Some(_) => reading.provenance.time_ns,
            None => now_ns(),
        };
        if reading.moment.is_some() && moment.time_ns < self.time_ns {
            return Ok(());
        }
        for site in reading.all() {
            let is_mapped = site.mapped.is_some();
            let (mut bytes, mut calls) = (site.bytes, site.calls);
            for chain in &site.chains {
                let row = self.writer.row(&site.origin, &chain.frames, is_mapped, site.accurate);
                moment.add(row, chain.bytes, chain.calls, 0);
                bytes = bytes.saturating_sub(chain.bytes);
                calls = calls.wrapping_sub(chain.calls);
            }
            if bytes != 0 || calls != 0 || site.mapped.is_some() {
                let row = self.writer.row(&site.origin, &[], is_mapped, site.accurate);
                moment.add(row, bytes, calls, site.mapped.unwrap_or(0));
            }
        }
        self.live = reading.totals().0;
        self.write(moment)
    }

    /// Names some rows, until a time, one at least. Returns false when all have names.
    pub fn name(&mut self, until: Instant) -> bool {
        let Some(symbols) = &mut self.symbols else { return false };
        while let Some((number, row)) = self.unnamed.pop() {
            match row {
                Row::Heap(row) => {
                    let (origin, frames) = Origin::resolve(&row, symbols);
                    self.writer.rename(number, &origin, &frames);
                }
                Row::Outside(row) => {
                    for site in resolve_mappings([&row], symbols, |_| true) {
                        let frames = site.chains.first().map_or(&[][..], |chain| &chain.frames);
                        self.writer.rename(number, &site.origin, frames);
                    }
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        !self.unnamed.is_empty()
    }

    /// Names all rows, and ends the recording. `how` says how the process ended.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when the recording cannot be written.
    pub fn end(mut self, how: &str) -> Result<(), ReadError> {
        while self.name(Instant::now()) {}
        let path = self.path;
        let fault = |source| ReadError::File { path: path.clone(), source };
        let file = self.writer.end(how, now_ns()).map_err(fault)?;
        // Not every file can be synced.
        let _ = file.sync_data();
        Ok(())
    }

    fn write(&mut self, moment: Moment) -> Result<(), ReadError> {
        self.moments += 1;
        self.time_ns = moment.time_ns;
        self.writer.moment(moment).map_err(|source| self.fault(source))
    }

    fn set_about(&mut self, about: About) -> Result<(), ReadError> {
        if about != self.about || self.moments == 0 {
            self.about = about;
            let written = self.writer.about(&self.about, now_ns());
            written.map_err(|source| self.fault(source))?;
        }
        Ok(())
    }

    /// The process that is recorded, with the build ids of more of its files. Another program has
    /// other files.
    fn process_with(&self, pid: u32, exe: &str, files: &BTreeMap<String, String>) -> About {
        let mut about = self.about.clone();
        if about.exe != exe {
            about.build_ids.clear();
        }
        (about.pid, about.exe) = (pid, exe.to_owned());
        about.build_ids.extend(files.iter().map(|(path, id)| (path.clone(), id.clone())));
        about
    }

    /// Opens the files of new code.
    fn open(&mut self, process: &Process, snapshot: &Snapshot) -> Result<(), ReadError> {
        let (pid, exe) = (snapshot.pid, &snapshot.exe);
        let is_other = self.about.exe != *exe;
        let code = code(&snapshot.maps);
        if code == self.code && self.symbols.is_some() {
            return self.set_about(self.process_with(pid, exe, &BTreeMap::new()));
        }
        if is_other || !self.code.iter().all(|old| code.binary_search(old).is_ok()) {
            // Other code may be at an address that has a name.
            self.heap.clear();
            self.outside.clear();
            while self.name(Instant::now()) {}
        }
        let first = code.iter().map(|(start, ..)| start.saturating_add(1));
        let addresses: Vec<u64> = first.chain(snapshot.addresses()).collect();
        let modules = Modules::open(process, &snapshot.maps, &addresses, &Budget::default());
        let about = self.process_with(pid, exe, modules.build_ids());
        (self.symbols, self.code) = (Some(Symbols::of(modules)), code);
        self.set_about(about)
    }

    /// A moment with the account, the groups and the size classes.
    fn account(&mut self, snapshot: &Snapshot) -> Moment {
        let mut moment = Moment::default();
        (moment.time_ns, moment.torn) = (snapshot.time_ns, snapshot.torn());
        moment.set_accounting(&snapshot.accounting);
        for books in &snapshot.books {
            for at in books.groups.below(0).take(MAX_GROUPS) {
                let rows = books.rows_of(&(at..at + 1));
                if rows.is_empty() {
                    continue;
                }
                let number = self.writer.group(&books.groups.path(at)) as usize;
                moment.groups.resize(moment.groups.len().max(number + 1), (0, 0));
                for row in rows {
                    let (bytes, calls) = &mut moment.groups[number];
                    *bytes = bytes.saturating_add(row.bytes);
                    *calls = calls.saturating_add(row.calls);
                }
            }
        }
        for cache in snapshot.caches(None).into_iter().flatten().filter(|cache| cache.slabs != 0) {
            let (size, objects, pages) = (cache.size, cache.objects_per_slab, cache.pages_per_slab);
            let number = self.writer.class(Class { size, objects, pages }) as usize;
            moment.classes.resize(moment.classes.len().max(number + 1), [0; 3]);
            moment.classes[number] = [cache.active, cache.slabs, cache.active_slabs];
        }
        moment
    }

    fn heap_row(&mut self, root: u64, row: &SiteRow) -> u32 {
        let known = self.heap.get(&(root, row.tag));
        if let Some((_, number)) = known.filter(|(key, _)| *key == row.key) {
            return *number;
        }
        let (number, is_unnamed) = self.number(row, false);
        self.heap.insert((root, row.tag), (row.key.clone(), number));
        if is_unnamed {
            self.unnamed.push((number, Row::Heap(row.clone())));
        }
        number
    }

    fn outside_row(&mut self, row: &MappingRow) -> u32 {
        let known = self.outside.get(&row.owner);
        if let Some((_, number)) = known.filter(|(key, _)| *key == row.key) {
            return *number;
        }
        let number = match (&row.owner, &mut self.symbols) {
            (MappingOwner::Tag(_) | MappingOwner::Address(_), _) => {
                let tag = if let MappingOwner::Tag(tag) = row.owner { tag } else { u32::MAX };
                let site = SiteRow { tag, key: row.key.clone(), bytes: 0, calls: 0 };
                let (number, is_unnamed) = self.number(&site, true);
                if is_unnamed {
                    self.unnamed.push((number, Row::Outside(row.clone())));
                }
                number
            }
            (_, Some(symbols)) => {
                let site = resolve_mappings([row], symbols, |_| true).pop();
                let origin = site.map_or(Origin::NotTagged, |site| site.origin);
                self.writer.row(&origin, &[], true, true)
            }
            (_, None) => self.writer.row(&Origin::NotTagged, &[], true, true),
        };
        self.outside.insert(row.owner.clone(), (row.key.clone(), number));
        number
    }

    /// Number of a row. True: its function and line are to follow.
    fn number(&mut self, row: &SiteRow, is_mapped: bool) -> (u32, bool) {
        let Some(symbols) = &mut self.symbols else {
            return (self.writer.row(&Origin::Unknown(row.tag), &[], is_mapped, true), false);
        };
        let addresses = row.key.addresses();
        if addresses.is_empty() {
            let (origin, frames) = Origin::resolve(row, symbols);
            return (self.writer.row(&origin, &frames, is_mapped, true), false);
        }
        let places: Vec<Arc<Place>> =
            addresses.iter().map(|&at| Arc::new(symbols.unnamed(at))).collect();
        let (skip, frames) = match row.key {
            Key::Chain { skip, .. } => (skip.min(places.len() - 1), &places[..]),
            _ => (0, &[][..]),
        };
        let origin = Origin::Place(Place::clone(&places[skip]));
        (self.writer.row(&origin, frames, is_mapped, true), true)
    }
}

/// Code of files in memory, sorted.
fn code(maps: &Maps) -> Vec<Code> {
    let is_code =
        |of: &&crate::maps::Mapping| of.executable && (of.is_file() || of.path == "[vdso]");
    let mappings = maps.all().iter().filter(is_code);
    let mut code: Vec<_> = mappings.map(|of| (of.start, of.end, of.offset, of.inode)).collect();
    code.sort_unstable();
    code
}
