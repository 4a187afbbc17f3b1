//! The place of libkmem.so, and the environment that loads it.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kmem_snapshot::program::{ElfProgram, Program};

use super::embedded;
use crate::failure::Failure;

const FILE: &str = "libkmem.so";

/// Finds libkmem.so and reads its header. The library is at the `given` path, at `KMEM_LIBRARY`,
/// beside this program, under its prefix, or inside it.
///
/// # Errors
///
/// [`Failure::Trouble`] when there is no library, or it cannot be preloaded from its path.
pub(crate) fn find(given: Option<&Path>) -> Result<(PathBuf, ElfProgram), Failure> {
    let named = given
        .map(|path| ("--library", path.to_owned()))
        .or_else(|| env::var_os("KMEM_LIBRARY").map(|path| ("KMEM_LIBRARY", path.into())));
    let path = match named {
        Some((_, path)) if path.is_file() => path,
        Some((by, path)) => {
            return Err(Failure::Trouble(format!(
                "{by}: no library at {}; `kmem library` prints the path of one",
                path.display()
            )));
        }
        None => {
            let places = places();
            let found = places.iter().find(|path| path.is_file()).cloned();
            let inside = || {
                embedded::file().map_err(|error| {
                Failure::Trouble(format!(
                    "cannot make a file of the {FILE} inside this program: {error}. Name one with \
                     --library or KMEM_LIBRARY"
                ))
            })
            };
            found.map_or_else(inside, |path| Ok(Some(path)))?.ok_or_else(|| {
                let list: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
                Failure::Trouble(format!(
                    "{FILE} not found; looked at {}. Name it with --library or KMEM_LIBRARY",
                    list.join(", ")
                ))
            })?
        }
    };
    let path = path.canonicalize().unwrap_or(path);
    // The dynamic loader splits LD_PRELOAD at these, without a way to quote them.
    if path.to_string_lossy().contains([' ', ':']) {
        return Err(Failure::Trouble(format!(
            "{}: LD_PRELOAD cannot hold a path with a space or colon in it; copy {FILE} elsewhere \
             and name it with --library",
            path.display()
        )));
    }
    match Program::read(&path) {
        Ok(Program::Elf(elf)) => Ok((path, elf)),
        Ok(_) => Err(Failure::Trouble(format!(
            "{}: not an ELF file; `kmem library` prints the path of the library",
            path.display()
        ))),
        Err(e) => Err(Failure::Trouble(format!("{}: {e}", path.display()))),
    }
}

fn places() -> Vec<PathBuf> {
    let exe = env::current_exe().unwrap_or_default();
    let dir = exe.parent().unwrap_or(Path::new("."));
    // cargo builds it into `deps`, and does not always link it beside the command.
    ["deps", "", "../lib", "../lib/kmem"].iter().map(|place| dir.join(place).join(FILE)).collect()
}

/// Value of LD_PRELOAD: the library, then the libraries that are in it already.
pub(crate) fn preload(library: &Path) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = env::var_os("LD_PRELOAD").filter(|v| !v.is_empty()) {
        value.push(" ");
        value.push(before);
    }
    value
}
