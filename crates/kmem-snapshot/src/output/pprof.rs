//! Call stacks as a profile for pprof: a message of `profile.proto`, compressed by gzip.
//!
//! | part | contents |
//! |---|---|
//! | types | `inuse_objects`, `inuse_space`; with counts `alloc_objects`, `alloc_space` first |
//! | sample | a stack, the innermost call first; the label `group` where groups are told apart |
//! | location | the return address minus 1, with function and line where these are known |
//! | mapping | a file in memory with its build id; the first one is the main program |
//!
//! A static tag has a function and a line, and needs no mapping. A call in a file without names has
//! an address alone: pprof looks for the names itself, in the file or by its build id.

mod profile;

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message as _;

pub use profile::{
    Function, Label, Line, Location, Mapping as ProfileMapping, Profile, Sample, ValueType,
};

use crate::escape::printable;
use crate::maps::{Mapping, unmarked};
use crate::reading::Reading;
use crate::stacks::{Frame, Stacks};
use crate::symbols::Place;

/// Functions that allocate. pprof leaves them out, with all that they call.
const ENTRY_POINTS: &str = "(k|v|kv|kmem_cache_|__)?[mcz]alloc(_node)?|(k|v|kv)?realloc(array)?|\
    (posix_)?memalign|aligned_alloc|p?valloc|kmem_cache_alloc(_node|_bulk)?|operator new.*|\
    libkmem\\.so.*";

/// Writes the profile.
pub(super) fn write(out: &mut impl Write, reading: &Reading, all: &Stacks<'_>) -> io::Result<()> {
    let mut gzip = GzEncoder::new(out, Compression::default());
    gzip.write_all(&profile(reading, all).encode_to_vec())?;
    gzip.finish()?;
    Ok(())
}

/// Builds the profile.
#[must_use]
pub fn profile(reading: &Reading, all: &Stacks<'_>) -> Profile {
    let mut of = Builder::new(reading);
    let (objects, space) = (("inuse_objects", "count"), ("inuse_space", "bytes"));
    let mut types = vec![objects, space];
    let with_counts = reading.has_counts();
    if with_counts {
        types.splice(0..0, [("alloc_objects", "count"), ("alloc_space", "bytes")]);
    }
    of.profile.sample_type =
        types.into_iter().map(|(name, unit)| of.strings.kind(name, unit)).collect();
    let locations: Vec<u64> = all.frames.iter().map(|&frame| of.location(frame)).collect();
    let key = of.strings.add("group");
    for stack in &all.stacks {
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        // A kernel writes -1 as 2^64 - 1.
        let mut value = vec![stack.calls.cast_signed(), stack.bytes];
        if with_counts {
            let counts = stack.counts.unwrap_or_default();
            value.splice(0..0, [number(counts.allocations), number(counts.allocated_bytes)]);
        }
        let mut sample = Sample { value, ..Sample::default() };
        for &frame in stack.frames.iter().rev() {
            match all.frames[frame] {
                Frame::Group(path) | Frame::Part(path) => {
                    sample.label.push(Label { key, str: of.strings.add(&printable(path)) });
                }
                Frame::Place(_) | Frame::Other(_) => sample.location_id.push(locations[frame]),
            }
        }
        of.profile.sample.push(sample);
    }
    of.finish()
}

/// The table of strings.
#[derive(Default)]
struct Strings {
    known: HashMap<String, i64>,
    table: Vec<String>,
}

impl Strings {
    fn add(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.known.get(text) {
            return known;
        }
        let number = self.table.len() as i64;
        self.known.insert(text.to_owned(), number);
        self.table.push(text.to_owned());
        number
    }

    fn kind(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.add(name), unit: self.add(unit) }
    }
}

struct Builder<'a> {
    reading: &'a Reading,
    profile: Profile,
    strings: Strings,
    /// Ids by first address.
    mappings: HashMap<u64, u64>,
    /// Ids by name and file.
    functions: HashMap<(i64, i64), u64>,
}

impl<'a> Builder<'a> {
    fn new(reading: &'a Reading) -> Self {
        let mut this = Self {
            reading,
            profile: Profile::default(),
            strings: Strings::default(),
            mappings: HashMap::new(),
            functions: HashMap::new(),
        };
        this.strings.add("");
        let snapshot = &reading.snapshot;
        let (exe, _) = unmarked(&snapshot.exe);
        let mut own = snapshot.maps.all().iter().filter(|mapping| mapping.path == exe);
        if let Some(main) = own.clone().find(|mapping| mapping.executable).or(own.next()) {
            this.mapping(main);
        }
        this
    }

    fn mapping(&mut self, of: &Mapping) -> u64 {
        if let Some(&known) = self.mappings.get(&of.start) {
            return known;
        }
        let id = self.profile.mapping.len() as u64 + 1;
        let build_id = self.reading.provenance.build_ids.get(&of.path).map_or("", String::as_str);
        self.profile.mapping.push(ProfileMapping {
            id,
            memory_start: of.start,
            memory_limit: of.end,
            file_offset: of.offset,
            filename: self.strings.add(&printable(&of.path)),
            build_id: self.strings.add(build_id),
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
        });
        self.mappings.insert(of.start, id);
        id
    }

    /// Adds a call, and returns its id; 0 for a group, which is no call.
    fn location(&mut self, frame: Frame<'_>) -> u64 {
        let (line, mapping_id, address) = match frame {
            Frame::Group(_) | Frame::Part(_) => return 0,
            Frame::Place(place) => {
                let maps = &self.reading.snapshot.maps;
                let mapping = maps.find(place.address).filter(|_| place.address != 0);
                let id = mapping.map_or(0, |mapping| self.mapping(mapping));
                (self.line(frame, place, id), id, place.address)
            }
            Frame::Other(origin) => {
                let file = frame.source().map(|(file, _)| file);
                let file = file.or(origin.fields().file).unwrap_or_default();
                let line = frame.source().map_or(0, |(_, line)| line);
                (Some(self.named(&frame.name(), file, line)), 0, 0)
            }
        };
        let id = self.profile.location.len() as u64 + 1;
        let line = line.into_iter().collect();
        self.profile.location.push(Location { id, mapping_id, address, line });
        id
    }

    /// The line of a call, and marks in its mapping on names that it lacks. None for a call whose
    /// function pprof may find in the mapping.
    fn line(&mut self, frame: Frame<'_>, place: &Place, mapping: u64) -> Option<Line> {
        let at = usize::try_from(mapping).unwrap_or(0).checked_sub(1);
        if let Some(mapping) = at.and_then(|at| self.profile.mapping.get_mut(at)) {
            mapping.has_functions &= place.function.is_some();
            mapping.has_filenames &= place.source.is_some();
            mapping.has_line_numbers &= place.source.is_some();
            place.function.as_ref()?;
        }
        let (file, line) = frame.source().unwrap_or_default();
        Some(self.named(&frame.name(), file, line))
    }

    fn named(&mut self, name: &str, file: &str, line: u32) -> Line {
        let name = self.strings.add(&printable(name));
        let filename = self.strings.add(&printable(file));
        let functions = &mut self.profile.function;
        let function_id = *self.functions.entry((name, filename)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(Function { id, name, system_name: name, filename });
            id
        });
        Line { function_id, line: line.into() }
    }

    fn finish(self) -> Profile {
        let Self { reading, mut profile, mut strings, .. } = self;
        profile.drop_frames = strings.add(ENTRY_POINTS);
        profile.time_nanos = i64::try_from(reading.provenance.time_ns).unwrap_or(0);
        profile.period_type = Some(strings.kind("space", "bytes"));
        profile.period = 1;
        profile.default_sample_type = strings.add("inuse_space");
        let (name, host) = (reading.name(), printable(&reading.provenance.host));
        profile.comment = vec![strings.add(&format!("{} on {host}", printable(&name)))];
        profile.string_table = strings.table;
        profile
    }
}
