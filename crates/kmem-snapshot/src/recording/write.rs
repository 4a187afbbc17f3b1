//! Writing a recording: names once, then changes, and a key frame now and then.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use prost::Message as _;

use super::Moment;
use super::wire::{self, About, Class, End, Kind, Names, PlaceName, RowName, frame, kind};
use crate::sites::{Mapped, Origin};
use crate::symbols::Place;

/// A key frame follows when changes take this many times the bytes of the last one, or after this
/// many moments. So key frames are a small part of the file, and a reader of one moment reads
/// little more than this.
const SHARE: usize = 8;
const MOMENTS: usize = 1024;
/// Most bytes of names in a frame.
const NAMES: usize = 1 << 20;

/// A recording under way.
pub struct Writer<W> {
    out: W,
    strings: HashMap<String, u32>,
    places: HashMap<PlaceName, u32>,
    rows: HashMap<RowName, u32>,
    row_count: u32,
    groups: HashMap<String, u32>,
    classes: HashMap<Class, u32>,
    /// Names that are not in the file yet, and their size in bytes.
    new: Names,
    new_bytes: usize,
    last: Moment,
    /// Bytes of the last key frame, bytes of changes since, and moments since.
    key: usize,
    since: usize,
    moments_since: usize,
    written: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a recording.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn new(mut out: W) -> io::Result<Self> {
        let mut head = [0; wire::FILE_HEAD];
        head[..8].copy_from_slice(&wire::MAGIC);
        head[8..12].copy_from_slice(&wire::VERSION.to_le_bytes());
        out.write_all(&head)?;
        Ok(Self {
            out,
            strings: HashMap::new(),
            places: HashMap::new(),
            rows: HashMap::new(),
            row_count: 0,
            groups: HashMap::new(),
            classes: HashMap::new(),
            new: Names::default(),
            new_bytes: 0,
            last: Moment::default(),
            key: 0,
            since: 0,
            moments_since: 0,
            written: head.len() as u64,
        })
    }

    /// Bytes in the file.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The stream behind the recording.
    pub fn get_ref(&self) -> &W {
        &self.out
    }

    /// Writes a frame at once, so that a process that ends in between leaves whole frames.
    fn put(&mut self, frame: &[u8]) -> io::Result<()> {
        self.out.write_all(frame)?;
        self.written += frame.len() as u64;
        Ok(())
    }

    /// Writes the source that is recorded.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn about(&mut self, about: &About, time_ns: u64) -> io::Result<()> {
        self.put(&frame(Kind::About, time_ns, about))
    }

    fn string(&mut self, text: &str) -> u32 {
        if let Some(&at) = self.strings.get(text) {
            return at;
        }
        let at = u32::try_from(self.strings.len()).unwrap_or(u32::MAX);
        self.strings.insert(text.to_owned(), at);
        self.new_bytes += text.len() + 2;
        self.new.strings.push(text.to_owned());
        at
    }

    fn place(&mut self, place: &Place) -> u32 {
        let name = PlaceName {
            module: self.string(&place.module),
            main: place.main,
            offset: place.offset,
            address: place.address,
            function: place.function.as_deref().map(|function| self.string(function)),
            file: place.source.as_ref().map(|(file, _)| self.string(file)),
            line: place.source.as_ref().map_or(0, |(_, line)| *line),
        };
        let next = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        let at = *self.places.entry(name.clone()).or_insert(next);
        if at == next {
            self.new_bytes += name.encoded_len() + 2;
            self.new.places.push(name);
        }
        at
    }

    fn row_name(&mut self, origin: &Origin, frames: &[Arc<Place>]) -> RowName {
        let mut name = RowName::default();
        match origin {
            Origin::NotTagged => name.kind = kind::NOT_TAGGED,
            Origin::OtherSites => name.kind = kind::OTHER_SITES,
            Origin::Unknown(tag) => (name.kind, name.line) = (kind::UNKNOWN, *tag),
            Origin::Place(place) => {
                name.kind = kind::PLACE;
                name.place = self.place(place);
            }
            Origin::Static(tag) => {
                name.kind = kind::STATIC;
                name.module = self.string(&tag.module);
                name.file = self.string(&tag.file);
                name.function = self.string(&tag.function);
                name.line = tag.line;
            }
            Origin::Metadata(table) => {
                name.kind = kind::STATIC;
                name.module = self.string("");
                name.file = self.string("kmem");
                name.function = self.string(table.name());
            }
            Origin::Mapped(mapped) => {
                name.kind = kind::MAPPED;
                name.function = self.string(Mapped::name(mapped));
                name.file = self.string(mapped.path().unwrap_or_default());
                name.mapped = true;
            }
        }
        name.frames = frames.iter().map(|frame| self.place(frame)).collect();
        name
    }

    /// Number of the row with this origin and these callers. `mapped`: it is memory outside of the
    /// heap. `accurate`: all of its allocations are counted.
    pub(crate) fn row(
        &mut self,
        origin: &Origin,
        frames: &[Arc<Place>],
        mapped: bool,
        accurate: bool,
    ) -> u32 {
        let mut name = self.row_name(origin, frames);
        name.mapped |= mapped;
        name.inaccurate = !accurate;
        if let Some(&number) = self.rows.get(&name) {
            return number;
        }
        let number = self.row_count;
        self.row_count += 1;
        self.rows.insert(name.clone(), number);
        name.number = number;
        self.new_bytes += name.encoded_len() + 2;
        self.new.rows.push(name);
        number
    }

    /// Replaces the name of a row.
    pub(crate) fn rename(&mut self, number: u32, origin: &Origin, frames: &[Arc<Place>]) {
        let mut name = self.row_name(origin, frames);
        name.number = number;
        self.new_bytes += name.encoded_len() + 2;
        self.new.rows.push(name);
    }

    /// Number of a group.
    pub(crate) fn group(&mut self, path: &str) -> u32 {
        if let Some(&at) = self.groups.get(path) {
            return at;
        }
        let at = u32::try_from(self.groups.len()).unwrap_or(u32::MAX);
        let string = self.string(path);
        self.groups.insert(path.to_owned(), at);
        self.new.groups.push(string);
        at
    }

    /// Number of a size class.
    pub(crate) fn class(&mut self, class: Class) -> u32 {
        let next = u32::try_from(self.classes.len()).unwrap_or(u32::MAX);
        let at = *self.classes.entry(class).or_insert(next);
        if at == next {
            self.new.classes.push(class);
        }
        at
    }

    /// Writes the names that are not in the file yet.
    fn names(&mut self, time_ns: u64) -> io::Result<()> {
        let Names { strings, places, rows, groups, classes } = std::mem::take(&mut self.new);
        if self.new_bytes < NAMES {
            let names = Names { strings, places, rows, groups, classes };
            if names != Names::default() {
                self.put(&frame(Kind::Names, time_ns, &names))?;
            }
        } else {
            // Names before the names that refer to them.
            for strings in strings.chunks(1000) {
                let names = Names { strings: strings.to_vec(), ..Names::default() };
                self.put(&frame(Kind::Names, time_ns, &names))?;
            }
            for places in places.chunks(10_000) {
                let names = Names { places: places.to_vec(), ..Names::default() };
                self.put(&frame(Kind::Names, time_ns, &names))?;
            }
            for rows in rows.chunks(5000) {
                let names = Names { rows: rows.to_vec(), ..Names::default() };
                self.put(&frame(Kind::Names, time_ns, &names))?;
            }
            let names = Names { groups, classes, ..Names::default() };
            self.put(&frame(Kind::Names, time_ns, &names))?;
        }
        self.new_bytes = 0;
        Ok(())
    }

    /// Writes a moment, and the names that it needs.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn moment(&mut self, moment: Moment) -> io::Result<()> {
        self.names(moment.time_ns)?;
        let is_key =
            self.key == 0 || self.moments_since >= MOMENTS || self.since >= SHARE * self.key;
        let bytes = if is_key {
            frame(Kind::Key, moment.time_ns, &moment.since(&Moment::default()))
        } else {
            frame(Kind::Change, moment.time_ns, &moment.since(&self.last))
        };
        self.put(&bytes)?;
        if is_key {
            (self.key, self.since, self.moments_since) = (bytes.len(), 0, 0);
        } else {
            self.since += bytes.len();
            self.moments_since += 1;
        }
        self.last = moment;
        Ok(())
    }

    /// Ends the recording: writes names that came later than their moments, and how the process
    /// ended, in words.
    ///
    /// # Errors
    ///
    /// The errors of the writer.
    pub fn end(mut self, how: &str, time_ns: u64) -> io::Result<W> {
        self.names(time_ns)?;
        self.put(&frame(Kind::End, time_ns, &End { how: how.to_owned() }))?;
        self.out.flush()?;
        Ok(self.out)
    }
}
