//! The allocators of the table, and the ways to call them.
//!
//! | allocator                                      | implementation                            |
//! |------------------------------------------------|-------------------------------------------|
//! | `kmem`, `kmem-never`                           | compiled in, with and without books       |
//! | `kmem-thread`                                  | libkmem.so with its background thread     |
//! | `kmem-thp:never` and others                    | libkmem.so with that option               |
//! | `jemalloc`, `mimalloc`, `rpmalloc`, `snmalloc` | compiled in, under prefixed names         |
//! | `tcmalloc`                                     | the distribution's gperftools, in a child |
//! | `glibc`                                        | the C library of this process             |
//!
//! Before the measurement, the objects that contain the two functions are compared with the
//! expected one.

pub(crate) mod compiled_in;

use crate::Failure;
use crate::dynamic::{Library, object_of, same_file};
use crate::heap::{FreeFn, Heap, MallocFn};
use crate::preload::{INSTALL, libkmem, system_library};
use std::ffi::c_void;
use std::mem::transmute;
use std::path::{Path, PathBuf};

/// A column of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Allocator {
    /// kmem with books.
    Kmem,
    /// kmem without books.
    KmemNever,
    /// kmem with its background thread, for programs that become idle.
    KmemThread,
    /// kmem without huge pages.
    KmemThpNever,
    /// kmem with huge pages where it uses its heap densely.
    KmemThpAuto,
    /// kmem with huge pages for all of its heap.
    KmemThpAlways,
    /// mimalloc 3.
    Mimalloc,
    /// jemalloc 5.3.
    Jemalloc,
    /// tcmalloc of gperftools.
    Tcmalloc,
    /// snmalloc.
    Snmalloc,
    /// rpmalloc.
    Rpmalloc,
    /// malloc of the C library.
    Glibc,
}

impl Allocator {
    /// Every allocator of the table of speed, in the order of the columns.
    pub(crate) const ALL: [Self; 8] = [
        Self::Kmem,
        Self::KmemNever,
        Self::Mimalloc,
        Self::Jemalloc,
        Self::Tcmalloc,
        Self::Snmalloc,
        Self::Rpmalloc,
        Self::Glibc,
    ];

    /// libkmem.so with options, for tables of its own.
    const PRELOADED: [Self; 4] =
        [Self::KmemThread, Self::KmemThpNever, Self::KmemThpAuto, Self::KmemThpAlways];

    /// The name in the rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kmem => "kmem",
            Self::KmemNever => "kmem-never",
            Self::KmemThread => "kmem-thread",
            Self::KmemThpNever => "kmem-thp:never",
            Self::KmemThpAuto => "kmem-thp:auto",
            Self::KmemThpAlways => "kmem-thp:always",
            Self::Mimalloc => "mimalloc",
            Self::Jemalloc => "jemalloc",
            Self::Tcmalloc => "tcmalloc",
            Self::Snmalloc => "snmalloc",
            Self::Rpmalloc => "rpmalloc",
            Self::Glibc => "glibc",
        }
    }

    /// The allocator called `name`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        let mut all = Self::ALL.into_iter().chain(Self::PRELOADED);
        all.find(|allocator| allocator.name() == name)
    }

    /// The allocator that an option names.
    pub(crate) fn wanted(name: &str) -> Result<Self, Failure> {
        Self::named(name).ok_or_else(|| Failure::Absent(format!("no allocator {name}")))
    }

    /// True if this is the project's own allocator.
    pub(crate) fn is_kmem(self) -> bool {
        matches!(self, Self::Kmem | Self::KmemNever) || Self::PRELOADED.contains(&self)
    }

    /// True if it must be measured in a process of its own.
    pub(crate) fn needs_child(self) -> bool {
        self == Self::Tcmalloc || Self::PRELOADED.contains(&self)
    }

    /// The configuration of kmem in a child.
    pub(crate) fn configuration(self) -> Option<&'static str> {
        match self {
            Self::KmemThread => Some("background_thread:1"),
            Self::KmemThpNever => Some("thp:never"),
            Self::KmemThpAuto => Some("thp:auto"),
            Self::KmemThpAlways => Some("thp:always"),
            _ => None,
        }
    }

    /// The library that a child must be started under.
    pub(crate) fn preload(self) -> Result<Option<PathBuf>, String> {
        if !self.needs_child() {
            return Ok(None);
        }
        if self.is_kmem() {
            return libkmem().map(Some).ok_or_else(|| "libkmem.so is not there".to_owned());
        }
        let found = TCMALLOC.iter().find_map(|soname| system_library(soname));
        found.map(Some).ok_or_else(|| format!("{} is not there; {INSTALL}", TCMALLOC[0]))
    }
}

/// Sonames of gperftools: without the profilers, then with them.
const TCMALLOC: [&str; 2] = ["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"];

/// An allocator that can be called in this process.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// Its two functions.
    pub(crate) heap: Heap,
    /// The object that contains both functions.
    pub(crate) object: PathBuf,
    /// Its version, if it states one.
    pub(crate) version: String,
}

/// Makes `allocator` callable in this process, and checks that it is the expected one.
pub(crate) fn load(allocator: Allocator) -> Result<Loaded, String> {
    match allocator {
        Allocator::Tcmalloc => {
            let (heap, object) = preloaded("libtcmalloc")?;
            let file = object.canonicalize().unwrap_or_else(|_| object.clone());
            Ok(Loaded { heap, version: format!("gperftools {}", file_name(&file)), object })
        }
        kmem if Allocator::PRELOADED.contains(&kmem) => {
            let (heap, object) = preloaded("libkmem.so")?;
            Ok(Loaded { heap, version: env!("CARGO_PKG_VERSION").to_owned(), object })
        }
        Allocator::Glibc => {
            let heap = functions(Library::loaded("libc.so.6")?)?;
            let version = crate::machine::glibc_version();
            let object = proven(&heap, |object| file_name(object).starts_with("libc.so"))?;
            Ok(Loaded { heap, object, version })
        }
        compiled => {
            let (heap, version) = compiled_in::heap(compiled)?;
            let program = std::env::current_exe().map_err(|error| error.to_string())?;
            let object = proven(&heap, |object| same_file(object, &program))?;
            Ok(Loaded { heap, object, version })
        }
    }
}

/// The malloc that was preloaded into this process, from an object of a name.
fn preloaded(name: &str) -> Result<(Heap, PathBuf), String> {
    let heap = functions(Library::process())?;
    let object = proven(&heap, |object| file_name(object).starts_with(name))?;
    Ok((heap, object))
}

fn functions(library: Library) -> Result<Heap, String> {
    let malloc = library.symbol(c"malloc")?;
    let free = library.symbol(c"free")?;
    // SAFETY: the C standard gives `malloc` this type.
    let malloc = unsafe { transmute::<*mut c_void, MallocFn>(malloc) };
    // SAFETY: the C standard gives `free` this type.
    let free = unsafe { transmute::<*mut c_void, FreeFn>(free) };
    // SAFETY: both are functions of one library, which stays loaded.
    Ok(unsafe { Heap::new(malloc, free) })
}

/// The object that contains both functions, if it is the `expected` one.
fn proven(heap: &Heap, expected: impl Fn(&Path) -> bool) -> Result<PathBuf, String> {
    let objects = heap.addresses().map(object_of);
    match objects {
        [Some(malloc), Some(free)] if malloc == free && expected(&malloc) => Ok(malloc),
        other => Err(format!("its functions lie elsewhere: {other:?}")),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::{Allocator, load};

    #[test]
    fn names_are_a_bijection() {
        for allocator in Allocator::ALL {
            assert_eq!(Allocator::named(allocator.name()), Some(allocator));
        }
        assert_eq!(Allocator::named("none"), None);
    }

    #[test]
    fn glibc_is_glibc_and_not_mistaken_for_tcmalloc() {
        let loaded = load(Allocator::Glibc).unwrap();
        assert!(loaded.object.to_string_lossy().contains("libc.so"));
        assert!(load(Allocator::Tcmalloc).is_err());
    }

    /// Build scripts of rivals enable debug checks if the profile has `debug`, which would slow the
    /// rivals down.
    #[test]
    fn rivals_are_built_without_debug() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).unwrap();
        for rival in ["libmimalloc-sys", "rpmalloc-sys", "snmalloc-sys", "tikv-jemalloc-sys"] {
            let section = format!("[profile.release.package.{rival}]");
            let (_, rest) = manifest.split_once(&section).unwrap_or_else(|| panic!("{section}"));
            let section = rest.split("\n[").next().unwrap();
            assert!(section.contains("debug = false"), "{rival}: {section}");
        }
    }
}
