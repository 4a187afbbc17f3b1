//! The files that had code: the first page of each, by the address at which it was mapped, and the
//! inode number.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;

use kmem_layout::blackbox::{BOX_PAGE, BoxFile, BoxHeader};

use super::header::Header;
use crate::maps::Mapping;
use crate::memory::field;

/// First pages of mapped files.
pub(crate) struct FirstPages<'a> {
    file: &'a File,
    /// Offset of the pages.
    pages: Option<u64>,
    /// Number of the page of each file.
    known: BTreeMap<(u64, u64), u64>,
}

impl<'a> FirstPages<'a> {
    /// Reads the table. It is empty where it lies beyond the end of a file that was cut off.
    pub(super) fn read(file: &'a File, header: &Header) -> Self {
        let (at, capacity) = header.files;
        let mut table = vec![0; capacity as usize * size_of::<BoxFile>()];
        if at == 0 || file.read_exact_at(&mut table, at).is_err() {
            table.clear();
        }
        let file_of =
            |entry: &[u8]| (field!(entry, BoxFile.start: u64), field!(entry, BoxFile.inode: u64));
        let entries = table.chunks_exact(size_of::<BoxFile>()).map(file_of).zip(0..);
        let known = entries.filter(|((start, _), _)| *start != 0).collect();
        Self { file, pages: at.checked_add(BoxHeader::file_entries(capacity) as u64), known }
    }

    /// The first page of a file that is mapped so.
    pub(crate) fn get(&self, first: &Mapping) -> Option<[u8; BOX_PAGE]> {
        let nth = self.known.get(&(first.start, first.inode))?;
        let mut page = [0; BOX_PAGE];
        let at = self.pages?.checked_add(nth * BOX_PAGE as u64)?;
        self.file.read_exact_at(&mut page, at).ok().map(|()| page)
    }
}
