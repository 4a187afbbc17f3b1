//! Names in one ELF file: of its functions, and of source files and lines.
//!
//! Names come from DWARF, in the file or in a separate debug file, else from the symbol table.
//!
//! A row that names `std::vector::push_back` tells less than its caller. So frames of the
//! language's own library are passed over, where DWARF shows their callers.

use std::cell::{Cell, OnceCell};
use std::fmt::{self, Write};
use std::io::{Cursor, Read as _};
use std::rc::Rc;

use addr2line::Context;
use cpp_demangle::DemangleOptions;
use gimli::{DW_LANG_Rust, RunTimeEndian, SectionId};
use kmem_layout::wrapper::{is_wrapper, is_wrapper_object};
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{
    CompressedData, CompressionFormat, Endianness, Object as _, ObjectSection as _,
    ObjectSegment as _, SegmentFlags,
};

use super::bytes::{Bytes, ReadSeek};
use super::debug_file::{Links, Object, SearchPath};
use super::functions::Functions;
use super::metered::{Meter, Metered};
use crate::budget::{Budget, OverBudget, STEP};
use crate::maps::Mapping;
use crate::memory::Memory;

#[cfg(test)]
mod tests;

/// Largest image copied from memory (the vdso), in bytes.
const MAX_IMAGE: u64 = 1 << 20;
/// Longest mangled name that is demangled.
const MAX_MANGLED: usize = 64 << 10;
/// Longest demangled name. Hostile symbols grow without bound when they are demangled.
const MAX_DEMANGLED: usize = 4096;
/// Steps of demangling a byte of a name.
const DEMANGLE_STEPS: u64 = 16;
/// Most inlined frames examined for one address.
const MAX_FRAMES: usize = 256;

/// Copies the image of a mapping, such as the vdso, that is in memory alone.
pub(super) fn copy_image(memory: &Memory, mapping: &Mapping) -> Option<Box<dyn ReadSeek>> {
    let len = mapping.end - mapping.start;
    let mut image = vec![0; usize::try_from(len).ok().filter(|_| len <= MAX_IMAGE)?];
    memory.read(mapping.start, &mut image).ok()?;
    Some(Box::new(Cursor::new(image)))
}

/// Finds the build-id note in the first page of an ELF file.
pub(super) fn build_id_in(page: &[u8]) -> Option<Vec<u8>> {
    let header = FileHeader64::<Endianness>::parse(page).ok()?;
    let endian = header.endian().ok()?;
    for segment in header.program_headers(endian, page).ok()? {
        let Ok(Some(mut notes)) = segment.notes(endian, page) else {
            continue;
        };
        while let Ok(Some(note)) = notes.next() {
            if note.name() == object::elf::ELF_NOTE_GNU
                && note.n_type(endian) == object::elf::NT_GNU_BUILD_ID
            {
                return Some(note.desc().to_vec());
            }
        }
    }
    None
}

struct Segment {
    file_offset: u64,
    file_size: u64,
    address: u64,
    executable: bool,
}

/// Names of an address.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Function, demangled.
    pub(super) function: Option<String>,
    /// Source file and line.
    pub(super) source: Option<(String, u32)>,
}

impl From<Names> for (Option<String>, Option<(String, u32)>) {
    fn from(names: Names) -> Self {
        (names.function, names.source)
    }
}

/// A parsed ELF file. It loads DWARF when an address is first named.
pub(crate) struct Elf {
    segments: Vec<Segment>,
    functions: Functions,
    /// True when the functions are those of the separate debug file.
    of_debug: bool,
    bytes: Bytes,
    /// The separate debug file, when the file itself has no DWARF.
    debug: Option<Bytes>,
    /// The file that several debug files share (`dwz`).
    shared: Option<Bytes>,
    dwarf: OnceCell<Option<Dwarf>>,
    budget: Budget,
    /// True when a refusal of the budget was told.
    told: Cell<bool>,
}

impl Elf {
    /// Parses a file for its symbol table alone. In libraries that are wrappers as a whole, lines
    /// of source tell nothing about the program, and their debug files are large.
    pub(super) fn without_lines(source: Box<dyn ReadSeek>, budget: &Budget) -> Option<Self> {
        let bytes = Bytes::new(source, budget);
        let (segments, functions) = {
            let file = object::File::parse(&bytes).ok()?;
            (segments(&file), Functions::of(&file, budget).ok()?)
        };
        let (debug, shared, dwarf) = (None, None, OnceCell::from(None));
        let (of_debug, budget, told) = (false, budget.clone(), Cell::new(false));
        Some(Self { segments, functions, of_debug, bytes, debug, shared, dwarf, budget, told })
    }

    /// Parses a file. None when it is not ELF, or broken, or above the budget.
    pub(super) fn parse(
        source: Box<dyn ReadSeek>,
        search: &SearchPath<'_>,
        budget: &Budget,
    ) -> Option<Self> {
        let bytes = Bytes::new(source, budget);
        let (segments, links, mut functions) = {
            let file = object::File::parse(&bytes).ok()?;
            (segments(&file), Links::of(&file), Functions::of(&file, budget).ok()?)
        };
        let debug = if links.has_dwarf { None } else { search.debug_file(&links, budget) };
        let mut shared = links.shared.clone();
        let mut of_debug = false;
        if let Some(debug) = &debug
            && let Ok(file) = object::File::parse(debug)
        {
            let more = Functions::of(&file, budget).ok()?;
            if more.len() > functions.len() {
                (functions, of_debug) = (more, true);
            }
            shared = Links::of(&file).shared.or(shared);
        }
        let shared = shared.and_then(|link| search.shared_file(&link, budget));
        let (dwarf, budget, told) = (OnceCell::new(), budget.clone(), Cell::new(false));
        Some(Self { segments, functions, of_debug, bytes, debug, shared, dwarf, budget, told })
    }

    /// Virtual address, in the file's own terms, of the byte at `file_offset`.
    pub(super) fn address_of(&self, file_offset: u64) -> Option<u64> {
        let holds = |s: &&Segment| {
            // The kernel maps whole pages.
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

    /// Names a virtual address.
    pub(super) fn names(&self, address: u64) -> Names {
        let found = self.dwarf().and_then(|dwarf| dwarf.find(address)).unwrap_or_default();
        Names { function: found.function.or_else(|| self.symbol(address)), ..found }
    }

    /// True when it has lines of source.
    pub(super) fn has_lines(&self) -> bool {
        self.dwarf().is_some()
    }

    /// The part of the budget that has no room for names of this file; none when it was told.
    pub(super) fn refused(&self) -> Option<OverBudget> {
        let over = self.budget.refused()?;
        (!self.told.replace(true)).then_some(over)
    }

    /// Finds the function at `address` in the symbol table.
    fn symbol(&self, address: u64) -> Option<String> {
        let bytes = self.debug.as_ref().filter(|_| self.of_debug).unwrap_or(&self.bytes);
        let name = self.functions.find(bytes, address, &self.budget)?;
        Some(demangle_within(name, &self.budget))
    }

    /// DWARF of the file, or of its debug file.
    fn dwarf(&self) -> Option<&Dwarf> {
        let dwarf = self.dwarf.get_or_init(|| {
            let file = ObjectOf::parse(self.debug.as_ref().unwrap_or(&self.bytes))?;
            let shared = self.shared.as_ref().and_then(ObjectOf::parse);
            let before = self.budget.kept();
            let dwarf = Dwarf::load(&file, shared.as_ref(), &self.budget);
            if dwarf.is_none() {
                // The sections are no longer kept.
                self.budget.give_back(self.budget.kept() - before);
            }
            dwarf
        });
        dwarf.as_ref()
    }
}

fn segments(file: &Object<'_>) -> Vec<Segment> {
    let all = file.segments().map(|s| {
        let (file_offset, file_size) = s.file_range();
        let executable = match s.flags() {
            SegmentFlags::Elf { p_flags } => p_flags & object::elf::PF_X != 0,
            _ => false,
        };
        Segment { file_offset, file_size, address: s.address(), executable }
    });
    all.collect()
}

/// DWARF of one file.
struct Dwarf {
    context: Context<Metered>,
    meter: Rc<Meter>,
    budget: Budget,
}

impl Dwarf {
    /// Loads the sections of a file; none when it has no DWARF.
    fn load(file: &ObjectOf<'_>, shared: Option<&ObjectOf<'_>>, budget: &Budget) -> Option<Self> {
        file.0.section_by_name(".debug_info")?;
        let meter = Meter::new(budget.clone());
        let mut dwarf = gimli::Dwarf::load(|id| section(file, id, &meter, budget)).ok()?;
        if let Some(shared) = shared {
            dwarf.load_sup(|id| section(shared, id, &meter, budget)).ok()?;
        }
        let context = meter.lookup(|| Context::from_dwarf(dwarf)).ok()?;
        Some(Self { context, meter, budget: budget.clone() })
    }

    /// Names of the innermost frame at `address` that is not library code, or of the outermost
    /// frame when all are. Rust's allocator was inlined with all that is further in.
    fn find(&self, address: u64) -> Option<Names> {
        self.meter.lookup(|| self.innermost(address))
    }

    fn innermost(&self, address: u64) -> Option<Names> {
        // addr2line adds one to the address, and no code is at the last one.
        address.checked_add(1)?;
        let mut frames = self.context.find_frames(address).skip_all_loads().ok()?;
        let (mut own, mut outermost) = (None, None);
        for _ in 0..MAX_FRAMES {
            let Ok(Some(frame)) = frames.next() else {
                break;
            };
            let is_rust = frame.function.as_ref().and_then(|f| f.language) == Some(DW_LANG_Rust);
            let name = frame.function.and_then(|f| Some(f.raw_name().ok()?.into_owned()));
            // Behind the program's own code only a door to the allocator is of interest.
            if own.is_some() && !name.as_deref().is_some_and(|name| name.contains("__r")) {
                continue;
            }
            let function = name.map(|name| demangle_within(&name, &self.budget));
            let location = frame.location;
            let source = location
                .and_then(|l| Some((l.file?.to_owned(), l.line.unwrap_or(0))))
                // Line 0 stands for an address without a line.
                .filter(|(_, line)| *line != 0);
            let file = source.as_ref().map_or("", |(file, _)| file.as_str());
            let is_library = is_library(function.as_deref().unwrap_or(""), file);
            let is_door = function.as_deref().is_some_and(is_allocator_door);
            let found = Names { function, source };
            match () {
                // The allocator of the program has its own names and files.
                () if is_door => (own, outermost) = (None, Some(found)),
                () if is_library => outermost = Some(found),
                () if !is_rust => return Some(found),
                () => own = own.or(Some(found)),
            }
        }
        own.or(outermost)
    }
}

/// A parsed file, and the bytes that it was parsed from.
struct ObjectOf<'a>(Object<'a>, &'a Bytes);

impl<'a> ObjectOf<'a> {
    fn parse(bytes: &'a Bytes) -> Option<Self> {
        Some(Self(object::File::parse(bytes).ok()?, bytes))
    }
}

/// Bytes of one section; empty when it is absent or broken.
///
/// # Errors
///
/// Any error when the section does not fit in the budget.
fn section(
    file: &ObjectOf<'_>,
    id: SectionId,
    meter: &Rc<Meter>,
    budget: &Budget,
) -> Result<Metered, gimli::Error> {
    let found = file.0.section_by_name(id.name());
    let data = match found.and_then(|s| Some((s.compressed_file_range().ok()?, s))) {
        None => Ok(None),
        Some((range, _)) if range.format == CompressionFormat::None => {
            file.1.copy(range.offset, range.uncompressed_size)
        }
        Some((range, section)) => expanded(&section, range.uncompressed_size, budget),
    };
    let data = data.map_err(|_| gimli::Error::Io)?;
    let little = file.0.is_little_endian();
    let endian = if little { RunTimeEndian::Little } else { RunTimeEndian::Big };
    Ok(Metered::new(data.unwrap_or_default(), endian, meter))
}

/// Expands a compressed section to `size` bytes. None when it is broken.
fn expanded<'a>(
    section: &object::Section<'a, '_, &'a Bytes>,
    size: u64,
    budget: &Budget,
) -> Result<Option<Rc<[u8]>>, OverBudget> {
    // The expanded bytes, and a copy of them that is kept.
    budget.copy(size)?;
    budget.copy(size)?;
    let data = section.compressed_data().ok().and_then(|packed| expand(&packed));
    budget.give_back(size);
    Ok(data.map(Rc::from))
}

/// Expands as many bytes as there are. The size that a file states may be wrong, so memory grows
/// with the bytes and not with that size. None when they do not have it.
fn expand(packed: &CompressedData<'_>) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match packed.format {
        CompressionFormat::Zlib => {
            let source = flate2::read::ZlibDecoder::new(packed.data);
            source.take(packed.uncompressed_size).read_to_end(&mut out).ok()?;
        }
        CompressionFormat::Zstandard => {
            let source = zstd::stream::read::Decoder::with_buffer(packed.data).ok()?;
            source.take(packed.uncompressed_size).read_to_end(&mut out).ok()?;
        }
        _ => return None,
    }
    (out.len() as u64 == packed.uncompressed_size).then_some(out)
}

/// Demangles a name, or returns it as it is when the budget has no room for that.
fn demangle_within(name: &str, budget: &Budget) -> String {
    match budget.work(name.len() as u64 * DEMANGLE_STEPS * STEP) {
        Ok(()) => demangle(name),
        Err(_) => name.chars().take(MAX_DEMANGLED).collect(),
    }
}

#[derive(Default)]
struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.0.len() + text.len() > MAX_DEMANGLED {
            return Err(fmt::Error);
        }
        self.0.push_str(text);
        Ok(())
    }
}

/// Demangles a name of Rust or C++, without parameters, return type and hash. Returns the name
/// itself when it is not mangled or makes no sense.
fn demangle(name: &str) -> String {
    if name.len() > MAX_MANGLED {
        return name.chars().take(64).chain("...".chars()).collect();
    }
    let mut out = Bounded::default();
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        if write!(out, "{rust:#}").is_ok() {
            return out.0;
        }
        return name.to_owned();
    }
    if name.starts_with("_Z") || name.starts_with("___Z") {
        let options = DemangleOptions::new().no_params().no_return_type();
        if let Ok(symbol) = cpp_demangle::Symbol::new(name)
            && symbol.structured_demangle(&mut out, &options).is_ok()
        {
            return out.0;
        }
    }
    name.to_owned()
}

/// Prefixes of demangled names of library code, template arguments and all.
const LIBRARY_NAMES: &[&str] = &[
    // C++
    "std::",
    "__gnu_cxx::",
    "__cxxabiv1::",
    "operator new",
    "boost::container::",
    "boost::intrusive",
    // V8, where it maps memory for its heaps
    "v8::base::BoundedPageAllocator::",
    "v8::base::OS::",
    "v8::base::PageAllocator::",
    "v8::internal::AlignedAllocWithRetry",
    "v8::internal::AllocWithRetry",
    "v8::internal::AllocatePages",
    "v8::internal::MemoryAllocator::",
    "v8::internal::VirtualMemory::",
    // GCC, where it allocates trees and grows vectors
    "ggc_alloc",
    "ggc_cleared_alloc",
    "ggc_internal_alloc",
    "ggc_internal_cleared_alloc",
    "ggc_realloc",
    "ggc_splay_alloc",
    "va_gc::reserve",
    "va_heap::reserve",
    // Rust
    "alloc::",
    "core::",
    "hashbrown::",
    "indexmap::",
    "kmem_core::",
    "smallvec::",
];

/// Prefixes of names of functions by which Rust code calls its global allocator.
const ALLOCATOR_DOORS: &[&str] =
    &["__rdl_", "__rg_", "__rust_alloc", "__rust_realloc", "__rustc::", "__rustc["];

/// Part of the name of an allocator's methods, which an allocator of the program has, too.
const GLOBAL_ALLOCATOR: &str = " as core::alloc::global::GlobalAlloc>::";

/// Functions that only allocate. They show up as frames when they are inlined wrappers.
const ALLOCATORS: &[&str] =
    &["malloc", "calloc", "realloc", "reallocarray", "memalign", "aligned_alloc", "posix_memalign"];

/// Parts of source paths that hold library code only.
const LIBRARY_PATHS: &[&str] = &[
    "/include/c++/",
    "/lib/rustlib/src/rust/library/",
    "/hashbrown-",
    "/kmem-core-",
    "/kmem-core/src/",
];

/// True for the functions, and source files, of a language's own library.
pub(super) fn is_library(function: &str, file: &str) -> bool {
    is_library_name(function)
        || is_wrapper(function.as_bytes())
        || LIBRARY_PATHS.iter().any(|part| file.contains(part))
        // Paths of the toolchain's own build: /rustc/<hash>/library/..
        || file.starts_with("/rustc/") && file.contains("/library/")
}

/// True for modules that hold library code only.
pub(super) fn is_library_module(module: &str) -> bool {
    is_wrapper_object(module.as_bytes())
}

/// True for the functions between Rust code and its global allocator.
fn is_allocator_door(function: &str) -> bool {
    ALLOCATOR_DOORS.iter().any(|prefix| function.starts_with(prefix))
}

fn is_library_name(function: &str) -> bool {
    let is_library = |name: &str| LIBRARY_NAMES.iter().any(|prefix| name.starts_with(prefix));
    if is_allocator_door(function) || function.contains(GLOBAL_ALLOCATOR) {
        return true;
    }
    // The type decides for `<alloc::vec::Vec<T> as ..>::f`, `<&mut alloc::..>` and
    // `<[T] as alloc::..>`; the trait decides for a blanket implementation.
    let Some(inner) = function.strip_prefix('<') else {
        return is_library(function) || ALLOCATORS.contains(&function);
    };
    let inner = inner.trim_start_matches(['&', '*', '[', '(', '<']);
    let inner = inner.strip_prefix("mut ").unwrap_or(inner);
    let inner = inner.strip_prefix("const ").unwrap_or(inner);
    // `<T as alloc::string::ToString>`: a generic or primitive type, and a library's trait.
    let is_blanket =
        inner.split_once(" as ").is_some_and(|(of, by)| is_library(by) && !of.contains("::"));
    is_library(inner) || is_blanket
}
