//! Reading a recording: an index of its frames, and moments out of it.

use std::fs::File;
use std::io::{BufReader, Read, Seek as _, SeekFrom};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::wire::{self, About, Changes, Class, End, HEAD, Head, Kind, Names, RowName, kind};
use super::{At, Moment};
use crate::books::StaticTag;
use crate::budget::Budget;
use crate::error::ReadError;
use crate::sites::{Mapped, Origin, Site};
use crate::symbols::Place;

/// Most rows with a name: eight times the call sites of a process.
const MAX_ROWS: usize = 1 << 20;
/// Most moments: 19 days of ten each second.
const MAX_MOMENTS: usize = 1 << 24;
/// Most groups and size classes.
const MAX_GROUPS: usize = 1 << 16;

/// Name of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The place.
    pub origin: Origin,
    /// Places of the calls, innermost first; empty where they are not told apart.
    pub frames: Vec<Arc<Place>>,
    /// True for memory outside of the heap.
    pub is_mapped: bool,
    /// True where all allocations are counted.
    pub accurate: bool,
}

/// A moment in the file.
#[derive(Debug, Clone, Copy)]
struct Frame {
    offset: u64,
    len: u32,
    is_key: bool,
    is_compressed: bool,
    time_ns: u64,
}

/// An open recording.
#[derive(Debug)]
pub struct Recording {
    file: File,
    path: String,
    about: About,
    strings: Vec<Arc<str>>,
    places: Vec<Arc<Place>>,
    names: Vec<Name>,
    groups: Vec<Arc<str>>,
    classes: Vec<Class>,
    moments: Vec<Frame>,
    end: Option<String>,
    damage: Option<String>,
    budget: Budget,
}

impl Recording {
    /// Opens a recording, and reads its names and the times of its moments.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`] when the file cannot be read, [`ReadError::BadFile`] when it is no
    /// recording, [`ReadError::NothingRecorded`] when it has no moment.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let name = path.display().to_string();
        let unreadable = |source| ReadError::File { path: name.clone(), source };
        let bad = |what: &str| ReadError::BadFile { path: name.clone(), what: what.to_owned() };
        let file = File::open(path).map_err(unreadable)?;
        let mut head = [0; wire::FILE_HEAD];
        let mut source = BufReader::new(file.try_clone().map_err(unreadable)?);
        source.read_exact(&mut head).map_err(|_| bad("it is shorter than a recording"))?;
        if head[..8] != wire::MAGIC {
            return Err(bad("no recording of kmem"));
        }
        let version = head[8..12].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        if version != wire::VERSION {
            return Err(bad(&format!("version {version} of the format; this kmem reads 1")));
        }
        let mut this = Self {
            file,
            path: name.clone(),
            about: About::default(),
            strings: Vec::new(),
            places: Vec::new(),
            names: Vec::new(),
            groups: Vec::new(),
            classes: Vec::new(),
            moments: Vec::new(),
            end: None,
            damage: None,
            budget: Budget::default(),
        };
        let mut at = wire::FILE_HEAD as u64;
        loop {
            match this.frame(&mut source, at) {
                Ok(Some(next)) => at = next,
                Ok(None) => break,
                Err(what) => {
                    this.damage = Some(format!("cut off or damaged at byte {at}: {what}"));
                    break;
                }
            }
        }
        if this.moments.is_empty() {
            let what = this.damage.unwrap_or_else(|| {
                "it has no moment: record the process again, for longer".to_owned()
            });
            return Err(ReadError::NothingRecorded { path: name, what });
        }
        Ok(this)
    }

    /// Reads the frame at an offset. Returns the offset behind it; none at the end of the file.
    fn frame(&mut self, source: &mut impl Read, at: u64) -> Result<Option<u64>, String> {
        let mut bytes = Vec::new();
        let read = |source: &mut dyn Read, len: usize, into: &mut Vec<u8>| {
            source.take(len as u64).read_to_end(into).map_err(|error| error.to_string())
        };
        read(source, HEAD, &mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        let head_bytes: &[u8; HEAD] = bytes.first_chunk().ok_or("a part of a frame")?;
        let head_bytes = *head_bytes;
        let head = Head::parse(&head_bytes);
        if head.len > wire::MAX_PAYLOAD {
            return Err(format!("a frame of {} bytes", head.len));
        }
        let mut payload = Vec::new();
        read(source, head.len, &mut payload)?;
        if payload.len() != head.len {
            return Err("a part of a frame".to_owned());
        }
        if wire::checksum(&head_bytes, &payload) != head.crc {
            return Err("a wrong checksum".to_owned());
        }
        self.budget.work(head.len as u64).map_err(|over| over.to_string())?;
        match head.kind {
            Some(Kind::About) => self.about = wire::message(&payload, head.is_compressed)?,
            Some(Kind::Names) => self.add(wire::message(&payload, head.is_compressed)?)?,
            Some(Kind::End) => {
                let End { how } = wire::message(&payload, head.is_compressed)?;
                self.end = Some(how);
            }
            Some(Kind::Key | Kind::Change) => {
                let is_key = head.kind == Some(Kind::Key);
                if self.moments.len() >= MAX_MOMENTS || (self.moments.is_empty() && !is_key) {
                    return Err("a moment that nothing leads to".to_owned());
                }
                self.moments.push(Frame {
                    offset: at + HEAD as u64,
                    len: u32::try_from(head.len).unwrap_or(0),
                    is_key,
                    is_compressed: head.is_compressed,
                    time_ns: head.time_ns,
                });
            }
            None => {}
        }
        Ok(Some(at + (HEAD + head.len) as u64))
    }

    /// Adds names.
    fn add(&mut self, names: Names) -> Result<(), String> {
        let draw = |bytes: usize| self.budget.memory(bytes as u64).map_err(|o| o.to_string());
        for text in names.strings {
            draw(text.len() + 64)?;
            self.strings.push(text.into());
        }
        let string = |at: u32| {
            let text = self.strings.get(at as usize).ok_or(format!("string {at} is absent"))?;
            Ok::<String, String>(text.to_string())
        };
        for of in names.places {
            let module = string(of.module)?;
            let function = of.function.map(string).transpose()?;
            let source = of.file.map(string).transpose()?.map(|file| (file, of.line));
            let texts = module.len()
                + function.as_ref().map_or(0, String::len)
                + source.as_ref().map_or(0, |(file, _)| file.len());
            draw(size_of::<Place>() + 32 + texts)?;
            let (main, offset, address) = (of.main, of.offset, of.address);
            self.places.push(Arc::new(Place { module, main, offset, address, function, source }));
        }
        for row in names.rows {
            draw(size_of::<Name>() + 8 * row.frames.len() + 512)?;
            let number = row.number as usize;
            let name = self.name(&row)?;
            let next = self.names.len();
            match self.names.get_mut(number) {
                Some(old) => *old = name,
                None if number == next && number < MAX_ROWS => self.names.push(name),
                None => return Err(format!("row {number} comes too early")),
            }
        }
        let most = |len: usize| if len > MAX_GROUPS { Err("too many groups") } else { Ok(()) };
        most(self.groups.len() + names.groups.len())?;
        for at in names.groups {
            let text = self.strings.get(at as usize).ok_or(format!("string {at} is absent"))?;
            self.groups.push(Arc::clone(text));
        }
        most(self.classes.len() + names.classes.len())?;
        self.classes.extend(names.classes);
        Ok(())
    }

    fn name(&self, row: &RowName) -> Result<Name, String> {
        let string = |at: u32| {
            let text = self.strings.get(at as usize).ok_or(format!("string {at} is absent"))?;
            Ok::<String, String>(text.to_string())
        };
        let place = |at: &u32| {
            let place = self.places.get(*at as usize).ok_or(format!("place {at} is absent"))?;
            Ok::<Arc<Place>, String>(Arc::clone(place))
        };
        let origin = match row.kind {
            kind::NOT_TAGGED => Origin::NotTagged,
            kind::OTHER_SITES => Origin::OtherSites,
            kind::UNKNOWN => Origin::Unknown(row.line),
            kind::PLACE => Origin::Place(Place::clone(&*place(&row.place)?)),
            kind::STATIC => Origin::Static(Arc::new(StaticTag {
                module: string(row.module)?,
                file: string(row.file)?,
                line: row.line,
                function: string(row.function)?,
            })),
            kind::MAPPED => {
                let (name, path) = (string(row.function)?, string(row.file)?);
                let named = Mapped::with_path(&name, path).or_else(|| Mapped::without_path(&name));
                Origin::Mapped(named.ok_or(format!("unknown memory {name:?}"))?)
            }
            other => return Err(format!("unknown kind {other} of a row")),
        };
        let frames = row.frames.iter().map(place).collect::<Result<_, _>>()?;
        Ok(Name { origin, frames, is_mapped: row.mapped, accurate: !row.inaccurate })
    }

    /// The source that is recorded.
    #[must_use]
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Names of rows, by number.
    #[must_use]
    pub fn names(&self) -> &[Name] {
        &self.names
    }

    /// Paths of groups, by number.
    #[must_use]
    pub fn groups(&self) -> &[Arc<str>] {
        &self.groups
    }

    /// Size classes, by number.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// How the process ended, in words; none where the recording has no end.
    #[must_use]
    pub fn end(&self) -> Option<&str> {
        self.end.as_deref()
    }

    /// Why the file was read up to a part of it only.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_deref()
    }

    /// Times of all moments, in nanoseconds since 1970; never empty.
    pub fn times(&self) -> impl ExactSizeIterator<Item = u64> {
        self.moments.iter().map(|frame| frame.time_ns)
    }

    fn bad(&self, what: String) -> ReadError {
        ReadError::BadFile { path: self.path.clone(), what }
    }

    /// Makes `moment` the one of a frame, which follows it or is a key frame.
    fn step(&self, frame: &Frame, moment: &mut Moment) -> Result<(), ReadError> {
        let fault = |source| ReadError::File { path: self.path.clone(), source };
        let mut payload = Vec::new();
        let mut file = &self.file;
        file.seek(SeekFrom::Start(frame.offset)).map_err(fault)?;
        file.take(u64::from(frame.len)).read_to_end(&mut payload).map_err(fault)?;
        let counts = [self.names.len(), self.groups.len(), self.classes.len()];
        if frame.is_key {
            *moment = Moment::default();
        }
        let changes: Result<Changes, String> = wire::message(&payload, frame.is_compressed);
        changes
            .and_then(|changes| moment.apply(&changes, frame.time_ns, counts))
            .map_err(|what| self.bad(what))
    }

    /// Reads the moment with a number. One beyond the last is the last.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`], [`ReadError::BadFile`].
    pub fn moment(&self, number: usize) -> Result<Moment, ReadError> {
        let upto = self.moments.get(..number.saturating_add(1)).unwrap_or(&self.moments);
        let key = upto.iter().rposition(|frame| frame.is_key).unwrap_or(0);
        let mut moment = Moment::default();
        upto.iter().skip(key).try_for_each(|frame| self.step(frame, &mut moment))?;
        Ok(moment)
    }

    /// Calls `each` with all moments and their numbers. Stops where the file makes no sense, which
    /// is the error of the first moment only.
    ///
    /// # Errors
    ///
    /// [`ReadError::File`], [`ReadError::BadFile`].
    pub fn each(&self, mut each: impl FnMut(usize, &Moment)) -> Result<(), ReadError> {
        let mut moment = Moment::default();
        for (number, frame) in self.moments.iter().enumerate() {
            match self.step(frame, &mut moment) {
                Ok(()) => each(number, &moment),
                Err(error) if number == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(())
    }

    /// Live bytes of a moment, of the heap.
    #[must_use]
    pub fn live(&self, moment: &Moment) -> i64 {
        let rows = self.names.iter().zip(&moment.rows).filter(|(name, _)| !name.is_mapped);
        rows.fold(0, |sum: i64, (_, held)| sum.saturating_add(held.bytes))
    }

    /// Number of a moment.
    ///
    /// # Errors
    ///
    /// Those of [`Recording::each`].
    pub fn find(&self, at: At) -> Result<usize, ReadError> {
        Ok(match at {
            At::First => 0,
            At::Last => self.moments.len().saturating_sub(1),
            At::Peak => {
                let (mut peak, mut most) = (0, i64::MIN);
                self.each(|number, moment| {
                    let live = self.live(moment);
                    if live > most {
                        (peak, most) = (number, live);
                    }
                })?;
                peak
            }
            At::After(time) => {
                let first = self.moments.first().map_or(0, |frame| frame.time_ns);
                let until = first.saturating_add(ns(time));
                self.moments.partition_point(|frame| frame.time_ns <= until).saturating_sub(1)
            }
        })
    }

    /// The rows of a moment that hold memory. Callers of a call are a chain of their row.
    pub(crate) fn sites(&self, moment: &Moment) -> Vec<Site> {
        let mut sites = Vec::new();
        for (number, (name, held)) in (0_u32..).zip(self.names.iter().zip(&moment.rows)) {
            if held.bytes == 0 && held.calls == 0 && held.mapped == 0 {
                continue;
            }
            let mut site = Site {
                bytes: held.bytes,
                calls: held.calls,
                mapped: name.is_mapped.then_some(held.mapped),
                accurate: name.accurate,
                ..Site::new(name.origin.clone())
            };
            if !name.frames.is_empty() {
                let (bytes, calls, frames) = (held.bytes, held.calls, name.frames.clone());
                site.chains.push(crate::sites::Chain { tag: number, bytes, calls, frames });
            }
            sites.push(site);
        }
        sites
    }
}

/// Nanoseconds of a time.
fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
