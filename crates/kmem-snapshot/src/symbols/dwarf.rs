//! Source places from DWARF, inlined frames included.

use std::rc::Rc;

use addr2line::Context;
use gimli::{EndianRcSlice, RunTimeEndian, SectionId};
use object::{Object as _, ObjectSection as _};

use super::demangle::demangle;
use super::elf::Bytes;
use super::library_code::is_library;

/// Largest section that is read, after decompression.
const MAX_SECTION: u64 = 4 << 30;
/// Most inlined frames looked at for one address.
const MAX_FRAMES: usize = 256;

type Reader = EndianRcSlice<RunTimeEndian>;

/// The DWARF of one file.
pub(super) struct Dwarf {
    context: Context<Reader>,
}

/// What DWARF says of an address.
pub(super) struct Found {
    pub(super) function: Option<String>,
    pub(super) source: Option<(String, u32)>,
}

impl Dwarf {
    /// Loads the sections of a file; none when it has no DWARF.
    pub(super) fn load<'a>(
        file: &object::File<'a, &'a Bytes>,
        shared: Option<&object::File<'a, &'a Bytes>>,
    ) -> Option<Self> {
        file.section_by_name(".debug_info")?;
        let mut dwarf = gimli::Dwarf::load(|id| section(file, id)).ok()?;
        if let Some(shared) = shared {
            dwarf.load_sup(|id| section(shared, id)).ok()?;
        }
        let context = Context::from_dwarf(dwarf).ok()?;
        Some(Self { context })
    }

    /// The innermost frame at `address` that is not library code, else the outermost one.
    pub(super) fn find(&self, address: u64) -> Option<Found> {
        let mut frames = self.context.find_frames(address).skip_all_loads().ok()?;
        let mut outermost = None;
        for _ in 0..MAX_FRAMES {
            let Ok(Some(frame)) = frames.next() else {
                break;
            };
            let function =
                frame.function.and_then(|f| f.raw_name().ok().map(|name| demangle(&name)));
            let location = frame.location;
            let source = location
                .and_then(|l| Some((l.file?.to_owned(), l.line.unwrap_or(0))))
                // An address without a line.
                .filter(|(_, line)| *line != 0);
            let file = source.as_ref().map_or("", |(file, _)| file.as_str());
            let library = is_library(function.as_deref().unwrap_or(""), file);
            let found = Found { function, source };
            if !library {
                return Some(found);
            }
            outermost = Some(found);
        }
        outermost
    }
}

/// One section's bytes; empty when it is absent, too large or broken.
fn section<'a>(file: &object::File<'a, &'a Bytes>, id: SectionId) -> Result<Reader, gimli::Error> {
    let data = file
        .section_by_name(id.name())
        .filter(|s| s.compressed_file_range().is_ok_and(|r| r.uncompressed_size <= MAX_SECTION))
        .and_then(|s| s.uncompressed_data().ok());
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    Ok(EndianRcSlice::new(Rc::from(data.as_deref().unwrap_or(&[])), endian))
}
