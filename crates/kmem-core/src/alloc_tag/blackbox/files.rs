//! The files that have code: the first page of each. By it, a reader knows the file again that the
//! process had. By the build id in it, it finds the names of one that is gone.

use super::{BlackBox, FILE, PAGE};
use crate::os::Platform;
use crate::os::mappings::{self, Mapping};
use core::mem::offset_of;
use kmem_layout::blackbox::{BOX_FILES, BOX_PAGE, BoxFile, BoxHeader};

const _: () = assert!(BOX_PAGE == PAGE, "a first page is a page");

impl BlackBox {
    /// Writes the first pages of files with code, by the text of the mappings, each once. `noted`
    /// are those in the box. A record is complete without them, so no failure is told. Older
    /// records may have another file at an address, so no entry is overwritten.
    #[inline(never)]
    pub(super) fn note_files(
        &self,
        platform: &impl Platform,
        maps: &[u8],
        noted: &mut [BoxFile; BOX_FILES],
    ) {
        let pages = FILE.files + BoxHeader::file_entries(BOX_FILES as u32);
        each_with_code(maps, |file| {
            let known = noted.iter().position(|other| *other == file || other.start == 0);
            let Some((nth, place)) = known.and_then(|nth| Some((nth, noted.get_mut(nth)?))) else {
                return;
            };
            if *place == file {
                return;
            }
            let entry = FILE.files + nth * size_of::<BoxFile>();
            let write = |field: usize, word: u64| {
                platform.write_file(&self.file, entry + field, &word.to_le_bytes())
            };
            let (page, from) = (pages + nth * BOX_PAGE, file.start as usize);
            // A reader that sees the address sees the page.
            if platform.copy_to_file(&self.file, page, from, BOX_PAGE)
                && write(offset_of!(BoxFile, inode), file.inode)
                && write(offset_of!(BoxFile, start), file.start)
            {
                *place = file;
            }
        });
    }
}

/// Calls `work` with each file that has code in a later mapping than that of its first page.
fn each_with_code(maps: &[u8], mut work: impl FnMut(BoxFile)) {
    let mut last = BoxFile::default();
    for Mapping { range, is_code, offset, inode, .. } in mappings::lines(maps) {
        if offset == 0 {
            last = BoxFile { start: range.start as u64, inode: inode as u64 };
        }
        if is_code && inode != 0 && inode as u64 == last.inode {
            work(last);
            last = BoxFile::default();
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn files_with_code_are_told_once_by_their_first_page() {
        let maps = b"1000-2000 r--p 00000000 08:01 42 /bin/a\n\
            2000-3000 r-xp 00001000 08:01 42 /bin/a\n\
            3000-4000 r-xp 00002000 08:01 42 /bin/a\n\
            4000-5000 r--p 00000000 08:01 43 /data\n\
            5000-6000 r-xp 00000000 00:00 0 \n\
            6000-7000 r-xp 00000000 08:01 44 /lib/one segment\n\
            7000-8000 r-xp 00001000 08:01 45 /lib/without a first page\n";
        let mut files = Vec::new();
        each_with_code(maps, |file| files.push((file.start, file.inode)));
        assert_eq!(files, [(0x1000, 42), (0x6000, 44)]);
    }
}
