//! Names in files that are known by their build ids, where no process maps them.

use std::iter;
use std::path::{Path, PathBuf};

use super::build_id::hex;
use super::bytes::Bytes;
use super::debug_file::{self, DEBUG_DIR, SearchPath, build_id_path, has_build_id};
use super::elf::{self, Elf};
use crate::budget::Budget;
use crate::program::base_name;

/// Longest build id, in bytes. That of SHA-1 has 20.
const MAX_ID: usize = 64;

/// Places to look for files with names.
pub struct DebugFiles<'a> {
    /// Directories like `/usr/lib/debug`, with `.build-id/ab/cdef.debug`; or like the cache of a
    /// debuginfod client, with `abcdef/debuginfo`.
    pub directories: &'a [PathBuf],
    /// Finds the file with the names of a build id, in lowercase hexadecimal digits, elsewhere.
    pub fetch: &'a mut dyn FnMut(&str) -> Option<PathBuf>,
}

impl DebugFiles<'_> {
    /// Opens the file with most names of a module: one with lines, or one with functions alone.
    /// `path` is that of the module on the machine where it ran.
    pub(crate) fn open(&mut self, path: &str, id: &str, budget: &Budget) -> Option<Elf> {
        let id = parse(id)?;
        let module = Path::new(path);
        let lines_tell = !elf::is_library_module(base_name(path));
        let open = |file: &Path| {
            let bytes = debug_file::open(file, 0)?;
            if !has_build_id(&Bytes::new(Box::new(bytes.try_clone().ok()?), budget), &id) {
                return None;
            }
            if !lines_tell {
                return Elf::without_lines(Box::new(bytes), budget);
            }
            let search = SearchPath { module: file, roots: &[PathBuf::from("/")] };
            Elf::parse(Box::new(bytes), &search, budget)
        };
        let (text, by_id) = (hex(&id), build_id_path(&id)?);
        let system = Path::new("/").join(DEBUG_DIR);
        let directories = self.directories.iter().chain(iter::once(&system));
        let files = directories.flat_map(|directory| {
            [directory.join(&by_id), directory.join(&text).join("debuginfo")]
        });
        let mut functions_alone = None;
        for file in files.chain(iter::once(module.to_owned())) {
            match open(&file) {
                Some(elf) if elf.has_lines() || !lines_tell => return Some(elf),
                Some(elf) => functions_alone = functions_alone.or(Some(elf)),
                None => {}
            }
        }
        (self.fetch)(&text).and_then(|file| open(&file)).or(functions_alone)
    }
}

/// Path of the debug file of a build id in hexadecimal digits, as debug packages install it.
pub(crate) fn debug_path(id: &str) -> Option<PathBuf> {
    Some(Path::new("/").join(DEBUG_DIR).join(build_id_path(&parse(id)?)?))
}

/// The bytes of a build id.
fn parse(id: &str) -> Option<Vec<u8>> {
    let digits = id.as_bytes();
    if digits.len() > 2 * MAX_ID || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_are_pairs_of_hexadecimal_digits() {
        assert_eq!(parse("00ffA0"), Some(vec![0, 255, 160]));
        for wrong in ["f", "zz", "+f", "../..", "ä0", &"00".repeat(65)] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
