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
use crate::maps::{Mapping, Maps};
use crate::memory::Memory;

/// Mappings that are looked at below a mapping, for the first page of its file.
const MAX_PARTS: usize = 256;

/// The first page of a file, as a process had it.
type Page = [u8; 4096];

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
    let first = first_mapping(core.maps(), mapping);
    let dumped = first.and_then(|first| {
        let mut page = [0; 4096];
        core.memory().read(first.start, &mut page).ok().map(|()| page)
    });
    // A page that was not dumped counts as equal.
    match checked(path, dumped.as_ref(), mismatches)? {
        Ok(file) => Some(Box::new(file)),
        Err(headers) => Some(headers),
    }
}

/// Opens the file of a mapping in a black box, or `other` in its place. Its first page was `page`
/// if the box has it. Adds a sentence to `mismatches` when the file is absent, or is or may be
/// another one than the mapped one.
pub(super) fn source_in_box(
    mapping: &Mapping,
    page: Option<&Page>,
    other: Option<&Path>,
    mismatches: &mut Mismatches,
) -> Option<Box<dyn ReadSeek>> {
    if !mapping.is_file() {
        return None;
    }
    let path = other.unwrap_or(Path::new(&mapping.path));
    let file = match checked(path, page, mismatches)? {
        Ok(file) => file,
        Err(headers) => return Some(headers),
    };
    let has_id = page.is_some_and(|page| build_id_in(page).is_some());
    let inode = file.metadata().map_or(0, |m| m.ino());
    // The user vouches for the other file.
    if !has_id && other.is_none() && (mapping.deleted || inode != mapping.inode) {
        mismatches.push(format!(
            "{}: may not be the file that the process ran (inode {inode}, then {}); names from it \
             may be wrong",
            path.display(),
            mapping.inode
        ));
    }
    Some(Box::new(file))
}

fn open(path: &Path, mismatches: &mut Mismatches) -> Option<File> {
    let file = debug_file::open(path, 0);
    if file.is_none() {
        mismatches.push(format!("{}: cannot be opened here; no names from it", path.display()));
    }
    file
}

/// Opens a file whose first page was `page`, if that is known. Where it cannot be opened, or is
/// another one, there are the headers alone; none: the page is not known.
fn checked(
    path: &Path,
    page: Option<&Page>,
    mismatches: &mut Mismatches,
) -> Option<Result<File, Box<dyn ReadSeek>>> {
    let file = open(path, mismatches);
    let Some(page) = page else { return file.map(Ok) };
    let what = match file {
        None => return Some(Err(headers_of(page))),
        Some(file) => match same_file(page, &file) {
            Ok(()) => return Some(Ok(file)),
            Err(what) => what,
        },
    };
    mismatches.push(format!("{}: {what}; no names from it", path.display()));
    Some(Err(headers_of(page)))
}

/// The headers of a module as a file without sections, which has no names. It tells the build id
/// and the addresses of the module's parts, so that a debug file can name them later.
fn headers_of(page: &Page) -> Box<dyn ReadSeek> {
    Box::new(Cursor::new(without_sections(page)))
}

fn without_sections(page: &Page) -> Page {
    let mut page = *page;
    // e_shoff, e_shnum and e_shstrndx of a 64-bit file.
    page[40..48].fill(0);
    page[60..64].fill(0);
    page
}

/// Compares the first page of a module, as the process had it, with that of a file. Their build-ids
/// count, or all bytes where there is none.
fn same_file(mapped: &Page, file: &File) -> Result<(), String> {
    let mut here = [0; 4096];
    // The kernel maps a file shorter than a page with zeroes behind it.
    let read = file.read_at(&mut here, 0);
    let (before, on_disk) = (build_id_in(mapped), build_id_in(&here));
    let same = match (&before, &on_disk) {
        // A stripped file has other sections.
        (None, None) => read.is_ok() && without_sections(mapped) == without_sections(&here),
        (before, on_disk) => before == on_disk,
    };
    if same {
        return Ok(());
    }
    Err(format!(
        "not the file that the process ran (build-id {}, then {})",
        text(on_disk.as_deref()),
        text(before.as_deref())
    ))
}

/// The mapping with the first page of the file of a mapping.
pub(super) fn first_mapping<'a>(maps: &'a Maps, mapping: &Mapping) -> Option<&'a Mapping> {
    // It is near the other pages, and below them.
    let below = maps.all();
    let below = &below[..below.partition_point(|m| m.start <= mapping.start)];
    let mut near = below.iter().rev().take(MAX_PARTS);
    near.find(|m| m.path == mapping.path && m.offset == 0)
}

fn text(id: Option<&[u8]>) -> String {
    id.map_or_else(|| "none".to_owned(), hex)
}
