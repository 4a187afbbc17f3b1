//! Modules of a process that runs: the files that it mapped.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::bytes::ReadSeek;
use super::debug_file;
use super::elf::{self, build_id_in};
use crate::maps::{Mapping, Maps};
use crate::memory::Memory;
use crate::process::{Process, open_regular};

/// Opens the file of a mapping of a live process.
pub(super) fn source_of(
    process: &Process,
    memory: &Memory,
    maps: &Maps,
    mapping: &Mapping,
) -> Option<Box<dyn ReadSeek>> {
    if mapping.path == "[vdso]" {
        return elf::copy_image(memory, mapping);
    }
    if !mapping.is_file() {
        return None;
    }
    // This is the mapped file itself, even if it has been deleted. Opening it needs privilege.
    let by_mapping = format!("map_files/{:x}-{:x}", mapping.start, mapping.end);
    if let Some(file) = debug_file::open(&process.path(&by_mapping), 0) {
        return Some(Box::new(file));
    }
    if mapping.deleted {
        return None;
    }
    let path = process.in_root(Path::new(&mapping.path));
    let (file, metadata) = open_regular(&path, libc::O_NOFOLLOW).ok()?;
    // Another inode number may mean that the file was replaced. Overlay file systems show other
    // numbers here, so the build-id decides.
    if metadata.ino() != mapping.inode && !same_build_id(memory, maps, mapping, &file) {
        return None;
    }
    Some(Box::new(file))
}

/// Compares the build-id in memory with that of the file.
fn same_build_id(memory: &Memory, maps: &Maps, mapping: &Mapping, file: &File) -> bool {
    let same_file = |m: &&Mapping| {
        (m.device, m.inode, &m.path) == (mapping.device, mapping.inode, &mapping.path)
    };
    let Some(first) = maps.all().iter().filter(same_file).find(|m| m.offset == 0) else {
        return false;
    };
    let mut mapped = [0; 4096];
    let mut on_disk = [0; 4096];
    memory.read(first.start, &mut mapped).is_ok()
        && file.read_exact_at(&mut on_disk, 0).is_ok()
        && build_id_in(&mapped).is_some_and(|id| build_id_in(&on_disk).as_deref() == Some(&*id))
}
