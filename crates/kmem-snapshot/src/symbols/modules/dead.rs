//! Modules of a process that has ended: the files of the same names on this machine, if they
//! are still the same files.

use std::fs::File;
use std::io::Cursor;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::super::debug_file::open_regular;
use super::super::elf::ReadSeek;
use super::{MAX_IMAGE, build_id_in};
use crate::core_file::CoreFile;
use crate::process::Mapping;

/// Opens `path`, the file of a mapping in a core.
pub(super) fn source_of(
    core: &CoreFile,
    mapping: &Mapping,
    path: &Path,
    mismatches: &mut Vec<String>,
) -> Option<Box<dyn ReadSeek>> {
    if mapping.path == "[vdso]" {
        let len = mapping.end - mapping.start;
        let mut image = vec![0; usize::try_from(len).ok().filter(|_| len <= MAX_IMAGE)?];
        core.memory().read(mapping.start, &mut image).ok()?;
        return Some(Box::new(Cursor::new(image)));
    }
    if !mapping.is_file() {
        return None;
    }
    let Some(file) = open_regular(path) else {
        mismatches.push(format!("{}: cannot be opened here; no names from it", path.display()));
        return None;
    };
    if let Err(what) = same_file(core, mapping, &file) {
        mismatches.push(format!("{}: {what}; no names from it", path.display()));
        return None;
    }
    Some(Box::new(file))
}

/// Opens the file of a mapping of which nothing but the line in the maps is known, or `other`
/// in its place, which is not questioned.
pub(super) fn source_by_name(
    mapping: &Mapping,
    other: Option<&Path>,
    mismatches: &mut Vec<String>,
) -> Option<Box<dyn ReadSeek>> {
    if !mapping.is_file() {
        return None;
    }
    let path = other.unwrap_or(Path::new(&mapping.path));
    let Some(file) = open_regular(path) else {
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

/// Compares the first page of a module in the core with that of a file: the build-id, or else
/// all of it. What was not dumped cannot be compared, and is taken to be the same.
fn same_file(core: &CoreFile, mapping: &Mapping, file: &File) -> Result<(), String> {
    let mut maps = core.maps().all().iter();
    let Some(first) = maps.find(|m| m.path == mapping.path && m.offset == 0) else {
        return Ok(());
    };
    let mut mapped = [0; 4096];
    if core.memory().read(first.start, &mut mapped).is_err() {
        return Ok(());
    }
    let mut here = [0; 4096];
    // A file shorter than a page is mapped with zeroes behind it.
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

fn text(id: Option<&[u8]>) -> String {
    let id = id.map(|id| id.iter().map(|b| format!("{b:02x}")).collect::<String>());
    id.unwrap_or_else(|| "none".to_owned())
}
