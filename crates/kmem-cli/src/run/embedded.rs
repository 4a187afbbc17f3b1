//! The library inside the command. `cargo install` installs programs only, so the command of a
//! release has a copy of libkmem.so. The copy becomes a file where no library lies beside the
//! command, because the dynamic loader wants a path.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::PathBuf;
use std::process;

// Only an assembler reads the file. So `cargo check` works before the library is built.
#[cfg(not(debug_assertions))]
core::arch::global_asm!(
    ".pushsection .rodata.kmem_library, \"a\", %progbits",
    ".hidden kmem_library",
    ".globl kmem_library",
    "kmem_library:",
    concat!(".incbin \"", env!("KMEM_BUILT"), "\""),
    ".hidden kmem_library_end",
    ".globl kmem_library_end",
    "kmem_library_end:",
    ".popsection",
    options(raw),
);

/// The bytes of the library; none in a debug build.
fn bytes() -> &'static [u8] {
    #[cfg(not(debug_assertions))]
    {
        unsafe extern "C" {
            safe static kmem_library: u8;
            safe static kmem_library_end: u8;
        }
        let (start, end) = (&raw const kmem_library, &raw const kmem_library_end);
        // SAFETY: both symbols are in one section, the second behind the bytes of the first.
        unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
    }
    #[cfg(debug_assertions)]
    &[]
}

/// Path of the library as a file of the user's cache, which is written if it is not there. `None`:
/// this command has no library inside.
///
/// # Errors
///
/// The errors of writing the file; `NotFound` when the user has no cache directory.
pub(super) fn file() -> io::Result<Option<PathBuf>> {
    let library = bytes();
    if library.is_empty() {
        return Ok(None);
    }
    let no_cache = || io::Error::new(io::ErrorKind::NotFound, "HOME is not set");
    let directory = cache().ok_or_else(no_cache)?.join("kmem");
    let mut hasher = DefaultHasher::new();
    library.hash(&mut hasher);
    let path = directory.join(format!("libkmem-{:016x}.so", hasher.finish()));
    if fs::read(&path).is_ok_and(|found| found == library) {
        return Ok(Some(path));
    }
    fs::create_dir_all(&directory)?;
    // Another `kmem` may start a program with the file at the same time.
    let beside = path.with_extension(format!("{}.tmp", process::id()));
    fs::write(&beside, library)?;
    fs::rename(&beside, &path)?;
    Ok(Some(path))
}

/// The user's directory for caches (XDG Base Directory Specification).
fn cache() -> Option<PathBuf> {
    let absolute = |name| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}
