//! The columns: modes of kmem, glibc, and the libraries of the distribution.

use crate::Failure;
use crate::dynamic::{Library, object_of};
use crate::machine::Machine;
use crate::preload::{INSTALL, NO_LIBKMEM, libkmem, system_library};
use kmem_testing::Environment;
use kmem_testing::misuse::MODES;
use std::fs::read_dir;
use std::path::{Path, PathBuf};

/// A column.
#[derive(Debug, Clone)]
pub(super) struct Allocator {
    pub(super) name: String,
    /// The library that is preloaded; `None` for the C library.
    pub(super) preload: Option<PathBuf>,
    /// The library that has `malloc`.
    pub(super) library: PathBuf,
    /// Variables that set it up.
    pub(super) environment: Environment,
}

/// Name of the column of the C library.
pub(super) const GLIBC: &str = "glibc";
/// Start of the names of kmem's columns.
pub(super) const KMEM: &str = "kmem";

/// A rival: its name, where its library is, its environment, and advice if it is missing.
type Rival = (&'static str, fn() -> Option<PathBuf>, Environment, &'static str);

const NO_PACKAGE: &str = "Debian has no package of it";

const RIVALS: [Rival; 8] = [
    (
        "glibc-check",
        || system_library("libc_malloc_debug.so.0"),
        &[("GLIBC_TUNABLES", "glibc.malloc.check=3")],
        "the C library lacks libc_malloc_debug.so.0",
    ),
    ("jemalloc", || system_library("libjemalloc.so.2"), &[], INSTALL),
    ("mimalloc", || system_library("libmimalloc.so.2"), &[], INSTALL),
    ("mimalloc-secure", || system_library("libmimalloc-secure.so.2"), &[], NO_PACKAGE),
    ("tcmalloc", || system_library("libtcmalloc_minimal.so.4"), &[], INSTALL),
    ("tcmalloc-debug", || system_library("libtcmalloc_minimal_debug.so.4"), &[], INSTALL),
    ("scudo", scudo, &[], INSTALL),
    ("hardened_malloc", || system_library("libhardened_malloc.so"), &[], NO_PACKAGE),
];

/// The newest shared library of Scudo among those of the installed versions of LLVM.
fn scudo() -> Option<PathBuf> {
    newest(Path::new("/usr/lib"))
}

fn newest(directory: &Path) -> Option<PathBuf> {
    let file = format!("libclang_rt.scudo_standalone-{}.so", std::env::consts::ARCH);
    let entries = |path: &Path| read_dir(path).into_iter().flatten().flatten();
    let mut found: Vec<(u32, PathBuf)> = Vec::new();
    for entry in entries(directory) {
        let name = entry.file_name();
        let version = name.to_str().and_then(|name| name.strip_prefix("llvm-")?.parse().ok());
        let Some(version) = version else { continue };
        // The folder below is named by the full version or by its first number.
        for release in entries(&entry.path().join("lib/clang")) {
            let library = release.path().join("lib/linux").join(&file);
            if library.is_file() {
                found.push((version, library));
            }
        }
    }
    found.into_iter().max().map(|(_, library)| library)
}

/// The C library of this process, which is that of its children.
fn c_library() -> Result<PathBuf, Failure> {
    let function = Library::loaded("libc.so.6").and_then(|library| library.symbol(c"malloc"));
    let object = function.map(|function| object_of(function)).map_err(Failure::Failed)?;
    object.ok_or_else(|| Failure::Failed("malloc of the C library is in no object".to_owned()))
}

/// The allocators that are installed. Notes those that are missing.
pub(super) fn here(machine: &mut Machine) -> Result<Vec<Allocator>, Failure> {
    let kmem = libkmem().ok_or_else(|| Failure::Absent(format!("kmem: {NO_LIBKMEM}")))?;
    let glibc = c_library()?;
    let mut found =
        vec![Allocator { name: GLIBC.to_owned(), preload: None, library: glibc, environment: &[] }];
    for (name, library, environment, advice) in RIVALS {
        let Some(library) = library() else {
            machine.missing.insert(name.to_owned(), format!("not installed; {advice}"));
            continue;
        };
        let preload = Some(library.clone());
        found.push(Allocator { name: name.to_owned(), preload, library, environment });
    }
    for mode in MODES {
        found.push(Allocator {
            name: format!("{KMEM} {}", mode.name),
            preload: Some(kmem.clone()),
            library: kmem.clone(),
            environment: mode.environment,
        });
    }
    for allocator in &found {
        let library = allocator.library.canonicalize()?;
        machine.allocators.insert(allocator.name.clone(), library.display().to_string());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::{c_library, newest};
    use std::fs::{create_dir_all, write};

    #[test]
    fn the_newest_scudo_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        for version in ["llvm-9/lib/clang/9.0.1", "llvm-19/lib/clang/19", "llvm-20/lib/clang/20"] {
            let folder = directory.path().join(version).join("lib/linux");
            create_dir_all(&folder).unwrap();
            if !version.contains("20") {
                let arch = std::env::consts::ARCH;
                write(folder.join(format!("libclang_rt.scudo_standalone-{arch}.so")), "").unwrap();
            }
        }
        let found = newest(directory.path()).unwrap();
        assert!(found.to_string_lossy().contains("llvm-19/"), "{found:?}");
        assert_eq!(newest(&directory.path().join("none")), None);
    }

    #[test]
    fn the_c_library_is_libc() {
        assert!(c_library().unwrap().to_string_lossy().contains("libc.so"));
    }
}
