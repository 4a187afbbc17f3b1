//! An ELF file as far as symbols go: segments, symbol table, and where its DWARF is.

use std::cell::OnceCell;
use std::io::{Read, Seek};

use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, ReadCache, SymbolKind};

use super::Place;
use super::debug_file::{self, Links, SearchPath};
use super::demangle::demangle;
use super::dwarf::Dwarf;

/// Largest file that is looked into.
pub(super) const MAX_FILE: u64 = 8 << 30;
/// Most symbols kept of one file.
const MAX_SYMBOLS: usize = 4 << 20;
/// Longest symbol name kept.
const MAX_NAME: usize = 64 << 10;

/// What an ELF file is read from.
pub(super) trait ReadSeek: Read + Seek {}
impl<T: Read + Seek> ReadSeek for T {}

/// An ELF file's bytes.
pub(super) type Bytes = ReadCache<Box<dyn ReadSeek>>;

struct Segment {
    file_offset: u64,
    file_size: u64,
    address: u64,
    executable: bool,
}

struct Function {
    address: u64,
    size: u64,
    name: Box<str>,
}

/// An ELF file, parsed; DWARF and symbols when first asked for.
pub(super) struct Elf {
    segments: Vec<Segment>,
    /// Functions by address.
    functions: Vec<Function>,
    bytes: Bytes,
    /// The separate debug file, when the file itself has no DWARF.
    debug: Option<Bytes>,
    /// The file shared by several debug files (`dwz`).
    shared: Option<Bytes>,
    dwarf: OnceCell<Option<Dwarf>>,
}

impl Elf {
    /// Parses a file. None when it is not ELF, or broken.
    pub(super) fn parse(source: Box<dyn ReadSeek>, search: &SearchPath<'_>) -> Option<Self> {
        let bytes = ReadCache::new(source);
        let (segments, links, mut functions) = {
            let file = object::File::parse(&bytes).ok()?;
            let segments = file
                .segments()
                .map(|s| {
                    let (file_offset, file_size) = s.file_range();
                    let executable = matches!(s.flags(), object::SegmentFlags::Elf { p_flags } if p_flags & object::elf::PF_X != 0);
                    Segment { file_offset, file_size, address: s.address(), executable }
                })
                .collect();
            (segments, Links::of(&file), functions(&file))
        };
        let debug = if links.has_dwarf { None } else { debug_file::find(&links, search) };
        let mut shared = links.shared.clone();
        if let Some(debug) = &debug
            && let Ok(file) = object::File::parse(debug)
        {
            let more = self::functions(&file);
            if more.len() > functions.len() {
                functions = more;
            }
            shared = Links::of(&file).shared.or(shared);
        }
        let shared = shared.and_then(|link| debug_file::find_shared(&link, search));
        Some(Self { segments, functions, bytes, debug, shared, dwarf: OnceCell::new() })
    }

    /// The address in the file's own terms of the byte at `file_offset`.
    pub(super) fn address_of(&self, file_offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| {
            // What is mapped is whole pages.
            let start = s.file_offset & !0xfff;
            file_offset >= start
                && file_offset
                    < s.file_offset.saturating_add(s.file_size).saturating_add(0xfff) & !0xfff
        };
        let exact = |s: &&Segment| {
            file_offset >= s.file_offset
                && file_offset - s.file_offset < s.file_size
                && s.executable
        };
        let segment = self
            .segments
            .iter()
            .find(exact)
            .or_else(|| self.segments.iter().find(|s| holds(s) && s.executable))
            .or_else(|| self.segments.iter().find(holds))?;
        Some(file_offset.wrapping_sub(segment.file_offset).wrapping_add(segment.address))
    }

    /// Fills in function and source of `place.offset`, an address in the file's own terms.
    pub(super) fn name(&self, place: &mut Place) {
        if let Some(found) = self.dwarf().and_then(|dwarf| dwarf.find(place.offset)) {
            place.function = found.function;
            place.source = found.source;
        }
        if place.function.is_none() {
            place.function = self.symbol(place.offset);
        }
    }

    /// The function at `address` by the symbol table.
    fn symbol(&self, address: u64) -> Option<String> {
        let after = self.functions.partition_point(|f| f.address <= address);
        let function = self.functions[..after].last()?;
        // Hand-written functions may have no size.
        let within = function.size == 0 || address - function.address < function.size;
        within.then(|| demangle(&function.name))
    }

    /// The DWARF of the file or of its debug file.
    fn dwarf(&self) -> Option<&Dwarf> {
        let dwarf = self.dwarf.get_or_init(|| {
            let file = object::File::parse(self.debug.as_ref().unwrap_or(&self.bytes)).ok()?;
            let shared = self.shared.as_ref().and_then(|bytes| object::File::parse(bytes).ok());
            Dwarf::load(&file, shared.as_ref())
        });
        dwarf.as_ref()
    }
}

/// Functions of the symbol table, else of the dynamic one.
fn functions<'a>(file: &object::File<'a, &'a Bytes>) -> Vec<Function> {
    let collect = |symbols: object::SymbolIterator<'a, '_, &'a Bytes>| {
        let mut functions: Vec<Function> = symbols
            .filter(|s| s.is_definition() && s.kind() == SymbolKind::Text)
            .take(MAX_SYMBOLS)
            .filter_map(|s| {
                let name = s.name().ok().filter(|n| !n.is_empty() && n.len() <= MAX_NAME)?;
                Some(Function { address: s.address(), size: s.size(), name: name.into() })
            })
            .collect();
        // Of several names for one address the last is found: prefer those with a size, and
        // the shortest, which is the least decorated.
        functions.sort_by(|a, b| {
            let rank = |f: &Function| (f.size != 0, std::cmp::Reverse(f.name.len()));
            a.address
                .cmp(&b.address)
                .then_with(|| rank(a).cmp(&rank(b)))
                .then_with(|| b.name.cmp(&a.name))
        });
        functions
    };
    let functions = collect(file.symbols());
    if functions.is_empty() { collect(file.dynamic_symbols()) } else { functions }
}
