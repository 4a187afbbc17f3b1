//! Modules of a process that has ended: files on this machine with the paths of its mappings,
//! checked to be the files that it mapped.

use std::fs::File;
use std::io::Cursor;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::Mismatches;
use super::build_id::hex;
use super::bytes::ReadSeek;
use super::debug_file;
use super::elf::{self, build_id_in};
use crate::core_file::CoreFile;
use crate::maps::Mapping;
use crate::memory::Memory;

/// Mappings that are looked at below a mapping, for the first page of its file.
const MAX_PARTS: usize = 256;

/// Opens `path`, the file of a mapping in a core. Adds a sentence to `mismatches` when the file is
/// absent, or not the mapped one.
pub(super) fn source_of(
    core: &CoreFile,
    mapping: &Mapping,
    path: &Path,
    mismatches: &mut Mismatches,
) -> Option<Box<dyn ReadSeek>> {
    if mapping.path == "[vdso]" {
        return elf::copy_image(&Memory::Core(core.memory().clone()), mapping);
    }
    if !mapping.is_file() {
        return None;
    }
    let what = match debug_file::open(path, 0) {
        None => "cannot be opened here".to_owned(),
        Some(file) => match same_file(core, mapping, &file) {
            Ok(()) => return Some(Box::new(file)),
            Err(what) => what,
        },
    };
    mismatches.push(format!("{}: {what}; no names from it", path.display()));
    headers_in(core, mapping)
}

/// The headers of a module as a file without sections, which has no names. It tells the build id
/// and the addresses of the module's parts, so that a debug file can name them later.
fn headers_in(core: &CoreFile, mapping: &Mapping) -> Option<Box<dyn ReadSeek>> {
    let mut page = first_page(core, mapping)?;
    // e_shoff, e_shnum and e_shstrndx of a 64-bit file.
    page[40..48].fill(0);
    page[60..64].fill(0);
    Some(Box::new(Cursor::new(page)))
}

/// Opens the file of a mapping of which only the line in `maps` is known, or `other` in its place.
/// Adds a sentence to `mismatches` when the file is absent, or may not be the mapped one; `other`
/// is taken as it is.
pub(super) fn source_by_name(
    mapping: &Mapping,
    other: Option<&Path>,
    mismatches: &mut Mismatches,
) -> Option<Box<dyn ReadSeek>> {
    if !mapping.is_file() {
        return None;
    }
    let path = other.unwrap_or(Path::new(&mapping.path));
    let Some(file) = debug_file::open(path, 0) else {
        mismatches.push(format!("{}: cannot be opened here; no names from it", path.display()));
        return None;
    };
    let inode = file.metadata().map_or(0, |m| m.ino());
    if other.is_none() && (mapping.deleted || inode != mapping.inode) {
        mismatches.push(format!(
            "{}: may not be the file that the process ran (inode {inode}, then {}); names from it \
             may be wrong",
            path.display(),
            mapping.inode
        ));
    }
    Some(Box::new(file))
}

/// Compares the first page of a module in the core with that of a file: its build-id, or all of it
/// where there is none. A page that was not dumped counts as equal.
fn same_file(core: &CoreFile, mapping: &Mapping, file: &File) -> Result<(), String> {
    let Some(mapped) = first_page(core, mapping) else { return Ok(()) };
    let mut here = [0; 4096];
    // The kernel maps a file shorter than a page with zeroes behind it.
    let read = file.read_at(&mut here, 0);
    let (in_core, on_disk) = (build_id_in(&mapped), build_id_in(&here));
    let same = match (&in_core, &on_disk) {
        (None, None) => read.is_ok() && mapped == here,
        (in_core, on_disk) => in_core == on_disk,
    };
    if same {
        return Ok(());
    }
    Err(format!(
        "not the file that the process ran (build-id {}, in the core {})",
        text(on_disk.as_deref()),
        text(in_core.as_deref())
    ))
}

/// The first page of a mapping's file, if it was dumped.
fn first_page(core: &CoreFile, mapping: &Mapping) -> Option<[u8; 4096]> {
    // It is mapped near the other pages, and below them.
    let below = core.maps().all();
    let below = &below[..below.partition_point(|m| m.start <= mapping.start)];
    let mut near = below.iter().rev().take(MAX_PARTS);
    let first = near.find(|m| m.path == mapping.path && m.offset == 0)?;
    let mut page = [0; 4096];
    core.memory().read(first.start, &mut page).ok()?;
    Some(page)
}

fn text(id: Option<&[u8]>) -> String {
    id.map_or_else(|| "none".to_owned(), hex)
}
