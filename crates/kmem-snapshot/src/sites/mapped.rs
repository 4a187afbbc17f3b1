//! Rows of mapped memory: by call site, or by what it is.

use std::collections::HashMap;

use super::{Chain, Origin, Site, Tag};
use crate::books::{MappingOwner, MappingRow, SiteRow};
use crate::notes::Note;
use crate::symbols::{Place, Symbols};

/// A tag that no site has. It stands for a return address that has no tag.
const NO_TAG: u32 = u32::MAX;

/// Mapped memory without a call site.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mapped {
    /// Anonymous memory that the program did not map through the C library.
    Anonymous,
    /// The stack of the first thread.
    Stack,
    /// Stacks of other threads.
    ThreadStacks,
    /// A program or a library, by path: its code and its variables.
    Code(String),
    /// Another file, or shared memory with a name, by path.
    File(String),
}

impl Mapped {
    /// Name of the memory in a table and in allocinfo text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous_mappings",
            Self::Stack => "stack",
            Self::ThreadStacks => "thread_stacks",
            Self::Code(_) => "code",
            Self::File(_) => "mapped_file",
        }
    }

    /// Path of the file.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match self {
            Self::Code(path) | Self::File(path) => Some(path),
            Self::Anonymous | Self::Stack | Self::ThreadStacks => None,
        }
    }

    /// The memory without a path that has this name.
    pub(crate) fn without_path(name: &str) -> Option<Self> {
        [Self::Anonymous, Self::Stack, Self::ThreadStacks].into_iter().find(|of| of.name() == name)
    }

    /// The file or the code with this path, by its name.
    pub(crate) fn with_path(name: &str, path: String) -> Option<Self> {
        [Self::Code, Self::File].map(|of| of(path.clone())).into_iter().find(|of| of.name() == name)
    }

    /// Kind of the row in JSON.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Stack | Self::ThreadStacks => "stack",
            Self::Code(_) => "code",
            Self::File(_) => "file",
        }
    }

    /// The tag of an allocinfo line.
    pub(super) fn tag(&self) -> Tag {
        let path = self.path();
        let base = |path: &str| path.rsplit('/').next().unwrap_or(path).to_owned();
        Tag {
            file: path.unwrap_or("kmem").to_owned(),
            line: 0,
            module: path.filter(|path| !path.starts_with('[')).map(base),
            function: self.name().to_owned(),
        }
    }
}

/// Size of the smallest arena of Python: of 3.9 and before.
const ARENA: u64 = 256 << 10;
/// Size of a part of the stack for frames, which Python takes from the same function.
const CHUNK: u64 = 16 << 10;

/// Name of the arenas of Python's own allocator.
const ARENAS: &str = "(pymalloc arenas)";

/// Name of memory that the runtime of a language maps for the objects of a program, by the call
/// that maps it and the size. None for all other calls.
///
/// A call of libjvm.so is known by the module alone: the library's symbols are in a file of their
/// own. The function by which Python maps its arenas is not exported, and is nameless in a stripped
/// Python. A program of Go that calls C maps memory by `x_cgo_mmap`.
fn heap_of_runtime(place: &Place, row: &MappingRow) -> Option<&'static str> {
    let function = place.function.as_deref().unwrap_or_default();
    let base = place.module.strip_prefix("lib").unwrap_or(&place.module);
    let fits_arenas = row.mapped >= ARENA && row.mapped.is_multiple_of(CHUNK);
    if place.module == "libjvm.so" {
        Some("(JVM heap)")
    } else if function.starts_with("v8::") {
        Some("(V8 heap)")
    } else if function == "x_cgo_mmap" || function.starts_with("runtime.") {
        Some("(Go heap)")
    } else if function.is_empty() && base.starts_with("python3") && fits_arenas {
        Some(ARENAS)
    } else {
        None
    }
}

/// Functions of a Python with symbols that map its arenas.
const ARENA_FUNCTIONS: [&str; 2] = ["_PyObject_ArenaMmap", "_PyMem_ArenaAlloc"];
/// Arenas are worth a note if they are one in this many parts of the memory.
const LARGE: i64 = 8;

/// A note on the arenas of a Python, if they are a large part of these rows. Memory that no call of
/// the program mapped does not count.
pub fn large_arenas<'a>(sites: impl IntoIterator<Item = &'a Site>) -> Option<Note> {
    let (mut arenas, mut all) = (0_i64, 0_i64);
    for site in sites.into_iter().filter(|site| !matches!(site.origin, Origin::Mapped(_))) {
        all = all.saturating_add(site.bytes);
        let function = site.origin.function();
        let is_arena = function == ARENAS || ARENA_FUNCTIONS.contains(&function);
        if site.mapped.is_some() && is_arena {
            arenas = arenas.saturating_add(site.bytes);
        }
    }
    (arenas != 0 && arenas >= all / LARGE).then(|| Note::Arenas(arenas.unsigned_abs()))
}

/// Names rows of mapped memory, keeps those with a wanted origin, and merges those of one place.
pub fn resolve_mappings<'a>(
    rows: impl IntoIterator<Item = &'a MappingRow>,
    symbols: &mut Symbols<'_>,
    wanted: impl Fn(&Origin) -> bool,
) -> Vec<Site> {
    let mut sites: Vec<Site> = Vec::new();
    let mut known = HashMap::new();
    for row in rows {
        let bytes = i64::try_from(row.resident).unwrap_or(i64::MAX);
        let plain = |mapped| (Origin::Mapped(mapped), Vec::new(), NO_TAG);
        let (origin, frames, tag) = match &row.owner {
            MappingOwner::Tag(_) | MappingOwner::Address(_) => {
                let tag = if let MappingOwner::Tag(tag) = row.owner { tag } else { NO_TAG };
                let site = SiteRow { tag, key: row.key.clone(), bytes, calls: row.count };
                let (mut origin, frames) = Origin::resolve(&site, symbols);
                if let Origin::Place(place) = &mut origin
                    && let Some(name) = heap_of_runtime(place, row)
                {
                    // A function of the runtime says which part of the heap it is.
                    place.function = Some(match &place.function {
                        Some(function) => format!("{name} {function}"),
                        None => name.to_owned(),
                    });
                }
                (origin, frames, tag)
            }
            MappingOwner::Anonymous => plain(Mapped::Anonymous),
            MappingOwner::Stack => plain(Mapped::Stack),
            MappingOwner::ThreadStack => plain(Mapped::ThreadStacks),
            MappingOwner::Code(path) => plain(Mapped::Code(path.clone())),
            MappingOwner::File(path) => plain(Mapped::File(path.clone())),
        };
        if !wanted(&origin) {
            continue;
        }
        let at = *known.entry(origin.key()).or_insert(sites.len());
        if at == sites.len() {
            sites.push(Site { mapped: Some(0), ..Site::new(origin) });
        }
        let site = &mut sites[at];
        site.bytes = site.bytes.saturating_add(bytes);
        site.calls = site.calls.saturating_add(row.count);
        site.mapped = Some(site.mapped.unwrap_or(0).saturating_add(row.mapped));
        if tag != NO_TAG {
            site.tags.push(tag);
        }
        if !frames.is_empty() {
            site.chains.push(Chain { tag, bytes, calls: row.count, frames });
        }
    }
    sites
}
